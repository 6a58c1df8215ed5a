// labels: multi
// timeout: 120
/*
 * Every layout gives one rank's numbers: loss, norm, each logical gradient and updated weight, in fp64 with reference
 * kernels, where a wrong group or a missing term cannot hide behind rounding.
 */
#include "engine/parity.h"

typedef struct layout_case {
    const char *name;
    int64_t data, tensor, pipeline;
    int zero;
    bool sequence_parallel;
    const char *schedule;
} layout_case;

static const layout_case layouts[] = {
    {"data 2", 2, 1, 1, 0, false, "1f1b"},
    {"data 2, zero 1", 2, 1, 1, 1, false, "1f1b"},
    {"tensor 2", 1, 2, 1, 0, false, "1f1b"},
    {"tensor 2, sequence parallel", 1, 2, 1, 1, true, "1f1b"},
    {"pipeline 2", 1, 1, 2, 1, false, "1f1b"},
    {"pipeline 2, gpipe", 1, 1, 2, 1, false, "gpipe"},
    {"tensor 2 x pipeline 2", 1, 2, 2, 1, true, "1f1b"},
    {"data 2 x pipeline 2", 2, 1, 2, 1, false, "1f1b"},
    {"data 2 x tensor 2", 2, 2, 1, 1, true, "1f1b"},
    {"data 2 x tensor 2 x pipeline 2", 2, 2, 2, 1, true, "1f1b"},
};

static ms_model_spec small_gpt2(bool bias) {
    return (ms_model_spec){.family = MS_FAMILY_GPT2, .layers = 3, .hidden = 24, .heads = 4,
                           .kv_heads = 4, .head_size = 6, .ffn = 40, .positions = 10,
                           .vocabulary = 37, .bias = bias, .tied = true,
                           .activation = MS_GELU_TANH, .norm_epsilon = 1e-5, .init_std = 0.05,
                           .dropout = bias ? 0.1 : 0, .embedding_dropout = bias ? 0.1 : 0,
                           .attention_dropout = bias ? 0.1 : 0,
                           .rope_scaling = {.factor = 1}, .bos_id = -1, .eos_id = -1};
}

static ms_model_spec small_llama(ms_model_family family) {
    return (ms_model_spec){.family = family, .layers = 2, .hidden = 24, .heads = 4, .kv_heads = 2,
                           .head_size = 8, .ffn = 36, .positions = 12, .vocabulary = 41,
                           .attention_bias = family == MS_FAMILY_LLAMA, .activation = MS_SILU,
                           .norm_epsilon = 1e-6, .rope_theta = 10000, .init_std = 0.05,
                           .rope_scaling = {.factor = 1}, .bos_id = -1, .eos_id = -1};
}

static test_setup setup_of(ms_model_spec spec) {
    test_setup setup = test_setup_of(spec);
    setup.micro_batches = 4;
    setup.micro_batch_size = 2;
    setup.variant = "ref";
    setup.bucket_bytes = 8192;
    return setup;
}

static void compare_layouts(ms_model_spec spec, const char *what) {
    test_setup setup = setup_of(spec);
    parity_outcome one;
    parity_run(&setup, &one);
    assert_true(one.norm[0] > 0);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        test_setup other = setup;
        other.mesh.size[MS_AXIS_DATA] = layouts[i].data;
        other.mesh.size[MS_AXIS_TENSOR] = layouts[i].tensor;
        other.mesh.size[MS_AXIS_PIPELINE] = layouts[i].pipeline;
        other.zero = layouts[i].zero;
        other.sequence_parallel = layouts[i].sequence_parallel;
        other.schedule = layouts[i].schedule;
        parity_outcome outcome;
        parity_run(&other, &outcome);
        double loss = parity_worst(one.loss, outcome.loss, PARITY_STEPS);
        double norm = parity_worst(one.norm, outcome.norm, PARITY_STEPS);
        double gradients = parity_worst(one.gradients, outcome.gradients, one.elements);
        double weights = parity_worst(one.weights, outcome.weights, one.elements);
        printf("%-6s %-32s loss %.1e  norm %.1e  gradients %.1e  weights %.1e\n", what,
               layouts[i].name, loss, norm, gradients, weights);
        assert_true(loss < 1e-9 && norm < 1e-9 && gradients < 1e-9 && weights < 1e-9);
        parity_free(&outcome);
    }
    parity_free(&one);
}

static void gpt2_on_every_layout(void **state) {
    (void)state;
    compare_layouts(small_gpt2(false), "gpt2");
}

static void gpt2_with_biases_and_dropout(void **state) {
    (void)state;
    compare_layouts(small_gpt2(true), "gpt2+b");
}

static void llama_on_every_layout(void **state) {
    (void)state;
    compare_layouts(small_llama(MS_FAMILY_LLAMA), "llama");
}

static void qwen3_on_every_layout(void **state) {
    (void)state;
    compare_layouts(small_llama(MS_FAMILY_QWEN3), "qwen3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_on_every_layout),
        cmocka_unit_test(gpt2_with_biases_and_dropout),
        cmocka_unit_test(llama_on_every_layout),
        cmocka_unit_test(qwen3_on_every_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
