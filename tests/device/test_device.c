// labels: unit
// timeout: 60
/*
 * test_device.c - the front of the room: opening, memory, streams, events, and what is refused with
 * which sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

static ms_device *open_cpu(const char *variant, int threads) {
    ms_device_options options = {
        .name = "cpu", .threads = threads, .isa_max = MS_ISA_COUNT, .variant = variant};
    ms_device *device = NULL;
    assert_int_equal(ms_device_open(&options, &device), MS_OK);
    return device;
}

static void assert_sentence(const char *part) {
    if (strstr(ms_error_detail(), part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", ms_error_detail(), part);
    }
}

static void test_open(void **state) {
    (void)state;
    ms_device *device = open_cpu(NULL, 2);
    assert_string_equal(ms_device_name(device), "cpu");
    assert_int_equal(ms_device_threads(device), 2);
    const char *best = ms_isa_name(ms_cpu_isa());
    assert_memory_equal(ms_device_description(device), best, strlen(best));
    ms_device_close(device);

    device = open_cpu("ref", 1);
    assert_string_equal(ms_device_description(device), "ref");
    ms_device_close(device);
    ms_device_close(NULL);
}

static void test_open_errors(void **state) {
    (void)state;
    ms_device *device = NULL;
    ms_device_options options = {.name = "tpu", .threads = 1, .isa_max = MS_ISA_COUNT};
    assert_int_equal(ms_device_open(&options, &device), MS_ERR_NOT_FOUND);
    assert_sentence("device tpu");
    options.name = NULL;
    assert_int_equal(ms_device_open(&options, &device), MS_ERR_ARGUMENT);
    options.name = "cpu";
    options.threads = 0;
    assert_int_equal(ms_device_open(&options, &device), MS_ERR_ARGUMENT);
    assert_sentence("0 threads");
    options.threads = 1;
    options.variant = "sse9";
    assert_int_equal(ms_device_open(&options, &device), MS_ERR_ARGUMENT);
    assert_sentence("sse9");
    for (int level = (int)ms_cpu_isa() + 1; level < MS_ISA_COUNT; level++) {
        options.variant = ms_isa_name((ms_isa)level);
        assert_int_equal(ms_device_open(&options, &device), MS_ERR_UNSUPPORTED);
        assert_sentence(options.variant);
    }
    options.variant = NULL;
    ms_memory_fail_at(1);
    assert_int_equal(ms_device_open(&options, &device), MS_ERR_MEMORY);
    ms_memory_fail_at(0);
    assert_null(device);
}

/* The ranks' lowest level bounds the kernels, also those that are asked for. */
static void test_level_of_ranks(void **state) {
    (void)state;
    ms_device_options options = {.name = "cpu", .threads = 1, .isa_max = MS_ISA_REF};
    ms_device *device = NULL;
    assert_int_equal(ms_device_open(&options, &device), MS_OK);
    assert_string_equal(ms_device_description(device), "ref");
    ms_device_close(device);
    options.variant = ms_isa_name(ms_cpu_isa());
    assert_int_equal(ms_device_open(&options, &device), MS_OK);
    assert_string_equal(ms_device_description(device), "ref");
    ms_device_close(device);
}

static void test_memory_and_streams(void **state) {
    (void)state;
    ms_device *device = open_cpu(NULL, 1);
    size_t before = ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN];
    void *memory = NULL;
    assert_int_equal(ms_device_alloc(device, 1000, &memory), MS_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN] - before, 1000);
    uint8_t *bytes = memory;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(bytes[i], 0);
    }
    ms_stream *stream = NULL;
    ms_event *event = NULL;
    assert_int_equal(ms_stream_create(device, &stream), MS_OK);
    assert_int_equal(ms_event_create(device, &event), MS_OK);
    assert_int_equal(ms_stream_fill(stream, bytes + 10, 7, 20), MS_OK);
    assert_int_equal(bytes[9], 0);
    assert_int_equal(bytes[10], 7);
    assert_int_equal(bytes[29], 7);
    assert_int_equal(bytes[30], 0);
    assert_int_equal(ms_stream_copy(stream, bytes + 15, bytes + 5, 20), MS_OK); /* overlapping */
    assert_int_equal(bytes[19], 0);
    assert_int_equal(bytes[20], 7);
    assert_int_equal(bytes[34], 7);
    assert_int_equal(ms_stream_copy(stream, NULL, NULL, 0), MS_OK);
    assert_int_equal(ms_stream_fill(stream, NULL, 1, 0), MS_OK);
    assert_int_equal(ms_event_record(event, stream), MS_OK);
    assert_true(ms_event_done(event));
    assert_int_equal(ms_stream_wait(stream, event), MS_OK);
    assert_int_equal(ms_stream_synchronize(stream), MS_OK);
    ms_event_destroy(event);
    ms_event_destroy(NULL);
    ms_stream_destroy(stream);
    ms_stream_destroy(NULL);
    ms_device_free(device, memory);
    ms_device_free(device, NULL);
    assert_int_equal(ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN], before);
    ms_device_close(device);
}

static ms_argument tensor(ms_dtype dtype, int rank, int64_t d0, int64_t d1, int64_t d2) {
    int64_t dims[3] = {d0, d1, d2};
    return ms_argument_of(dtype, rank, dims);
}

/* A layer norm of [4, 8] with residual, right in every respect. */
static ms_kernel_spec norm_spec(void) {
    ms_kernel_spec spec = {.slot = MS_SLOT_NORM, .argument_count = 7};
    spec.arguments[0] = tensor(MS_BF16, 2, 4, 8, 0);
    spec.arguments[1] = tensor(MS_BF16, 2, 4, 8, 0);
    spec.arguments[2] = tensor(MS_F32, 1, 8, 0, 0);
    spec.arguments[3] = tensor(MS_F32, 1, 8, 0, 0);
    spec.arguments[4] = tensor(MS_BF16, 2, 4, 8, 0);
    spec.arguments[5] = tensor(MS_BF16, 2, 4, 8, 0);
    spec.arguments[6] = tensor(MS_F32, 2, 4, 2, 0);
    spec.attributes.norm.epsilon = 1e-5;
    return spec;
}

static void expect_refused(const ms_kernel_spec *spec, const char *part) {
    ms_device *device = open_cpu("ref", 1);
    ms_kernel_handle *handle = NULL;
    assert_int_equal(ms_kernel_prepare(device, spec, &handle), MS_ERR_ARGUMENT);
    assert_null(handle);
    assert_sentence(part);
    ms_device_close(device);
}

static void expect_accepted(const ms_kernel_spec *spec) {
    ms_device *device = open_cpu("ref", 1);
    ms_kernel_handle *handle = NULL;
    if (ms_kernel_prepare(device, spec, &handle) != MS_OK) {
        fail_msg("%s", ms_error_detail());
    }
    ms_kernel_destroy(handle);
    ms_device_close(device);
}

static void test_spec_errors_of_arguments(void **state) {
    (void)state;
    ms_kernel_spec spec = norm_spec();
    expect_accepted(&spec);
    spec.slot = MS_SLOT_COUNT;
    expect_refused(&spec, "does not exist");
    spec = norm_spec();
    spec.argument_count = 6;
    expect_refused(&spec, "takes 7 arguments, not 6");
    spec = norm_spec();
    spec.arguments[5].rank = -1;
    expect_refused(&spec, "argument y is absent");
    spec = norm_spec();
    spec.arguments[0].rank = MS_DIMS_MAX + 1;
    expect_refused(&spec, "argument x has rank 5");
    spec = norm_spec();
    spec.arguments[0].dtype = MS_F16;
    expect_refused(&spec, "argument x is fp16[4,8], its type must be fp64, fp32 or bf16");
    spec = norm_spec();
    spec.arguments[2].dtype = MS_BF16;
    expect_refused(&spec, "argument weight is bf16[8], its type must be fp32");
    spec = norm_spec();
    spec.arguments[5].dtype = MS_F32;
    expect_refused(&spec, "argument y is fp32[4,8], its type must be bf16");
    spec = norm_spec();
    spec.arguments[6].dims[0] = 5;
    expect_refused(&spec, "argument stats is fp32[5,2], its shape must be [4,2]");
    spec = norm_spec();
    spec.arguments[2].rank = 2;
    expect_refused(&spec, "its shape must be [8]");
    spec = norm_spec();
    spec.arguments[0].dims[0] = -4;
    expect_refused(&spec, "a size out of range");
    spec = norm_spec();
    spec.arguments[0].dims[0] = INT64_MAX / 2;
    expect_refused(&spec, "a size out of range");
}

static void test_spec_errors_of_slots(void **state) {
    (void)state;
    ms_kernel_spec spec = norm_spec();
    spec.arguments[4].rank = -1;
    expect_refused(&spec, "delta and sum");
    spec = norm_spec();
    spec.attributes.norm.rms = true;
    expect_refused(&spec, "RMS norm has no bias");
    spec = norm_spec();
    spec.attributes.norm.epsilon = -1.0;
    expect_refused(&spec, "epsilon");

    spec = (ms_kernel_spec){.slot = MS_SLOT_ACTIVATION, .argument_count = 3};
    spec.arguments[0] = spec.arguments[2] = tensor(MS_F32, 2, 2, 3, 0);
    spec.arguments[1] = ms_argument_absent();
    expect_accepted(&spec);
    spec.attributes.activation.function = (ms_activation_function)9;
    expect_refused(&spec, "activation.function");

    spec = (ms_kernel_spec){.slot = MS_SLOT_ADD, .argument_count = 3};
    spec.arguments[0] = spec.arguments[1] = tensor(MS_F32, 2, 2, 3, 0);
    spec.arguments[2] = tensor(MS_F32, 1, 6, 0, 0); /* flat: only the count of elements matters */
    expect_accepted(&spec);
    spec.arguments[2] = tensor(MS_F32, 1, 7, 0, 0);
    expect_refused(&spec, "argument c is fp32[7], its shape must be 6 elements");

    spec = (ms_kernel_spec){.slot = MS_SLOT_SQUARE_SUM, .argument_count = 2};
    spec.arguments[0] = tensor(MS_F32, 1, 4097, 0, 0);
    spec.arguments[1] = tensor(MS_F64, 1, 1, 0, 0);
    expect_refused(&spec, "4097 elements make 2 partial sums, not 1");

    spec = (ms_kernel_spec){.slot = MS_SLOT_ADAMW, .argument_count = 6};
    for (int i = 0; i < 4; i++) {
        spec.arguments[i] = tensor(MS_F32, 1, 5, 0, 0);
    }
    spec.arguments[4] = tensor(MS_F64, 1, MS_HYPER_COUNT, 0, 0);
    spec.arguments[5] = ms_argument_absent();
    expect_accepted(&spec);
    spec.arguments[4].dims[0] = 3;
    expect_refused(&spec, "argument hyper");
}

static void test_spec_errors_of_positions(void **state) {
    (void)state;
    ms_kernel_spec spec = {.slot = MS_SLOT_ROPE, .argument_count = 3};
    spec.arguments[0] = spec.arguments[2] = tensor(MS_F32, 2, 2, 12, 0);
    spec.arguments[1] = tensor(MS_I32, 1, 2, 0, 0);
    spec.attributes.rope.heads = 2;
    spec.attributes.rope.head_size = 6;
    spec.attributes.rope.position_max = 16;
    spec.attributes.rope.theta = 10000.0;
    spec.attributes.rope.scaling.factor = 1.0;
    expect_accepted(&spec);
    ms_kernel_spec broken = spec;
    broken.attributes.rope.heads = 4;
    expect_refused(&broken, "4 heads of (even) size 6 for 12 columns");
    broken = spec;
    broken.attributes.rope.position_max = 0;
    expect_refused(&broken, "position_max");
    broken = spec;
    broken.attributes.rope.scaling.factor = 0.0;
    expect_refused(&broken, "factor");
    broken.attributes.rope.scaling.factor = 8.0;
    expect_refused(&broken, "low_frequency_factor");

    spec = (ms_kernel_spec){.slot = MS_SLOT_DROPOUT, .argument_count = 3};
    spec.arguments[0] = spec.arguments[2] = tensor(MS_F32, 2, 6, 4, 0);
    spec.arguments[1] = tensor(MS_I64, 1, 2, 0, 0);
    spec.attributes.dropout.positions = 3;
    spec.attributes.dropout.columns_global = 4;
    expect_accepted(&spec);
    broken = spec;
    broken.attributes.dropout.probability = 1.0;
    expect_refused(&broken, "dropout.probability");
    broken = spec;
    broken.attributes.dropout.row_first = 1;
    expect_refused(&broken, "2 samples");
    broken = spec;
    broken.attributes.dropout.column_first = 1;
    expect_refused(&broken, "columns_global");

    spec = (ms_kernel_spec){.slot = MS_SLOT_XENT_STATS, .argument_count = 3};
    spec.arguments[0] = tensor(MS_F32, 2, 2, 7, 0);
    spec.arguments[1] = tensor(MS_I32, 1, 2, 0, 0);
    spec.arguments[2] = tensor(MS_F32, 2, 2, 3, 0);
    expect_accepted(&spec);
    spec.attributes.xent.valid = 8;
    expect_refused(&spec, "xent.valid 8 of 7 columns");
}

static void test_spec_errors_of_matmul(void **state) {
    (void)state;
    ms_kernel_spec spec = {.slot = MS_SLOT_MATMUL, .argument_count = 4};
    spec.arguments[0] = tensor(MS_F32, 2, 2, 3, 0);
    spec.arguments[1] = tensor(MS_F32, 2, 3, 5, 0);
    spec.arguments[2] = ms_argument_absent();
    spec.arguments[3] = tensor(MS_F32, 2, 2, 5, 0);
    ms_kernel_spec broken = spec;
    broken.attributes.matmul.transpose_b = true;
    expect_refused(&broken, "b is fp32[3,5], op(b) must be [3,5]");
    broken = spec;
    broken.arguments[3].dims[0] = 3;
    expect_refused(&broken, "op(a) has 2 rows, c has 3");
    broken = spec;
    broken.attributes.matmul.packed = true;
    expect_refused(&broken, "its type must be uint8");
    broken.arguments[1] = tensor(MS_U8, 2, 4, 4, 0);
    expect_refused(&broken, "packed_bytes");
    broken = spec;
    broken.arguments[2] = tensor(MS_F32, 1, 4, 0, 0);
    expect_refused(&broken, "argument c");
}

static ms_kernel_spec attention_spec(void) {
    ms_kernel_spec spec = {.slot = MS_SLOT_ATTENTION, .argument_count = 6};
    spec.arguments[0] = tensor(MS_F32, 2, 6, 16, 0); /* B 2, T 3, H 4, G 2, D 4 */
    spec.arguments[1] = spec.arguments[2] = tensor(MS_F32, 2, 6, 8, 0);
    spec.arguments[3] = ms_argument_absent();
    spec.arguments[4] = tensor(MS_F32, 2, 6, 16, 0);
    spec.arguments[5] = tensor(MS_F32, 3, 2, 4, 3);
    spec.attributes.attention.batch = 2;
    spec.attributes.attention.positions = 3;
    spec.attributes.attention.heads = 4;
    spec.attributes.attention.kv_heads = 2;
    spec.attributes.attention.head_size = 4;
    return spec;
}

static void test_spec_errors_of_attention(void **state) {
    (void)state;
    ms_kernel_spec spec = attention_spec();
    spec.attributes.attention.kv_heads = 3;
    expect_refused(&spec, "heads must be a multiple");
    spec = attention_spec();
    spec.attributes.attention.packed = true;
    expect_refused(&spec, "attention.packed");
    spec = attention_spec();
    spec.attributes.attention.head_size = 5;
    expect_refused(&spec, "q must have 20 columns");
    spec = attention_spec();
    spec.attributes.attention.batch = 3;
    expect_refused(&spec, "for attention.batch 3");
    spec = attention_spec();
    spec.attributes.attention.dropout = 0.5;
    expect_refused(&spec, "needs the argument sample");
    spec.attributes.attention.dropout = 1.0;
    expect_refused(&spec, "attention.dropout must be in [0, 1)");
    spec = attention_spec();
    spec.attributes.attention.heads_global = 6;
    spec.attributes.attention.head_first = 3;
    expect_refused(&spec, "heads_global");
}

/* Every allocation of a prepare with a table fails once; nothing is left behind. */
static void test_prepare_without_memory(void **state) {
    (void)state;
    ms_kernel_spec spec = {.slot = MS_SLOT_ROPE, .argument_count = 3};
    spec.arguments[0] = spec.arguments[2] = tensor(MS_F32, 2, 2, 12, 0);
    spec.arguments[1] = tensor(MS_I32, 1, 2, 0, 0);
    spec.attributes.rope.heads = 2;
    spec.attributes.rope.head_size = 6;
    spec.attributes.rope.position_max = 16;
    spec.attributes.rope.theta = 10000.0;
    spec.attributes.rope.scaling.factor = 1.0;
    ms_device *device = open_cpu(NULL, 1);
    ms_memory_counters before = ms_memory_counters_get();
    ms_kernel_handle *handle = NULL;
    uint64_t failures = 0;
    for (uint64_t n = 1; handle == NULL; n++) {
        ms_memory_fail_at(n);
        ms_status status = ms_kernel_prepare(device, &spec, &handle);
        ms_memory_fail_at(0);
        assert_true(status == MS_OK || status == MS_ERR_MEMORY);
        failures += status == MS_OK ? 0 : 1;
    }
    assert_int_equal(failures, 2); /* the handle, the table */
    size_t element = ms_cpu_isa() == MS_ISA_REF ? sizeof(double) : sizeof(float);
    assert_int_equal(ms_kernel_get_needs(handle).constant_bytes, 16 * 6 * element);
    ms_kernel_destroy(handle);
    ms_kernel_destroy(NULL);
    ms_memory_counters after = ms_memory_counters_get();
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        assert_int_equal(after.live_bytes[tag], before.live_bytes[tag]);
    }
    ms_device_close(device);
}

static void test_run_errors(void **state) {
    (void)state;
    ms_device *device = open_cpu(NULL, 1);
    ms_kernel_spec spec = {.slot = MS_SLOT_SUM, .argument_count = 2};
    spec.arguments[0] = tensor(MS_F32, 1, 5, 0, 0);
    spec.arguments[1] = tensor(MS_F64, 1, 1, 0, 0);
    ms_kernel_handle *handle = NULL;
    assert_int_equal(ms_kernel_prepare(device, &spec, &handle), MS_OK);
    float x[5] = {1, 2, 3, 4, 5};
    double total = 0.0;
    double scratch[8];
    void *arguments[2] = {x, NULL};
    ms_kernel_run_info run = {.arguments = arguments, .scratch = scratch};
    assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_ERR_ARGUMENT);
    assert_sentence("argument total is absent in the run");
    arguments[1] = &total;
    if (ms_kernel_get_needs(handle).scratch_bytes > 0) {
        run.scratch = NULL;
        assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_ERR_ARGUMENT);
        assert_sentence("bytes of scratch");
        run.scratch = scratch;
    }
    ms_stream *stream = NULL;
    assert_int_equal(ms_stream_create(device, &stream), MS_OK);
    assert_int_equal(ms_kernel_run(handle, &run, stream), MS_OK);
    assert_true(total == 15.0);
    ms_stream_destroy(stream);
    ms_kernel_destroy(handle);

    spec = norm_spec();
    spec.arguments[1] = spec.arguments[4] = ms_argument_absent();
    assert_int_equal(ms_kernel_prepare(device, &spec, &handle), MS_OK);
    void *many[7] = {x, x, x, x, NULL, x, x};
    run.arguments = many;
    assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_ERR_ARGUMENT);
    assert_sentence("argument delta is present in the run");
    ms_kernel_destroy(handle);
    ms_device_close(device);
}

/* A position outside the table is refused by every variant, before anything is written. */
static void test_rope_position_range(void **state) {
    (void)state;
    ms_kernel_spec spec = {.slot = MS_SLOT_ROPE, .argument_count = 3};
    spec.arguments[0] = spec.arguments[2] = tensor(MS_F32, 2, 2, 4, 0);
    spec.arguments[1] = tensor(MS_I32, 1, 2, 0, 0);
    spec.attributes.rope.heads = 1;
    spec.attributes.rope.head_size = 4;
    spec.attributes.rope.position_max = 10;
    spec.attributes.rope.theta = 10000.0;
    spec.attributes.rope.scaling.factor = 1.0;
    for (int level = 0; level <= (int)ms_cpu_isa(); level++) {
        ms_device *device = open_cpu(ms_isa_name((ms_isa)level), 1);
        ms_kernel_handle *handle = NULL;
        assert_int_equal(ms_kernel_prepare(device, &spec, &handle), MS_OK);
        float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        float y[8] = {0};
        int32_t positions[2] = {3, 10};
        void *arguments[3] = {x, positions, y};
        ms_kernel_run_info run = {.arguments = arguments};
        assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_ERR_RANGE);
        assert_sentence("position 10 of row 1 is outside 0 .. 9");
        assert_true(y[0] == 0.0f);
        positions[1] = -1;
        assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_ERR_RANGE);
        positions[1] = 9;
        assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_OK);
        assert_true(y[0] != 0.0f);
        ms_kernel_destroy(handle);
        ms_device_close(device);
    }
}

/* A dim of 0 is legal and does nothing, for every slot whose arguments take one. */
static void test_empty(void **state) {
    (void)state;
    ms_device *device = open_cpu(NULL, 2);
    ms_kernel_spec spec = norm_spec();
    for (int i = 0; i < 7; i++) {
        spec.arguments[i].dims[0] = i == 2 || i == 3 ? 8 : 0;
    }
    ms_kernel_handle *handle = NULL;
    assert_int_equal(ms_kernel_prepare(device, &spec, &handle), MS_OK);
    ms_kernel_needs needs = ms_kernel_get_needs(handle);
    assert_int_equal(needs.scratch_bytes + needs.constant_bytes, 0);
    void *arguments[7] = {NULL};
    ms_kernel_run_info run = {.arguments = arguments};
    assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_OK);
    ms_kernel_destroy(handle);

    spec = (ms_kernel_spec){.slot = MS_SLOT_COLUMN_SUM, .argument_count = 2};
    spec.arguments[0] = tensor(MS_F32, 2, 0, 3, 0);
    spec.arguments[1] = tensor(MS_F32, 1, 3, 0, 0);
    assert_int_equal(ms_kernel_prepare(device, &spec, &handle), MS_OK);
    float out[3] = {1, 2, 3};
    arguments[1] = out;
    assert_int_equal(ms_kernel_run(handle, &run, NULL), MS_OK);
    assert_true(out[0] == 1.0f && out[2] == 3.0f);
    ms_kernel_destroy(handle);
    ms_device_close(device);
}

static void test_names(void **state) {
    (void)state;
    for (int slot = 0; slot < MS_SLOT_COUNT; slot++) {
        const char *name = ms_slot_name((ms_slot)slot);
        assert_non_null(name);
        for (int other = 0; other < slot; other++) {
            assert_string_not_equal(name, ms_slot_name((ms_slot)other));
        }
    }
    assert_string_equal(ms_slot_name(MS_SLOT_MATMUL), "matmul");
    assert_string_equal(ms_slot_name(MS_SLOT_COUNT), "unknown");
    ms_argument argument = tensor(MS_F32, 3, 2, 3, 4);
    assert_int_equal(ms_argument_elements(&argument), 24);
    argument = ms_argument_absent();
    assert_int_equal(argument.rank, -1);
    assert_int_equal(ms_argument_elements(&argument), 0);
}

/* No slot is ever empty: the last variant is the reference, which any processor can run. It serves
 * any spec but a packed operand, whose layout is known to the kernel that packed it only. */
static void test_every_slot_has_a_reference(void **state) {
    (void)state;
    ms_device *device = open_cpu("ref", 1);
    for (int slot = 0; slot < MS_SLOT_COUNT; slot++) {
        const ms_kernel_variant *const *variants = ms__cpu_variants((ms_slot)slot);
        const ms_kernel_variant *last = NULL;
        for (int i = 0; i < MS_VARIANTS_MAX && variants[i] != NULL; i++) {
            assert_true(last == NULL || variants[i]->isa <= last->isa); /* best first */
            last = variants[i];
            assert_non_null(last->run);
        }
        assert_non_null(last);
        assert_string_equal(last->name, "ref");
        assert_int_equal(last->isa, MS_ISA_REF);
        ms_kernel_spec spec = {.slot = (ms_slot)slot};
        assert_true(last->supports == NULL || last->supports(device, &spec));
    }
    ms_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_level_of_ranks),
        cmocka_unit_test(test_memory_and_streams),
        cmocka_unit_test(test_spec_errors_of_arguments),
        cmocka_unit_test(test_spec_errors_of_slots),
        cmocka_unit_test(test_spec_errors_of_positions),
        cmocka_unit_test(test_spec_errors_of_matmul),
        cmocka_unit_test(test_spec_errors_of_attention),
        cmocka_unit_test(test_prepare_without_memory),
        cmocka_unit_test(test_run_errors),
        cmocka_unit_test(test_rope_position_range),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_every_slot_has_a_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
