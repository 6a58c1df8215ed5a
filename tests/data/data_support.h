/*
 * data_support.h - what the tests of data/ share: configurations from a list of paths, text made
 * from a seed, pairs made from a list of ids.
 */
#ifndef MS_TEST_DATA_SUPPORT_H
#define MS_TEST_DATA_SUPPORT_H

#include "support/test_support.h"

#include "data/dataset.h"
#include "data/dataset_build.h"
#include "format/indexed.h"

#define FIXTURE(name) "tests/data/fixtures/" name
#define LIST_MAX 8

/* A section `data` with its list; entries point to the caller's paths. */
typedef struct test_config {
    ms_data_config data;
    ms_config_list train, valid;
    ms_config_entry train_entries[LIST_MAX], valid_entries[LIST_MAX];
} test_config;

MS_TEST_UNUSED static void config_add(test_config *config, const char *path, double weight) {
    config->train_entries[config->train.count++] = (ms_config_entry){path, weight};
    config->train.entries = config->train_entries;
    config->data.train = &config->train;
}

MS_TEST_UNUSED static void config_add_valid(test_config *config, const char *path, double weight) {
    config->valid_entries[config->valid.count++] = (ms_config_entry){path, weight};
    config->valid.entries = config->valid_entries;
    config->data.valid = &config->valid;
}

/* The defaults of the section; the whole of the data trains unless a test sets split. */
MS_TEST_UNUSED static void config_make(test_config *config, const char *path) {
    *config = (test_config){.data = {.split = 1, .eod = true, .text_key = "text", .shuffle = true}};
    if (path != NULL) {
        config_add(config, path, 1);
    }
}

MS_TEST_UNUSED static ms_status open_split(const test_config *config, int64_t sequence,
                                           ms_data_split split, const ms_tokenizer *tokenizer,
                                           ms_dataset **dataset) {
    ms_dataset_options options = {
        .config = &config->data,
        .sequence = sequence,
        .seed = 1234,
        .split = split,
        .tokenizer = tokenizer,
        .vocabulary_size = tokenizer != NULL ? ms_tokenizer_vocabulary_size(tokenizer) : 0};
    return ms_dataset_open(&options, dataset);
}

MS_TEST_UNUSED static ms_dataset *open_train(const test_config *config, int64_t sequence,
                                             const ms_tokenizer *tokenizer) {
    ms_dataset *dataset = NULL;
    assert_ok(open_split(config, sequence, MS_SPLIT_TRAIN, tokenizer, &dataset));
    return dataset;
}

/* A pair of one document whose token i is first + i. */
MS_TEST_UNUSED static void write_counting_pair(const char *prefix, int32_t first, int64_t count) {
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) {
        ids[i] = first + (int32_t)i;
    }
    ms_indexed_writer *writer;
    assert_ok(ms_indexed_writer_create(prefix, MS_I32, false, &writer));
    assert_ok(ms_indexed_writer_add(writer, ids, count, 0));
    assert_ok(ms_indexed_writer_end_document(writer));
    assert_ok(ms_indexed_writer_finish(writer));
    ms_indexed_writer_destroy(writer);
    free(ids);
}

/* Words, punctuation and line ends from a seed; some characters of two to four bytes. */
MS_TEST_UNUSED static size_t make_text(uint64_t seed, size_t bytes, char *text) {
    static const char *const pieces[] = {
        "the ",   "of ",   "wind",     "s ",   ", ",           ".\n",
        "\n\n",   "don't", "\xc3\xbc", " 42",  "  ",           "Sea ",
        "and ",   "night", "!\n\n\n",  "\r\n", "\xe6\xb5\xb7", "\xf0\x9f\x8c\x8a",
        " I'll ", "tion "};
    size_t length = 0;
    while (length + 8 < bytes) {
        const char *piece = pieces[test_random_below(&seed, sizeof pieces / sizeof pieces[0])];
        memcpy(text + length, piece, strlen(piece));
        length += strlen(piece);
    }
    return length;
}

/* A byte-level BPE vocabulary of 400 tokens, the last of which ends a text. */
MS_TEST_UNUSED static ms_tokenizer *make_bpe(void) {
    static char text[20000];
    static const char *const special[] = {"<|endoftext|>"};
    ms_tokenizer_train_options options = {
        .vocabulary_size = 400, .special_tokens = special, .special_token_count = 1};
    ms_tokenizer_trainer *trainer;
    ms_tokenizer *tokenizer;
    assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
    assert_ok(ms_tokenizer_trainer_add(trainer, text, make_text(7, sizeof text, text)));
    assert_ok(ms_tokenizer_trainer_finish(trainer, NULL, NULL, &tokenizer));
    ms_tokenizer_trainer_destroy(trainer);
    return tokenizer;
}

/* All of a file, which the caller frees with ms_text_release. */
MS_TEST_UNUSED static ms_text read_all(const char *path) {
    ms_text text = {0};
    assert_ok(ms_file_read(path, (size_t)1 << 30, &text));
    return text;
}

MS_TEST_UNUSED static bool same_files(const char *a, const char *b) {
    ms_text left = read_all(a), right = read_all(b);
    bool same = left.length == right.length &&
                (left.length == 0 || memcmp(left.bytes, right.bytes, left.length) == 0);
    ms_text_release(&left);
    ms_text_release(&right);
    return same;
}

#endif
