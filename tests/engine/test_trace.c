// labels: golden
// timeout: 120
/*
 * Twenty AdamW steps of a small GPT against a trace recorded with PyTorch in fp64 and fp32: losses,
 * gradient norms and final weights.
 */
#include "engine/engine_support.h"

#include "format/json.h"
#include "format/safetensors.h"

#include <math.h>

#define STEPS 20
#define BATCH 4
#define SEQUENCE 32
#define VOCABULARY 65

typedef struct trace {
    int32_t *data;
    int64_t offsets[STEPS][BATCH];
    double loss[STEPS], norm[STEPS];
} trace;

static ms_model_spec trace_spec(void) {
    return (ms_model_spec){.family = MS_FAMILY_GPT2, .layers = 2, .hidden = 64, .heads = 4,
                           .kv_heads = 4, .head_size = 16, .ffn = 256, .positions = SEQUENCE,
                           .vocabulary = VOCABULARY, .bias = true, .tied = true,
                           .activation = MS_GELU_ERF, .norm_epsilon = 1e-5, .init_std = 0.02,
                           .rope_scaling = {.factor = 1}, .bos_id = -1, .eos_id = -1};
}

static int32_t *read_characters(const char *path) {
    ms_text text = {0};
    assert_ok(ms_file_read(path, (size_t)1 << 24, &text));
    int32_t ids[256], next = 0;
    bool seen[256] = {false};
    for (size_t i = 0; i < text.length; i++) {
        seen[(unsigned char)text.bytes[i]] = true;
    }
    for (int c = 0; c < 256; c++) {
        ids[c] = seen[c] ? next++ : -1;
    }
    assert_int_equal(next, VOCABULARY);
    int32_t *data = calloc(text.length, sizeof *data);
    for (size_t i = 0; i < text.length; i++) {
        data[i] = ids[(unsigned char)text.bytes[i]];
    }
    ms_text_release(&text);
    return data;
}

static void read_trace(trace *trace) {
    char path[MS_TEST_PATH_BYTES];
    test_shared_path("gpt_tiny_trace/trace.json", path);
    ms_json json = {0};
    assert_ok(ms_json_open(path, MS_JSON_BYTES_MAX, &json));
    const json_t *offsets = ms_json_find(&json, "batch_offsets");
    for (size_t s = 0; s < STEPS; s++) {
        trace->loss[s] = json_real_value(json_array_get(ms_json_find(&json, "loss_f64"), s));
        trace->norm[s] = json_real_value(json_array_get(ms_json_find(&json, "grad_norm_f64"), s));
        for (size_t b = 0; b < BATCH; b++) {
            trace->offsets[s][b] = json_integer_value(json_array_get(json_array_get(offsets, s), b));
        }
    }
    ms_json_close(&json);
    test_shared_path("tinyshakespeare/input.txt", path);
    trace->data = read_characters(path);
}

/* The trace's linear weights are [out, in]; ours, like Hugging Face's GPT-2, are [in, out]. */
static bool is_linear(const char *name) {
    return strstr(name, ".c_") != NULL && strstr(name, ".weight") != NULL;
}

static double element(const ms_safetensors_tensor *tensor, const ms_tensor *ours, int64_t i) {
    int64_t at = i;
    if (is_linear(ours->name)) {
        int64_t columns = ours->dims[1];
        at = i % columns * ours->dims[0] + i / columns;
    }
    float value;
    memcpy(&value, (const char *)tensor->data + at * 4, sizeof value);
    return (double)value;
}

typedef void (*visit_element)(void *ours, ms_dtype dtype, int64_t i, double theirs, void *context);

static void visit_weights(ms_engine *engine, const char *name, visit_element visit, void *context) {
    char path[MS_TEST_PATH_BYTES];
    test_shared_path(name, path);
    ms_safetensors *file;
    assert_ok(ms_safetensors_open(path, &file));
    ms_engine_piece pieces[64];
    int64_t count = ms_engine_pieces(engine, MS_PIECES_WEIGHTS, pieces, 64);
    for (int64_t p = 0; p < count; p++) {
        const ms_safetensors_tensor *tensor = ms_safetensors_find(file, pieces[p].tensor->name);
        assert_non_null(tensor);
        for (int64_t i = 0; i < pieces[p].local_count; i++) {
            visit(pieces[p].data, pieces[p].dtype, i, element(tensor, pieces[p].tensor, i),
                  context);
        }
    }
    ms_safetensors_close(file);
}

static void store(void *ours, ms_dtype dtype, int64_t i, double theirs, void *context) {
    (void)context;
    if (dtype == MS_F64) {
        ((double *)ours)[i] = theirs;
    } else {
        ((float *)ours)[i] = (float)theirs;
    }
}

static void compare(void *ours, ms_dtype dtype, int64_t i, double theirs, void *context) {
    double value = dtype == MS_F64 ? ((double *)ours)[i] : (double)((float *)ours)[i];
    /* The recorded weights are rounded to fp32: in fp64 ours must round to them, but for ties. */
    double error = dtype == MS_F64 ? fabs((double)(float)value - theirs) : fabs(value - theirs);
    double *worst = context;
    *worst = error > *worst ? error : *worst;
}

static void run_trace(ms_dtype compute, double loss_bound, double norm_bound,
                      double weight_bound) {
    static trace recorded;
    read_trace(&recorded);
    test_setup setup = test_setup_of(trace_spec());
    setup.micro_batch_size = BATCH;
    setup.compute = compute;
    test_rank rank = {0};
    assert_ok(test_rank_open(&rank, &setup, 0, NULL));
    visit_weights(rank.engine, "gpt_tiny_trace/init.safetensors", store, NULL);
    ms_engine_weights_changed(rank.engine);
    double worst_loss = 0, worst_norm = 0, worst_weight = 0;
    for (int64_t step = 0; step < STEPS; step++) {
        int32_t tokens[BATCH * SEQUENCE], targets[BATCH * SEQUENCE];
        for (int64_t b = 0; b < BATCH; b++) {
            for (int64_t t = 0; t < SEQUENCE; t++) {
                tokens[b * SEQUENCE + t] = recorded.data[recorded.offsets[step][b] + t];
                targets[b * SEQUENCE + t] = recorded.data[recorded.offsets[step][b] + t + 1];
            }
        }
        int64_t samples[BATCH] = {0, 1, 2, 3};
        ms_micro_batch batch = {tokens, targets, samples};
        ms_step_input input = {.micro_batches = &batch, .target_tokens = BATCH * SEQUENCE,
                               .step = step, .learning_rate = 1e-3, .apply = true};
        ms_step_result result;
        assert_ok(ms_engine_step(rank.engine, &input, &result));
        worst_loss = fmax(worst_loss, fabs(result.loss - recorded.loss[step]));
        worst_norm = fmax(worst_norm, fabs(result.grad_norm - recorded.norm[step]));
    }
    visit_weights(rank.engine, "gpt_tiny_trace/after20.safetensors", compare, &worst_weight);
    printf("%s: loss within %.3g, gradient norm %.3g, weights %.3g\n", ms_dtype_name(compute),
           worst_loss, worst_norm, worst_weight);
    assert_true(worst_loss <= loss_bound);
    assert_true(worst_norm <= norm_bound);
    assert_true(worst_weight <= weight_bound);
    test_rank_close(&rank);
    free(recorded.data);
}

static void trace_in_fp64(void **state) {
    (void)state;
    run_trace(MS_F64, 1e-9, 1e-9, 6e-8);
}

static void trace_in_fp32(void **state) {
    (void)state;
    run_trace(MS_F32, 2e-6, 1e-5, 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_in_fp64),
        cmocka_unit_test(trace_in_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
