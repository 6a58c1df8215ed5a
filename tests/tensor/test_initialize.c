// labels: unit prop
// Initial values: a function of seed, name and global element alone, whatever shard, range or
// threads.
#include "support/test_support.h"

#include <math.h>
#include <omp.h>

#include "base/random.h"
#include "tensor/tensor.h"

enum { ROWS = 301, COLUMNS = 907, ELEMENTS = ROWS * COLUMNS }; /* odd: pairs cross rows */

static const ms_tensor table = {.name = "wte.weight",
                                .rank = 2,
                                .dims = {ROWS, COLUMNS},
                                .initializer = MS_INIT_NORMAL,
                                .init_std = 0.02};

static void test_stream_of_the_name(void **state) {
    (void)state;
    static double values[ELEMENTS];
    ms_shard whole = ms_shard_whole(&table);
    ms_random_key key = ms_random_key_make(1337, "init:wte.weight");
    assert_ok(ms_tensor_initialize(&table, &whole, 1337, 0, ELEMENTS, MS_F64, values));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < ELEMENTS; i++) {
        assert_true(values[i] == ms_random_normal_at(key, (uint64_t)i) * 0.02);
        sum += values[i];
        squares += values[i] * values[i];
    }
    /* Six standard errors. */
    assert_true(fabs(sum / ELEMENTS) < 6 * 0.02 / sqrt(ELEMENTS));
    assert_true(fabs(sqrt(squares / ELEMENTS) / 0.02 - 1) < 6 / sqrt(2.0 * ELEMENTS));

    static float narrow[ELEMENTS];
    assert_ok(ms_tensor_initialize(&table, &whole, 1337, 0, ELEMENTS, MS_F32, narrow));
    for (int64_t i = 0; i < ELEMENTS; i++) {
        assert_true(narrow[i] == (float)values[i]);
    }
}

static void test_shards_and_ranges(void **state) {
    (void)state;
    static float whole_values[ELEMENTS], values[ELEMENTS + 2];
    uint64_t seed = test_seed();
    ms_shard whole = ms_shard_whole(&table);
    assert_ok(ms_tensor_initialize(&table, &whole, 7, 0, ELEMENTS, MS_F32, whole_values));
    for (int round = 0; round < 200; round++) {
        ms_shard shard = whole;
        int64_t columns = 1 + (int64_t)test_random_below(&seed, COLUMNS / 3);
        int64_t gap = (int64_t)test_random_below(&seed, COLUMNS / 3);
        if (round % 4 == 0) {
            columns = 1; /* the runs are single elements, each half of a pair */
        }
        shard.dims[1] = (ms_shard_dim){2, {{gap, columns}, {2 * COLUMNS / 3, columns}}};
        shard.local_dims[1] = 2 * columns;
        int64_t first_row = (int64_t)test_random_below(&seed, ROWS);
        shard.dims[0].segments[0] = (ms_segment){first_row, ROWS - first_row};
        shard.local_dims[0] = ROWS - first_row;
        assert_ok(ms_shard_check(&shard));
        int64_t elements = ms_shard_elements(&shard);
        int64_t start = (int64_t)test_random_below(&seed, (uint64_t)elements);
        int64_t count = (int64_t)test_random_below(&seed, (uint64_t)(elements - start) + 1);
        values[0] = values[count + 1] = -77;
        assert_ok(ms_tensor_initialize(&table, &shard, 7, start, count, MS_F32, values + 1));
        assert_true(values[0] == -77 && values[count + 1] == -77);
        for (int64_t i = 0; i < count; i++) {
            assert_true(values[i + 1] == whole_values[ms_shard_global_index(&shard, start + i)]);
        }
    }
}

static void test_threads(void **state) {
    (void)state;
    static float one[ELEMENTS], many[ELEMENTS];
    ms_shard whole = ms_shard_whole(&table);
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    assert_ok(ms_tensor_initialize(&table, &whole, 7, 0, ELEMENTS, MS_F32, one));
    omp_set_num_threads(5);
    assert_ok(ms_tensor_initialize(&table, &whole, 7, 0, ELEMENTS, MS_F32, many));
    omp_set_num_threads(threads);
    assert_memory_equal(one, many, sizeof one);
}

static void test_names_and_seeds_differ(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    float values[4][COUNT];
    static const char *const names[] = {"h.0.attn", "h.1.attn", "h.0.attn", "h.0.attn"};
    static const uint64_t seeds[] = {1, 1, 2, 1};
    for (int i = 0; i < 4; i++) {
        ms_tensor tensor = {
            .rank = 1, .dims = {COUNT}, .initializer = MS_INIT_NORMAL, .init_std = 1};
        snprintf(tensor.name, sizeof tensor.name, "%s", names[i]);
        ms_shard whole = ms_shard_whole(&tensor);
        assert_ok(ms_tensor_initialize(&tensor, &whole, seeds[i], 0, COUNT, MS_F32, values[i]));
    }
    assert_memory_equal(values[0], values[3], sizeof values[0]);
    for (int i = 1; i < 3; i++) {
        int equal = 0;
        for (int k = 0; k < COUNT; k++) {
            equal += values[0][k] == values[i][k];
        }
        assert_true(equal < 5);
    }
}

static void test_constants(void **state) {
    (void)state;
    ms_tensor tensor = {
        .name = "ln.weight", .rank = 1, .dims = {100}, .initializer = MS_INIT_ONE, .init_std = 5};
    ms_shard whole = ms_shard_whole(&tensor);
    float values[100];
    assert_ok(ms_tensor_initialize(&tensor, &whole, 1, 0, 100, MS_F32, values));
    for (int i = 0; i < 100; i++) {
        assert_true(values[i] == 1);
    }
    double wide[100];
    memset(wide, 0x55, sizeof wide);
    tensor.initializer = MS_INIT_ZERO;
    assert_ok(ms_tensor_initialize(&tensor, &whole, 1, 0, 100, MS_F64, wide));
    for (int i = 0; i < 100; i++) {
        assert_true(wide[i] == 0);
    }
    /* A scalar, and nothing at all. */
    ms_tensor scalar = {.name = "s", .initializer = MS_INIT_ONE};
    ms_shard point = ms_shard_whole(&scalar);
    assert_ok(ms_tensor_initialize(&scalar, &point, 1, 0, 1, MS_F32, values));
    assert_ok(ms_tensor_initialize(&tensor, &whole, 1, 100, 0, MS_F32, NULL));
}

static void test_refusals(void **state) {
    (void)state;
    ms_shard whole = ms_shard_whole(&table), other = whole;
    float values[4] = {3, 3, 3, 3};
    assert_fails(MS_ERR_UNSUPPORTED, "wte.weight: initial values are fp32 or fp64, not bf16",
                 ms_tensor_initialize(&table, &whole, 1, 0, 4, MS_BF16, values));
    other.global_dims[0]++;
    assert_fails(MS_ERR_ARGUMENT, "other dims",
                 ms_tensor_initialize(&table, &other, 1, 0, 4, MS_F32, values));
    assert_fails(MS_ERR_RANGE, "outside a shard of 273007",
                 ms_tensor_initialize(&table, &whole, 1, ELEMENTS - 3, 4, MS_F32, values));
    assert_true(values[0] == 3 && values[3] == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_of_the_name),
        cmocka_unit_test(test_shards_and_ranges),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_names_and_seeds_differ),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
