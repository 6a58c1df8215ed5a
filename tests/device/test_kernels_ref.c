// labels: unit
// timeout: 60
/*
 * test_kernels_ref.c - the references themselves: known values, definitions and finite differences.
 *
 * In fp64 a central difference of a smooth function is right to about 1e-9, so a missing term or a
 * wrong index in a gradient cannot hide. Linear kernels (embedding, rope, dropout) are checked as
 * pairs: <forward(x), r> = <x, backward(r)>.
 */
#include "kernel_case.h"

#define STEP 1e-5

/* Runs a case with references; returns the argument, which the caller frees. */
static double *reference_output(const kernel_case *c, int index) {
    case_result result = case_run(c, case_device(MS_ISA_REF, 1));
    double *output = result.arguments[index];
    result.arguments[index] = NULL;
    case_result_release(c, &result);
    return output;
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* <output of the case, weights> when element i of an argument is moved by `step`. */
static double moved(kernel_case *c, int argument, int64_t i, double step, int output,
                    const double *weights) {
    double old = case_get(c, argument, i);
    case_set(c, argument, i, old + step);
    double *result = reference_output(c, output);
    case_set(c, argument, i, old);
    double sum = dot(result, weights, case_elements(c, output));
    free(result);
    return sum;
}

static void check_gradient(kernel_case *c, int argument, int output, const double *weights,
                           const double *gradient, const char *what) {
    for (int64_t i = 0; i < case_elements(c, argument); i++) {
        double difference = (moved(c, argument, i, STEP, output, weights) -
                             moved(c, argument, i, -STEP, output, weights)) /
                            (2.0 * STEP);
        if (fabs(difference - gradient[i]) > 1e-8 * (1.0 + fabs(difference))) {
            fail_msg("%s: gradient of element %" PRId64 " is %.12g, the difference %.12g", what, i,
                     gradient[i], difference);
        }
    }
}

static void assert_near(double got, double want, double bound) {
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%.15g is not %.15g", got, want);
    }
}

static void check_norm_gradient(bool rms, bool residual) {
    const int64_t rows = 3;
    const int64_t columns = 5;
    kernel_case f = case_begin(MS_SLOT_NORM);
    case_tensor(&f, MS_F64, rows, columns, -1);
    residual ? case_tensor(&f, MS_F64, rows, columns, -1) : case_absent(&f);
    case_tensor(&f, MS_F64, columns, -1, -1);
    rms ? case_absent(&f) : case_tensor(&f, MS_F64, columns, -1, -1);
    residual ? case_output(&f, MS_F64, rows, columns, -1, 0, 0) : case_absent(&f);
    case_output(&f, MS_F64, rows, columns, -1, 0, 0);
    case_output(&f, MS_F64, rows, 2, -1, 0, 0);
    f.spec.attributes.norm.rms = rms;
    f.spec.attributes.norm.epsilon = 1e-2;
    double *sum = residual ? reference_output(&f, 4) : NULL;
    double *stats = reference_output(&f, 6);

    kernel_case g = case_begin(MS_SLOT_NORM_INPUT_GRAD);
    case_tensor(&g, MS_F64, rows, columns, -1);
    case_tensor(&g, MS_F64, rows, columns, -1);
    case_tensor(&g, MS_F64, columns, -1, -1);
    case_tensor(&g, MS_F64, rows, 2, -1);
    residual ? case_tensor(&g, MS_F64, rows, columns, -1) : case_absent(&g);
    case_output(&g, MS_F64, rows, columns, -1, 0, 0);
    g.spec.attributes.norm.rms = rms;
    size_t bytes = (size_t)(rows * columns) * sizeof(double);
    memcpy(g.initial[1], residual ? sum : f.initial[0], bytes);
    memcpy(g.initial[2], f.initial[2], (size_t)columns * sizeof(double));
    memcpy(g.initial[3], stats, (size_t)rows * 2 * sizeof(double));
    double *dx = reference_output(&g, 5);
    for (int64_t i = 0; residual && i < rows * columns; i++) {
        dx[i] -= case_get(&g, 4, i); /* what came along the residual path */
    }
    check_gradient(&f, 0, 5, g.initial[0], dx, "norm x");
    if (residual) {
        check_gradient(&f, 1, 5, g.initial[0], dx, "norm delta");
    }

    kernel_case w = case_begin(MS_SLOT_NORM_WEIGHT_GRAD);
    case_tensor(&w, MS_F64, rows, columns, -1);
    case_tensor(&w, MS_F64, rows, columns, -1);
    case_tensor(&w, MS_F64, rows, 2, -1);
    case_output(&w, MS_F64, columns, -1, -1, 0, 0);
    rms ? case_absent(&w) : case_output(&w, MS_F64, columns, -1, -1, 0, 0);
    w.spec.attributes.norm.rms = rms;
    for (int i = 0; i < 2; i++) {
        memcpy(w.initial[i], g.initial[i], bytes);
    }
    memcpy(w.initial[2], stats, (size_t)rows * 2 * sizeof(double));
    double *dweight = reference_output(&w, 3);
    check_gradient(&f, 2, 5, g.initial[0], dweight, "norm weight");
    if (!rms) {
        double *dbias = reference_output(&w, 4);
        check_gradient(&f, 3, 5, g.initial[0], dbias, "norm bias");
        w.accumulate = true;
        double *more = reference_output(&w, 4);
        for (int64_t i = 0; i < columns; i++) {
            assert_near(more[i], dbias[i] + case_get(&w, 4, i), 1e-14);
        }
        free(more);
        free(dbias);
    }
    free(dweight);
    free(dx);
    free(stats);
    free(sum);
    case_release(&w);
    case_release(&g);
    case_release(&f);
}

static void test_norm_gradients(void **state) {
    (void)state;
    check_norm_gradient(false, false);
    check_norm_gradient(false, true);
    check_norm_gradient(true, false);
    check_norm_gradient(true, true);
}

/* The row 1, 2, 3, 4: mean 2.5, variance 1.25. */
static void test_norm_values(void **state) {
    (void)state;
    kernel_case c = case_begin(MS_SLOT_NORM);
    case_tensor(&c, MS_F64, 1, 4, -1);
    case_absent(&c);
    case_tensor(&c, MS_F64, 4, -1, -1);
    case_tensor(&c, MS_F64, 4, -1, -1);
    case_absent(&c);
    case_output(&c, MS_F64, 1, 4, -1, 0, 0);
    case_output(&c, MS_F64, 1, 2, -1, 0, 0);
    for (int64_t i = 0; i < 4; i++) {
        case_set(&c, 0, i, (double)i + 1.0);
        case_set(&c, 2, i, 2.0);
        case_set(&c, 3, i, 0.5);
    }
    c.spec.attributes.norm.epsilon = 0.75;
    double *y = reference_output(&c, 5);
    double *stats = reference_output(&c, 6);
    assert_near(stats[0], 2.5, 1e-15);
    assert_near(stats[1], sqrt(0.5), 1e-15);
    assert_near(y[3], 1.5 * sqrt(0.5) * 2.0 + 0.5, 1e-15);
    free(y);
    free(stats);
    case_release(&c);
}

static void check_activation_gradient(ms_activation_function function, bool gated) {
    const int64_t count = 24;
    kernel_case f = case_begin(MS_SLOT_ACTIVATION);
    f.spec.attributes.activation.function = function;
    case_tensor(&f, MS_F64, 1, count, -1);
    case_scale(&f, 0, 4.0, 0.0);
    gated ? case_tensor(&f, MS_F64, 1, count, -1) : case_absent(&f);
    case_output(&f, MS_F64, 1, count, -1, 0, 0);

    kernel_case g = case_begin(MS_SLOT_ACTIVATION_GRAD);
    g.spec.attributes.activation.function = function;
    case_tensor(&g, MS_F64, 1, count, -1);
    case_tensor(&g, MS_F64, 1, count, -1);
    gated ? case_tensor(&g, MS_F64, 1, count, -1) : case_absent(&g);
    case_output(&g, MS_F64, 1, count, -1, 0, 0);
    gated ? case_output(&g, MS_F64, 1, count, -1, 0, 0) : case_absent(&g);
    memcpy(g.initial[1], f.initial[0], (size_t)count * sizeof(double));
    if (gated) {
        memcpy(g.initial[2], f.initial[1], (size_t)count * sizeof(double));
    }
    double *da = reference_output(&g, 3);
    check_gradient(&f, 0, 2, g.initial[0], da, "activation");
    if (gated) {
        double *dup = reference_output(&g, 4);
        check_gradient(&f, 1, 2, g.initial[0], dup, "activation up");
        free(dup);
    }
    free(da);
    case_release(&g);
    case_release(&f);
}

static void test_activation_gradients(void **state) {
    (void)state;
    for (int function = MS_GELU_TANH; function <= MS_RELU; function++) {
        check_activation_gradient((ms_activation_function)function, false);
        check_activation_gradient((ms_activation_function)function, true);
    }
}

/* Values of the definitions, computed with 30 digits; and what is known at the ends. */
static void test_activation_values(void **state) {
    (void)state;
    const double at_one[] = {0.841191990608276, 0.841344746068543, 0.731058578630005, 1.0};
    const double at_minus_two[] = {-0.0454023059122250, -0.0455002638963584, -0.238405844044235,
                                   0.0};
    for (int function = MS_GELU_TANH; function <= MS_RELU; function++) {
        kernel_case c = case_begin(MS_SLOT_ACTIVATION);
        c.spec.attributes.activation.function = (ms_activation_function)function;
        case_tensor(&c, MS_F64, 1, 5, -1);
        case_absent(&c);
        case_output(&c, MS_F64, 1, 5, -1, 0, 0);
        const double inputs[] = {1.0, -2.0, 0.0, 700.0, NAN};
        for (int i = 0; i < 5; i++) {
            case_set(&c, 0, i, inputs[i]);
        }
        double *y = reference_output(&c, 2);
        assert_near(y[0], at_one[function], 2e-15);
        assert_near(y[1], at_minus_two[function], 2e-15);
        assert_near(y[2], 0.0, 0.0);
        assert_near(y[3], 700.0, 0.0);
        assert_true(isnan(y[4]));
        free(y);
        case_release(&c);
    }
}

static void test_embedding_pair(void **state) {
    (void)state;
    const int64_t rows = 9, entries = 4, columns = 3;
    kernel_case f = case_begin(MS_SLOT_EMBEDDING);
    case_tensor(&f, MS_I32, rows, -1, -1);
    case_tensor(&f, MS_F64, entries, columns, -1);
    case_absent(&f);
    case_output(&f, MS_F64, rows, columns, -1, 0, 0);
    case_integers(&f, 0, 1, 7);
    f.spec.attributes.embedding.first = 2;
    kernel_case g = case_begin(MS_SLOT_EMBEDDING_GRAD);
    case_tensor(&g, MS_I32, rows, -1, -1);
    case_tensor(&g, MS_F64, rows, columns, -1);
    case_output(&g, MS_F64, entries, columns, -1, 0, 0);
    memcpy(g.initial[0], f.initial[0], (size_t)rows * sizeof(int32_t));
    g.spec.attributes.embedding.first = 2;
    double *y = reference_output(&f, 3);
    double *grad = reference_output(&g, 2);
    assert_near(dot(y, g.initial[1], rows * columns), dot(f.initial[1], grad, entries * columns),
                1e-14);
    for (int64_t n = 0; n < rows; n++) {
        int64_t entry = (int64_t)case_get(&f, 0, n) - 2;
        double want = entry >= 0 && entry < entries ? case_get(&f, 1, entry * columns + 1) : 0.0;
        assert_near(y[n * columns + 1], want, 0.0);
    }
    free(y);
    free(grad);
    case_release(&g);
    case_release(&f);
}

static kernel_case rope_case(bool inverse, double factor, bool linear) {
    kernel_case c = case_begin(MS_SLOT_ROPE);
    case_tensor(&c, MS_F64, 4, 12, -1);
    case_tensor(&c, MS_I32, 4, -1, -1);
    case_output(&c, MS_F64, 4, 12, -1, 0, 0);
    const double positions[] = {0, 1, 7, 99};
    for (int i = 0; i < 4; i++) {
        case_set(&c, 1, i, positions[i]);
    }
    c.spec.attributes.rope.heads = 2;
    c.spec.attributes.rope.head_size = 6;
    c.spec.attributes.rope.position_max = 100;
    c.spec.attributes.rope.theta = 10000.0;
    c.spec.attributes.rope.inverse = inverse;
    c.spec.attributes.rope.scaling = (ms_rope_scaling){.factor = factor,
                                                       .low_frequency_factor = 1.0,
                                                       .high_frequency_factor = 4.0,
                                                       .original_positions = 64,
                                                       .linear = linear};
    return c;
}

/* Element i of head h is turned with element i + 3 by position * theta^(-i/3). */
static void test_rope_values(void **state) {
    (void)state;
    kernel_case c = rope_case(false, 1.0, false);
    double *y = reference_output(&c, 2);
    for (int64_t n = 0; n < 4; n++) {
        for (int64_t h = 0; h < 2; h++) {
            for (int64_t i = 0; i < 3; i++) {
                int64_t at = n * 12 + h * 6 + i;
                double angle = case_get(&c, 1, n) * pow(10000.0, -(double)i / 3.0);
                double low = case_get(&c, 0, at);
                double high = case_get(&c, 0, at + 3);
                assert_near(y[at], low * cos(angle) - high * sin(angle), 1e-14);
                assert_near(y[at + 3], high * cos(angle) + low * sin(angle), 1e-14);
            }
        }
    }
    /* inverse is the transpose, and takes it back */
    kernel_case back = rope_case(true, 1.0, false);
    double *turned = reference_output(&back, 2);
    assert_near(dot(y, back.initial[0], 48), dot(c.initial[0], turned, 48), 1e-13);
    memcpy(back.initial[0], y, 48 * sizeof(double));
    double *again = reference_output(&back, 2);
    for (int64_t i = 0; i < 48; i++) {
        assert_near(again[i], case_get(&c, 0, i), 1e-14);
    }
    free(again);
    free(turned);
    free(y);
    case_release(&back);
    case_release(&c);
}

/* Frequencies 1, 0.0464, 0.00215 turn 10.2, 0.47, 0.02 times in 64 positions: kept, divided,
 * divided. With factors 0.1 and 1 the second lies between: (1 - s) f / 8 + s f, s = (0.4727 - 0.1)
 * / 0.9. */
static void test_rope_scaling(void **state) {
    (void)state;
    double frequency[3] = {1.0, pow(10000.0, -1.0 / 3.0), pow(10000.0, -2.0 / 3.0)};
    double share = (64.0 * frequency[1] / (2.0 * acos(-1.0)) - 0.1) / 0.9;
    double blended = (1.0 - share) * frequency[1] / 8.0 + share * frequency[1];
    double wanted[3][3] = {{frequency[0], frequency[1] / 8.0, frequency[2] / 8.0},
                           {frequency[0], blended, frequency[2] / 8.0},
                           {frequency[0] / 8.0, frequency[1] / 8.0, frequency[2] / 8.0}};
    for (int kind = 0; kind < 3; kind++) {
        kernel_case c = rope_case(false, 8.0, kind == 2);
        if (kind == 1) {
            c.spec.attributes.rope.scaling.low_frequency_factor = 0.1;
            c.spec.attributes.rope.scaling.high_frequency_factor = 1.0;
        }
        double *y = reference_output(&c, 2);
        for (int64_t i = 0; i < 3; i++) {
            int64_t at = 2 * 12 + i; /* position 7 */
            double angle = 7.0 * wanted[kind][i];
            double want = case_get(&c, 0, at) * cos(angle) - case_get(&c, 0, at + 3) * sin(angle);
            assert_near(y[at], want, 1e-14);
        }
        free(y);
        case_release(&c);
    }
}

/* One mask whatever the cut: rows 7 .. 14 and columns 5 .. 11 of a whole are the whole's there. */
static void test_dropout_shards(void **state) {
    (void)state;
    const int64_t positions = 5, rows = 20, columns = 18;
    kernel_case whole = case_begin(MS_SLOT_DROPOUT);
    case_tensor(&whole, MS_F64, rows, columns, -1);
    case_tensor(&whole, MS_I64, 4, -1, -1);
    case_output(&whole, MS_F64, rows, columns, -1, 0, 0);
    case_integers(&whole, 1, 0, 1000000000);
    whole.spec.attributes.dropout.probability = 0.25;
    whole.spec.attributes.dropout.key = ms_random_key_make(3, "block.0");
    whole.spec.attributes.dropout.positions = positions;
    whole.spec.attributes.dropout.columns_global = columns;
    double *y = reference_output(&whole, 2);
    int64_t kept = 0;
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t c = 0; c < columns; c++) {
            uint64_t i = (uint64_t)(n % positions * columns + c);
            uint32_t word = ms_random_at(whole.spec.attributes.dropout.key,
                                         (uint64_t)case_get(&whole, 1, n / positions), i / 4)
                                .word[i % 4];
            bool keep = ms_random_unit_f32(word) >= 0.25f;
            kept += keep ? 1 : 0;
            double x = case_get(&whole, 0, n * columns + c);
            assert_near(y[n * columns + c], keep ? x / 0.75 : 0.0, 0.0);
        }
    }
    assert_in_range(kept, 230, 310); /* 270 of 360 expected, deviation 8 */

    kernel_case part = case_begin(MS_SLOT_DROPOUT);
    case_tensor(&part, MS_F64, 8, 7, -1);
    case_tensor(&part, MS_I64, 4, -1, -1);
    case_output(&part, MS_F64, 8, 7, -1, 0, 0);
    part.spec.attributes.dropout = whole.spec.attributes.dropout;
    part.spec.attributes.dropout.row_first = 7;
    part.spec.attributes.dropout.column_first = 5;
    memcpy(part.initial[1], whole.initial[1], 4 * sizeof(int64_t));
    for (int64_t i = 0; i < 56; i++) {
        case_set(&part, 0, i, case_get(&whole, 0, (7 + i / 7) * columns + 5 + i % 7));
    }
    double *z = reference_output(&part, 2);
    for (int64_t i = 0; i < 56; i++) {
        assert_near(z[i], y[(7 + i / 7) * columns + 5 + i % 7], 0.0);
    }
    free(z);
    free(y);
    case_release(&part);
    case_release(&whole);
}

/* Stats of `count` columns of c's logits from `first` on, as their shard would make them. */
static double *shard_stats(const kernel_case *c, int64_t rows, int64_t columns, int64_t first,
                           int64_t count) {
    kernel_case s = case_begin(MS_SLOT_XENT_STATS);
    case_tensor(&s, MS_F64, rows, count, -1);
    case_tensor(&s, MS_I32, rows, -1, -1);
    case_output(&s, MS_F64, rows, 3, -1, 0, 0);
    s.spec.attributes.xent.first = first;
    s.spec.attributes.xent.valid = count;
    memcpy(s.initial[1], c->initial[1], (size_t)rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows * count; i++) {
        case_set(&s, 0, i, case_get(c, 0, i / count * columns + first + i % count));
    }
    double *stats = reference_output(&s, 2);
    case_release(&s);
    return stats;
}

/* A gradient case over whole rows, with the stats of `shards` equal shards. */
static kernel_case xent_case(int64_t rows, int64_t columns, int64_t shards) {
    kernel_case c = case_begin(MS_SLOT_XENT_GRAD);
    case_tensor(&c, MS_F64, rows, columns, -1);
    case_tensor(&c, MS_I32, rows, -1, -1);
    case_tensor(&c, MS_F64, shards, rows, 3);
    case_tensor(&c, MS_F64, 1, -1, -1);
    case_output(&c, MS_F64, rows, columns, -1, 0, 0);
    case_output(&c, MS_F64, rows, -1, -1, 0, 0);
    case_scale(&c, 0, 3.0, 0.0);
    case_integers(&c, 1, 0, columns - 1);
    case_set(&c, 1, 1, MS_IGNORED_TARGET);
    case_set(&c, 3, 0, 0.125);
    c.spec.attributes.xent.valid = columns;
    return c;
}

static void xent_fill_stats(kernel_case *c, int64_t rows, int64_t columns, int64_t shards) {
    int64_t count = columns / shards;
    for (int64_t p = 0; p < shards; p++) {
        double *stats = shard_stats(c, rows, columns, p * count, count);
        memcpy((double *)c->initial[2] + p * rows * 3, stats, (size_t)(rows * 3) * sizeof(double));
        free(stats);
    }
}

static double xent_loss(kernel_case *c, int64_t rows, int64_t columns, int64_t shards) {
    xent_fill_stats(c, rows, columns, shards);
    double *loss = reference_output(c, 5);
    double sum = 0.0;
    for (int64_t n = 0; n < rows; n++) {
        sum += loss[n];
    }
    free(loss);
    return sum;
}

static void test_xent_gradient(void **state) {
    (void)state;
    const int64_t rows = 3, columns = 6;
    for (int64_t shards = 1; shards <= 3; shards++) {
        case_random_state = 5; /* the same logits for any number of shards */
        kernel_case c = xent_case(rows, columns, shards);
        xent_fill_stats(&c, rows, columns, shards);
        double *loss = reference_output(&c, 5);
        double *grad = reference_output(&c, 4);
        assert_near(loss[1], 0.0, 0.0);
        double sum = 0.0; /* the definition, for row 0 */
        for (int64_t j = 0; j < columns; j++) {
            sum += exp(case_get(&c, 0, j));
        }
        assert_near(loss[0], log(sum) - case_get(&c, 0, (int64_t)case_get(&c, 1, 0)), 1e-14);
        for (int64_t i = 0; i < rows * columns; i++) {
            double old = case_get(&c, 0, i);
            case_set(&c, 0, i, old + STEP);
            double up = xent_loss(&c, rows, columns, shards);
            case_set(&c, 0, i, old - STEP);
            double down = xent_loss(&c, rows, columns, shards);
            case_set(&c, 0, i, old);
            assert_near(grad[i], 0.125 * (up - down) / (2.0 * STEP), 1e-10);
        }
        free(grad);
        free(loss);
        case_release(&c);
    }
}

/* Columns behind `valid` are padding: no share in the sum, a gradient of 0, never a target. */
static void test_xent_padding(void **state) {
    (void)state;
    kernel_case c = xent_case(3, 6, 1);
    c.spec.attributes.xent.valid = 4;
    case_set(&c, 1, 0, 5);
    double *stats = shard_stats(&c, 3, 6, 0, 4);
    memcpy(c.initial[2], stats, 9 * sizeof(double));
    assert_near(stats[2], 0.0, 0.0);
    double *grad = reference_output(&c, 4);
    for (int64_t n = 0; n < 3; n++) {
        assert_near(grad[6 * n + 4], 0.0, 0.0);
        assert_near(grad[6 * n + 5], 0.0, 0.0);
    }
    double sum = grad[0] + grad[1] + grad[2] + grad[3];
    assert_near(sum, 0.125, 1e-15); /* no target here: the softmax alone */
    free(grad);
    free(stats);
    case_release(&c);
}

static void test_sums_by_definition(void **state) {
    (void)state;
    kernel_case c = case_begin(MS_SLOT_COLUMN_SUM);
    case_tensor(&c, MS_BF16, 4, 2, -1);
    case_output(&c, MS_F32, 2, -1, -1, 0, 0);
    for (int64_t i = 0; i < 8; i++) {
        case_set(&c, 0, i, (double)(1 << i));
    }
    case_set(&c, 1, 1, 1000.0);
    c.accumulate = true;
    case_result result = case_run(&c, case_device(MS_ISA_REF, 1));
    assert_near(case_load(result.arguments[1], MS_F32, 1), 1000.0 + 2 + 8 + 32 + 128, 0.0);
    case_result_release(&c, &result);
    case_release(&c);

    const int64_t count = MS_NORM_BLOCK + 10;
    kernel_case s = case_begin(MS_SLOT_SQUARE_SUM);
    case_tensor(&s, MS_F64, count, -1, -1);
    case_output(&s, MS_F64, 2, -1, -1, 0, 0);
    case_scale(&s, 0, 0.0, 3.0);
    double *partial = reference_output(&s, 1);
    assert_near(partial[0], 9.0 * MS_NORM_BLOCK, 0.0);
    assert_near(partial[1], 90.0, 0.0);
    free(partial);
    case_release(&s);
}

static void fill_hyper(kernel_case *c, int index, const double *hyper) {
    for (int i = 0; i < MS_HYPER_COUNT; i++) {
        case_set(c, index, i, hyper[i]);
    }
}

/* Three steps beside the formulas of the paper, written out. */
static void test_adamw_steps(void **state) {
    (void)state;
    double hyper[MS_HYPER_COUNT] = {
        [MS_HYPER_LEARNING_RATE] = 0.01, [MS_HYPER_WEIGHT_DECAY] = 0.1,
        [MS_HYPER_BETA1] = 0.9,          [MS_HYPER_BETA2] = 0.99,
        [MS_HYPER_EPSILON] = 1e-8,       [MS_HYPER_GRADIENT_SCALE] = 2.0};
    double w = 0.5, m = 0.0, v = 0.0;
    kernel_case c = case_begin(MS_SLOT_ADAMW);
    for (int i = 0; i < 4; i++) {
        case_output(&c, MS_F64, 1, -1, -1, 0, 0);
    }
    case_tensor(&c, MS_F64, MS_HYPER_COUNT, -1, -1);
    case_output(&c, MS_BF16, 1, -1, -1, 0, 0);
    case_set(&c, 0, 0, w);
    case_set(&c, 2, 0, 0.0);
    case_set(&c, 3, 0, 0.0);
    for (int t = 1; t <= 3; t++) {
        hyper[MS_HYPER_STEP] = t;
        fill_hyper(&c, 4, hyper);
        case_set(&c, 1, 0, 0.3 * t);
        double g = 0.6 * t;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        double corrected = sqrt(v / (1.0 - pow(0.99, t))) + 1e-8;
        w = w * (1.0 - 0.01 * 0.1) - 0.01 * (m / (1.0 - pow(0.9, t))) / corrected;
        case_result result = case_run(&c, case_device(MS_ISA_REF, 1));
        for (int i = 0; i < 4; i++) {
            case_set(&c, i, 0, case_load(result.arguments[i], MS_F64, 0));
        }
        assert_int_equal(*(uint16_t *)result.arguments[5], ms_f32_to_bf16((float)w));
        case_result_release(&c, &result);
        assert_near(case_get(&c, 0, 0), w, 1e-15);
        assert_near(case_get(&c, 2, 0), m, 1e-15);
        assert_near(case_get(&c, 3, 0), v, 1e-15);
    }
    case_release(&c);
}

static void test_sgd_steps(void **state) {
    (void)state;
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        double hyper[MS_HYPER_COUNT] = {[MS_HYPER_LEARNING_RATE] = 0.1,
                                        [MS_HYPER_WEIGHT_DECAY] = 0.01,
                                        [MS_HYPER_BETA1] = 0.9,
                                        [MS_HYPER_GRADIENT_SCALE] = 0.5};
        double w = 0.5, m = 0.0;
        kernel_case c = case_begin(MS_SLOT_SGD);
        for (int i = 0; i < 3; i++) {
            case_output(&c, MS_F64, 1, -1, -1, 0, 0);
        }
        case_tensor(&c, MS_F64, MS_HYPER_COUNT, -1, -1);
        case_absent(&c);
        c.spec.attributes.sgd.nesterov = nesterov == 1;
        case_set(&c, 0, 0, w);
        case_set(&c, 1, 0, 0.4);
        case_set(&c, 2, 0, NAN); /* not read at step 1 */
        for (int t = 1; t <= 3; t++) {
            hyper[MS_HYPER_STEP] = t;
            fill_hyper(&c, 3, hyper);
            double g = 0.2 + 0.01 * w;
            m = t == 1 ? g : 0.9 * m + g;
            w -= 0.1 * (nesterov == 1 ? g + 0.9 * m : m);
            case_result result = case_run(&c, case_device(MS_ISA_REF, 1));
            case_set(&c, 0, 0, case_load(result.arguments[0], MS_F64, 0));
            case_set(&c, 2, 0, case_load(result.arguments[2], MS_F64, 0));
            case_result_release(&c, &result);
            assert_near(case_get(&c, 0, 0), w, 1e-15);
        }
        case_release(&c);
    }
}

/* fp64 has references only, whatever the level. */
static void test_fp64_at_every_level(void **state) {
    (void)state;
    kernel_case c = case_begin(MS_SLOT_ADD);
    for (int i = 0; i < 3; i++) {
        case_output(&c, MS_F64, 100, -1, -1, 0, 0);
    }
    c.fixed_bits = true;
    c.any_variant = true;
    snprintf(c.text, sizeof c.text, "add fp64");
    case_check(&c);
    case_result result = case_run(&c, case_device(MS_ISA_COUNT, 2));
    assert_string_equal(result.variant, "ref");
    case_result_release(&c, &result);
    case_release(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_gradients),
        cmocka_unit_test(test_norm_values),
        cmocka_unit_test(test_activation_gradients),
        cmocka_unit_test(test_activation_values),
        cmocka_unit_test(test_embedding_pair),
        cmocka_unit_test(test_rope_values),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_dropout_shards),
        cmocka_unit_test(test_xent_gradient),
        cmocka_unit_test(test_xent_padding),
        cmocka_unit_test(test_sums_by_definition),
        cmocka_unit_test(test_adamw_steps),
        cmocka_unit_test(test_sgd_steps),
        cmocka_unit_test(test_fp64_at_every_level),
    };
    return cmocka_run_group_tests(tests, NULL, case_close_devices);
}
