// labels: unit
// timeout: 60
/*
 * test_dataset_build.c - data build, merge and info: what a document is, the same bytes for any
 * number of threads, nothing left behind on failure.
 */
#include "data/data_support.h"

#include <dirent.h>

static char dir[MS_TEST_PATH_BYTES];

static int set_up(void **state) {
    (void)state;
    test_dir_make(dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

static ms_status build(const char *input, const char *output, const ms_tokenizer *tokenizer,
                       ms_documents documents, bool eod, ms_build_result *result) {
    ms_build_options options = {.inputs = &input,
                                .input_count = 1,
                                .output = output,
                                .tokenizer = tokenizer,
                                .documents = documents,
                                .append_eod = eod,
                                .threads = 2};
    return ms_dataset_build(&options, result);
}

/* The text of document i of a pair. */
static void check_document(const ms_indexed *data, const ms_tokenizer *tokenizer, int64_t index,
                           const char *wanted) {
    int64_t sequence, sequences, first, count;
    assert_ok(ms_indexed_document(data, index, &sequence, &sequences));
    assert_int_equal(sequences, 1);
    assert_ok(ms_indexed_sequence(data, sequence, &first, &count));
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    assert_ok(ms_indexed_read(data, first, count, 0, ids));
    ms_text text = {0};
    assert_ok(ms_tokenizer_decode(tokenizer, ids, (size_t)count, 0, &text));
    assert_string_equal(text.bytes, wanted);
    ms_text_release(&text);
    free(ids);
}

static void check_documents(const char *input, ms_documents documents, bool eod,
                            const char *const *wanted, int64_t count, int64_t empty) {
    char prefix[MS_TEST_PATH_BYTES];
    ms_tokenizer *tokenizer = make_bpe();
    ms_build_result result;
    test_path(dir, "documents", prefix);
    assert_ok(build(input, prefix, tokenizer, documents, eod, &result));
    assert_int_equal(result.documents, count);
    assert_int_equal(result.empty_documents, empty);
    ms_indexed *data;
    assert_ok(ms_indexed_open(prefix, &data));
    assert_int_equal(ms_indexed_dtype(data), MS_U16);
    assert_int_equal(ms_indexed_document_count(data), count);
    assert_int_equal(ms_indexed_token_count(data), result.tokens);
    for (int64_t i = 0; i < count; i++) {
        check_document(data, tokenizer, i, wanted[i]);
    }
    ms_indexed_close(data);
    ms_tokenizer_destroy(tokenizer);
}

static void test_documents(void **state) {
    (void)state;
    static const char *const whole[] = {
        "\n\nOne.\n\nTwo,\nof two lines.\n\n\n\nThree.\r\n\r\nFour\n"};
    static const char *const paragraphs[] = {"\n\nOne.\n\n", "Two,\nof two lines.\n\n",
                                             "\n\nThree.\r\n\r\n", "Four\n"};
    static const char *const lines[] = {"One.<|endoftext|>", "Two,<|endoftext|>",
                                        "of two lines.<|endoftext|>", "Three.<|endoftext|>",
                                        "Four<|endoftext|>"};
    static const char *const objects[] = {"first document",
                                          "Zweites, \xc3\xbc"
                                          "ber \xf0\x9f\x98\x80",
                                          "last\nwith two lines"};
    check_documents(FIXTURE("paragraphs.txt"), MS_DOCUMENTS_FILE, false, whole, 1, 0);
    check_documents(FIXTURE("paragraphs.txt"), MS_DOCUMENTS_PARAGRAPHS, false, paragraphs, 4, 0);
    check_documents(FIXTURE("paragraphs.txt"), MS_DOCUMENTS_LINES, true, lines, 5, 7);
    check_documents(FIXTURE("documents.jsonl"), MS_DOCUMENTS_FILE, false, objects, 3, 1);
}

/* 1.5 MiB of text and of JSONL: 1, 2 and 5 threads write the same bytes. */
static void test_threads_write_the_same_bytes(void **state) {
    (void)state;
    enum { BYTES = 3 << 19 };
    char *text = malloc(BYTES), paths[2][MS_TEST_PATH_BYTES];
    size_t length = make_text(test_seed(), BYTES, text);
    test_write_file(test_path(dir, "long.txt", paths[0]), text, length);
    FILE *jsonl = fopen(test_path(dir, "long.jsonl", paths[1]), "w");
    assert_non_null(jsonl);
    for (size_t at = 0; at < length; at += 900) { /* each object: ASCII letters of the text */
        fputs("{\"text\": \"", jsonl);
        for (size_t i = at; i < at + 900 && i < length; i++) {
            fputc(text[i] >= ' ' && text[i] < 127 && text[i] != '"' ? text[i] : '_', jsonl);
        }
        fputs("\"}\n", jsonl);
    }
    fclose(jsonl);
    ms_tokenizer *tokenizer = make_bpe();
    static const ms_documents kinds[] = {MS_DOCUMENTS_FILE, MS_DOCUMENTS_PARAGRAPHS,
                                         MS_DOCUMENTS_LINES};
    const char *inputs[] = {paths[0], paths[1], paths[0]};
    for (int kind = 0; kind < 3; kind++) {
        ms_build_result results[3];
        for (int run = 0; run < 3; run++) {
            static const int threads[] = {1, 2, 5};
            char prefix[MS_TEST_PATH_BYTES], name[] = "threads0";
            name[7] = (char)('0' + run);
            ms_build_options options = {.inputs = inputs,
                                        .input_count = 3,
                                        .output = test_path(dir, name, prefix),
                                        .tokenizer = tokenizer,
                                        .documents = kinds[kind],
                                        .append_eod = true,
                                        .threads = threads[run]};
            assert_ok(ms_dataset_build(&options, &results[run]));
        }
        for (int run = 1; run < 3; run++) {
            char a[MS_TEST_PATH_BYTES], b[MS_TEST_PATH_BYTES], name[] = "threads0.bin";
            name[7] = (char)('0' + run);
            assert_true(same_files(test_path(dir, "threads0.bin", a), test_path(dir, name, b)));
            memcpy(name + 9, "idx", 3);
            assert_true(same_files(test_path(dir, "threads0.idx", a), test_path(dir, name, b)));
            assert_int_equal(results[0].documents, results[run].documents);
        }
    }
    ms_tokenizer_destroy(tokenizer);
    free(text);
}

static void note_progress(const ms_build_progress *progress, void *context) {
    *(ms_build_progress *)context = *progress;
}

static void test_progress_and_tokenizer_beside(void **state) {
    (void)state;
    char prefix[MS_TEST_PATH_BYTES], stored[MS_TEST_PATH_BYTES];
    ms_tokenizer *tokenizer = make_bpe(), *loaded;
    const char *input = FIXTURE("documents.jsonl");
    ms_build_progress last = {0};
    ms_build_options options = {.inputs = &input,
                                .input_count = 1,
                                .output = test_path(dir, "beside", prefix),
                                .tokenizer = tokenizer,
                                .threads = 1,
                                .dtype_given = true,
                                .dtype = MS_I32,
                                .progress = note_progress,
                                .context = &last};
    ms_build_result result;
    assert_ok(ms_dataset_build(&options, &result));
    assert_int_equal(last.bytes_done, last.bytes_total);
    assert_int_equal(last.bytes_total, result.input_bytes);
    assert_int_equal(last.documents, 3);
    assert_int_equal(last.tokens, result.tokens);
    assert_int_equal(result.dtype, MS_I32);
    assert_ok(ms_tokenizer_load(test_path(dir, "beside.tokenizer", stored), &loaded));
    assert_int_equal(ms_tokenizer_vocabulary_size(loaded), 400);
    ms_tokenizer_destroy(loaded);
    ms_tokenizer_destroy(tokenizer);
}

static int entries_of(const char *path) {
    DIR *open = opendir(path);
    int count = 0;
    assert_non_null(open);
    while (readdir(open) != NULL) {
        count++;
    }
    closedir(open);
    return count - 2;
}

static void test_failure_leaves_nothing(void **state) {
    (void)state;
    char own[MS_TEST_PATH_BYTES], prefix[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    assert_ok(ms_directory_make(test_path(dir, "own", own)));
    test_path(own, "out", prefix);
    ms_tokenizer *bpe = make_bpe(), *byte;
    assert_ok(ms_tokenizer_create_byte(&byte));
    ms_build_result result;
    test_write_file(test_path(dir, "empty.txt", path), "", 0);
    assert_fails(MS_ERR_RANGE, "empty.txt: there is no text in it",
                 build(path, prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_fails(MS_ERR_FORMAT, "not UTF-8 at byte 18",
                 build(FIXTURE("not_utf8.txt"), prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_fails(
        MS_ERR_FORMAT, "missing_key.jsonl:2",
        build(FIXTURE("missing_key.jsonl"), prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_fails(MS_ERR_FORMAT, "broken.jsonl:2",
                 build(FIXTURE("broken.jsonl"), prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_fails(MS_ERR_NOT_FOUND, "nowhere.txt",
                 build("nowhere.txt", prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_fails(MS_ERR_CONFIG, "no end-of-text token",
                 build(FIXTURE("paragraphs.txt"), prefix, byte, MS_DOCUMENTS_FILE, true, &result));
    assert_fails(MS_ERR_IO, "cannot create",
                 build(FIXTURE("paragraphs.txt"), "no/such/dir/out", byte, MS_DOCUMENTS_FILE, false,
                       &result));
    assert_int_equal(entries_of(own), 0);
    write_counting_pair(prefix, 0, 10);
    assert_fails(MS_ERR_ARGUMENT, "holds tokens already",
                 build(prefix, prefix, byte, MS_DOCUMENTS_FILE, false, &result));
    /* An older pair stays as it was. */
    assert_fails(MS_ERR_FORMAT, "broken.jsonl:2",
                 build(FIXTURE("broken.jsonl"), prefix, bpe, MS_DOCUMENTS_FILE, false, &result));
    assert_int_equal(entries_of(own), 2);
    ms_tokenizer_destroy(bpe);
    ms_tokenizer_destroy(byte);
}

/* Whatever allocation fails: MS_ERR_MEMORY, no memory kept, no file left. */
static void test_out_of_memory(void **state) {
    (void)state;
    char own[MS_TEST_PATH_BYTES], prefix[MS_TEST_PATH_BYTES];
    assert_ok(ms_directory_make(test_path(dir, "memory", own)));
    test_path(own, "out", prefix);
    ms_tokenizer *bpe = make_bpe();
    ms_build_result result;
    ms_status status = MS_ERR_MEMORY;
    int failures = 0;
    for (uint64_t n = 1; status != MS_OK; n++) {
        ms_memory_counters before = ms_memory_counters_get();
        ms_memory_fail_at(n);
        status = build(FIXTURE("documents.jsonl"), prefix, bpe, MS_DOCUMENTS_FILE, true, &result);
        ms_memory_fail_at(0);
        ms_memory_counters after = ms_memory_counters_get();
        assert_memory_equal(before.live_bytes, after.live_bytes, sizeof before.live_bytes);
        if (status != MS_OK) {
            assert_int_equal(status, MS_ERR_MEMORY);
            assert_int_equal(entries_of(own), 0);
            failures++;
        }
    }
    assert_true(failures > 20);
    ms_tokenizer_destroy(bpe);
}

static void test_merge(void **state) {
    (void)state;
    char a[MS_TEST_PATH_BYTES], b[MS_TEST_PATH_BYTES], c[MS_TEST_PATH_BYTES];
    char out[MS_TEST_PATH_BYTES], stored[MS_TEST_PATH_BYTES];
    ms_tokenizer *bpe = make_bpe(), *byte;
    assert_ok(ms_tokenizer_create_byte(&byte));
    ms_build_result first, second, other, merged;
    test_path(dir, "merge_a", a);
    test_path(dir, "merge_b", b);
    test_path(dir, "merge_c", c);
    test_path(dir, "merge_out", out);
    assert_ok(build(FIXTURE("documents.jsonl"), a, bpe, MS_DOCUMENTS_FILE, true, &first));
    assert_ok(build(FIXTURE("paragraphs.txt"), b, bpe, MS_DOCUMENTS_PARAGRAPHS, true, &second));
    assert_ok(build(FIXTURE("paragraphs.txt"), c, byte, MS_DOCUMENTS_FILE, false, &other));
    const char *inputs[] = {a, b};
    assert_ok(ms_dataset_merge(inputs, 2, out, &merged));
    assert_int_equal(merged.documents, first.documents + second.documents);
    assert_int_equal(merged.tokens, first.tokens + second.tokens);
    ms_indexed *data;
    assert_ok(ms_indexed_open(out, &data));
    check_document(data, bpe, 0, "first document<|endoftext|>");
    check_document(data, bpe, 4, "Two,\nof two lines.\n\n<|endoftext|>");
    ms_indexed_close(data);
    assert_true(ms_path_exists(test_path(dir, "merge_out.tokenizer/tokenizer.json", stored)));
    const char *mixed[] = {a, c};
    assert_fails(MS_ERR_MISMATCH, "different tokenizers", ms_dataset_merge(mixed, 2, out, &merged));
    write_counting_pair(c, 0, 10); /* int32; its tokenizer still lies beside */
    assert_ok(ms_directory_remove(test_path(dir, "merge_c.tokenizer", stored)));
    assert_fails(MS_ERR_MISMATCH, "merge_c: ", ms_dataset_merge(mixed, 2, out, &merged));
    assert_fails(MS_ERR_ARGUMENT, "0 pairs", ms_dataset_merge(mixed, 0, out, &merged));
    const char *self[] = {out, a};
    assert_ok(ms_dataset_merge(self, 2, out, &merged)); /* the output may be an input */
    assert_int_equal(merged.documents, 2 * first.documents + second.documents);
    ms_tokenizer_destroy(bpe);
    ms_tokenizer_destroy(byte);
}

static void test_inspect(void **state) {
    (void)state;
    ms_data_facts facts;
    assert_ok(ms_data_inspect(FIXTURE("documents.jsonl"), NULL, false, &facts));
    assert_string_equal(facts.kind, "jsonl");
    assert_int_equal(facts.documents, 4);
    assert_int_equal(facts.characters, 14 + 15 + 0 + 19);
    assert_ok(ms_data_inspect(FIXTURE("paragraphs.txt"), NULL, false, &facts));
    assert_string_equal(facts.kind, "text");
    assert_int_equal(facts.lines, 12);
    assert_int_equal(facts.characters, 45);
    assert_int_equal(facts.distinct_characters, 20);
    char pair[MS_TEST_PATH_BYTES];
    write_counting_pair(test_path(dir, "inspect", pair), 7, 20000);
    assert_ok(ms_data_inspect(pair, NULL, true, &facts));
    assert_string_equal(facts.kind, "indexed");
    assert_int_equal(facts.tokens, 20000);
    assert_int_equal(facts.document_tokens_min, 20000);
    assert_int_equal(facts.id_min, 7);
    assert_int_equal(facts.id_max, 20006);
    assert_int_equal(facts.bytes, 80000);
    assert_fails(MS_ERR_NOT_FOUND, "nowhere", ms_data_inspect("nowhere", NULL, false, &facts));
    assert_fails(MS_ERR_FORMAT, "byte 18",
                 ms_data_inspect(FIXTURE("not_utf8.txt"), NULL, false, &facts));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_threads_write_the_same_bytes),
        cmocka_unit_test(test_progress_and_tokenizer_beside),
        cmocka_unit_test(test_failure_leaves_nothing),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_inspect),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
