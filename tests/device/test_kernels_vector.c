// labels: unit
// timeout: 60
/*
 * test_kernels_vector.c - every vector kernel against its reference.
 *
 * Bounds in fp32, relative to the element plus an absolute part for sums of numbers up to 1 (in
 * bf16 the one unit in the last place, 2^-7, that another rounding before the store may make):
 *
 *     add, cast, embedding, its gradient   the reference's bits
 *     sum, square_sum                      1e-13 (fp64)
 *     dropout, sgd                         3e-7
 *     adamw                                one last place of the weight + 1e-8 (of steps to 0.1)
 *     rope                                 1e-7 + 2e-7
 *     activations and slopes               2e-6 + 1e-7 (tails: a^2 eps)
 *     norm                                 2e-6 + 2e-6, gradients 4e-6 + 4e-6
 *     sums over rows                       1e-6 + 4e-7 sqrt(rows)
 *     the exponential                      2 last places down to -20, 3 down to -87
 *     cross-entropy                        3e-6 + 1e-6, gradients 4e-6 + 1e-9
 */
#include "kernel_case.h"

#define BF16_ULP 0.0079

static double x_bound(ms_dtype dtype, double fp32_bound) {
    return dtype == MS_BF16 ? BF16_ULP : fp32_bound;
}

static const ms_dtype x_types[] = {MS_F32, MS_BF16};
static const int64_t sizes[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,
                                31, 33, 63, 64, 65, 127, 131, 257, 1000};
#define SIZE_COUNT (int)(sizeof sizes / sizeof sizes[0])
static const int64_t row_counts[] = {1, 3, 7, 8, 9, 67, 256, 261};
#define ROW_COUNT (int)(sizeof row_counts / sizeof row_counts[0])
/* Flat sizes around a vector, a block of the norm and a piece of work. */
static const int64_t flat_sizes[] = {1,    7,    8,    9,    15,    16,    17,    33,
                                     1009, 4095, 4096, 4097, 16383, 16384, 16385, 40009};
#define FLAT_COUNT (int)(sizeof flat_sizes / sizeof flat_sizes[0])

static void name_case(kernel_case *c, ms_dtype dtype, int64_t rows, int64_t columns,
                      const char *what) {
    snprintf(c->text, sizeof c->text, "%s %s %" PRId64 "x%" PRId64 " %s",
             ms_slot_name(c->spec.slot), ms_dtype_name(dtype), rows, columns, what);
}

static void test_add(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < FLAT_COUNT; i++) {
            kernel_case c = case_begin(MS_SLOT_ADD);
            case_tensor(&c, x_types[t], flat_sizes[i], -1, -1);
            case_tensor(&c, x_types[t], flat_sizes[i], -1, -1);
            case_output(&c, x_types[t], flat_sizes[i], -1, -1, 0, 0);
            case_specials(&c, 0);
            case_specials(&c, 1);
            c.fixed_bits = true;
            name_case(&c, x_types[t], 1, flat_sizes[i], "");
            case_check(&c);
            for (int operand = 0; operand < 2; operand++) { /* c may be a or b */
                c.alias[2] = operand;
                c.output[operand] = true;
                case_check(&c);
                c.output[operand] = false;
            }
            case_release(&c);
        }
    }
}

static void test_cast(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < FLAT_COUNT; i++) {
            kernel_case c = case_begin(MS_SLOT_CAST);
            case_tensor(&c, x_types[t], flat_sizes[i], -1, -1);
            case_output(&c, x_types[1 - t], flat_sizes[i], -1, -1, 0, 0);
            case_specials(&c, 0);
            c.fixed_bits = true;
            name_case(&c, x_types[t], 1, flat_sizes[i], "");
            case_check(&c);
            case_release(&c);
        }
    }
}

/* Every exponent, ties to even on both sides, the largest finite number, and NaN with low bits
 * only. */
static void test_cast_rounding(void **state) {
    (void)state;
    const uint32_t low[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    const int64_t count = 512 * 4 * 6;
    kernel_case c = case_begin(MS_SLOT_CAST);
    case_tensor(&c, MS_F32, count, -1, -1);
    case_output(&c, MS_BF16, count, -1, -1, 0, 0);
    uint32_t *bits = c.initial[0];
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t top = (i / 24) << 7; /* sign and exponent */
        uint32_t mantissa = (i / 6) % 4 == 3 ? 0x7f : (i / 6) % 4;
        bits[i] = (top | mantissa) << 16 | low[i % 6];
    }
    c.fixed_bits = true;
    name_case(&c, MS_F32, 1, count, "rounding");
    case_check(&c);
    case_release(&c);
}

static void test_sums(void **state) {
    (void)state;
    for (int i = 0; i < FLAT_COUNT; i++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            kernel_case c = case_begin(MS_SLOT_SUM);
            case_tensor(&c, MS_F32, flat_sizes[i], -1, -1);
            case_output(&c, MS_F64, 1, -1, -1, 1e-13, 1e-11);
            c.accumulate = accumulate == 1;
            name_case(&c, MS_F32, 1, flat_sizes[i], accumulate ? "accumulate" : "");
            case_check(&c);
            case_release(&c);
        }
        kernel_case c = case_begin(MS_SLOT_SQUARE_SUM);
        case_tensor(&c, MS_F32, flat_sizes[i], -1, -1);
        case_output(&c, MS_F64, (flat_sizes[i] + MS_NORM_BLOCK - 1) / MS_NORM_BLOCK, -1, -1, 1e-13,
                    0);
        name_case(&c, MS_F32, 1, flat_sizes[i], "");
        case_check(&c);
        case_set(&c, 0, flat_sizes[i] / 2, NAN);
        case_check(&c);
        case_set(&c, 0, flat_sizes[i] / 2, 1e-41);
        case_check(&c);
        case_release(&c);
    }
}

/* Hyper-parameters as optim/ fills them. */
static int case_hyper(kernel_case *c, double step) {
    int index = case_tensor(c, MS_F64, MS_HYPER_COUNT, -1, -1);
    case_set(c, index, MS_HYPER_LEARNING_RATE, 1e-3);
    case_set(c, index, MS_HYPER_WEIGHT_DECAY, 0.1);
    case_set(c, index, MS_HYPER_BETA1, 0.9);
    case_set(c, index, MS_HYPER_BETA2, 0.999);
    case_set(c, index, MS_HYPER_EPSILON, 1e-8);
    case_set(c, index, MS_HYPER_STEP, step);
    case_set(c, index, MS_HYPER_GRADIENT_SCALE, 0.37);
    return index;
}

static void check_adamw(int64_t n, double step, bool copy, bool specials) {
    kernel_case c = case_begin(MS_SLOT_ADAMW);
    case_output(&c, MS_F32, n, -1, -1, 0x1p-23, 1e-8); /* steps reach 0.1 */
    case_tensor(&c, MS_F32, n, -1, -1);
    case_output(&c, MS_F32, n, -1, -1, 3e-7, 1e-7);
    case_output(&c, MS_F32, n, -1, -1, 3e-7, 0);
    case_hyper(&c, step);
    if (copy) {
        case_output(&c, MS_BF16, n, -1, -1, BF16_ULP, 0);
    } else {
        case_absent(&c);
    }
    for (int64_t i = 0; i < n; i++) { /* second moments are not negative */
        double v = case_get(&c, 3, i);
        case_set(&c, 3, i, v * v * 1e-2 + 1e-4);
    }
    if (specials) {
        case_specials(&c, 1);
        for (int64_t i = 0; i < n; i += 5) {
            case_set(&c, 1, i, 0.0);
            case_set(&c, 2, i, 0.0);
            case_set(&c, 3, i, i % 10 == 0 ? 0.0 : 1e-41);
        }
        c.absolute[0] = 1e-6;
        c.absolute[2] = 1e2; /* beside gradients of 1e9 */
        c.relative[3] = 1e-6;
        c.absolute[3] = 1.2e-38; /* states below the normal range become 0 */
    }
    name_case(&c, MS_F32, 1, n, specials ? "specials" : "");
    case_check(&c);
    case_release(&c);
}

static void test_adamw(void **state) {
    (void)state;
    for (int i = 0; i < FLAT_COUNT; i++) {
        check_adamw(flat_sizes[i], 1, false, false);
        check_adamw(flat_sizes[i], 1000, true, false);
        check_adamw(flat_sizes[i], 10, true, true);
    }
}

/* States that have decayed below the normal range become 0 (they would stick there, and cost 50
 * times the time), and the caller's arithmetic is as before. */
static void test_decayed_states(void **state) {
    (void)state;
    const int64_t n = 35;
    kernel_case c = case_begin(MS_SLOT_ADAMW);
    for (int i = 0; i < 4; i++) {
        case_output(&c, MS_F32, n, -1, -1, 0, 0);
        case_scale(&c, i, 0.0, i == 0 ? 0.25 : (i == 1 ? 0.0 : 1e-41));
    }
    case_hyper(&c, 10);
    case_absent(&c);
    case_set(&c, 4, MS_HYPER_WEIGHT_DECAY, 0.0);
    for (int level = MS_ISA_AVX2; level <= (int)ms_cpu_isa(); level++) {
        case_result result = case_run(&c, case_device((ms_isa)level, 2));
        for (int64_t i = 0; i < n; i++) {
            assert_true(case_load(result.arguments[0], MS_F32, i) == 0.25);
            assert_true(case_load(result.arguments[2], MS_F32, i) == 0.0);
            assert_true(case_load(result.arguments[3], MS_F32, i) == 0.0);
        }
        case_result_release(&c, &result);
        volatile float tiny = 1e-41f;
        assert_true(tiny * 2.0f > tiny);
    }
    case_release(&c);
}

static void check_sgd(int64_t n, double step, bool momentum, bool nesterov, bool copy) {
    kernel_case c = case_begin(MS_SLOT_SGD);
    case_output(&c, MS_F32, n, -1, -1, 3e-7, 1e-9);
    case_tensor(&c, MS_F32, n, -1, -1);
    if (momentum) {
        case_output(&c, MS_F32, n, -1, -1, 3e-7, 3e-7);
    } else {
        case_absent(&c);
    }
    case_hyper(&c, step);
    if (copy) {
        case_output(&c, MS_BF16, n, -1, -1, BF16_ULP, 0);
    } else {
        case_absent(&c);
    }
    if (momentum && step == 1.0) {
        case_set(&c, 2, 0, NAN); /* m is not read at the first step */
    }
    c.spec.attributes.sgd.nesterov = nesterov;
    name_case(&c, MS_F32, 1, n, "");
    case_check(&c);
    case_release(&c);
}

static void test_sgd(void **state) {
    (void)state;
    for (int i = 0; i < FLAT_COUNT; i++) {
        check_sgd(flat_sizes[i], 1, false, false, true);
        check_sgd(flat_sizes[i], 1, true, true, false);
        check_sgd(flat_sizes[i], 7, true, true, true);
        check_sgd(flat_sizes[i], 7, true, false, false);
    }
}

static void check_embedding(ms_dtype type, int64_t rows, int64_t columns, bool addend) {
    kernel_case c = case_begin(MS_SLOT_EMBEDDING);
    case_tensor(&c, MS_I32, rows, -1, -1);
    case_tensor(&c, type, 11, columns, -1);
    if (addend) {
        case_tensor(&c, type, rows, columns, -1);
    } else {
        case_absent(&c);
    }
    case_output(&c, type, rows, columns, -1, 0, 0);
    case_integers(&c, 0, 2, 18); /* the table holds 5 .. 15 */
    case_set(&c, 0, 0, -2147483648.0);
    c.spec.attributes.embedding.first = 5;
    c.fixed_bits = true;
    name_case(&c, type, rows, columns, addend ? "addend" : "");
    case_check(&c);
    if (addend) { /* addend may be out */
        c.alias[3] = 2;
        c.output[2] = true;
        case_check(&c);
    }
    case_release(&c);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        kernel_case g = case_begin(MS_SLOT_EMBEDDING_GRAD);
        case_tensor(&g, MS_I32, rows, -1, -1);
        case_tensor(&g, type, rows, columns, -1);
        case_output(&g, MS_F32, 11, columns, -1, 0, 0);
        case_integers(&g, 0, 2, 18);
        g.spec.attributes.embedding.first = 5;
        g.fixed_bits = true;
        g.accumulate = accumulate == 1;
        name_case(&g, type, rows, columns, accumulate ? "accumulate" : "");
        case_check(&g);
        case_release(&g);
    }
}

static void test_embedding(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < SIZE_COUNT; i++) {
            check_embedding(x_types[t], 1 + 13 * i, sizes[i], i % 2 == 0);
        }
        check_embedding(x_types[t], 300, 400, true);
    }
}

static void check_norm(ms_dtype type, int64_t rows, int64_t columns, bool rms, bool delta,
                       int special) {
    kernel_case c = case_begin(MS_SLOT_NORM);
    case_tensor(&c, type, rows, columns, -1);
    double y_bound = x_bound(type, 2e-6);
    /* a unit of a bf16 sum that is rounded the other way (a tie) shows in all of the row's
     * results */
    double s_bound = type == MS_BF16 ? 2e-3 : 2e-6;
    if (delta) {
        case_tensor(&c, type, rows, columns, -1);
    } else {
        case_absent(&c);
    }
    case_tensor(&c, MS_F32, columns, -1, -1);
    if (rms) {
        case_absent(&c);
    } else {
        case_tensor(&c, MS_F32, columns, -1, -1);
    }
    if (delta) {
        case_output(&c, type, rows, columns, -1, x_bound(type, 1e-7), 0);
    } else {
        case_absent(&c);
    }
    case_output(&c, type, rows, columns, -1, y_bound, s_bound);
    case_output(&c, MS_F32, rows, 2, -1, s_bound, s_bound);
    case_scale(&c, 0, 3.0, columns > 3 ? 1.5 : 0.0);
    c.spec.attributes.norm.rms = rms;
    c.spec.attributes.norm.epsilon = 1e-2;
    if (special > 0) {
        double value = special == 1 ? NAN : INFINITY;
        case_set(&c, 0, (rows / 2) * columns + columns / 2, value);
    }
    name_case(&c, type, rows, columns, rms ? "rms" : "layer");
    case_check(&c);
    case_release(&c);
}

static void test_norm(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < SIZE_COUNT; i++) {
            check_norm(x_types[t], 1 + i % 5, sizes[i], false, false, 0);
            check_norm(x_types[t], 3, sizes[i], true, true, 0);
            check_norm(x_types[t], 5, sizes[i], false, true, i % 3);
            check_norm(x_types[t], 2, sizes[i], true, false, i % 3);
        }
        check_norm(x_types[t], 131, 768, false, true, 0);
    }
}

static void check_norm_input_grad(ms_dtype type, int64_t rows, int64_t columns, bool rms,
                                  bool residual) {
    kernel_case c = case_begin(MS_SLOT_NORM_INPUT_GRAD);
    double bound = x_bound(type, 4e-6);
    case_tensor(&c, type, rows, columns, -1);
    case_tensor(&c, type, rows, columns, -1);
    case_tensor(&c, MS_F32, columns, -1, -1);
    case_tensor(&c, MS_F32, rows, 2, -1);
    if (residual) {
        case_tensor(&c, type, rows, columns, -1);
    } else {
        case_absent(&c);
    }
    case_output(&c, type, rows, columns, -1, bound, 4e-6);
    c.spec.attributes.norm.rms = rms;
    name_case(&c, type, rows, columns, rms ? "rms" : "layer");
    case_check(&c);
    if (residual) { /* dx may be dsum */
        c.alias[5] = 4;
        c.output[4] = true;
        c.relative[4] = bound;
        c.absolute[4] = 4e-6;
        case_check(&c);
    }
    case_release(&c);
}

static void check_norm_weight_grad(ms_dtype type, int64_t rows, int64_t columns, bool rms,
                                   bool accumulate) {
    kernel_case c = case_begin(MS_SLOT_NORM_WEIGHT_GRAD);
    double bound = 4e-7 * sqrt((double)rows);
    case_tensor(&c, type, rows, columns, -1);
    case_tensor(&c, type, rows, columns, -1);
    case_tensor(&c, MS_F32, rows, 2, -1);
    case_output(&c, MS_F32, columns, -1, -1, 1e-6, bound);
    if (rms) {
        case_absent(&c);
    } else {
        case_output(&c, MS_F32, columns, -1, -1, 1e-6, bound);
    }
    c.spec.attributes.norm.rms = rms;
    c.accumulate = accumulate;
    name_case(&c, type, rows, columns, rms ? "rms" : "layer");
    case_check(&c);
    case_release(&c);
}

static void test_norm_grads(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < SIZE_COUNT; i++) {
            check_norm_input_grad(x_types[t], 1 + i % 5, sizes[i], false, i % 2 == 0);
            check_norm_input_grad(x_types[t], 3, sizes[i], true, i % 2 == 1);
            check_norm_weight_grad(x_types[t], row_counts[i % ROW_COUNT], sizes[i], false,
                                   i % 2 == 0);
            check_norm_weight_grad(x_types[t], 1 + i, sizes[i], true, i % 2 == 1);
        }
        check_norm_input_grad(x_types[t], 131, 768, false, true);
        check_norm_weight_grad(x_types[t], 515, 1025, false, true);
    }
}

static void test_column_sum(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < SIZE_COUNT * ROW_COUNT; i++) {
            int64_t rows = row_counts[i % ROW_COUNT];
            int64_t columns = sizes[i / ROW_COUNT];
            kernel_case c = case_begin(MS_SLOT_COLUMN_SUM);
            case_tensor(&c, x_types[t], rows, columns, -1);
            case_output(&c, MS_F32, columns, -1, -1, 1e-6, 3e-7 * sqrt((double)rows));
            c.accumulate = i % 3 == 0;
            if (i % 5 == 0) {
                case_set(&c, 0, rows * columns / 2, i % 2 == 0 ? NAN : -INFINITY);
            }
            name_case(&c, x_types[t], rows, columns, "");
            case_check(&c);
            case_release(&c);
        }
        kernel_case c = case_begin(MS_SLOT_COLUMN_SUM);
        case_tensor(&c, x_types[t], 300, 2500, -1);
        case_output(&c, MS_F32, 2500, -1, -1, 1e-6, 5e-6);
        name_case(&c, x_types[t], 300, 2500, "");
        case_check(&c);
        case_release(&c);
    }
}

static void check_activation(ms_dtype type, ms_activation_function function, int64_t columns,
                             bool gated, bool specials) {
    kernel_case c = case_begin(MS_SLOT_ACTIVATION);
    c.spec.attributes.activation.function = function;
    double bound = x_bound(type, 2e-6);
    case_tensor(&c, type, 3, columns, -1);
    case_scale(&c, 0, 9.0, 0.0);
    if (specials) {
        case_specials(&c, 0);
    }
    if (gated) {
        case_tensor(&c, type, 3, columns, -1);
    } else {
        case_absent(&c);
    }
    case_output(&c, type, 3, columns, -1, bound, 1e-7);
    name_case(&c, type, 3, columns, gated ? "gated" : "plain");
    case_check(&c);
    case_release(&c);

    kernel_case g = case_begin(MS_SLOT_ACTIVATION_GRAD);
    g.spec.attributes.activation.function = function;
    case_tensor(&g, type, 3, columns, -1);
    case_tensor(&g, type, 3, columns, -1);
    case_scale(&g, 1, 9.0, 0.0);
    if (specials) {
        case_specials(&g, 1);
    }
    if (gated) {
        case_tensor(&g, type, 3, columns, -1);
    } else {
        case_absent(&g);
    }
    case_output(&g, type, 3, columns, -1, bound, 4e-7);
    if (gated) {
        case_output(&g, type, 3, columns, -1, bound, 1e-7);
    } else {
        case_absent(&g);
    }
    name_case(&g, type, 3, columns, gated ? "gated" : "plain");
    case_check(&g);
    g.alias[3] = 0; /* da may be dy */
    g.output[0] = true;
    g.relative[0] = bound;
    g.absolute[0] = 4e-7;
    case_check(&g);
    case_release(&g);
}

static void test_activation(void **state) {
    (void)state;
    for (int function = MS_GELU_TANH; function <= MS_RELU; function++) {
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < SIZE_COUNT; i++) {
                check_activation(x_types[t], (ms_activation_function)function, sizes[i], i % 2 == 0,
                                 i % 3 == 0);
            }
            check_activation(x_types[t], (ms_activation_function)function, 11000, true, false);
        }
    }
}

/* Relative accuracy on a fine grid, where the absolute part of the bounds above would hide
 * errors. */
static void test_activation_accuracy(void **state) {
    (void)state;
    for (int function = MS_GELU_TANH; function <= MS_SILU; function++) {
        kernel_case c = case_begin(MS_SLOT_ACTIVATION);
        c.spec.attributes.activation.function = (ms_activation_function)function;
        case_tensor(&c, MS_F32, 1, 40001, -1);
        case_absent(&c);
        case_output(&c, MS_F32, 1, 40001, -1, 3e-6, 1e-30);
        for (int64_t i = 0; i < 40001; i++) {
            case_set(&c, 0, i, -5.0 + (double)i * 2.5e-4);
        }
        name_case(&c, MS_F32, 1, 40001, "accuracy");
        case_check(&c);
        case_release(&c);
    }
}

static void check_rope(ms_dtype type, int64_t rows, int64_t heads, int64_t size, bool inverse) {
    kernel_case c = case_begin(MS_SLOT_ROPE);
    c.spec.attributes.rope.heads = heads;
    c.spec.attributes.rope.head_size = size;
    c.spec.attributes.rope.position_max = 500;
    c.spec.attributes.rope.theta = 10000.0;
    c.spec.attributes.rope.inverse = inverse;
    c.spec.attributes.rope.scaling = (ms_rope_scaling){
        .factor = inverse ? 8.0 : 1.0,
        .low_frequency_factor = 1.0,
        .high_frequency_factor = 4.0,
        .original_positions = 64,
    };
    case_tensor(&c, type, rows, heads * size, -1);
    case_tensor(&c, MS_I32, rows, -1, -1);
    case_output(&c, type, rows, heads * size, -1, x_bound(type, 1e-7), 2e-7);
    case_integers(&c, 1, 0, 499);
    name_case(&c, type, rows, heads * size, inverse ? "inverse" : "");
    case_check(&c);
    c.alias[2] = 0; /* y may be x */
    c.output[0] = true;
    c.relative[0] = c.relative[2];
    c.absolute[0] = c.absolute[2];
    case_check(&c);
    case_release(&c);
}

static void test_rope(void **state) {
    (void)state;
    const int64_t head_sizes[] = {2, 4, 6, 14, 16, 18, 30, 32, 34, 64, 66, 128};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < (int)(sizeof head_sizes / sizeof head_sizes[0]); i++) {
            check_rope(x_types[t], 1 + i, 1 + i % 3, head_sizes[i], i % 2 == 0);
        }
        check_rope(x_types[t], 60, 6, 64, false);
    }
}

static void check_dropout(ms_dtype type, int64_t rows, int64_t columns, double probability,
                          int64_t column_first) {
    kernel_case c = case_begin(MS_SLOT_DROPOUT);
    c.spec.attributes.dropout.probability = probability;
    c.spec.attributes.dropout.key = ms_random_key_make(7, "dropout");
    c.spec.attributes.dropout.positions = 5;
    c.spec.attributes.dropout.row_first = 2;
    c.spec.attributes.dropout.columns_global = columns + column_first + 3;
    c.spec.attributes.dropout.column_first = column_first;
    case_tensor(&c, type, rows, columns, -1);
    case_tensor(&c, MS_I64, (rows + 2 + 4) / 5, -1, -1);
    case_output(&c, type, rows, columns, -1, x_bound(type, 3e-7), 0);
    int64_t *samples = c.initial[1];
    for (int64_t i = 0; i < case_elements(&c, 1); i++) {
        samples[i] = (int64_t)((uint64_t)case_random() << 32 | case_random());
    }
    if (columns % 2 == 1) {
        case_specials(&c, 0);
    }
    name_case(&c, type, rows, columns, "");
    case_check(&c);
    c.alias[2] = 0; /* y may be x */
    c.output[0] = true;
    c.relative[0] = c.relative[2];
    case_check(&c);
    case_release(&c);
}

static void test_dropout(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < SIZE_COUNT; i++) {
            check_dropout(x_types[t], 3 + i, sizes[i], 0.1 + 0.05 * i, i % 7);
        }
        check_dropout(x_types[t], 20, 1024, 0.5, 0);
        check_dropout(x_types[t], 11, 2049, 0.9, 1);
        check_dropout(x_types[t], 4, 40, 0.0, 0);
    }
}

/* Logits as a network makes them: spread over some tens, a few masked out. */
static void fill_logits(kernel_case *c, int64_t rows, int64_t columns, double spread) {
    case_scale(c, 0, spread, 0.0);
    for (int64_t n = 0; n < rows && columns > 4; n++) {
        case_set(c, 0, n * columns + case_random() % columns, -INFINITY);
    }
}

static void check_xent_stats(int64_t rows, int64_t columns, int64_t valid, double spread,
                             double special) {
    kernel_case c = case_begin(MS_SLOT_XENT_STATS);
    c.spec.attributes.xent.first = 10;
    c.spec.attributes.xent.valid = valid;
    case_tensor(&c, MS_F32, rows, columns, -1);
    case_tensor(&c, MS_I32, rows, -1, -1);
    case_output(&c, MS_F32, rows, 3, -1, 3e-6, 1e-6);
    fill_logits(&c, rows, columns, spread);
    case_integers(&c, 1, 5, 10 + columns + 5);
    case_set(&c, 1, 0, MS_IGNORED_TARGET);
    if (special != 0.0) {
        case_set(&c, 0, (rows - 1) * columns + valid / 2, special);
    }
    name_case(&c, MS_F32, rows, columns, "");
    case_check(&c);
    case_release(&c);
}

static void check_xent_grad(ms_dtype type, int64_t rows, int64_t columns, int64_t valid,
                            int64_t shards, double special) {
    kernel_case c = case_begin(MS_SLOT_XENT_GRAD);
    c.spec.attributes.xent.first = 10;
    c.spec.attributes.xent.valid = valid;
    case_tensor(&c, MS_F32, rows, columns, -1);
    case_tensor(&c, MS_I32, rows, -1, -1);
    case_tensor(&c, MS_F32, shards, rows, 3);
    case_tensor(&c, MS_F64, 1, -1, -1);
    case_output(&c, type, rows, columns, -1, x_bound(type, 4e-6), 1e-9);
    case_output(&c, MS_F32, rows, -1, -1, 1e-6, 1e-6);
    fill_logits(&c, rows, columns, 8.0);
    case_integers(&c, 1, 5, 10 + columns + 5);
    case_set(&c, 1, rows / 2, MS_IGNORED_TARGET);
    for (int64_t i = 0; i < shards * rows; i++) { /* plausible stats: maximum, sum, logit */
        case_set(&c, 2, 3 * i, 6.0 + 2.0 * case_unit());
        case_set(&c, 2, 3 * i + 1, 20.0 + 10.0 * case_unit());
    }
    case_set(&c, 3, 0, 1.0 / 1024);
    if (special != 0.0) {
        case_set(&c, 0, (rows - 1) * columns + valid / 2, special);
        case_set(&c, 2, 3 * (shards * rows - 1) + 1, special);
    }
    name_case(&c, type, rows, columns, "");
    case_check(&c);
    if (type == MS_F32) { /* dlogits may be logits */
        c.alias[4] = 0;
        c.output[0] = true;
        c.relative[0] = c.relative[4];
        c.absolute[0] = c.absolute[4];
        case_check(&c);
    }
    case_release(&c);
}

static void test_xent(void **state) {
    (void)state;
    for (int i = 0; i < SIZE_COUNT; i++) {
        int64_t columns = sizes[i];
        int64_t valid = i % 3 == 0 ? columns : columns - columns / 4;
        check_xent_stats(1 + i % 6, columns, valid, 5.0, 0.0);
        check_xent_stats(3, columns, valid, 60.0, i % 2 == 0 ? NAN : INFINITY);
        check_xent_stats(2, columns, 0, 5.0, 0.0); /* a shard of padding only */
        for (int t = 0; t < 2; t++) {
            check_xent_grad(x_types[t], 1 + i % 6, columns, valid, 1 + i % 3, 0.0);
            check_xent_grad(x_types[t], 3, columns, valid, 1, NAN);
        }
    }
    check_xent_stats(9, 2047, 2047, 20.0, 0.0); /* around a block of columns */
    check_xent_stats(9, 2048, 2048, 20.0, 0.0);
    check_xent_stats(9, 2049, 2049, 20.0, 0.0);
    check_xent_stats(5, 6151, 6148, 20.0, 0.0);
    check_xent_grad(MS_F32, 5, 6151, 6148, 2, 0.0);
    check_xent_grad(MS_BF16, 5, 6151, 6148, 2, 0.0);
}

/* A row whose maximum rises block after block, and one whose first block is masked out. */
static void test_xent_rising_maximum(void **state) {
    (void)state;
    const int64_t columns = 5 * 2048 + 3;
    kernel_case c = case_begin(MS_SLOT_XENT_STATS);
    c.spec.attributes.xent.valid = columns;
    case_tensor(&c, MS_F32, 2, columns, -1);
    case_tensor(&c, MS_I32, 2, -1, -1);
    case_output(&c, MS_F32, 2, 3, -1, 3e-6, 0);
    case_integers(&c, 1, 0, columns - 1);
    for (int64_t i = 0; i < columns; i++) {
        case_set(&c, 0, i, (double)i * 1e-2);
        case_set(&c, 0, columns + i, i < 2100 ? -INFINITY : case_unit());
    }
    name_case(&c, MS_F32, 2, columns, "rising");
    case_check(&c);
    case_release(&c);
}

/* With maximum 0, sum 1 and scale 1 the gradient beside the target is the exponential itself:
 * within two units in the last place, three where n ln 2 is large. */
static void test_exponential(void **state) {
    (void)state;
    const int64_t columns = 40000;
    for (int range = 0; range < 2; range++) {
        kernel_case c = case_begin(MS_SLOT_XENT_GRAD);
        c.spec.attributes.xent.valid = columns;
        case_tensor(&c, MS_F32, 1, columns, -1);
        case_tensor(&c, MS_I32, 1, -1, -1);
        case_tensor(&c, MS_F32, 1, 1, 3);
        case_tensor(&c, MS_F64, 1, -1, -1);
        case_output(&c, MS_F32, 1, columns, -1, (range == 0 ? 2.0 : 3.0) * 0x1p-23, 0);
        case_output(&c, MS_F32, 1, -1, -1, 0, 0);
        case_integers(&c, 1, columns, columns);
        case_set(&c, 2, 0, 0.0);
        case_set(&c, 2, 1, 1.0);
        case_set(&c, 2, 2, 0.0);
        case_set(&c, 3, 0, 1.0);
        for (int64_t i = 0; i < columns; i++) {
            double share = (double)i / (double)columns;
            case_set(&c, 0, i, range == 0 ? -20.0 * share : -87.0 + 67.0 * share);
        }
        name_case(&c, MS_F32, 1, columns, "exponential");
        case_check(&c);
        case_release(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_cast_rounding),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_decayed_states),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_grads),
        cmocka_unit_test(test_column_sum),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_activation_accuracy),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_xent_rising_maximum),
        cmocka_unit_test(test_exponential),
    };
    return cmocka_run_group_tests(tests, NULL, case_close_devices);
}
