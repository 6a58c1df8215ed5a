// labels: unit
// timeout: 60
/*
 * test_attention.c - attention forward, gradient and cached: the reference against formulas and
 * finite differences, every other variant against the reference, bits against the number of
 * threads.
 *
 * Bounds, relative to the largest element of the reference's tensor (at least 1): fp32 2e-5 (sums
 * of up to 200 products in fp32); bf16 2^-7 forward and 2^-6 gradient (weights and their gradients
 * are rounded to bf16, 2^-9 each, before they are multiplied and summed, and results once more).
 */
#include "base/memory.h"
#include "base/types.h"
#include "device/device.h"

#include <math.h>

#include "device/cpu/attention_product.h"
#include "support/test_support.h"

#define GUARD 64 /* elements after each output that must stay as they are */
#define GUARD_BYTE 0x5a

typedef struct problem {
    int64_t batch, positions, heads, kv_heads, size;
    bool packed, causal;
    double dropout;
    ms_dtype type;
} problem;

enum { Q, K, V, SAMPLE, O, LSE, D_O, DQ, DK, DV, TENSORS };

typedef struct tensors {
    problem p;
    int64_t count[TENSORS]; /* 0: absent */
    double *value[TENSORS]; /* as doubles, rounded to the type for inputs */
} tensors;

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

static double to_type(ms_dtype type, double value) {
    return type == MS_F64   ? value
           : type == MS_F32 ? (double)(float)value
                            : (double)ms_bf16_to_f32(ms_f32_to_bf16((float)value));
}

static ms_dtype tensor_type(const problem *p, int tensor) {
    return tensor == SAMPLE ? MS_I64
           : tensor == LSE  ? (p->type == MS_F64 ? MS_F64 : MS_F32)
                            : p->type;
}

static tensors make_tensors(problem p, uint64_t seed) {
    tensors t = {.p = p};
    int64_t rows = p.batch * p.positions;
    int64_t row_q = (p.packed ? p.heads + 2 * p.kv_heads : p.heads) * p.size;
    int64_t q = rows * row_q, o = rows * p.heads * p.size;
    int64_t kv = p.packed ? 0 : rows * p.kv_heads * p.size;
    int64_t counts[TENSORS] = {
        q, kv, kv, p.dropout > 0.0 ? p.batch : 0, o, p.batch * p.heads * p.positions, o, q, kv, kv};
    for (int i = 0; i < TENSORS; i++) {
        t.count[i] = counts[i];
        t.value[i] = allocate((size_t)counts[i] * sizeof(double) + 8);
        bool is_input = i <= V || i == D_O;
        for (int64_t j = 0; j < counts[i] && is_input; j++) {
            t.value[i][j] = to_type(p.type, 2.0 * test_random_real(&seed));
        }
        for (int64_t j = 0; j < counts[i] && i == SAMPLE; j++) {
            t.value[i][j] = (double)(1000003 * j + 5);
        }
    }
    return t;
}

static void free_tensors(tensors *t) {
    for (int i = 0; i < TENSORS; i++) {
        ms_free(t->value[i]);
    }
}

static ms_kernel_spec make_spec(const problem *p, ms_slot slot, const tensors *t) {
    ms_kernel_spec spec = {.slot = slot, .argument_count = slot == MS_SLOT_ATTENTION ? 6 : 10};
    int64_t rows = p->batch * p->positions;
    for (int i = 0; i < spec.argument_count; i++) {
        spec.arguments[i] = ms_argument_absent();
        if (t->count[i] > 0) {
            int64_t two[2] = {rows, rows > 0 ? t->count[i] / rows : 0};
            spec.arguments[i] = ms_argument_of(tensor_type(p, i), 2, two);
        }
    }
    if (t->count[SAMPLE] > 0) {
        spec.arguments[SAMPLE] = ms_argument_of(MS_I64, 1, &p->batch);
    }
    spec.arguments[LSE] =
        ms_argument_of(tensor_type(p, LSE), 3, (int64_t[3]){p->batch, p->heads, p->positions});
    spec.attributes.attention.packed = p->packed;
    spec.attributes.attention.causal = p->causal;
    spec.attributes.attention.batch = p->batch;
    spec.attributes.attention.positions = p->positions;
    spec.attributes.attention.heads = p->heads;
    spec.attributes.attention.kv_heads = p->kv_heads;
    spec.attributes.attention.head_size = p->size;
    spec.attributes.attention.heads_global = 2 * p->heads;
    spec.attributes.attention.head_first = 1;
    spec.attributes.attention.dropout = p->dropout;
    spec.attributes.attention.key = ms_random_key_make(7, "attention.test");
    return spec;
}

static void store_typed(void *to, ms_dtype type, int64_t i, double value) {
    switch (type) {
    case MS_F64:
        ((double *)to)[i] = value;
        break;
    case MS_F32:
        ((float *)to)[i] = (float)value;
        break;
    case MS_I64:
        ((int64_t *)to)[i] = (int64_t)value;
        break;
    default:
        ((uint16_t *)to)[i] = ms_f32_to_bf16((float)value);
        break;
    }
}

static double load_typed(const void *from, ms_dtype type, int64_t i) {
    return type == MS_F64   ? ((const double *)from)[i]
           : type == MS_F32 ? (double)((const float *)from)[i]
                            : (double)ms_bf16_to_f32(((const uint16_t *)from)[i]);
}

/* Runs a spec on values in double, in the spec's types; outputs come back as doubles. */
static void run_spec(ms_device *device, const ms_kernel_spec *spec, double *const *values,
                     unsigned outputs, const int64_t *extent, const char *variant) {
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, spec, &handle));
    if (variant != NULL) {
        assert_string_equal(ms_kernel_get_needs(handle).variant, variant);
    }
    void *arguments[MS_ARGS_MAX] = {0};
    for (int i = 0; i < spec->argument_count; i++) {
        int64_t count = ms_argument_elements(&spec->arguments[i]);
        if (spec->arguments[i].rank < 0) {
            continue;
        }
        size_t bytes = ms_dtype_bytes(spec->arguments[i].dtype);
        arguments[i] = allocate((size_t)(count + GUARD) * bytes);
        memset(arguments[i], GUARD_BYTE, (size_t)(count + GUARD) * bytes);
        for (int64_t j = 0; j < count && (outputs >> i & 1u) == 0; j++) {
            store_typed(arguments[i], spec->arguments[i].dtype, j, values[i][j]);
        }
    }
    size_t scratch_bytes = ms_kernel_get_needs(handle).scratch_bytes;
    void *scratch = allocate(scratch_bytes + 1);
    memset(scratch, 0xff, scratch_bytes); /* NaN: what is not written first must not be read */
    ms_kernel_run_info run = {.arguments = arguments, .scratch = scratch};
    if (extent != NULL) {
        run.extent[0] = extent[0];
        run.extent[1] = extent[1];
    }
    assert_ok(ms_kernel_run(handle, &run, NULL));
    for (int i = 0; i < spec->argument_count; i++) {
        if (arguments[i] == NULL) {
            continue;
        }
        int64_t count = ms_argument_elements(&spec->arguments[i]);
        size_t bytes = ms_dtype_bytes(spec->arguments[i].dtype);
        const unsigned char *after = (const unsigned char *)arguments[i] + (size_t)count * bytes;
        for (size_t j = 0; j < GUARD * bytes; j++) {
            assert_int_equal(after[j], GUARD_BYTE);
        }
        for (int64_t j = 0; j < count && (outputs >> i & 1u) != 0; j++) {
            values[i][j] = load_typed(arguments[i], spec->arguments[i].dtype, j);
        }
        ms_free(arguments[i]);
    }
    ms_free(scratch);
    ms_kernel_destroy(handle);
}

#define FORWARD_OUTPUTS (1u << O | 1u << LSE)
#define GRADIENT_OUTPUTS (1u << DQ | 1u << DK | 1u << DV)

static void forward(ms_device *device, tensors *t, const char *variant) {
    ms_kernel_spec spec = make_spec(&t->p, MS_SLOT_ATTENTION, t);
    run_spec(device, &spec, t->value, FORWARD_OUTPUTS, NULL, variant);
}

static void gradient(ms_device *device, tensors *t, const char *variant) {
    ms_kernel_spec spec = make_spec(&t->p, MS_SLOT_ATTENTION_GRAD, t);
    run_spec(device, &spec, t->value, GRADIENT_OUTPUTS, NULL, variant);
}

/* Largest difference over the largest element of `expected`, at least 1 (inputs are within +-2, and
 * a gradient may cancel to nothing). */
static double distance(const double *got, const double *expected, int64_t count) {
    double largest = 1.0, difference = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(expected[i]));
        double d = fabs(got[i] - expected[i]);
        difference = d > difference || d != d ? d : difference;
    }
    return difference / largest;
}

static void assert_close(const char *what, const problem *p, const double *got,
                         const double *expected, int64_t count, double bound) {
    double far = distance(got, expected, count);
    if (!(far <= bound)) {
        fail_msg("%s of B %d T %d H %d G %d D %d %s%s%s dropout %g: %g off, bound %g", what,
                 (int)p->batch, (int)p->positions, (int)p->heads, (int)p->kv_heads, (int)p->size,
                 ms_dtype_name(p->type), p->packed ? " packed" : "", p->causal ? " causal" : "",
                 p->dropout, far, bound);
    }
}

/* ---- the reference ---- */

/* Where element d of head h of token `row` is in q, k or v. */
static double element(const tensors *t, int tensor, int64_t row, int64_t h, int64_t d) {
    const problem *p = &t->p;
    if (!p->packed) {
        int64_t heads = tensor == Q ? p->heads : p->kv_heads;
        return t->value[tensor][(row * heads + h) * p->size + d];
    }
    int64_t first = tensor == Q ? 0 : tensor == K ? p->heads : p->heads + p->kv_heads;
    return t->value[Q][(row * (p->heads + 2 * p->kv_heads) + first + h) * p->size + d];
}

/* The slot's text, for one query: softmax of scaled products, weights dropped by the counter. */
static void formula_row(const tensors *t, int64_t b, int64_t h, int64_t query, double *o,
                        double *lse) {
    const problem *p = &t->p;
    ms_random_key key = ms_random_key_make(7, "attention.test");
    int64_t kv = h / (p->heads / p->kv_heads), first = b * p->positions;
    int64_t keys = p->causal ? query + 1 : p->positions;
    double sum = 0.0;
    memset(o, 0, (size_t)p->size * sizeof *o);
    for (int64_t j = 0; j < keys; j++) {
        double score = 0.0;
        for (int64_t d = 0; d < p->size; d++) {
            score += element(t, Q, first + query, h, d) * element(t, K, first + j, kv, d);
        }
        double weight = exp(score / sqrt((double)p->size));
        sum += weight;
        if (p->dropout > 0.0) {
            uint64_t high =
                (uint64_t)t->value[SAMPLE][b] * (uint64_t)(2 * p->heads) + (uint64_t)(1 + h);
            uint64_t low = (uint64_t)(query * p->positions + j) / 4;
            uint32_t word = ms_random_at(key, high, low).word[j % 4];
            weight *=
                (double)ms_random_unit_f32(word) >= p->dropout ? 1.0 / (1.0 - p->dropout) : 0.0;
        }
        for (int64_t d = 0; d < p->size; d++) {
            o[d] += weight * element(t, V, first + j, kv, d);
        }
    }
    for (int64_t d = 0; d < p->size; d++) {
        o[d] /= sum;
    }
    *lse = log(sum);
}

static void reference_follows_the_formula(void **unused) {
    (void)unused;
    ms_device *device = open_device("ref", 2);
    const problem problems[] = {{2, 7, 4, 2, 5, false, true, 0.0, MS_F64},
                                {1, 9, 3, 3, 8, true, false, 0.0, MS_F64},
                                {2, 6, 4, 1, 4, true, true, 0.3, MS_F64},
                                {1, 1, 1, 1, 1, false, true, 0.0, MS_F64},
                                {2, 11, 2, 1, 16, false, false, 0.5, MS_F64}};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        tensors t = make_tensors(problems[i], 17 + i);
        forward(device, &t, "ref");
        for (int64_t row = 0; row < t.p.batch * t.p.heads * t.p.positions; row++) {
            int64_t query = row % t.p.positions, h = row / t.p.positions % t.p.heads;
            int64_t b = row / t.p.positions / t.p.heads;
            double o[16], lse;
            formula_row(&t, b, h, query, o, &lse);
            assert_true(fabs(lse - t.value[LSE][row]) < 1e-12);
            int64_t at = ((b * t.p.positions + query) * t.p.heads + h) * t.p.size;
            for (int64_t d = 0; d < t.p.size; d++) {
                assert_true(fabs(o[d] - t.value[O][at + d]) < 1e-12);
            }
        }
        free_tensors(&t);
    }
    ms_device_close(device);
}

/* sum(do * o) after moving one element of an input. */
static double loss_at(ms_device *device, tensors *t, int tensor, int64_t at, double step) {
    double before = t->value[tensor][at];
    t->value[tensor][at] = before + step;
    forward(device, t, NULL);
    t->value[tensor][at] = before;
    double loss = 0.0;
    for (int64_t i = 0; i < t->count[O]; i++) {
        loss += t->value[D_O][i] * t->value[O][i];
    }
    return loss;
}

static void reference_gradient_is_the_slope(void **unused) {
    (void)unused;
    ms_device *device = open_device("ref", 1);
    const problem problems[] = {{2, 5, 4, 2, 3, false, true, 0.0, MS_F64},
                                {1, 6, 2, 2, 4, true, false, 0.0, MS_F64},
                                {1, 5, 4, 2, 3, true, true, 0.4, MS_F64},
                                {2, 4, 2, 1, 2, false, false, 0.25, MS_F64}};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        tensors t = make_tensors(problems[i], 99 + i);
        forward(device, &t, "ref");
        gradient(device, &t, "ref");
        for (int tensor = Q; tensor <= V; tensor++) {
            for (int64_t at = 0; at < t.count[tensor]; at++) {
                const double step = 1e-5;
                double slope = (loss_at(device, &t, tensor, at, step) -
                                loss_at(device, &t, tensor, at, -step)) /
                               (2.0 * step);
                assert_true(fabs(slope - t.value[DQ + tensor][at]) < 1e-7);
            }
        }
        free_tensors(&t);
    }
    ms_device_close(device);
}

/* ---- variants ---- */

/* The vector variants this machine has. */
static int variant_names(const char *names[2]) {
    int count = 0;
    if (ms_cpu_isa() >= MS_ISA_AVX2) {
        names[count++] = "avx2";
    }
    if (ms_cpu_isa() >= MS_ISA_AVX512) {
        names[count++] = "avx512";
    }
    if (count == 0) {
        print_message("skipped: this processor has no vector variants\n");
        skip();
    }
    return count;
}

static void compare_with_reference(ms_device *ref, ms_device *device, const char *name, problem p,
                                   uint64_t seed) {
    tensors t = make_tensors(p, seed);
    tensors expected = make_tensors(p, seed);
    double bound = p.type == MS_F32 ? 2e-5 : 0x1p-7;
    forward(ref, &expected, "ref");
    forward(device, &t, name);
    assert_close("o", &p, t.value[O], expected.value[O], t.count[O], bound);
    assert_close("lse", &p, t.value[LSE], expected.value[LSE], t.count[LSE], 1e-5);
    /* The gradients of both from the same o and lse. */
    memcpy(t.value[O], expected.value[O], (size_t)t.count[O] * sizeof(double));
    memcpy(t.value[LSE], expected.value[LSE], (size_t)t.count[LSE] * sizeof(double));
    gradient(ref, &expected, "ref");
    gradient(device, &t, name);
    bound = p.type == MS_F32 ? 2e-5 : 0x1p-6;
    assert_close("dq", &p, t.value[DQ], expected.value[DQ], t.count[DQ], bound);
    assert_close("dk", &p, t.value[DK], expected.value[DK], t.count[DK], bound);
    assert_close("dv", &p, t.value[DV], expected.value[DV], t.count[DV], bound);
    free_tensors(&t);
    free_tensors(&expected);
}

static void variants_agree_with_the_reference(void **unused) {
    (void)unused;
    static const int64_t positions[] = {1, 2, 31, 32, 33, 63, 64, 65, 97, 130};
    static const int64_t sizes[] = {8, 16, 33, 64, 96, 128, 256};
    const char *names[2];
    int variants = variant_names(names);
    ms_device *ref = open_device("ref", 1);
    for (int v = 0; v < variants; v++) {
        ms_device *device = open_device(names[v], 1); /* more threads: see the bits below */
        uint64_t seed = 1;
        for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
            for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++, seed++) {
                if (positions[i] * sizes[j] > 130 * 64) {
                    continue;
                }
                problem p = {.batch = 1 + (int64_t)(seed % 2),
                             .positions = positions[i],
                             .heads = seed % 3 == 0 ? 4 : 2,
                             .kv_heads = seed % 3 == 0 ? 2 : seed % 3,
                             .size = sizes[j],
                             .packed = seed % 2 == 0,
                             .causal = seed % 5 != 0,
                             .dropout = seed % 4 == 0 ? 0.25 : 0.0,
                             .type = MS_F32};
                compare_with_reference(ref, device, names[v], p, seed);
                p.type = MS_BF16;
                compare_with_reference(ref, device, names[v], p, seed);
            }
        }
        ms_device_close(device);
    }
    ms_device_close(ref);
}

static void large_scores_do_not_overflow(void **unused) {
    (void)unused;
    const char *names[2];
    int variants = variant_names(names);
    ms_device *ref = open_device("ref", 1);
    for (int v = 0; v < variants; v++) {
        ms_device *device = open_device(names[v], 1);
        problem p = {1, 70, 1, 1, 16, false, true, 0.0, MS_F32};
        tensors t = make_tensors(p, 5), expected = make_tensors(p, 5);
        for (int64_t i = 0; i < t.count[Q]; i++) { /* scores up to some thousands */
            t.value[Q][i] = expected.value[Q][i] = t.value[Q][i] * 1000.0;
        }
        forward(ref, &expected, "ref");
        forward(device, &t, names[v]);
        assert_close("o", &p, t.value[O], expected.value[O], t.count[O], 2e-3);
        free_tensors(&t);
        free_tensors(&expected);
        ms_device_close(device);
    }
    ms_device_close(ref);
}

static void nan_is_not_hidden(void **unused) {
    (void)unused;
    const char *names[2];
    int variants = variant_names(names);
    for (int v = 0; v < variants; v++) {
        ms_device *device = open_device(names[v], 1);
        for (int type = 0; type < 2; type++) {
            for (int tensor = Q; tensor <= V; tensor++) {
                problem p = {1, 70, 1, 1, 16, false, true, 0.0, type == 0 ? MS_F32 : MS_BF16};
                tensors t = make_tensors(p, 5);
                t.value[tensor][66 * p.size + 3] = (double)NAN;
                forward(device, &t, names[v]);
                assert_true(isnan(t.value[O][66 * p.size + 3]));
                assert_false(isnan(t.value[O][63 * p.size + 3])); /* another block, before it */
                gradient(device, &t, names[v]);
                assert_true(isnan(t.value[DK][3]));
                free_tensors(&t);
            }
        }
        ms_device_close(device);
    }
}

static void bits_do_not_depend_on_threads(void **unused) {
    (void)unused;
    static const char *const names[] = {"ref", "avx2", "avx512"};
    for (int v = 0; v <= (int)ms_cpu_isa(); v++) {
        for (int type = 0; type < 2; type++) {
            problem p = {2, 70, 4, 2, 24, true, true, 0.1, type == 0 ? MS_F32 : MS_BF16};
            tensors first = make_tensors(p, 3);
            for (int threads = 1; threads <= 3; threads++) {
                ms_device *device = open_device(names[v], threads);
                tensors t = make_tensors(p, 3);
                forward(device, &t, names[v]);
                gradient(device, &t, names[v]);
                static const int compared[] = {O, LSE, DQ};
                for (size_t i = 0; i < sizeof compared / sizeof compared[0]; i++) {
                    int c = compared[i];
                    size_t bytes = (size_t)t.count[c] * sizeof(double);
                    if (threads == 1) {
                        memcpy(first.value[c], t.value[c], bytes);
                    }
                    assert_memory_equal(first.value[c], t.value[c], bytes);
                }
                free_tensors(&t);
                ms_device_close(device);
            }
            free_tensors(&first);
        }
    }
}

/* ---- over a cache ---- */

#define SPARE_ROWS 2 /* planned beyond what a run brings */

/* The sizes of a cache test: the arguments of the slot, caches that live through all pieces. */
typedef struct cache_test {
    const tensors *t;
    int64_t row_q, row_kv, row_o, cache_rows;
    void *cache_k, *cache_v;
} cache_test;

static ms_kernel_spec cached_spec(const cache_test *c, int64_t rows) {
    const problem *p = &c->t->p;
    int64_t planned = rows + SPARE_ROWS;
    int64_t shapes[6][2] = {{planned, c->row_q},        {planned, c->row_kv},
                            {planned, c->row_kv},       {c->cache_rows, c->row_kv},
                            {c->cache_rows, c->row_kv}, {planned, c->row_o}};
    ms_kernel_spec whole = make_spec(p, MS_SLOT_ATTENTION, c->t);
    ms_kernel_spec spec = {
        .slot = MS_SLOT_ATTENTION_CACHED, .argument_count = 6, .attributes = whole.attributes};
    for (int i = 0; i < 6; i++) {
        bool absent = p->packed && (i == K || i == V);
        spec.arguments[i] = absent ? ms_argument_absent() : ms_argument_of(p->type, 2, shapes[i]);
    }
    return spec;
}

/* Brings `rows` rows from position `at` on; their o goes to o[0 ..]. */
static void run_cached(ms_device *device, const char *name, const cache_test *c, int64_t rows,
                       int64_t at, double *o) {
    const problem *p = &c->t->p;
    ms_kernel_spec spec = cached_spec(c, rows);
    ms_kernel_handle *handle = NULL;
    assert_ok(ms_kernel_prepare(device, &spec, &handle));
    assert_string_equal(ms_kernel_get_needs(handle).variant, name);
    void *arguments[6] = {[3] = c->cache_k, [4] = c->cache_v};
    for (int i = Q; i <= V; i++) {
        if (spec.arguments[i].rank < 0) {
            continue;
        }
        int64_t row = spec.arguments[i].dims[1];
        size_t element = ms_dtype_bytes(p->type);
        arguments[i] = allocate((size_t)((rows + SPARE_ROWS) * row) * element);
        for (int64_t j = 0; j < rows * row; j++) {
            store_typed(arguments[i], p->type, j, c->t->value[i][at * row + j]);
        }
    }
    int64_t o_count = (rows + SPARE_ROWS) * c->row_o;
    arguments[5] = allocate((size_t)o_count * ms_dtype_bytes(p->type));
    memset(arguments[5], GUARD_BYTE, (size_t)o_count * ms_dtype_bytes(p->type));
    void *scratch = allocate(ms_kernel_get_needs(handle).scratch_bytes + 1);
    ms_kernel_run_info run = {.arguments = arguments, .scratch = scratch, .extent = {rows, at}};
    assert_ok(ms_kernel_run(handle, &run, NULL));
    for (int64_t j = 0; j < rows * c->row_o; j++) {
        o[j] = load_typed(arguments[5], p->type, j);
    }
    const unsigned char *spare = arguments[5];
    for (size_t j = (size_t)(rows * c->row_o); j < (size_t)o_count; j++) {
        assert_int_equal(spare[j * ms_dtype_bytes(p->type)], GUARD_BYTE);
    }
    for (int i = Q; i <= V; i++) {
        ms_free(arguments[i]);
    }
    ms_free(arguments[5]);
    ms_free(scratch);
    ms_kernel_destroy(handle);
}

/* Feeds the positions of `t` in pieces through the cache; o must equal that of all at once. */
static void check_cached(ms_device *device, const char *name, const tensors *t,
                         const double *expected, const int64_t *pieces, double bound) {
    const problem *p = &t->p;
    cache_test c = {.t = t,
                    .row_q = t->count[Q] / p->positions,
                    .row_kv = p->kv_heads * p->size,
                    .row_o = p->heads * p->size,
                    .cache_rows = p->positions + 3};
    size_t cache_bytes = (size_t)(c.cache_rows * c.row_kv) * ms_dtype_bytes(p->type);
    c.cache_k = allocate(cache_bytes);
    c.cache_v = allocate(cache_bytes);
    memset(c.cache_k, 0xff, cache_bytes); /* NaN beyond what has been brought */
    memset(c.cache_v, 0xff, cache_bytes);
    double *o = allocate((size_t)(p->positions * c.row_o) * sizeof(double));
    int64_t at = 0;
    for (int i = 0; at < p->positions; at += pieces[i], i++) {
        run_cached(device, name, &c, pieces[i], at, o + at * c.row_o);
    }
    assert_close("cached o", p, o, expected, t->count[O], bound);
    ms_free(c.cache_k);
    ms_free(c.cache_v);
    ms_free(o);
}

static void cached_equals_all_at_once(void **unused) {
    (void)unused;
    static const char *const names[] = {"ref", "avx2", "avx512"};
    static const int64_t pieces[][8] = {{20, 1, 1, 8, 70, 30}, {130}, {65, 65}, {1, 2, 3, 64, 60}};
    static const ms_dtype types[] = {MS_F64, MS_F32, MS_BF16};
    static const double bounds[] = {1e-13, 2e-5, 0x1p-7};
    ms_device *ref = open_device("ref", 1);
    for (int v = 0; v <= (int)ms_cpu_isa(); v++) {
        ms_device *device = open_device(names[v], 2);
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
            for (int type = v == 0 ? 0 : 1; type < 3; type++) {
                problem p = {
                    1,    130, 4,          i % 2 == 0 ? 4 : 2, i < 2 ? 64 : 20, i == 1 || i == 2,
                    true, 0.0, types[type]};
                tensors t = make_tensors(p, i);
                forward(ref, &t, "ref");
                check_cached(device, names[v], &t, t.value[O], pieces[i], bounds[type]);
                free_tensors(&t);
            }
        }
        ms_device_close(device);
    }
    ms_device_close(ref);
}

/* ---- products of pairs ---- */

static void check_pairs(void (*multiply)(const ms_attention_product *), bool is_amx) {
    enum { M = 64, N = 96, DEPTH = 48 };
    uint64_t seed = 4;
    static uint16_t a[M * 2 * DEPTH], b[DEPTH * 2 * N];
    static float c[M * N];
    for (int i = 0; i < M * 2 * DEPTH; i++) {
        a[i] = ms_f32_to_bf16((float)test_random_real(&seed));
    }
    for (int i = 0; i < DEPTH * 2 * N; i++) {
        b[i] = ms_f32_to_bf16((float)test_random_real(&seed));
    }
    for (int add = 0; add < 2; add++) {
        for (int i = 0; i < M * N; i++) {
            c[i] = add ? (float)i : NAN;
        }
        if (is_amx) {
            ms__attention_amx_begin();
        }
        multiply(&(ms_attention_product){.m = M,
                                         .n = N,
                                         .k = DEPTH,
                                         .a = (const float *)(const void *)a,
                                         .a_row = DEPTH,
                                         .a_k = 1,
                                         .b = (const float *)(const void *)b,
                                         .b_row = N,
                                         .c = c,
                                         .c_row = N,
                                         .add = add});
        if (is_amx) {
            ms__attention_amx_end();
        }
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++) {
                double sum = add ? (double)(i * N + j) : 0.0;
                for (int k = 0; k < 2 * DEPTH; k++) {
                    sum += (double)ms_bf16_to_f32(a[i * 2 * DEPTH + k]) *
                           (double)ms_bf16_to_f32(b[k / 2 * 2 * N + 2 * j + k % 2]);
                }
                assert_true(fabs((double)c[i * N + j] - sum) < 2e-6 * (fabs(sum) + 20.0));
            }
        }
    }
}

static void products_of_pairs(void **unused) {
    (void)unused;
    if (!ms_cpu_has_avx512_bf16()) {
        print_message("skipped: this processor has no AVX512_BF16\n");
        skip();
    }
    check_pairs(ms__attention_multiply_dot, false);
    if (ms_cpu_has_amx_bf16()) {
        check_pairs(ms__attention_multiply_amx, true);
    }
}

static void what_is_not_served_goes_to_the_reference(void **unused) {
    (void)unused;
    ms_device *device = open_device(NULL, 1);
    problem p = {1, 3, 1, 1, 300, false, true, 0.0, MS_F32};
    tensors t = make_tensors(p, 1);
    forward(device, &t, "ref");
    free_tensors(&t);
    p.size = 8;
    t = make_tensors(p, 1);
    ms_kernel_spec spec = make_spec(&p, MS_SLOT_ATTENTION, &t);
    spec.attributes.attention.scale = -0.5;
    run_spec(device, &spec, t.value, FORWARD_OUTPUTS, NULL, "ref");
    free_tensors(&t);
    ms_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_follows_the_formula),
        cmocka_unit_test(reference_gradient_is_the_slope),
        cmocka_unit_test(variants_agree_with_the_reference),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(cached_equals_all_at_once),
        cmocka_unit_test(products_of_pairs),
        cmocka_unit_test(what_is_not_served_goes_to_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
