// labels: unit
// timeout: 60
/*
 * test_matmul.c - matmul and pack: the reference against the triple loop, oneDNN's ways against the
 * reference, over shapes, transposes, bias, accumulation, packing and rows known at run time.
 *
 * Bounds, relative to the largest element of the result (at least 1): reference 1e-12 in fp64 and
 * one rounding elsewhere; oneDNN 1e-5 into fp32 (sums of up to 1,000 products within +-1 in fp32),
 * 2^-8 into bf16 (one step of its last place).
 */
#include "base/memory.h"
#include "base/types.h"
#include "device/device.h"

#include <math.h>

#include "support/test_support.h"

#define GUARD 64
#define GUARD_BYTE 0x5a

enum { A, B, BIAS, C, ARGUMENTS };

typedef struct problem {
    int64_t m, n, k;
    bool transpose_a, transpose_b, bias, accumulate, packed, runtime_rows;
    int64_t rows; /* of the run, with runtime_rows */
    ms_dtype type, c_type;
} problem;

static void *allocate(size_t bytes) {
    void *memory = NULL;
    assert_ok(ms_alloc(bytes, MS_MEMORY_CALLER, &memory));
    return memory;
}

static ms_device *open_device(const char *variant, int threads) {
    ms_device *device = NULL;
    ms_device_options options = {
        .name = "cpu", .threads = threads, .isa_max = MS_ISA_COUNT, .variant = variant};
    assert_ok(ms_device_open(&options, &device));
    return device;
}

static void store_typed(void *to, ms_dtype type, int64_t i, double value) {
    if (type == MS_F64) {
        ((double *)to)[i] = value;
    } else if (type == MS_F32) {
        ((float *)to)[i] = (float)value;
    } else {
        ((uint16_t *)to)[i] = ms_f32_to_bf16((float)value);
    }
}

static double load_typed(const void *from, ms_dtype type, int64_t i) {
    return type == MS_F64   ? ((const double *)from)[i]
           : type == MS_F32 ? (double)((const float *)from)[i]
                            : (double)ms_bf16_to_f32(((const uint16_t *)from)[i]);
}

static ms_dtype argument_type(const problem *p, int argument) {
    return argument == BIAS ? (p->type == MS_F64 ? MS_F64 : MS_F32)
           : argument == C  ? p->c_type
                            : p->type;
}

static ms_kernel_spec make_spec(const problem *p) {
    ms_kernel_spec spec = {.slot = MS_SLOT_MATMUL, .argument_count = ARGUMENTS};
    int64_t a[2] = {p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k};
    int64_t b[2] = {p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n};
    int64_t c[2] = {p->m, p->n};
    spec.arguments[A] = ms_argument_of(p->type, 2, a);
    spec.arguments[B] = ms_argument_of(p->type, 2, b);
    spec.arguments[BIAS] =
        p->bias ? ms_argument_of(argument_type(p, BIAS), 1, &p->n) : ms_argument_absent();
    spec.arguments[C] = ms_argument_of(p->c_type, 2, c);
    spec.attributes.matmul.transpose_a = p->transpose_a;
    spec.attributes.matmul.transpose_b = p->transpose_b;
    spec.attributes.matmul.runtime_rows = p->runtime_rows;
    return spec;
}

/* Operands in their types; c holds what is added to, or NaN that must not be. */
static void make_arguments(const problem *p, const ms_kernel_spec *spec, uint64_t seed,
                           void *arguments[ARGUMENTS]) {
    for (int i = 0; i < ARGUMENTS; i++) {
        int64_t count = ms_argument_elements(&spec->arguments[i]);
        ms_dtype type = argument_type(p, i);
        arguments[i] = NULL;
        if (spec->arguments[i].rank < 0) {
            continue;
        }
        size_t bytes = (size_t)(count + GUARD) * ms_dtype_bytes(type);
        arguments[i] = allocate(bytes);
        memset(arguments[i], GUARD_BYTE, bytes);
        for (int64_t j = 0; j < count; j++) {
            double value = test_random_real(&seed);
            store_typed(arguments[i], type, j, i == C && !p->accumulate ? (double)NAN : value);
        }
    }
}

static void free_arguments(void *arguments[ARGUMENTS]) {
    for (int i = 0; i < ARGUMENTS; i++) {
        ms_free(arguments[i]);
    }
}

static void run_handle(const ms_kernel_handle *handle, void *const *arguments, bool accumulate,
                       int64_t rows) {
    size_t bytes = ms_kernel_get_needs(handle).scratch_bytes;
    void *scratch = allocate(bytes + 1);
    memset(scratch, 0xff, bytes);
    ms_kernel_run_info run = {
        .arguments = arguments, .scratch = scratch, .accumulate = accumulate, .extent = {rows}};
    assert_ok(ms_kernel_run(handle, &run, NULL));
    ms_free(scratch);
}

/* Packs b; returns NULL, and leaves the spec, when it does not pay. */
static void *pack_b(ms_device *device, const problem *p, ms_kernel_spec *spec, void *b) {
    ms_kernel_spec pack = {.slot = MS_SLOT_PACK, .argument_count = 2};
    pack.arguments[0] = spec->arguments[B];
    pack.arguments[1] = ms_argument_absent();
    pack.attributes = spec->attributes;
    pack.attributes.matmul.m = p->m;
    pack.attributes.matmul.n = p->n;
    pack.attributes.matmul.k = p->k;
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, &pack, &handle));
    size_t bytes = ms_kernel_get_needs(handle).packed_bytes;
    void *packed = NULL;
    if (bytes > 0) {
        packed = allocate(bytes + GUARD);
        memset(packed, GUARD_BYTE, bytes + GUARD);
        void *arguments[2] = {b, packed};
        run_handle(handle, arguments, false, 0);
        for (int i = 0; i < GUARD; i++) {
            assert_int_equal(((unsigned char *)packed)[bytes + (size_t)i], GUARD_BYTE);
        }
        int64_t dims[1] = {(int64_t)bytes};
        spec->arguments[B] = ms_argument_of(MS_U8, 1, dims);
        spec->attributes.matmul.packed = true;
    }
    ms_kernel_destroy(handle);
    return packed;
}

/* c as doubles. With p->packed, b is packed first; *was_packed says whether that paid. */
static double *run_problem(ms_device *device, const problem *p, uint64_t seed, const char *variant,
                           bool *was_packed) {
    ms_kernel_spec spec = make_spec(p);
    void *arguments[ARGUMENTS];
    make_arguments(p, &spec, seed, arguments);
    void *packed = p->packed ? pack_b(device, p, &spec, arguments[B]) : NULL;
    void *passed[ARGUMENTS] = {arguments[A], packed != NULL ? packed : arguments[B],
                               arguments[BIAS], arguments[C]};
    if (was_packed != NULL) {
        *was_packed = packed != NULL;
    }
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, &spec, &handle));
    assert_string_equal(ms_kernel_get_needs(handle).variant, variant);
    run_handle(handle, passed, p->accumulate, p->rows);
    int64_t count = p->m * p->n;
    double *c = allocate((size_t)count * sizeof(double) + 8);
    for (int64_t i = 0; i < count; i++) {
        c[i] = load_typed(arguments[C], p->c_type, i);
    }
    size_t element = ms_dtype_bytes(p->c_type);
    const unsigned char *after = (const unsigned char *)arguments[C] + (size_t)count * element;
    for (size_t i = 0; i < GUARD * element; i++) {
        assert_int_equal(after[i], GUARD_BYTE);
    }
    ms_kernel_destroy(handle);
    free_arguments(arguments);
    ms_free(packed);
    return c;
}

/* The triple loop. */
static double *run_formula(const problem *p, uint64_t seed) {
    ms_kernel_spec spec = make_spec(p);
    void *arguments[ARGUMENTS];
    make_arguments(p, &spec, seed, arguments);
    double *c = allocate((size_t)(p->m * p->n) * sizeof(double) + 8);
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < p->k; k++) {
                sum +=
                    load_typed(arguments[A], p->type,
                               p->transpose_a ? k * p->m + i : i * p->k + k) *
                    load_typed(arguments[B], p->type, p->transpose_b ? j * p->k + k : k * p->n + j);
            }
            sum += p->bias ? load_typed(arguments[BIAS], argument_type(p, BIAS), j) : 0.0;
            sum += p->accumulate ? load_typed(arguments[C], p->c_type, i * p->n + j) : 0.0;
            c[i * p->n + j] = sum;
        }
    }
    free_arguments(arguments);
    return c;
}

static void assert_close(const problem *p, const double *got, const double *expected, int64_t rows,
                         double bound) {
    double largest = 1.0, difference = 0.0;
    for (int64_t i = 0; i < rows * p->n; i++) {
        largest = fmax(largest, fabs(expected[i]));
        double d = fabs(got[i] - expected[i]);
        difference = d > difference || d != d ? d : difference;
    }
    if (!(difference <= bound * largest)) {
        fail_msg("%lld x %lld x %lld %s -> %s%s%s%s%s%s%s: %g off, bound %g", (long long)p->m,
                 (long long)p->n, (long long)p->k, ms_dtype_name(p->type), ms_dtype_name(p->c_type),
                 p->transpose_a ? " a'" : "", p->transpose_b ? " b'" : "", p->bias ? " bias" : "",
                 p->accumulate ? " accumulate" : "", p->packed ? " packed" : "",
                 p->runtime_rows ? " runtime rows" : "", difference / largest, bound);
    }
}

static const int64_t shapes[][3] = {{1, 1, 1},     {1, 7, 3},      {2, 3, 5},      {5, 1, 9},
                                    {7, 13, 1},    {17, 31, 29},   {32, 64, 16},   {33, 65, 34},
                                    {64, 128, 64}, {127, 61, 131}, {130, 257, 70}, {96, 48, 800}};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

/* Calls check for all transposes and for plain, bias and accumulate of every shape. */
static void for_all(ms_dtype type, ms_dtype c_type, void (*check)(const problem *, void *),
                    void *context) {
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        for (int form = 0; form < 12; form++) {
            problem p = {.m = shapes[i][0],
                         .n = shapes[i][1],
                         .k = shapes[i][2],
                         .transpose_a = form & 1,
                         .transpose_b = form >> 1 & 1,
                         .bias = form / 4 == 1,
                         .accumulate = form / 4 == 2,
                         .type = type,
                         .c_type = c_type};
            check(&p, context);
        }
    }
}

/* ---- the reference ---- */

static void check_reference(const problem *p, void *context) {
    double *c = run_problem(context, p, 11, "ref", NULL);
    double *expected = run_formula(p, 11);
    double bound = p->c_type == MS_F64 ? 1e-12 : p->c_type == MS_F32 ? 0x1p-24 : 0x1p-8;
    assert_close(p, c, expected, p->m, bound);
    ms_free(c);
    ms_free(expected);
}

static void reference_is_the_triple_loop(void **unused) {
    (void)unused;
    ms_device *device = open_device("ref", 1);
    for_all(MS_F64, MS_F64, check_reference, device);
    for_all(MS_F32, MS_F32, check_reference, device);
    for_all(MS_BF16, MS_BF16, check_reference, device);
    for_all(MS_BF16, MS_F32, check_reference, device);
    ms_device_close(device);
}

static void reference_bits_do_not_depend_on_threads(void **unused) {
    (void)unused;
    problem p = {.m = 130, .n = 257, .k = 300, .type = MS_F32, .c_type = MS_F32};
    double *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        ms_device *device = open_device("ref", threads);
        double *c = run_problem(device, &p, 2, "ref", NULL);
        if (first != NULL) {
            assert_memory_equal(first, c, (size_t)(p.m * p.n) * sizeof *c);
            ms_free(c);
        } else {
            first = c;
        }
        ms_device_close(device);
    }
    ms_free(first);
}

/* ---- oneDNN ---- */

typedef struct pair {
    ms_device *ref, *device;
    int packed;
} pair;

static double onednn_bound(const problem *p) {
    return p->c_type == MS_F32 ? 1e-5 : 0x1p-8;
}

static void check_onednn(const problem *p, void *context) {
    pair *devices = context;
    double *c = run_problem(devices->device, p, 23, "onednn", NULL);
    double *expected = run_problem(devices->ref, p, 23, "ref", NULL);
    assert_close(p, c, expected, p->m, onednn_bound(p));
    ms_free(c);
    ms_free(expected);
}

static void needs_onednn(void) {
    if (ms_cpu_isa() < MS_ISA_AVX2) {
        print_message("skipped: matmuls of oneDNN are used from AVX2 on\n");
        skip();
    }
}

static void onednn_agrees_with_the_reference(void **unused) {
    (void)unused;
    needs_onednn();
    /* avx2 takes bf16 by way of fp32. */
    static const char *const variants[] = {NULL, "avx2"};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        pair devices = {open_device("ref", 1), open_device(variants[i], 1), 0};
        for_all(MS_F32, MS_F32, check_onednn, &devices);
        for_all(MS_BF16, MS_BF16, check_onednn, &devices);
        for_all(MS_BF16, MS_F32, check_onednn, &devices);
        ms_device_close(devices.ref);
        ms_device_close(devices.device);
    }
}

/* Many tokens: weight gradients take a way of their own on some processors. */
static void weight_gradients_over_many_tokens(void **unused) {
    (void)unused;
    needs_onednn();
    pair devices = {open_device("ref", 1), open_device(NULL, 2), 0};
    for (int form = 0; form < 4; form++) {
        problem p = {.m = 70,
                     .n = 45,
                     .k = 1000,
                     .transpose_a = true,
                     .accumulate = form & 1,
                     .type = MS_BF16,
                     .c_type = form & 2 ? MS_BF16 : MS_F32};
        check_onednn(&p, &devices);
    }
    ms_device_close(devices.ref);
    ms_device_close(devices.device);
}

static void packed_operands(void **unused) {
    (void)unused;
    needs_onednn();
    static const int64_t packed_shapes[][3] = {
        {1024, 48, 70}, {1024, 64, 32}, {1030, 65, 33}, {1024, 1, 5}, {2048, 130, 17}};
    pair devices = {open_device("ref", 1), open_device(NULL, 2), 0};
    for (size_t i = 0; i < sizeof packed_shapes / sizeof packed_shapes[0]; i++) {
        for (int form = 0; form < 8; form++) {
            problem p = {.m = packed_shapes[i][0],
                         .n = packed_shapes[i][1],
                         .k = packed_shapes[i][2],
                         .transpose_a = i == 2 && form % 2 == 1,
                         .transpose_b = form & 1,
                         .bias = form >> 1 == 1,
                         .accumulate = form >> 1 == 2,
                         .packed = true,
                         .type = MS_BF16,
                         .c_type = form >> 1 == 3 ? MS_BF16 : MS_F32};
            bool was_packed = false;
            double *c = run_problem(devices.device, &p, 31, "onednn", &was_packed);
            double *expected = run_problem(devices.ref, &p, 31, "ref", NULL);
            assert_close(&p, c, expected, p.m, onednn_bound(&p));
            devices.packed += was_packed;
            ms_free(c);
            ms_free(expected);
        }
    }
    if (ms_cpu_isa() >= MS_ISA_AVX512 && ms_cpu_has_avx512_bf16()) {
        assert_int_equal(devices.packed, 40);
    }
    ms_device_close(devices.ref);
    ms_device_close(devices.device);
}

static size_t packed_bytes(ms_device *device, const problem *p) {
    ms_kernel_spec spec = make_spec(p);
    ms_kernel_spec pack = {.slot = MS_SLOT_PACK, .argument_count = 2};
    pack.arguments[0] = spec.arguments[B];
    pack.arguments[1] = ms_argument_absent();
    pack.attributes = spec.attributes;
    pack.attributes.matmul.m = p->m;
    pack.attributes.matmul.n = p->n;
    pack.attributes.matmul.k = p->k;
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, &pack, &handle));
    size_t bytes = ms_kernel_get_needs(handle).packed_bytes;
    ms_kernel_destroy(handle);
    return bytes;
}

static void packing_that_does_not_pay(void **unused) {
    (void)unused;
    ms_device *device = open_device(NULL, 1);
    problem p = {.m = 4096, .n = 64, .k = 64, .type = MS_F32, .c_type = MS_F32};
    assert_int_equal(packed_bytes(device, &p), 0); /* sgemm packs on its own */
    p.type = p.c_type = MS_F64;
    assert_int_equal(packed_bytes(device, &p), 0);
    p.type = p.c_type = MS_BF16;
    p.m = 4;
    assert_int_equal(packed_bytes(device, &p), 0); /* few rows */
    p.m = 4096;
    p.runtime_rows = true;
    assert_int_equal(packed_bytes(device, &p), 0);
    ms_device_close(device);
    device = open_device("ref", 1);
    p.runtime_rows = false;
    assert_int_equal(packed_bytes(device, &p), 0);
    ms_device_close(device);
}

static void rows_known_at_run_time(void **unused) {
    (void)unused;
    needs_onednn();
    ms_device *ref = open_device("ref", 1);
    static const char *const variants[] = {NULL, "avx2", "ref"};
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        ms_device *device = open_device(variants[v], 2);
        const char *name = v == 2 ? "ref" : "onednn";
        for (int form = 0; form < 6; form++) {
            problem p = {.m = 40,
                         .n = 50,
                         .k = 30,
                         .transpose_b = form & 1,
                         .bias = form / 2 == 1,
                         .runtime_rows = true,
                         .type = form / 2 == 2 ? MS_F32 : MS_BF16,
                         .c_type = form / 2 == 2 ? MS_F32 : MS_BF16};
            problem whole = p;
            whole.runtime_rows = false;
            double *expected = run_problem(ref, &whole, 5, "ref", NULL);
            static const int64_t rows[] = {0, 1, 2, 7, 31, 32, 33, 40};
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                p.rows = rows[i];
                double *c = run_problem(device, &p, 5, name, NULL);
                assert_close(&p, c, expected, p.rows, onednn_bound(&p));
                for (int64_t j = p.rows * p.n; j < p.m * p.n; j++) {
                    assert_true(isnan(c[j])); /* untouched */
                }
                ms_free(c);
            }
            ms_free(expected);
        }
        ms_device_close(device);
    }
    ms_device_close(ref);
}

/* One handle, many rows in any order: objects that depend on the rows are made anew as needed. */
static void rows_may_change_between_runs(void **unused) {
    (void)unused;
    needs_onednn();
    ms_device *device = open_device(NULL, 1);
    problem p = {
        .m = 20, .n = 24, .k = 40, .runtime_rows = true, .type = MS_BF16, .c_type = MS_F32};
    problem whole = p;
    whole.runtime_rows = false;
    double *expected = run_problem(device, &whole, 8, "onednn", NULL);
    ms_kernel_spec spec = make_spec(&p);
    void *arguments[ARGUMENTS];
    make_arguments(&p, &spec, 8, arguments);
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, &spec, &handle));
    static const int64_t rows[] = {20, 1, 1, 13, 2, 20};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memset(arguments[C], 0xff, (size_t)(p.m * p.n) * sizeof(float));
        run_handle(handle, arguments, false, rows[i]);
        for (int64_t j = 0; j < rows[i] * p.n; j++) {
            assert_true(fabs((double)((float *)arguments[C])[j] - expected[j]) < 1e-4);
        }
    }
    ms_kernel_destroy(handle);
    free_arguments(arguments);
    ms_free(expected);
    ms_device_close(device);
}

static void empty_matmuls_do_nothing(void **unused) {
    (void)unused;
    static const int64_t empty[][3] = {{0, 4, 4}, {4, 0, 4}, {4, 4, 0}, {0, 0, 0}};
    static const char *const variants[] = {NULL, "ref"};
    for (int v = 0; v < 2; v++) {
        ms_device *device = open_device(variants[v], 1);
        for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
            for (int type = 0; type < 2; type++) {
                problem p = {.m = empty[i][0],
                             .n = empty[i][1],
                             .k = empty[i][2],
                             .type = type == 0 ? MS_F32 : MS_BF16,
                             .c_type = MS_F32};
                ms_kernel_spec spec = make_spec(&p);
                void *arguments[ARGUMENTS];
                make_arguments(&p, &spec, 1, arguments);
                ms_kernel_handle *handle = NULL;
                assert_ok(ms_kernel_prepare(device, &spec, &handle));
                run_handle(handle, arguments, false, 0);
                for (int64_t j = 0; j < p.m * p.n; j++) {
                    assert_true(isnan(((float *)arguments[C])[j]));
                }
                ms_kernel_destroy(handle);
                free_arguments(arguments);
            }
        }
        ms_device_close(device);
    }
}

/* Same threads, same bits; and handles of two devices in turn do not disturb each other. */
static void ranks_share_a_process(void **unused) {
    (void)unused;
    needs_onednn();
    static const ms_dtype types[] = {MS_F32, MS_BF16};
    for (int type = 0; type < 2; type++) {
        problem p = {.m = 200,
                     .n = 130,
                     .k = 900,
                     .transpose_a = type == 1,
                     .type = types[type],
                     .c_type = MS_F32};
        ms_device *one = open_device(NULL, 1), *two = open_device(NULL, 2);
        double *first_one = run_problem(one, &p, 6, "onednn", NULL);
        double *first_two = run_problem(two, &p, 6, "onednn", NULL);
        double *again_one = run_problem(one, &p, 6, "onednn", NULL);
        double *again_two = run_problem(two, &p, 6, "onednn", NULL);
        size_t bytes = (size_t)(p.m * p.n) * sizeof(double);
        assert_memory_equal(first_one, again_one, bytes);
        assert_memory_equal(first_two, again_two, bytes);
        assert_close(&p, first_two, first_one, p.m, 1e-5);
        ms_free(first_one);
        ms_free(first_two);
        ms_free(again_one);
        ms_free(again_two);
        ms_device_close(one);
        ms_device_close(two);
    }
}

static void wrong_specs_are_refused(void **unused) {
    (void)unused;
    ms_device *device = open_device(NULL, 1);
    ms_kernel_handle *handle = NULL;
    problem p = {.m = 8, .n = 8, .k = 8, .type = MS_F32, .c_type = MS_F32};
    ms_kernel_spec spec = make_spec(&p);
    int64_t bytes[1] = {256};
    spec.arguments[B] = ms_argument_of(MS_U8, 1, bytes);
    spec.attributes.matmul.packed = true;
    assert_fails(MS_ERR_UNSUPPORTED, "matmul", ms_kernel_prepare(device, &spec, &handle));
    if (ms_cpu_isa() >= MS_ISA_AVX512 && ms_cpu_has_avx512_bf16()) {
        p.type = p.c_type = MS_BF16;
        spec = make_spec(&p);
        bytes[0] = 3;
        spec.arguments[B] = ms_argument_of(MS_U8, 1, bytes);
        spec.attributes.matmul.packed = true;
        assert_fails(MS_ERR_ARGUMENT, "packed_bytes", ms_kernel_prepare(device, &spec, &handle));
    }
    assert_null(handle);
    ms_device_close(device);
}

/* Every allocation of ours in prepare may fail; nothing may leak or stay behind. */
static void memory_runs_out(void **unused) {
    (void)unused;
    needs_onednn();
    ms_device *device = open_device(NULL, 1);
    problem p = {.m = 2048, .n = 40, .k = 40, .type = MS_BF16, .c_type = MS_F32};
    ms_kernel_spec spec = make_spec(&p);
    ms_memory_counters before = ms_memory_counters_get();
    for (uint64_t n = 1;; n++) {
        ms_kernel_handle *handle = NULL;
        ms_memory_fail_at(n);
        ms_status status = ms_kernel_prepare(device, &spec, &handle);
        ms_memory_fail_at(0);
        if (status == MS_OK) {
            ms_kernel_destroy(handle);
            break;
        }
        assert_int_equal(status, MS_ERR_MEMORY);
        assert_null(handle);
    }
    ms_memory_counters after = ms_memory_counters_get();
    assert_memory_equal(before.live_bytes, after.live_bytes, sizeof before.live_bytes);
    ms_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_triple_loop),
        cmocka_unit_test(reference_bits_do_not_depend_on_threads),
        cmocka_unit_test(onednn_agrees_with_the_reference),
        cmocka_unit_test(weight_gradients_over_many_tokens),
        cmocka_unit_test(packed_operands),
        cmocka_unit_test(packing_that_does_not_pay),
        cmocka_unit_test(rows_known_at_run_time),
        cmocka_unit_test(rows_may_change_between_runs),
        cmocka_unit_test(empty_matmuls_do_nothing),
        cmocka_unit_test(ranks_share_a_process),
        cmocka_unit_test(wrong_specs_are_refused),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
