// labels: golden
// timeout: 60
/*
 * test_dataset_shared.c - published token counts of tinyshakespeare, and pairs that Megatron itself
 * wrote. Each test is skipped, by name, where the shared data is absent.
 */
#include "data/data_support.h"

#include "base/thread.h"

static char dir[MS_TEST_PATH_BYTES];

static int set_up(void **state) {
    (void)state;
    test_dir_make(dir);
    ms_thread_team_set(2);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

static void check_counts(const char *text, const char *tokenizer_name, int64_t vocabulary,
                         int64_t train, int64_t valid) {
    test_config config;
    config_make(&config, text);
    config.data.split = 0.9;
    config.data.tokenizer = tokenizer_name;
    ms_tokenizer *tokenizer;
    assert_ok(ms_data_tokenizer(&config.data, NULL, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), vocabulary);
    const int64_t wanted[] = {train, valid};
    for (int split = 0; split < 2; split++) {
        ms_dataset *dataset;
        assert_ok(open_split(&config, 64, (ms_data_split)split, tokenizer, &dataset));
        assert_int_equal(ms_dataset_tokens(dataset), wanted[split]);
        assert_int_equal(ms_dataset_count(dataset), (wanted[split] - 1) / 64);
        ms_dataset_close(dataset);
    }
    ms_tokenizer_destroy(tokenizer);
}

static void test_tinyshakespeare_by_character(void **state) {
    (void)state;
    char text[MS_TEST_PATH_BYTES];
    test_shared_path("tinyshakespeare/input.txt", text);
    check_counts(text, "char", 65, 1003854, 111540);
}

static void test_tinyshakespeare_by_gpt2(void **state) {
    (void)state;
    char text[MS_TEST_PATH_BYTES], bpe[MS_TEST_PATH_BYTES];
    test_shared_path("tinyshakespeare/input.txt", text);
    test_shared_path("gpt2_bpe/vocab.bpe", bpe);
    check_counts(text, bpe, 50257, 301966, 36059);
}

/* Built from the text at empty lines with <|endoftext|>: the bytes that Megatron's own tools wrote.
 */
static void test_build_equals_megatron(void **state) {
    (void)state;
    char text[MS_TEST_PATH_BYTES], bpe[MS_TEST_PATH_BYTES], wanted[MS_TEST_PATH_BYTES];
    char prefix[MS_TEST_PATH_BYTES], made[MS_TEST_PATH_BYTES];
    test_shared_path("tinyshakespeare/input.txt", text);
    test_shared_path("gpt2_bpe/vocab.bpe", bpe);
    test_shared_path("megatron/tinyshakespeare_gpt2_text_document.bin", wanted);
    ms_tokenizer *tokenizer;
    assert_ok(ms_data_tokenizer_named(bpe, NULL, 0, NULL, &tokenizer));
    const char *input = text;
    ms_build_options options = {.inputs = &input,
                                .input_count = 1,
                                .output = test_path(dir, "shakespeare", prefix),
                                .tokenizer = tokenizer,
                                .documents = MS_DOCUMENTS_PARAGRAPHS,
                                .append_eod = true,
                                .threads = 2};
    ms_build_result result;
    assert_ok(ms_dataset_build(&options, &result));
    assert_int_equal(result.documents, 7222);
    assert_int_equal(result.tokens, 338028);
    assert_true(same_files(test_path(dir, "shakespeare.bin", made), wanted));
    memcpy(strrchr(wanted, '.'), ".idx", 4);
    assert_true(same_files(test_path(dir, "shakespeare.idx", made), wanted));
    ms_tokenizer_destroy(tokenizer);
}

/* The samples of a Megatron pair, epoch for epoch, are the windows of its stream. */
static void test_samples_of_megatron_pairs(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES];
    test_shared_path("megatron/small_int32_multiseq.bin", path);
    test_config config;
    config_make(&config, path);
    ms_dataset *dataset = open_train(&config, 16, NULL);
    ms_indexed *data;
    assert_ok(ms_indexed_open(path, &data));
    assert_int_equal(ms_dataset_tokens(dataset), ms_indexed_token_count(data));
    for (int64_t g = 0; g < 3 * ms_dataset_count(dataset); g++) {
        int32_t tokens[16], targets[16], window[17];
        int64_t source, sample;
        ms_dataset_locate(dataset, g, &source, &sample);
        assert_ok(ms_dataset_sample(dataset, g, tokens, targets));
        assert_ok(ms_indexed_read(data, 16 * sample, 17, 0, window));
        assert_memory_equal(tokens, window, sizeof tokens);
        assert_memory_equal(targets, window + 1, sizeof targets);
    }
    ms_indexed_close(data);
    ms_dataset_close(dataset);
}

/* Chinese, 5.8 MB: units are cut between words of several bytes; one call of encode agrees. */
static void test_chinese_in_units(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES], bpe[MS_TEST_PATH_BYTES];
    test_shared_path("zh_classics/tang_shi_10k_trad.txt", path);
    test_shared_path("gpt2_bpe/vocab.bpe", bpe);
    ms_tokenizer *tokenizer;
    assert_ok(ms_data_tokenizer_named(bpe, NULL, 0, NULL, &tokenizer));
    ms_text text = read_all(path);
    ms_tokens whole = {0};
    ms_tokenizer_scratch *scratch;
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_ok(ms_tokenizer_encode(tokenizer, scratch, text.bytes, text.length, 0, &whole));
    test_config config;
    config_make(&config, path);
    config.data.shuffle = false;
    ms_dataset *dataset = open_train(&config, 256, tokenizer);
    assert_int_equal(ms_dataset_tokens(dataset), whole.count);
    for (int64_t g = 0; g < ms_dataset_count(dataset); g++) {
        int32_t tokens[256], targets[256];
        assert_ok(ms_dataset_sample(dataset, g, tokens, targets));
        assert_memory_equal(tokens, whole.ids + 256 * g, sizeof tokens);
    }
    ms_dataset_close(dataset);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokens_release(&whole);
    ms_text_release(&text);
    ms_tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tinyshakespeare_by_character),
        cmocka_unit_test(test_tinyshakespeare_by_gpt2),
        cmocka_unit_test(test_build_equals_megatron),
        cmocka_unit_test(test_samples_of_megatron_pairs),
        cmocka_unit_test(test_chinese_in_units),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
