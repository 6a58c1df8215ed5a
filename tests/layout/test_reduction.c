// labels: unit prop
// The order of sums: legal groups against the tree itself, and the same bits for any number of
// replicas.
#include "support/test_support.h"

#include "base/config.h"
#include "layout/layout.h"

enum { BATCHES_MAX = 96 };

static int64_t left_of(int64_t leaves) {
    int64_t left = 1;
    while (left * 2 < leaves) {
        left *= 2;
    }
    return left;
}

/* Whether [start, start + count) are the leaves of one node of the tree, going down from the root.
 */
static bool is_node(int64_t leaves, int64_t start, int64_t count) {
    if (start == 0 && count == leaves) {
        return true;
    }
    int64_t left = left_of(leaves);
    if (leaves == 1 || (start < left && start + count > left)) {
        return false;
    }
    return start + count <= left ? is_node(left, start, count)
                                 : is_node(leaves - left, start - left, count);
}

static bool is_legal(int64_t batches, int64_t replicas, int64_t groups) {
    if (groups < 1 || batches % groups != 0 || groups % replicas != 0) {
        return false;
    }
    for (int64_t r = 0; r < replicas; r++) {
        if (!is_node(groups, r * (groups / replicas), groups / replicas)) {
            return false;
        }
    }
    return true;
}

static void test_legal_groups(void **state) {
    (void)state;
    int64_t refused = 0, accepted = 0;
    for (int64_t batches = 1; batches <= BATCHES_MAX; batches++) {
        for (int64_t replicas = 1; replicas <= batches; replicas++) {
            for (int64_t groups = 1; groups <= batches && batches % replicas == 0; groups++) {
                ms_reduction made = {.groups = -1};
                ms_status status = ms_reduction_make(batches, replicas, groups, &made);
                bool legal = is_legal(batches, replicas, groups);
                assert_int_equal(status, legal ? MS_OK : MS_ERR_CONFIG);
                assert_int_equal(made.groups, legal ? groups : -1);
                accepted += legal;
                refused += !legal;
            }
        }
    }
    assert_true(accepted > 100 && refused > 100);
}

/* The contract of auto: a power of two up to 8, else the smallest divisor that the replicas divide.
 */
static void test_auto_groups(void **state) {
    (void)state;
    for (int64_t batches = 1; batches <= BATCHES_MAX; batches++) {
        for (int64_t replicas = 1; replicas <= batches; replicas++) {
            if (batches % replicas != 0) {
                continue;
            }
            int64_t wanted = 8;
            while (batches % wanted != 0) {
                wanted /= 2;
            }
            for (int64_t g = 1; wanted % replicas != 0; g++) {
                wanted = batches % g == 0 && g % replicas == 0 ? g : wanted;
            }
            ms_reduction made;
            assert_ok(ms_reduction_make(batches, replicas, MS_AUTO, &made));
            assert_int_equal(made.groups, wanted);
            assert_int_equal(made.micro_batches, batches);
            assert_int_equal(made.replicas, replicas);
            assert_int_equal(made.runs_per_replica * replicas, wanted);
            assert_int_equal(made.micro_batches_per_run * wanted, batches);
        }
    }
}

static void test_nearest_is_named(void **state) {
    (void)state;
    for (int64_t batches = 1; batches <= 48; batches++) {
        for (int64_t replicas = 1; replicas <= batches; replicas++) {
            for (int64_t groups = 0; groups <= 60 && batches % replicas == 0; groups++) {
                ms_reduction made;
                if (ms_reduction_make(batches, replicas, groups, &made) == MS_OK) {
                    continue;
                }
                int64_t nearest = -1;
                for (int64_t off = 0; nearest < 0; off++) {
                    nearest = is_legal(batches, replicas, groups - off)   ? groups - off
                              : is_legal(batches, replicas, groups + off) ? groups + off
                                                                          : -1;
                }
                char sentence[64];
                snprintf(sentence, sizeof sentence, "nearest that does is %" PRId64, nearest);
                assert_fails(MS_ERR_CONFIG, sentence,
                             ms_reduction_make(batches, replicas, groups, &made));
            }
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    ms_reduction made = {.groups = 77};
    assert_fails(MS_ERR_CONFIG, "12 micro-batches", ms_reduction_make(12, 5, MS_AUTO, &made));
    assert_fails(MS_ERR_CONFIG, "among 5 replicas", ms_reduction_make(12, 5, MS_AUTO, &made));
    assert_fails(MS_ERR_CONFIG, "0 micro-batches", ms_reduction_make(0, 1, MS_AUTO, &made));
    assert_fails(MS_ERR_CONFIG, "among 0 replicas", ms_reduction_make(4, 0, MS_AUTO, &made));
    assert_fails(MS_ERR_CONFIG, "reduction_groups 6 must divide 12",
                 ms_reduction_make(12, 2, 6, &made));
    assert_fails(MS_ERR_CONFIG, "is 1", ms_reduction_make(12, 1, -3, &made));
    assert_int_equal(made.groups, 77);
    /* Large numbers neither overflow nor take long. */
    int64_t huge = (int64_t)1 << 62;
    assert_ok(ms_reduction_make(huge, 65536, huge, &made));
    assert_int_equal(made.buffer_count, 1 + 46);
}

static double random_value(uint64_t *seed) {
    static const double scales[] = {1e-8, 1, 1e8, 1e16};
    return test_random_real(seed) * scales[test_random_below(seed, 4)];
}

/* What the engine does with one replica's runs: buffers and merges as they are told. */
static double replica_sum(const ms_reduction *reduction, const double *runs, int64_t *used) {
    double buffers[16] = {0};
    for (int64_t run = 0; run < reduction->runs_per_replica; run++) {
        int64_t at = ms_reduction_buffer(reduction, run);
        assert_true(at >= 0 && at < reduction->buffer_count && at < 16);
        *used = ms_max_i64(*used, at + 1);
        buffers[at] = runs[run];
        int64_t merges = ms_reduction_merges(reduction, run);
        assert_true(merges <= at);
        for (int64_t i = 0; i < merges; i++) {
            buffers[at - i - 1] += buffers[at - i];
            buffers[at - i] = NAN; /* must be written before it is read again */
        }
    }
    return buffers[0];
}

static void test_same_bits_for_any_replicas(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    double runs[BATCHES_MAX], sums[BATCHES_MAX];
    int64_t split = 0;
    for (int64_t groups = 1; groups <= BATCHES_MAX; groups++) {
        for (int64_t i = 0; i < groups; i++) {
            runs[i] = random_value(&seed);
        }
        double wanted = ms_tree_sum(runs, groups);
        for (int64_t replicas = 1; replicas <= groups; replicas++) {
            ms_reduction made;
            if (groups % replicas != 0 ||
                ms_reduction_make(groups, replicas, groups, &made) != MS_OK) {
                continue;
            }
            int64_t used = 0;
            for (int64_t r = 0; r < replicas; r++) {
                sums[r] = replica_sum(&made, runs + r * made.runs_per_replica, &used);
            }
            assert_int_equal(used, made.buffer_count); /* none is planned in vain */
            assert_true(ms_tree_sum(sums, replicas) == wanted);
            split += replicas > 1;
        }
    }
    assert_true(split > 100);
}

static void test_tree_sum(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 1000; round++) {
        double v[9];
        for (int i = 0; i < 9; i++) {
            v[i] = random_value(&seed);
        }
        assert_true(ms_tree_sum(v, 0) == 0);
        assert_true(ms_tree_sum(v, 1) == v[0]);
        assert_true(ms_tree_sum(v, 2) == v[0] + v[1]);
        assert_true(ms_tree_sum(v, 3) == (v[0] + v[1]) + v[2]);
        assert_true(ms_tree_sum(v, 5) == ((v[0] + v[1]) + (v[2] + v[3])) + v[4]);
        assert_true(ms_tree_sum(v, 6) == ((v[0] + v[1]) + (v[2] + v[3])) + (v[4] + v[5]));
        assert_true(ms_tree_sum(v, 7) == ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]));
        assert_true(ms_tree_sum(v, 9) ==
                    (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) + v[8]);
    }
}

static void test_buffer_counts(void **state) {
    (void)state;
    static const struct {
        int64_t runs, buffers;
    } cases[] = {{1, 1}, {2, 2}, {3, 2}, {4, 3}, {5, 3}, {7, 3}, {8, 4}, {9, 4}, {16, 5}, {64, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_reduction made;
        assert_ok(ms_reduction_make(cases[i].runs, 1, cases[i].runs, &made));
        assert_int_equal(made.buffer_count, cases[i].buffers);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legal_groups),     cmocka_unit_test(test_auto_groups),
        cmocka_unit_test(test_nearest_is_named), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tree_sum),         cmocka_unit_test(test_same_bits_for_any_replicas),
        cmocka_unit_test(test_buffer_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
