// labels: unit prop
// The mesh: ranks and coordinates are one-to-one, groups partition the ranks, limits hold.
#include "support/test_support.h"

#include "layout/layout.h"

enum { RANKS_MAX = 512 };

static ms_mesh random_mesh(uint64_t *seed) {
    ms_mesh mesh;
    do {
        for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
            mesh.size[axis] = 1 + (int64_t)test_random_below(seed, 6);
        }
    } while (ms_mesh_ranks(&mesh) > RANKS_MAX);
    return mesh;
}

static void test_ranks_and_coordinates(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 200; round++) {
        ms_mesh mesh = random_mesh(&seed);
        assert_ok(ms_mesh_check(&mesh));
        int64_t ranks = ms_mesh_ranks(&mesh), rank = 0;
        ms_coordinates at;
        /* The order of nesting, written out: tensor changes fastest, pipeline slowest. */
        for (at.at[MS_AXIS_PIPELINE] = 0; at.at[MS_AXIS_PIPELINE] < mesh.size[MS_AXIS_PIPELINE];
             at.at[MS_AXIS_PIPELINE]++) {
            for (at.at[MS_AXIS_DATA] = 0; at.at[MS_AXIS_DATA] < mesh.size[MS_AXIS_DATA];
                 at.at[MS_AXIS_DATA]++) {
                for (at.at[MS_AXIS_EXPERT] = 0; at.at[MS_AXIS_EXPERT] < mesh.size[MS_AXIS_EXPERT];
                     at.at[MS_AXIS_EXPERT]++) {
                    for (at.at[MS_AXIS_CONTEXT] = 0;
                         at.at[MS_AXIS_CONTEXT] < mesh.size[MS_AXIS_CONTEXT];
                         at.at[MS_AXIS_CONTEXT]++) {
                        for (at.at[MS_AXIS_TENSOR] = 0;
                             at.at[MS_AXIS_TENSOR] < mesh.size[MS_AXIS_TENSOR];
                             at.at[MS_AXIS_TENSOR]++, rank++) {
                            ms_coordinates found = ms_mesh_coordinates(&mesh, rank);
                            assert_memory_equal(&found, &at, sizeof at);
                            assert_int_equal(ms_mesh_rank(&mesh, &at), rank);
                        }
                    }
                }
            }
        }
        assert_int_equal(rank, ranks);
    }
}

static void check_group(const ms_mesh *mesh, int64_t rank, unsigned mask) {
    int group[RANKS_MAX];
    int64_t ranks = ms_mesh_ranks(mesh), next = 0;
    int64_t count = ms_mesh_group(mesh, rank, mask, group, RANKS_MAX);
    ms_coordinates own = ms_mesh_coordinates(mesh, rank);
    for (int64_t other = 0; other < ranks; other++) { /* by the definition, over all ranks */
        ms_coordinates at = ms_mesh_coordinates(mesh, other);
        bool member = true;
        for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
            member = member && ((mask >> axis & 1u) != 0 || at.at[axis] == own.at[axis]);
        }
        if (member) {
            assert_true(next < count);
            assert_int_equal(group[next++], other);
        }
    }
    assert_int_equal(next, count);
}

static void test_groups(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 40; round++) {
        ms_mesh mesh = random_mesh(&seed);
        for (unsigned mask = 0; mask < 1u << MS_AXIS_COUNT; mask++) {
            check_group(&mesh, (int64_t)test_random_below(&seed, (uint64_t)ms_mesh_ranks(&mesh)),
                        mask);
        }
    }
}

/* 2 tensor x 2 data x 2 pipeline: the groups that a reader expects. */
static void test_small_mesh(void **state) {
    (void)state;
    ms_mesh mesh = {{2, 1, 1, 2, 2}};
    static const struct {
        unsigned mask;
        int group[4], count;
    } cases[] = {
        {1u << MS_AXIS_TENSOR, {4, 5}, 2},
        {1u << MS_AXIS_DATA, {5, 7}, 2},
        {1u << MS_AXIS_PIPELINE, {1, 5}, 2},
        {1u << MS_AXIS_TENSOR | 1u << MS_AXIS_PIPELINE, {0, 1, 4, 5}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int group[4] = {-1, -1, -1, -1};
        assert_int_equal(ms_mesh_group(&mesh, 5, cases[i].mask, group, 4), cases[i].count);
        for (int k = 0; k < cases[i].count; k++) {
            assert_int_equal(group[k], cases[i].group[k]);
        }
    }
    /* Too small an array is filled, not overrun, and the count is still told. */
    int group[3] = {-1, -1, -1};
    assert_int_equal(ms_mesh_group(&mesh, 5, 31u, group, 2), 8);
    assert_int_equal(group[1], 1);
    assert_int_equal(group[2], -1);
}

static void test_limits(void **state) {
    (void)state;
    ms_mesh mesh = {{256, 1, 1, 256, 1}};
    assert_ok(ms_mesh_check(&mesh));
    mesh.size[MS_AXIS_PIPELINE] = 2;
    assert_fails(MS_ERR_CONFIG,
                 "tensor 256 x context 1 x expert 1 x data 256 x pipeline 2 are more than 65536",
                 ms_mesh_check(&mesh));
    mesh.size[MS_AXIS_DATA] = 0;
    assert_fails(MS_ERR_CONFIG, "axis data, not 0", ms_mesh_check(&mesh));
    mesh = (ms_mesh){{INT64_MAX, 3, 1, 1, 1}};
    assert_int_equal(ms_mesh_ranks(&mesh), INT64_MAX);
    assert_fails(MS_ERR_CONFIG, "more than", ms_mesh_check(&mesh));
    mesh = (ms_mesh){{(int64_t)1 << 32, (int64_t)1 << 32, 1, 1, 1}}; /* 2^64 would wrap to 0 */
    assert_fails(MS_ERR_CONFIG, "more than", ms_mesh_check(&mesh));
    assert_string_equal(ms_axis_name(MS_AXIS_TENSOR), "tensor");
    assert_string_equal(ms_axis_name(MS_AXIS_PIPELINE), "pipeline");
    assert_string_equal(ms_axis_name(MS_AXIS_NONE), "none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_and_coordinates),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_small_mesh),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
