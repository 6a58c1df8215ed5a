// labels: unit prop
// Cutting tensors and flat ranges: every element has one owner, pieces stay whole, borders are
// legal.
#include "support/test_support.h"

#include "layout/layout.h"

static void test_split_even(void **state) {
    (void)state;
    for (int64_t total = 0; total <= 40; total++) {
        for (int64_t ranks = 1; ranks <= 12; ranks++) {
            int64_t next = 0, before = INT64_MAX;
            for (int64_t i = 0; i < ranks; i++) {
                ms_segment part = ms_split_even(total, i, ranks);
                assert_int_equal(part.start, next);
                assert_true(part.count == total / ranks || part.count == total / ranks + 1);
                assert_true(part.count <= before);
                next += part.count;
                before = part.count;
            }
            assert_int_equal(next, total);
        }
    }
    ms_segment last = ms_split_even(INT64_MAX, 6, 7);
    assert_true(last.start + last.count == INT64_MAX);
}

static void random_rule(uint64_t *seed, int64_t ranks, ms_tensor *tensor, ms_shard_rule *rule) {
    *tensor = (ms_tensor){.name = "w", .rank = 2, .dims = {5, 3}};
    *rule = (ms_shard_rule){.axis = MS_AXIS_TENSOR, .split_dim = (int)test_random_below(seed, 2)};
    rule->part_count = (int)test_random_below(seed, 5);
    int64_t size = 0;
    for (int p = 0; p < (rule->part_count > 0 ? rule->part_count : 1); p++) {
        rule->granules[p] = (int64_t)test_random_below(seed, 4);
        rule->parts[p] = (rule->granules[p] > 0 ? rule->granules[p] : 1) *
                         (ranks + (int64_t)test_random_below(seed, 6));
        size += rule->parts[p];
    }
    tensor->dims[rule->split_dim] = size;
}

static ms_status mark(const ms_shard_run *run, void *context) {
    unsigned char *owners = context;
    for (int64_t i = 0; i < run->count; i++) {
        owners[run->global_start + i]++;
    }
    return MS_OK;
}

/* Shard then gather is the identity: each element on exactly one rank, granules never cut. */
static void test_shards_tile(void **state) {
    (void)state;
    static unsigned char owners[4096];
    uint64_t seed = test_seed();
    for (int round = 0; round < 2000; round++) {
        int64_t ranks = 1 + (int64_t)test_random_below(&seed, 6);
        ms_tensor tensor;
        ms_shard_rule rule;
        random_rule(&seed, ranks, &tensor, &rule);
        int64_t elements = ms_tensor_elements(&tensor);
        assert_true(elements <= (int64_t)sizeof owners);
        memset(owners, 0, sizeof owners);
        for (int64_t rank = 0; rank < ranks; rank++) {
            ms_shard shard;
            assert_ok(ms_shard_make(&tensor, &rule, rank, ranks, &shard));
            assert_ok(ms_shard_check(&shard));
            assert_ok(ms_shard_visit(&shard, 0, ms_shard_elements(&shard), mark, owners));
            int64_t start = 0;
            for (int p = 0; p < rule.part_count && ranks > 1; p++) {
                ms_segment cut = shard.dims[rule.split_dim].segments[p];
                int64_t granule = rule.granules[p] > 0 ? rule.granules[p] : 1;
                assert_true(cut.count > 0 && cut.start >= start &&
                            cut.start + cut.count <= start + rule.parts[p]);
                assert_int_equal((cut.start - start) % granule, 0);
                assert_int_equal(cut.count % granule, 0);
                start += rule.parts[p];
            }
        }
        for (int64_t i = 0; i < elements; i++) {
            assert_int_equal(owners[i], 1);
        }
    }
}

/* Grouped attention: 8 query heads, 4 key and value heads of 2, on the second of 4 ranks. */
static void test_fused_parts(void **state) {
    (void)state;
    ms_tensor tensor = {.name = "qkv", .rank = 2, .dims = {3, 32}};
    ms_shard_rule rule = {.axis = MS_AXIS_TENSOR,
                          .split_dim = 1,
                          .part_count = 3,
                          .parts = {16, 8, 8},
                          .granules = {2, 2, 2}};
    ms_shard shard;
    assert_ok(ms_shard_make(&tensor, &rule, 1, 4, &shard));
    static const ms_segment wanted[] = {{4, 4}, {18, 2}, {26, 2}};
    assert_int_equal(shard.dims[1].segment_count, 3);
    assert_memory_equal(shard.dims[1].segments, wanted, sizeof wanted);
    assert_int_equal(shard.local_dims[1], 8);
    assert_int_equal(shard.local_dims[0], 3);
    /* Replicated, or alone: whole. */
    rule.split_dim = -1;
    assert_ok(ms_shard_make(&tensor, &rule, 3, 4, &shard));
    assert_int_equal(shard.local_dims[1], 32);
    assert_int_equal(shard.dims[1].segment_count, 1);
}

static void test_shard_refusals(void **state) {
    (void)state;
    ms_tensor tensor = {.name = "qkv", .rank = 2, .dims = {3, 32}};
    ms_shard_rule rule = {.axis = MS_AXIS_TENSOR,
                          .split_dim = 1,
                          .part_count = 3,
                          .parts = {16, 8, 8},
                          .granules = {2, 2, 2}};
    ms_shard shard = {.rank = 99};
    assert_fails(MS_ERR_CONFIG,
                 "qkv: 8 elements in pieces of 2 make 4 pieces, fewer than parallel.tensor 5",
                 ms_shard_make(&tensor, &rule, 0, 5, &shard));
    rule.granules[1] = 3;
    assert_fails(MS_ERR_CONFIG, "qkv: 8 elements are not whole pieces of 3",
                 ms_shard_make(&tensor, &rule, 0, 2, &shard));
    rule.granules[1] = 2;
    rule.parts[2] = 7;
    assert_fails(MS_ERR_ARGUMENT, "do not add up to dim 1, 32",
                 ms_shard_make(&tensor, &rule, 0, 2, &shard));
    rule.parts[1] = INT64_MAX;
    assert_fails(MS_ERR_ARGUMENT, "do not add up", ms_shard_make(&tensor, &rule, 0, 2, &shard));
    rule.parts[1] = 8;
    rule.parts[2] = 8;
    static const struct {
        int dim, parts;
        int64_t index, count;
    } bad[] = {{2, 3, 0, 2}, {-2, 3, 0, 2}, {1, 5, 0, 2}, {1, -1, 0, 2},
               {1, 3, 2, 2}, {1, 3, -1, 2}, {1, 3, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ms_shard_rule wrong = rule;
        wrong.split_dim = bad[i].dim;
        wrong.part_count = bad[i].parts;
        assert_fails(MS_ERR_ARGUMENT, "qkv: no shard",
                     ms_shard_make(&tensor, &wrong, bad[i].index, bad[i].count, &shard));
    }
    assert_int_equal(shard.rank, 99); /* outputs only on success */
    assert_ok(ms_shard_make(&tensor, &rule, 1, 2, &shard));
}

enum { TENSORS_MAX = 6, BORDERS_MAX = 64, BLOCK = 4096 };

typedef struct flat_range {
    int64_t starts[TENSORS_MAX], counts[TENSORS_MAX], start, end;
    int tensors;
} flat_range;

static flat_range random_range(uint64_t *seed) {
    flat_range range = {.tensors = 1 + (int)test_random_below(seed, TENSORS_MAX)};
    range.start = range.end = 64 * (int64_t)test_random_below(seed, 5);
    for (int i = 0; i < range.tensors; i++) {
        uint64_t most = test_random_below(seed, 2) == 0 ? 300 : 5 * BLOCK;
        range.starts[i] = range.end;
        range.counts[i] = (int64_t)test_random_below(seed, most);
        if (test_random_below(seed, 4) == 0) {
            range.counts[i] = range.counts[i] / BLOCK * BLOCK;
        }
        range.end += (range.counts[i] + 63) / 64 * 64;
        range.end +=
            test_random_below(seed, 4) == 0 ? 64 * (int64_t)test_random_below(seed, 99) : 0;
    }
    return range;
}

static bool is_legal(const flat_range *range, int64_t border) {
    bool legal = border == range->end;
    for (int i = 0; i < range->tensors; i++) {
        int64_t inside = border - range->starts[i];
        legal = legal || inside == 0 ||
                (inside > 0 && inside < range->counts[i] && inside % BLOCK == 0);
    }
    return legal;
}

static void test_zero_borders(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 500; round++) {
        flat_range range = random_range(&seed);
        int64_t replicas = 1 + (int64_t)test_random_below(&seed, BORDERS_MAX - 2);
        int64_t borders[BORDERS_MAX];
        borders[replicas + 1 < BORDERS_MAX ? replicas + 1 : 0] = -5;
        ms_zero_borders(range.starts, range.counts, range.tensors, range.start, range.end, replicas,
                        borders);
        assert_int_equal(borders[0], range.start);
        assert_int_equal(borders[replicas], range.end);
        assert_true(replicas + 1 >= BORDERS_MAX || borders[replicas + 1] == -5);
        for (int64_t r = 1; r < replicas; r++) {
            assert_true(borders[r] >= borders[r - 1]);
            assert_true(is_legal(&range, borders[r]));
            /* No legal border is nearer to the even share. */
            int64_t wanted =
                range.start + ms_split_even(range.end - range.start, r, replicas).start;
            int64_t off = wanted > borders[r] ? wanted - borders[r] : borders[r] - wanted;
            for (int64_t b = wanted - off + 1; b < wanted + off; b++) {
                assert_false(b >= range.start && is_legal(&range, b));
            }
        }
    }
}

static void test_zero_borders_edges(void **state) {
    (void)state;
    int64_t borders[5];
    ms_zero_borders(NULL, NULL, 0, 10, 10, 4, borders); /* nothing to deal */
    for (int r = 0; r <= 4; r++) {
        assert_int_equal(borders[r], 10);
    }
    const int64_t start = 0, small = 100, large = 4 * BLOCK;
    ms_zero_borders(&start, &small, 1, 0, 128, 4, borders); /* one block has one owner */
    for (int r = 1; r < 4; r++) {
        assert_true(borders[r] == 0 || borders[r] == 128);
    }
    ms_zero_borders(&start, &large, 1, 0, large, 4, borders);
    for (int r = 0; r <= 4; r++) {
        assert_int_equal(borders[r], r * BLOCK);
    }
    ms_zero_borders(&start, &large, 1, 0, large, 1, borders);
    assert_int_equal(borders[1], large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_even),   cmocka_unit_test(test_shards_tile),
        cmocka_unit_test(test_fused_parts),  cmocka_unit_test(test_shard_refusals),
        cmocka_unit_test(test_zero_borders), cmocka_unit_test(test_zero_borders_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
