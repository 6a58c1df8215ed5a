// labels: unit
// timeout: 60
/*
 * test_dataset_sources.c - text, JSONL and pairs as streams of tokens, the split, which tokenizer
 * is taken, and every bad input with its sentence.
 */
#include "data/data_support.h"

#include <math.h>

#include "base/config.h"
#include "base/log.h"
#include "base/thread.h"

static char dir[MS_TEST_PATH_BYTES];

static int set_up(void **state) {
    (void)state;
    test_dir_make(dir);
    ms_log_set_level(MS_LOG_ERROR);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

static const char *write_text(const char *name, const char *text) {
    static char paths[8][MS_TEST_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];
    test_path(dir, name, path);
    test_write_file(path, text, strlen(text));
    return path;
}

/* The whole stream: samples of one token, in order. The caller frees it. */
static int32_t *read_stream(const test_config *config, const ms_tokenizer *tokenizer,
                            ms_data_split split, int64_t *count) {
    test_config ordered = *config;
    ordered.data.shuffle = false;
    ms_dataset *dataset;
    assert_ok(open_split(&ordered, 1, split, tokenizer, &dataset));
    *count = ms_dataset_tokens(dataset);
    int32_t *stream = malloc((size_t)*count * sizeof *stream);
    assert_non_null(stream);
    for (int64_t g = 0; g + 1 < *count; g++) {
        assert_ok(ms_dataset_sample(dataset, g, &stream[g], &stream[g + 1]));
    }
    ms_dataset_close(dataset);
    return stream;
}

static void check_stream(const test_config *config, const ms_tokenizer *tokenizer,
                         ms_data_split split, const char *text) {
    int64_t count;
    int32_t *stream = read_stream(config, tokenizer, split, &count);
    ms_text decoded = {0};
    assert_ok(ms_tokenizer_decode(tokenizer, stream, (size_t)count, 0, &decoded));
    assert_string_equal(decoded.bytes, text);
    ms_text_release(&decoded);
    free(stream);
}

static void test_text_is_cut_at_characters(void **state) {
    (void)state;
    test_config config;
    config_make(&config, write_text("cut.txt", "\xc3\xa4\xe6\xb5\xb7"
                                               "bc\xf0\x9f\x8c\x8a"
                                               "fgh\xc3\xbc"
                                               "j"));
    config.data.split = 0.5; /* five of ten characters, twelve of nineteen bytes */
    ms_tokenizer *tokenizer;
    config.data.tokenizer = "char";
    assert_ok(ms_data_tokenizer(&config.data, NULL, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 10);
    check_stream(&config, tokenizer, MS_SPLIT_TRAIN,
                 "\xc3\xa4\xe6\xb5\xb7"
                 "bc\xf0\x9f\x8c\x8a");
    check_stream(&config, tokenizer, MS_SPLIT_VALID,
                 "fgh\xc3\xbc"
                 "j");
    ms_tokenizer_destroy(tokenizer);
}

static void test_jsonl_documents_end_with_eod(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = make_bpe();
    test_config config;
    config_make(&config, FIXTURE("documents.jsonl"));
    check_stream(&config, tokenizer, MS_SPLIT_TRAIN,
                 "first document<|endoftext|>Zweites, \xc3\xbc"
                 "ber \xf0\x9f\x98\x80<|endoftext|>"
                 "last\nwith two lines<|endoftext|>");
    config.data.eod = false;
    check_stream(&config, tokenizer, MS_SPLIT_TRAIN,
                 "first documentZweites, \xc3\xbc"
                 "ber \xf0\x9f\x98\x80last\nwith two lines");
    ms_tokenizer_destroy(tokenizer);
}

/* Built or read from the JSONL: the same stream, also of both parts of a split. */
static void test_jsonl_and_its_pair_are_one_stream(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = make_bpe();
    char prefix[MS_TEST_PATH_BYTES];
    const char *inputs[] = {FIXTURE("documents.jsonl")};
    ms_build_options options = {.inputs = inputs,
                                .input_count = 1,
                                .output = test_path(dir, "documents", prefix),
                                .tokenizer = tokenizer,
                                .append_eod = true,
                                .threads = 2};
    ms_build_result result;
    assert_ok(ms_dataset_build(&options, &result));
    for (int split = 0; split < 2; split++) {
        test_config from_text, from_pair;
        config_make(&from_text, inputs[0]);
        config_make(&from_pair, prefix);
        from_text.data.split = from_pair.data.split = 0.6;
        int64_t counts[2];
        int32_t *streams[2] = {
            read_stream(&from_text, tokenizer, (ms_data_split)split, &counts[0]),
            read_stream(&from_pair, tokenizer, (ms_data_split)split, &counts[1])};
        assert_int_equal(counts[0], counts[1]);
        assert_memory_equal(streams[0], streams[1], (size_t)counts[0] * sizeof(int32_t));
        assert_int_equal(counts[0],
                         split == 0 ? (int64_t)floor((double)result.tokens * 0.6)
                                    : result.tokens - (int64_t)floor((double)result.tokens * 0.6));
        free(streams[0]);
        free(streams[1]);
    }
    ms_tokenizer_destroy(tokenizer);
}

/* 2 MiB are cut into units for several threads; the ids are those of one call of encode. */
static void test_threads_do_not_change_tokens(void **state) {
    (void)state;
    enum { BYTES = 2 << 20 };
    char *text = malloc(BYTES), path[MS_TEST_PATH_BYTES];
    size_t length = make_text(test_seed(), BYTES, text);
    test_path(dir, "long.txt", path);
    test_write_file(path, text, length);
    test_config config;
    config_make(&config, path);
    ms_tokenizer *tokenizers[3] = {make_bpe()};
    assert_ok(ms_tokenizer_create_byte(&tokenizers[1]));
    assert_ok(
        ms_data_tokenizer_named("char", (const char *const[]){path}, 1, NULL, &tokenizers[2]));
    for (int kind = 0; kind < 3; kind++) {
        ms_tokens whole = {0};
        ms_tokenizer_scratch *scratch;
        assert_ok(ms_tokenizer_scratch_create(tokenizers[kind], &scratch));
        assert_ok(ms_tokenizer_encode(tokenizers[kind], scratch, text, length, 0, &whole));
        for (int threads = 1; threads <= 4; threads += 3) {
            ms_thread_team_set(threads);
            int64_t count;
            int32_t *stream = read_stream(&config, tokenizers[kind], MS_SPLIT_TRAIN, &count);
            assert_int_equal(count, whole.count);
            assert_memory_equal(stream, whole.ids, whole.count * sizeof *stream);
            free(stream);
        }
        ms_tokenizer_scratch_destroy(scratch);
        ms_tokens_release(&whole);
        ms_tokenizer_destroy(tokenizers[kind]);
    }
    ms_thread_team_set(1);
    free(text);
}

static void test_info_says_what_is_left_over(void **state) {
    (void)state;
    char pair[MS_TEST_PATH_BYTES];
    write_counting_pair(test_path(dir, "info", pair), 0, 100);
    test_config config;
    config_make(&config, pair);
    config_add(&config, FIXTURE("paragraphs.txt"), 3);
    ms_tokenizer *byte;
    assert_ok(ms_tokenizer_create_byte(&byte));
    ms_dataset *dataset = open_train(&config, 8, byte);
    ms_text text = {0};
    assert_ok(ms_dataset_info(dataset, &text));
    assert_non_null(strstr(text.bytes, "info: indexed, 100 tokens, 12 samples of 8 tokens, "
                                       "3 tokens left over at the end, 25 % of the samples"));
    assert_non_null(strstr(text.bytes, "paragraphs.txt: text, "));
    assert_int_equal(ms_dataset_source_count(dataset), 2);
    assert_true(ms_dataset_source_get(dataset, 1).share == 0.75);
    ms_text_release(&text);
    ms_dataset_close(dataset);
    ms_tokenizer_destroy(byte);
}

/* ---- which tokenizer ---- */

static void test_tokenizer_by_name_and_place(void **state) {
    (void)state;
    ms_tokenizer *tokenizer, *bpe = make_bpe();
    char model[MS_TEST_PATH_BYTES], prefix[MS_TEST_PATH_BYTES], stored[MS_TEST_PATH_BYTES];
    assert_ok(ms_directory_make(test_path(dir, "model", model)));
    assert_ok(ms_tokenizer_save(bpe, model));
    test_config config;
    config_make(&config, FIXTURE("paragraphs.txt"));
    assert_ok(ms_data_tokenizer(&config.data, NULL, &tokenizer)); /* text and nothing named: char */
    assert_int_equal(ms_tokenizer_kind_get(tokenizer), MS_TOKENIZER_CHAR);
    ms_tokenizer_destroy(tokenizer);
    assert_ok(ms_data_tokenizer(&config.data, model, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 400);
    ms_tokenizer_destroy(tokenizer);
    config.data.tokenizer = "byte"; /* what is named goes first */
    assert_ok(ms_data_tokenizer(&config.data, model, &tokenizer));
    assert_int_equal(ms_tokenizer_kind_get(tokenizer), MS_TOKENIZER_BYTE);
    ms_tokenizer_destroy(tokenizer);

    write_counting_pair(test_path(dir, "placed", prefix), 0, 10);
    config_make(&config, prefix);
    assert_fails(MS_ERR_CONFIG, "placed", ms_data_tokenizer(&config.data, NULL, &tokenizer));
    assert_ok(ms_directory_make(test_path(dir, "placed.tokenizer", stored)));
    assert_ok(ms_tokenizer_save(bpe, stored));
    assert_ok(ms_data_tokenizer(&config.data, NULL, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 400);
    ms_tokenizer_destroy(tokenizer);
    ms_tokenizer_destroy(bpe);
}

static void test_char_takes_all_files(void **state) {
    (void)state;
    test_config config;
    config_make(&config, write_text("one.txt", "abc"));
    config_add(&config, FIXTURE("documents.jsonl"), 1);
    config_add_valid(&config, write_text("valid.txt", "xyz\xe6\xb5\xb7"), 1);
    config.data.tokenizer = "char";
    ms_tokenizer *tokenizer;
    assert_ok(ms_data_tokenizer(&config.data, NULL, &tokenizer));
    static const char *const all[] = {"a", "Z", "\n", "\xf0\x9f\x98\x80", "x", "\xe6\xb5\xb7"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_true(ms_tokenizer_find(tokenizer, all[i], strlen(all[i])) >= 0);
    }
    assert_int_equal(ms_tokenizer_find(tokenizer, "{", 1), -1); /* of JSON, not of the text */
    ms_tokenizer_destroy(tokenizer);
}

static void test_bad_tokenizers(void **state) {
    (void)state;
    ms_tokenizer *tokenizer;
    test_config config;
    config_make(&config, FIXTURE("paragraphs.txt"));
    config.data.tokenizer = "no/such/tokenizer";
    assert_fails(MS_ERR_NOT_FOUND, "data.tokenizer: no tokenizer \"no/such/tokenizer\"",
                 ms_data_tokenizer(&config.data, NULL, &tokenizer));
    config_make(&config, FIXTURE("not_utf8.txt"));
    config.data.tokenizer = "char";
    assert_fails(MS_ERR_FORMAT, "not UTF-8 at byte 18 (0xff)",
                 ms_data_tokenizer(&config.data, NULL, &tokenizer));
    config_make(&config, NULL);
    assert_fails(MS_ERR_CONFIG, "data.train is not set",
                 ms_data_tokenizer(&config.data, NULL, &tokenizer));
}

/* ---- bad inputs ---- */

static void check_open_fails(const char *path, int64_t sequence, const ms_tokenizer *tokenizer,
                             ms_status status, const char *part) {
    test_config config;
    config_make(&config, path);
    ms_dataset *dataset = NULL;
    assert_fails(status, part, open_split(&config, sequence, MS_SPLIT_TRAIN, tokenizer, &dataset));
    assert_null(dataset);
    assert_null(strchr(ms_error_detail(), '\n'));
}

static void test_bad_files(void **state) {
    (void)state;
    ms_tokenizer *bpe = make_bpe();
    char prefix[MS_TEST_PATH_BYTES], name[MS_TEST_PATH_BYTES];
    check_open_fails("no/such/file.txt", 8, bpe, MS_ERR_NOT_FOUND,
                     "data.train: no/such/file.txt: no such file, and no pair "
                     "no/such/file.txt.bin and no/such/file.txt.idx");
    check_open_fails("no/such.bin", 8, bpe, MS_ERR_NOT_FOUND, "no/such.idx");
    check_open_fails(dir, 8, bpe, MS_ERR_ARGUMENT, "is a directory");
    check_open_fails(write_text("empty.txt", ""), 8, bpe, MS_ERR_RANGE, "the file is empty");
    check_open_fails(FIXTURE("not_utf8.txt"), 8, bpe, MS_ERR_FORMAT,
                     "not_utf8.txt: not UTF-8 at byte 18 (0xff)");
    check_open_fails(FIXTURE("missing_key.jsonl"), 8, bpe, MS_ERR_FORMAT, "missing_key.jsonl:2");
    check_open_fails(FIXTURE("broken.jsonl"), 8, bpe, MS_ERR_FORMAT, "broken.jsonl:2");
    check_open_fails(FIXTURE("paragraphs.txt"), 8, NULL, MS_ERR_CONFIG, "data.tokenizer");
    write_counting_pair(test_path(dir, "torn", prefix), 0, 50);
    snprintf(name, sizeof name, "%.4000s.bin", prefix);
    assert_int_equal(truncate(name, 100), 0);
    check_open_fails(prefix, 8, NULL, MS_ERR_FORMAT, "torn.");
    ms_tokenizer_destroy(bpe);
}

static void test_too_short_for_one_sample(void **state) {
    (void)state;
    ms_tokenizer *byte;
    assert_ok(ms_tokenizer_create_byte(&byte));
    const char *ten = write_text("ten.txt", "0123456789");
    check_open_fails(ten, 64, byte, MS_ERR_RANGE,
                     "one sample needs at least T + 1 = 65 tokens, it has 10");
    check_open_fails(ten, 10, byte, MS_ERR_RANGE, "T + 1 = 11 tokens, it has 10");
    test_config config;
    config_make(&config, ten);
    ms_dataset *dataset = open_train(&config, 9, byte);
    assert_int_equal(ms_dataset_count(dataset), 1);
    ms_dataset_close(dataset);
    config.data.split = 0.9;
    assert_fails(MS_ERR_RANGE, "the last 10 % of it, by data.split",
                 open_split(&config, 4, MS_SPLIT_VALID, byte, &dataset));
    /* Among others of no weight it is left out; with a weight it is an error. */
    config_make(&config, FIXTURE("paragraphs.txt"));
    config_add(&config, ten, 1);
    dataset = open_train(&config, 16, byte);
    assert_int_equal(ms_dataset_source_get(dataset, 1).samples, 0);
    for (int64_t g = 0; g < 20; g++) {
        int64_t source, sample;
        ms_dataset_locate(dataset, g, &source, &sample);
        assert_int_equal(source, 0);
    }
    ms_dataset_close(dataset);
    config.train_entries[1].weight = 2;
    assert_fails(MS_ERR_RANGE, "ten.txt: one sample needs at least T + 1 = 17 tokens",
                 open_split(&config, 16, MS_SPLIT_TRAIN, byte, &dataset));
    ms_tokenizer_destroy(byte);
}

static void test_ids_beyond_the_vocabulary(void **state) {
    (void)state;
    char pair[MS_TEST_PATH_BYTES];
    write_counting_pair(test_path(dir, "ids", pair), 0, 300);
    test_config config;
    config_make(&config, pair);
    ms_dataset_options options = {.config = &config.data, .sequence = 8, .vocabulary_size = 256};
    ms_dataset *dataset;
    assert_fails(MS_ERR_RANGE, "ids.bin: token 256 (byte 1024) is id 256",
                 ms_dataset_open(&options, &dataset));
    config_make(&config, FIXTURE("paragraphs.txt"));
    ms_tokenizer *byte;
    assert_ok(ms_tokenizer_create_byte(&byte));
    options.tokenizer = byte;
    options.vocabulary_size = 100; /* 'n' of "One." is the first byte above: 110, at 3 */
    assert_fails(MS_ERR_RANGE, "token 3 has id 110, beyond the vocabulary of 100",
                 ms_dataset_open(&options, &dataset));
    ms_tokenizer_destroy(byte);
}

static void test_bad_options(void **state) {
    (void)state;
    static const double weights[] = {0, -1, NAN, INFINITY};
    ms_tokenizer *byte;
    ms_dataset *dataset;
    assert_ok(ms_tokenizer_create_byte(&byte));
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        test_config config;
        config_make(&config, FIXTURE("paragraphs.txt"));
        config_add(&config, FIXTURE("documents.jsonl"), weights[i]);
        assert_fails(MS_ERR_CONFIG, "documents.jsonl: weight ",
                     open_split(&config, 8, MS_SPLIT_TRAIN, byte, &dataset));
    }
    test_config config;
    config_make(&config, NULL);
    assert_fails(MS_ERR_CONFIG, "data.train is not set",
                 open_split(&config, 8, MS_SPLIT_TRAIN, byte, &dataset));
    config_make(&config, FIXTURE("paragraphs.txt"));
    assert_fails(MS_ERR_ARGUMENT, "samples of 0 tokens",
                 open_split(&config, 0, MS_SPLIT_TRAIN, byte, &dataset));
    dataset = open_train(&config, 8, byte);
    int32_t tokens[8], targets[8];
    assert_fails(MS_ERR_ARGUMENT, "sample -1", ms_dataset_sample(dataset, -1, tokens, targets));
    ms_dataset_close(dataset);
    ms_tokenizer_destroy(byte);
}

/* The section as it stands in a file. */
static void test_section(void **state) {
    (void)state;
    const ms_config_section *const sections[] = {&ms_data_section};
    ms_config_source source = {.path = "data.yaml",
                               .text = "data:\n  train: [a.txt, {path: b.txt, weight: 2.5}]\n"};
    ms_config *config;
    assert_ok(ms_config_load(&source, sections, 1, &config));
    const ms_data_config *data = ms_config_values(config, "data");
    assert_int_equal(data->train->count, 2);
    assert_string_equal(data->train->entries[1].path, "b.txt");
    assert_true(data->train->entries[0].weight == 1 && data->train->entries[1].weight == 2.5);
    assert_null(data->valid);
    assert_null(data->tokenizer);
    assert_true(data->split == 0.9 && data->eod && data->shuffle);
    assert_string_equal(data->text_key, "text");
    ms_config_destroy(config);
    source.text = "data:\n  split: 1.5\n";
    assert_fails(MS_ERR_CONFIG, "data.yaml:2", ms_config_load(&source, sections, 1, &config));
    source.text = "data:\n  shufle: true\n";
    assert_fails(MS_ERR_CONFIG, "shuffle", ms_config_load(&source, sections, 1, &config));
}

/* Whatever allocation fails, opening fails with MS_ERR_MEMORY and keeps nothing. */
static void test_out_of_memory(void **state) {
    (void)state;
    ms_tokenizer *bpe = make_bpe();
    test_config config;
    config_make(&config, FIXTURE("documents.jsonl"));
    config_add(&config, FIXTURE("paragraphs.txt"), 2);
    ms_dataset *dataset = NULL;
    int failures = 0;
    for (uint64_t n = 1; dataset == NULL; n++) {
        ms_memory_counters before = ms_memory_counters_get();
        ms_memory_fail_at(n);
        ms_status status = open_split(&config, 4, MS_SPLIT_TRAIN, bpe, &dataset);
        ms_memory_fail_at(0);
        if (status != MS_OK) {
            assert_int_equal(status, MS_ERR_MEMORY);
            ms_memory_counters after = ms_memory_counters_get();
            assert_memory_equal(before.live_bytes, after.live_bytes, sizeof before.live_bytes);
            failures++;
        }
        assert_true(n < 10000);
    }
    assert_true(failures > 20);
    ms_dataset_close(dataset);
    ms_tokenizer_destroy(bpe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_cut_at_characters),
        cmocka_unit_test(test_jsonl_documents_end_with_eod),
        cmocka_unit_test(test_jsonl_and_its_pair_are_one_stream),
        cmocka_unit_test(test_threads_do_not_change_tokens),
        cmocka_unit_test(test_info_says_what_is_left_over),
        cmocka_unit_test(test_tokenizer_by_name_and_place),
        cmocka_unit_test(test_char_takes_all_files),
        cmocka_unit_test(test_bad_tokenizers),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_too_short_for_one_sample),
        cmocka_unit_test(test_ids_beyond_the_vocabulary),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_section),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
