// labels: golden
/* A real trained Llama: greedy text and its likelihood, token by token, against recorded values. */
#include <mindspeed/generate.h>

#include <math.h>

#include "format/json.h"
#include "support/test_support.h"

#define TOKENS 201

static void open_stories(ms_generator **generator, int32_t *ids) {
    char path[MS_TEST_PATH_BYTES];
    test_shared_path("stories260K/golden_greedy.json", path);
    ms_json json = {0};
    assert_ok(ms_json_open(path, MS_JSON_BYTES_MAX, &json));
    const json_t *list = ms_json_find(&json, "ids");
    assert_int_equal(json_array_size(list), TOKENS);
    for (size_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    ms_json_close(&json);
    test_shared_path("stories260K", path);
    ms_generate_options options = MS_GENERATE_OPTIONS_INIT;
    options.temperature = 0;
    options.threads = 1;
    assert_ok(ms_generator_open(path, &options, generator));
}

static void greedy_text_is_the_recorded_one(void **state) {
    (void)state;
    int32_t ids[TOKENS];
    ms_generator *generator;
    open_stories(&generator, ids);
    assert_ok(ms_generator_feed(generator, ids, 1, NULL));
    for (int i = 1; i < TOKENS; i++) {
        int32_t id;
        assert_ok(ms_generator_next(generator, &id));
        assert_int_equal(id, ids[i]);
    }
    ms_generator_close(generator);
}

static void likelihood_is_the_recorded_one(void **state) {
    (void)state;
    int32_t ids[TOKENS];
    double logs[TOKENS], sum = 0;
    ms_generator *generator;
    open_stories(&generator, ids);
    assert_ok(ms_generator_feed(generator, ids, TOKENS, logs));
    for (int i = 1; i < TOKENS; i++) {
        sum -= logs[i];
    }
    printf("mean NLL %.6f\n", sum / (TOKENS - 1));
    assert_true(fabs(sum / (TOKENS - 1) - 0.473418) <= 1e-5);
    ms_generator_close(generator);
}

/* A prompt fed at once and one fed token by token leave the same state. */
static void rows_of_a_prompt_do_not_matter(void **state) {
    (void)state;
    int32_t ids[TOKENS], first, second;
    double logs[100];
    ms_generator *generator;
    open_stories(&generator, ids);
    assert_ok(ms_generator_feed(generator, ids, 100, NULL));
    assert_ok(ms_generator_next(generator, &first));
    ms_generator_reset(generator);
    assert_ok(ms_generator_feed(generator, ids, 100, logs));
    assert_ok(ms_generator_next(generator, &second));
    assert_int_equal(first, second);
    assert_int_equal(first, ids[100]);
    ms_generator_close(generator);
}

static void bad_ids_are_refused(void **state) {
    (void)state;
    int32_t ids[TOKENS];
    ms_generator *generator;
    open_stories(&generator, ids);
    const int32_t beyond = 512;
    assert_fails(MS_ERR_RANGE, "outside the vocabulary of 512",
                 ms_generator_feed(generator, &beyond, 1, NULL));
    int32_t many[513] = {0};
    assert_fails(MS_ERR_RANGE, "512 positions", ms_generator_feed(generator, many, 513, NULL));
    assert_int_equal(ms_generator_length(generator), 0);
    ms_generator_close(generator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_the_recorded_one),
        cmocka_unit_test(likelihood_is_the_recorded_one),
        cmocka_unit_test(rows_of_a_prompt_do_not_matter),
        cmocka_unit_test(bad_ids_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
