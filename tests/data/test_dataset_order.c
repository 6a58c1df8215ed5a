// labels: unit prop
// timeout: 60
/*
 * test_dataset_order.c - which sample comes when: once each epoch, by weight, from the counter
 * alone.
 */
#include "data/data_support.h"

#include <math.h>
#include <pthread.h>

#include "data/data_internal.h"

typedef struct folder {
    char dir[MS_TEST_PATH_BYTES];
    char paths[3]
              [MS_TEST_PATH_BYTES]; /* pairs of 101, 64 and 41 tokens: 25, 15 and 10 samples of 4 */
} folder;

static const int64_t tokens_of[] = {101, 64, 41};
static const int64_t samples_of[] = {25, 15, 10};

static int set_up(void **state) {
    folder *made = calloc(1, sizeof *made);
    test_dir_make(made->dir);
    for (int i = 0; i < 3; i++) {
        char name[] = "a";
        name[0] = (char)('a' + i);
        test_path(made->dir, name, made->paths[i]);
        write_counting_pair(made->paths[i], 1000 * (i + 1), tokens_of[i]);
    }
    *state = made;
    return 0;
}

static int tear_down(void **state) {
    folder *made = *state;
    test_dir_remove(made->dir);
    free(made);
    return 0;
}

static ms_dataset *open_three(const folder *files, const double *weights, bool shuffle) {
    test_config config;
    config_make(&config, NULL);
    config.data.shuffle = shuffle;
    for (int i = 0; i < 3; i++) {
        config_add(&config, files->paths[i], weights != NULL ? weights[i] : 1);
    }
    return open_train(&config, 4, NULL);
}

/* Sample g holds the tokens that its place says, and the targets follow them. */
static void check_window(const ms_dataset *dataset, int64_t g) {
    int32_t tokens[4], targets[4];
    int64_t source, sample;
    ms_dataset_locate(dataset, g, &source, &sample);
    assert_ok(ms_dataset_sample(dataset, g, tokens, targets));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tokens[i], 1000 * (source + 1) + 4 * sample + i);
        assert_int_equal(targets[i], tokens[i] + 1);
    }
}

static void test_every_sample_once_each_epoch(void **state) {
    const folder *files = *state;
    ms_dataset *dataset = open_three(files, NULL, true);
    assert_int_equal(ms_dataset_count(dataset), 50);
    assert_int_equal(ms_dataset_tokens(dataset), 206);
    int64_t order[4][50], moved = 0;
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        int seen[3][25] = {{0}};
        for (int64_t i = 0; i < 50; i++) {
            int64_t source, sample;
            check_window(dataset, epoch * 50 + i);
            ms_dataset_locate(dataset, epoch * 50 + i, &source, &sample);
            assert_in_range(sample, 0, samples_of[source] - 1);
            seen[source][sample]++;
            order[epoch][i] = source * 100 + sample;
            moved += epoch > 0 && order[epoch][i] != order[epoch - 1][i];
        }
        for (int s = 0; s < 3; s++) {
            for (int64_t i = 0; i < samples_of[s]; i++) {
                assert_int_equal(seen[s][i], 1);
            }
        }
    }
    assert_true(moved > 120); /* of 150: a new order in each epoch (F-10) */
    ms_dataset_close(dataset);
}

static void test_no_shuffle_is_the_order_of_the_files(void **state) {
    const folder *files = *state;
    ms_dataset *dataset = open_three(files, NULL, false);
    for (int64_t g = 0; g < 150; g++) {
        int64_t source, sample, at = g % 50;
        ms_dataset_locate(dataset, g, &source, &sample);
        assert_int_equal(source, at < 25 ? 0 : at < 40 ? 1 : 2);
        assert_int_equal(sample, at < 25 ? at : at < 40 ? at - 25 : at - 40);
    }
    ms_dataset_close(dataset);
}

static void test_seed_changes_the_order(void **state) {
    const folder *files = *state;
    test_config config;
    config_make(&config, files->paths[0]);
    int64_t orders[2][25];
    for (uint64_t seed = 0; seed < 2; seed++) {
        ms_dataset_options options = {.config = &config.data, .sequence = 4, .seed = seed};
        ms_dataset *dataset;
        assert_ok(ms_dataset_open(&options, &dataset));
        for (int64_t g = 0; g < 25; g++) {
            int64_t source;
            ms_dataset_locate(dataset, g, &source, &orders[seed][g]);
        }
        ms_dataset_close(dataset);
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
}

static void test_validation_keeps_its_order(void **state) {
    const folder *files = *state;
    test_config config;
    config_make(&config, files->paths[0]);
    config_add_valid(&config, files->paths[1], 1);
    ms_dataset *dataset;
    assert_ok(open_split(&config, 4, MS_SPLIT_VALID, NULL, &dataset));
    assert_int_equal(ms_dataset_count(dataset), 15);
    for (int64_t g = 0; g < 40; g++) {
        int32_t tokens[4], targets[4];
        assert_ok(ms_dataset_sample(dataset, g, tokens, targets));
        assert_int_equal(tokens[0], 2000 + 4 * (g % 15));
    }
    ms_dataset_close(dataset);
}

/*
 * A run whose ranks come and go: each step deals global_batch consecutive samples to `replicas`, a
 * new process opens the data anew at each resume (F-04, F-14). What was trained is the plain order.
 */
static void test_resume_and_resize_repeat_and_skip_nothing(void **state) {
    const folder *files = *state;
    static const int64_t replicas_of_runs[] = {1, 4, 2, 8, 3, 6};
    const double weights[] = {0.5, 0.3, 0.2};
    for (int weighted = 0; weighted < 2; weighted++) {
        ms_dataset *plain = open_three(files, weighted ? weights : NULL, true);
        int64_t done = 0;
        for (int run = 0; run < 6; run++) {
            ms_dataset *dataset = open_three(files, weighted ? weights : NULL, true);
            int64_t replicas = replicas_of_runs[run], batch = 24, own = batch / replicas;
            for (int step = 0; step < 3; step++, done += batch) {
                for (int64_t rank = replicas - 1; rank >= 0; rank--) {
                    for (int64_t i = 0; i < own; i++) {
                        int64_t at = done + rank * own + i;
                        int32_t tokens[2][4], targets[2][4];
                        assert_ok(ms_dataset_sample(dataset, at, tokens[0], targets[0]));
                        assert_ok(ms_dataset_sample(plain, at, tokens[1], targets[1]));
                        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
                    }
                }
            }
            ms_dataset_close(dataset);
        }
        ms_dataset_close(plain);
    }
}

static void test_counter_beyond_32_bits(void **state) {
    const folder *files = *state;
    const double weights[] = {0.5, 0.3, 0.2};
    static const int64_t far[] = {INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 45,
                                  INT64_MAX - 1000};
    for (int weighted = 0; weighted < 2; weighted++) {
        ms_dataset *dataset = open_three(files, weighted ? weights : NULL, true);
        for (size_t f = 0; f < sizeof far / sizeof far[0]; f++) {
            int64_t begin = far[f] - far[f] % 50; /* an epoch of 50, five periods of the blend */
            int64_t counts[3] = {0};
            for (int64_t g = begin; g < begin + 50; g++) {
                int64_t source, sample;
                check_window(dataset, g);
                ms_dataset_locate(dataset, g, &source, &sample);
                counts[source]++;
            }
            assert_int_equal(counts[0], 25);
            assert_int_equal(counts[1], 15);
            assert_int_equal(counts[2], 10);
        }
        ms_dataset_close(dataset);
    }
}

/* Each source by itself goes through its samples once before any comes again. */
static void test_weighted_sources_keep_their_epochs(void **state) {
    const folder *files = *state;
    const double weights[] = {1, 1, 6};
    ms_dataset *dataset = open_three(files, weights, true);
    int64_t drawn[3] = {0};
    int seen[3][25] = {{0}};
    for (int64_t g = 0; g < 2000; g++) {
        int64_t source, sample;
        ms_dataset_locate(dataset, g, &source, &sample);
        int64_t epoch = drawn[source]++ / samples_of[source];
        assert_int_equal(seen[source][sample], epoch);
        seen[source][sample]++;
    }
    assert_int_equal(drawn[0], 250);
    assert_int_equal(drawn[1], 250);
    assert_int_equal(drawn[2], 1500);
    ms_dataset_close(dataset);
}

/* Weights that are whole in a small period: every prefix is exact to less than one sample a source.
 */
static void test_blend_is_proportional_at_every_prefix(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 60; round++) {
        int count = 1 + (int)test_random_below(&seed, 12);
        double weights[12], sum = 0;
        for (int i = 0; i < count; i++) {
            weights[i] = (double)(1 + test_random_below(&seed, 40));
            sum += weights[i];
        }
        ms_blend blend = {0};
        assert_ok(ms__blend_make(weights, count, &blend));
        int64_t drawn[12] = {0};
        for (int64_t g = 0; g < 3 * blend.period + 5; g++) {
            int source;
            int64_t counter;
            ms__blend_at(&blend, g, &source, &counter);
            assert_int_equal(counter, drawn[source]);
            drawn[source]++;
            for (int i = 0; i < count; i++) {
                double exact = (double)(g + 1) * weights[i] / sum;
                assert_true(fabs((double)drawn[i] - exact) < 1);
            }
        }
        ms__blend_release(&blend);
    }
}

/* Any weights: exact to one sample and half a place of each period of 65,536. */
static void test_blend_of_odd_weights(void **state) {
    (void)state;
    const double weights[] = {3.14159265358979, 0.0001, 2.71828182845905, 1.41421356237310};
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += weights[i];
    }
    ms_blend blend = {0};
    assert_ok(ms__blend_make(weights, 4, &blend));
    assert_int_equal(blend.period, MS_BLEND_PERIOD_MAX);
    int64_t drawn[4] = {0};
    for (int64_t g = 0; g < 200000; g++) {
        int source;
        int64_t counter;
        ms__blend_at(&blend, g, &source, &counter);
        assert_int_equal(counter, drawn[source]);
        drawn[source]++;
        for (int i = 0; i < 4; i++) {
            double exact = (double)(g + 1) * weights[i] / sum;
            double periods = (double)(g + 1) / MS_BLEND_PERIOD_MAX;
            assert_true(fabs((double)drawn[i] - exact) < 1 + periods);
        }
    }
    ms__blend_release(&blend);
}

typedef struct reader {
    pthread_t handle;
    const ms_dataset *dataset;
    int64_t begin;
    int64_t wrong;
} reader;

static void *read_samples(void *context) {
    reader *own = context;
    for (int64_t i = 0; i < 4000; i++) {
        int32_t tokens[4], targets[4];
        int64_t source, sample;
        ms_dataset_locate(own->dataset, own->begin + i, &source, &sample);
        bool right = ms_dataset_sample(own->dataset, own->begin + i, tokens, targets) == MS_OK &&
                     tokens[0] == 1000 * (source + 1) + 4 * sample && targets[3] == tokens[0] + 4;
        own->wrong += !right;
    }
    return NULL;
}

static void test_threads_share_a_dataset(void **state) {
    const folder *files = *state;
    const double weights[] = {0.5, 0.3, 0.2};
    ms_dataset *dataset = open_three(files, weights, true);
    reader readers[4];
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){.dataset = dataset, .begin = 1000 * i};
        assert_int_equal(pthread_create(&readers[i].handle, NULL, read_samples, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(readers[i].handle, NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
    ms_dataset_close(dataset);
}

static void test_samples_allocate_nothing(void **state) {
    const folder *files = *state;
    const double weights[] = {0.5, 0.3, 0.2};
    ms_dataset *dataset = open_three(files, weights, true);
    uint64_t calls = ms_memory_counters_get().calls;
    for (int64_t g = 0; g < 1000; g++) {
        check_window(dataset, g);
    }
    assert_int_equal(ms_memory_counters_get().calls, calls);
    ms_dataset_close(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sample_once_each_epoch),
        cmocka_unit_test(test_no_shuffle_is_the_order_of_the_files),
        cmocka_unit_test(test_seed_changes_the_order),
        cmocka_unit_test(test_validation_keeps_its_order),
        cmocka_unit_test(test_resume_and_resize_repeat_and_skip_nothing),
        cmocka_unit_test(test_counter_beyond_32_bits),
        cmocka_unit_test(test_weighted_sources_keep_their_epochs),
        cmocka_unit_test(test_blend_is_proportional_at_every_prefix),
        cmocka_unit_test(test_blend_of_odd_weights),
        cmocka_unit_test(test_threads_share_a_dataset),
        cmocka_unit_test(test_samples_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
