// labels: multi
// timeout: 120
/*
 * The same bits whatever the number of replicas, the ZeRO stage, overlap, recomputation and bucket size: gradients are
 * added in one order fixed by the global micro-batch index.
 */
#include "engine/parity.h"

static test_setup base_setup(ms_dtype compute, int64_t micro_batches) {
    ms_model_spec spec = {.family = MS_FAMILY_GPT2, .layers = 2, .hidden = 48, .heads = 4,
                          .kv_heads = 4, .head_size = 12, .ffn = 160, .positions = 24,
                          .vocabulary = 131, .bias = true, .tied = true,
                          .activation = MS_GELU_TANH, .norm_epsilon = 1e-5, .init_std = 0.05,
                          .dropout = 0.1, .rope_scaling = {.factor = 1}, .bos_id = -1,
                          .eos_id = -1};
    test_setup setup = test_setup_of(spec);
    setup.compute = compute;
    setup.micro_batches = micro_batches;
    setup.bucket_bytes = 65536;
    return setup;
}

static void expect_same(const parity_outcome *one, const test_setup *setup, const char *what) {
    parity_outcome other;
    parity_run(setup, &other);
    size_t bytes = (size_t)one->elements * sizeof(double);
    bool same = memcmp(one->loss, other.loss, sizeof one->loss) == 0 &&
                memcmp(one->norm, other.norm, sizeof one->norm) == 0 &&
                memcmp(one->gradients, other.gradients, bytes) == 0 &&
                memcmp(one->weights, other.weights, bytes) == 0;
    if (!same) {
        fail_msg("%s: loss %.17g, norm %.17g instead of %.17g, %.17g; weights differ by %.3g", what,
                 other.loss[PARITY_STEPS - 1], other.norm[PARITY_STEPS - 1],
                 one->loss[PARITY_STEPS - 1], one->norm[PARITY_STEPS - 1],
                 parity_worst(one->weights, other.weights, one->elements));
    }
    parity_free(&other);
}

static void same_for_any_replicas(ms_dtype compute, int64_t micro_batches) {
    test_setup setup = base_setup(compute, micro_batches);
    parity_outcome one;
    parity_run(&setup, &one);
    assert_true(one.norm[0] > 0);
    for (int64_t replicas = 2; replicas <= 4; replicas *= 2) {
        for (int zero = 0; zero <= 1; zero++) {
            test_setup other = setup;
            other.mesh.size[MS_AXIS_DATA] = replicas;
            other.zero = zero;
            expect_same(&one, &other, "replicas");
            other.overlap = false;
            expect_same(&one, &other, "replicas, no overlap");
            other.bucket_bytes = 4096;
            expect_same(&one, &other, "replicas, small buckets");
            other.bucket_bytes = 1 << 20;
            other.overlap = true;
            expect_same(&one, &other, "replicas, one bucket");
        }
    }
    parity_free(&one);
}

static void replicas_in_fp32(void **state) {
    (void)state;
    same_for_any_replicas(MS_F32, 4);
    same_for_any_replicas(MS_F32, 8);
}

static void replicas_in_bf16(void **state) {
    (void)state;
    same_for_any_replicas(MS_BF16, 4);
}

static void recomputation(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        test_setup setup = base_setup(type == 0 ? MS_F32 : MS_BF16, 2);
        parity_outcome one;
        parity_run(&setup, &one);
        setup.recompute = MS_RECOMPUTE_SELECTIVE;
        expect_same(&one, &setup, "selective");
        setup.recompute = MS_RECOMPUTE_FULL;
        expect_same(&one, &setup, "full");
        parity_free(&one);
    }
}

/* A different number of groups is a different order of sums: the promise is not empty. */
static void other_groups_differ(void **state) {
    (void)state;
    test_setup setup = base_setup(MS_F32, 8);
    parity_outcome eight, one;
    parity_run(&setup, &eight);
    setup.reduction_groups = 1;
    parity_run(&setup, &one);
    size_t bytes = (size_t)one.elements * sizeof(double);
    assert_int_not_equal(memcmp(one.gradients, eight.gradients, bytes), 0);
    assert_true(parity_worst(one.weights, eight.weights, one.elements) < 1e-3);
    parity_free(&eight);
    parity_free(&one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_in_fp32),
        cmocka_unit_test(replicas_in_bf16),
        cmocka_unit_test(recomputation),
        cmocka_unit_test(other_groups_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
