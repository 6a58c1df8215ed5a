// labels: unit prop
// Shards against a brute-force map of every element: order, contiguity, maximal runs, limits.
#include "support/test_support.h"

#include "tensor/tensor.h"

enum { ELEMENTS_MAX = 20000 };

/* Cuts [0, size) into random pieces and keeps some of them, in random order. */
static void random_dim(uint64_t *seed, int64_t size, ms_shard_dim *dim, int64_t *local) {
    int64_t start = 0;
    *local = 0;
    dim->segment_count = 0;
    while (start < size && dim->segment_count < MS_SEGMENTS_MAX) {
        int64_t count = 1 + (int64_t)test_random_below(seed, (uint64_t)(size - start));
        if (test_random_below(seed, 3) > 0) {
            dim->segments[dim->segment_count++] = (ms_segment){start, count};
            *local += count;
        }
        start += count;
    }
    if (test_random_below(seed, 4) == 0) {
        for (int i = dim->segment_count - 1; i > 0; i--) {
            int j = (int)test_random_below(seed, (uint64_t)i + 1);
            ms_segment other = dim->segments[i];
            dim->segments[i] = dim->segments[j];
            dim->segments[j] = other;
        }
    }
}

static ms_shard random_shard(uint64_t *seed) {
    ms_tensor tensor = {.rank = (int)test_random_below(seed, MS_TENSOR_DIMS_MAX + 1)};
    for (int i = 0; i < tensor.rank; i++) {
        tensor.dims[i] = 1 + (int64_t)test_random_below(seed, 9);
    }
    ms_shard shard = ms_shard_whole(&tensor);
    for (int i = 0; i < shard.rank; i++) {
        if (test_random_below(seed, 2) == 0) {
            random_dim(seed, shard.global_dims[i], &shard.dims[i], &shard.local_dims[i]);
        }
    }
    return shard;
}

/* Walks the local coordinates like an odometer and looks each up in the segment lists. */
static int64_t map_by_force(const ms_shard *shard, int64_t *map) {
    int64_t at[MS_TENSOR_DIMS_MAX] = {0};
    int64_t elements = 1;
    for (int i = 0; i < shard->rank; i++) {
        elements *= shard->local_dims[i];
    }
    assert_true(elements <= ELEMENTS_MAX);
    for (int64_t e = 0; e < elements; e++) {
        int64_t flat = 0;
        for (int i = 0; i < shard->rank; i++) {
            int64_t position = 0, found = -1;
            for (int s = 0; s < shard->dims[i].segment_count; s++) {
                for (int64_t k = 0; k < shard->dims[i].segments[s].count; k++) {
                    if (position++ == at[i]) {
                        found = shard->dims[i].segments[s].start + k;
                    }
                }
            }
            assert_true(found >= 0);
            flat = flat * shard->global_dims[i] + found;
        }
        map[e] = flat;
        for (int i = shard->rank - 1; i >= 0 && ++at[i] == shard->local_dims[i]; i--) {
            at[i] = 0;
        }
    }
    return elements;
}

typedef struct visited {
    const int64_t *map;
    int64_t next, runs;
    ms_shard_run last;
} visited;

static ms_status visit_run(const ms_shard_run *run, void *context) {
    visited *seen = context;
    assert_int_equal(run->local_start, seen->next);
    assert_true(run->count > 0);
    for (int64_t i = 0; i < run->count; i++) {
        assert_int_equal(run->global_start + i, seen->map[run->local_start + i]);
    }
    if (seen->runs > 0) { /* maximal: it could not have been part of the run before */
        assert_int_not_equal(run->global_start, seen->last.global_start + seen->last.count);
    }
    seen->next += run->count;
    seen->last = *run;
    seen->runs++;
    return MS_OK;
}

static void test_visit_against_brute_force(void **state) {
    (void)state;
    static int64_t map[ELEMENTS_MAX];
    uint64_t seed = test_seed();
    int64_t empty = 0, joined = 0;
    for (int round = 0; round < 4000; round++) {
        ms_shard shard = random_shard(&seed);
        assert_ok(ms_shard_check(&shard));
        int64_t elements = map_by_force(&shard, map);
        assert_int_equal(ms_shard_elements(&shard), elements);
        int64_t start = (int64_t)test_random_below(&seed, (uint64_t)elements + 1);
        int64_t count = (int64_t)test_random_below(&seed, (uint64_t)(elements - start) + 1);
        if (round % 2 == 0) {
            start = 0;
            count = elements;
        }
        visited seen = {.map = map, .next = start};
        assert_ok(ms_shard_visit(&shard, start, count, visit_run, &seen));
        assert_int_equal(seen.next, start + count);
        for (int64_t e = 0; e < elements; e++) {
            assert_int_equal(ms_shard_global_index(&shard, e), map[e]);
        }
        assert_int_equal(ms_shard_global_index(&shard, elements), -1);
        assert_int_equal(ms_shard_global_index(&shard, -1), -1);
        empty += elements == 0;
        joined += seen.runs == 1 && elements > 1;
    }
    assert_true(empty > 0 && joined > 0);
}

/* GPT-2's fused c_attn, [hidden, 3 hidden], on the second of two ranks. */
static void test_fused_attention(void **state) {
    (void)state;
    ms_tensor tensor = {.name = "c_attn", .rank = 2, .dims = {2, 12}};
    ms_shard shard = ms_shard_whole(&tensor);
    shard.local_dims[1] = 6;
    shard.dims[1] = (ms_shard_dim){3, {{2, 2}, {6, 2}, {10, 2}}};
    assert_ok(ms_shard_check(&shard));
    static const int64_t wanted[] = {2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23};
    visited seen = {.map = wanted};
    assert_ok(ms_shard_visit(&shard, 0, 12, visit_run, &seen));
    assert_int_equal(seen.runs, 6);
    /* The last column of a row and the first of the next one are neighbours: one run. */
    shard.dims[1] = (ms_shard_dim){2, {{0, 3}, {9, 3}}};
    static const int64_t wraps[] = {0, 1, 2, 9, 10, 11, 12, 13, 14, 21, 22, 23};
    seen = (visited){.map = wraps};
    assert_ok(ms_shard_visit(&shard, 0, 12, visit_run, &seen));
    assert_int_equal(seen.runs, 3);
}

static ms_status count_run(const ms_shard_run *run, void *context) {
    int64_t *counts = context;
    counts[0]++;
    counts[1] += run->count;
    return MS_OK;
}

/* The work goes with the runs: these tensors have up to 2^60 elements. */
static void test_huge_tensors(void **state) {
    (void)state;
    const int64_t side = (int64_t)1 << 20;
    ms_tensor tensor = {.name = "huge", .rank = 3, .dims = {side, side, side}};
    assert_int_equal(ms_tensor_elements(&tensor), (int64_t)1 << 60);
    ms_shard shard = ms_shard_whole(&tensor);
    assert_ok(ms_shard_check(&shard));
    int64_t counts[2] = {0};
    assert_ok(ms_shard_visit(&shard, 5, ((int64_t)1 << 60) - 5, count_run, counts));
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1], ((int64_t)1 << 60) - 5);
    /* Half the rows of each plane: one run a plane. */
    shard.dims[1].segments[0] = (ms_segment){side / 4, side / 2};
    shard.local_dims[1] = side / 2;
    assert_ok(ms_shard_check(&shard));
    counts[0] = counts[1] = 0;
    assert_ok(ms_shard_visit(&shard, 0, ms_shard_elements(&shard), count_run, counts));
    assert_int_equal(counts[0], side);
    assert_int_equal(counts[1], (int64_t)1 << 59);
}

static ms_status refuse_third(const ms_shard_run *run, void *context) {
    int *calls = context;
    (void)run;
    return ++*calls == 3 ? ms_fail(MS_ERR_IO, "the third run") : MS_OK;
}

static void test_visitor_stops(void **state) {
    (void)state;
    ms_tensor tensor = {.rank = 2, .dims = {8, 4}};
    ms_shard shard = ms_shard_whole(&tensor);
    shard.dims[1].segments[0].count = shard.local_dims[1] = 1;
    int calls = 0;
    assert_fails(MS_ERR_IO, "third", ms_shard_visit(&shard, 0, 8, refuse_third, &calls));
    assert_int_equal(calls, 3);
    calls = 0; /* the run that ends the range reports too */
    assert_fails(MS_ERR_IO, "third", ms_shard_visit(&shard, 0, 3, refuse_third, &calls));
}

static void test_ranges(void **state) {
    (void)state;
    ms_tensor tensor = {.rank = 1, .dims = {10}};
    ms_shard shard = ms_shard_whole(&tensor);
    int64_t counts[2] = {0};
    assert_ok(ms_shard_visit(&shard, 10, 0, count_run, counts));
    assert_int_equal(counts[0], 0);
    static const int64_t bad[][2] = {{-1, 1}, {0, -1}, {0, 11}, {11, 0}, {10, 1}, {5, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_fails(MS_ERR_RANGE, "outside a shard of 10",
                     ms_shard_visit(&shard, bad[i][0], bad[i][1], count_run, counts));
    }
    assert_int_equal(counts[0], 0);
}

static void test_check_refuses(void **state) {
    (void)state;
    ms_tensor tensor = {.rank = 2, .dims = {4, 8}};
    ms_shard good = ms_shard_whole(&tensor);
    assert_ok(ms_shard_check(&good));

    ms_shard shard = good;
    shard.rank = 5;
    assert_fails(MS_ERR_RANGE, "not 5", ms_shard_check(&shard));
    shard = good;
    shard.dims[1].segment_count = MS_SEGMENTS_MAX + 1;
    assert_fails(MS_ERR_RANGE, "17 segments", ms_shard_check(&shard));
    shard = good;
    shard.dims[1].segment_count = -1;
    assert_fails(MS_ERR_RANGE, "-1 segments", ms_shard_check(&shard));
    shard = good;
    shard.global_dims[0] = -4;
    assert_fails(MS_ERR_RANGE, "dim 0 of -4", ms_shard_check(&shard));
    shard = good;
    shard.local_dims[1] = 7;
    assert_fails(MS_ERR_RANGE, "hold 8, not 7", ms_shard_check(&shard));
    static const ms_segment outside[] = {{1, 8}, {-1, 8}, {8, 1}, {0, -1}, {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        shard = good;
        shard.dims[1].segments[0] = outside[i];
        assert_fails(MS_ERR_RANGE, "outside 8", ms_shard_check(&shard));
    }
    shard = good;
    shard.dims[1] = (ms_shard_dim){3, {{0, 3}, {5, 3}, {2, 2}}};
    assert_fails(MS_ERR_RANGE, "segments 0 and 2 overlap", ms_shard_check(&shard));
    tensor = (ms_tensor){.rank = 2, .dims = {INT64_MAX / 2, 3}};
    shard = ms_shard_whole(&tensor);
    assert_int_equal(ms_tensor_elements(&tensor), INT64_MAX);
    assert_fails(MS_ERR_RANGE, "2^63", ms_shard_check(&shard));
    tensor.dims[1] = 0; /* nothing is in it, so it is small */
    assert_int_equal(ms_tensor_elements(&tensor), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visit_against_brute_force),
        cmocka_unit_test(test_fused_attention),
        cmocka_unit_test(test_huge_tensors),
        cmocka_unit_test(test_visitor_stops),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_check_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
