/*
 * test_gradients.c - the gradient of every operator against central differences, in double
 * precision.
 *
 * A case builds a small forward graph of parameters. An activation that is to have a gradient is a
 * parameter looked up row by row (an embedding), so that every gradient ends in a parameter's. The
 * objective is the sum over all outputs of coefficient x output, the coefficients being what
 * arrives from the next pipeline part, plus scale x losses.
 */
#include "op/run_graph.h"

#include <math.h>

#define PARAMETERS_MAX 12
#define OPS_MAX 64

typedef struct test_case test_case;
struct test_case {
    const char *name;
    void (*build)(ms_graph *graph, const test_case *self);
    int variant;
    double step, tolerance; /* 0: 1e-5 and 1e-8 */
    int ranks;              /* 0: one */
    bool shared_parameters; /* each parameter is the same on all ranks (except those of `own`) */
    unsigned own;           /* bit p: parameter p differs from rank to rank all the same */
    bool count_once;        /* the objective is the same on all ranks: counted on rank 0 */
};

static ms_device *device;
static const ms_op *seen[OPS_MAX];
static int seen_count;

/* ---- building ---- */

static int32_t parameter(ms_graph *graph, int index, ms_dtype dtype, int64_t d0, int64_t d1) {
    int32_t id;
    const int64_t dims[2] = {d0, d1};
    assert_ok(ms_graph_parameter(graph, index, dtype, d1 > 0 ? 2 : 1, dims, &id));
    return id;
}

static int32_t input(ms_graph *graph, ms_input_role role, ms_dtype dtype, int64_t count) {
    int32_t id;
    assert_ok(ms_graph_input(graph, role, dtype, 1, &count, &id));
    return id;
}

/* An activation [rows, columns] that is parameter `index` itself. */
static int32_t activation_of(ms_graph *graph, int index, ms_dtype dtype, int64_t rows,
                             int64_t columns) {
    int32_t ids = MS_VALUE_NONE, x;
    for (int32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].input == MS_INPUT_POSITIONS && graph->values[v].dims[0] == rows) {
            ids = v;
        }
    }
    if (ids == MS_VALUE_NONE) {
        ids = input(graph, MS_INPUT_POSITIONS, MS_I32, rows);
    }
    int32_t table = parameter(graph, index, dtype, rows, columns);
    assert_ok(ms_op_embedding(graph, ids, table, 0, MS_VALUE_NONE, &x));
    return x;
}

static int32_t matrix(ms_graph *graph, int index, int64_t rows, int64_t columns) {
    return activation_of(graph, index, MS_F64, rows, columns);
}

static void output(ms_graph *graph, int32_t value) {
    graph->values[value].output = MS_OUTPUT_FORWARD;
}

static void build_linear(ms_graph *graph, const test_case *self) {
    bool transposed = (self->variant & 1) != 0, with_bias = (self->variant & 2) != 0;
    int32_t y, x = matrix(graph, 0, 5, 4);
    int32_t w = transposed ? parameter(graph, 1, MS_F64, 7, 4) : parameter(graph, 1, MS_F64, 4, 7);
    int32_t bias = with_bias ? parameter(graph, 2, MS_F64, 7, 0) : MS_VALUE_NONE;
    assert_ok(ms_op_linear(graph, x, w, bias, transposed, &y));
    output(graph, y);
}

static void build_embedding(ms_graph *graph, const test_case *self) {
    int32_t y, ids = input(graph, MS_INPUT_TOKENS, MS_I32, 9);
    int32_t table = parameter(graph, 0, MS_F64, 5, 4);
    int32_t addend = self->variant == 0 ? MS_VALUE_NONE : matrix(graph, 1, 9, 4);
    assert_ok(ms_op_embedding(graph, ids, table, self->variant == 2 ? 2 : 0, addend, &y));
    output(graph, y);
}

enum { NORM_RMS = 1, NORM_DELTA = 2, NORM_BIAS = 4, NORM_SUM_OUT = 8 };

static void build_norm(ms_graph *graph, const test_case *self) {
    int32_t x = matrix(graph, 0, 5, 6);
    int32_t weight = parameter(graph, 1, MS_F64, 6, 0);
    int32_t delta = (self->variant & NORM_DELTA) != 0 ? matrix(graph, 2, 5, 6) : MS_VALUE_NONE;
    int32_t bias =
        (self->variant & NORM_BIAS) != 0 ? parameter(graph, 3, MS_F64, 6, 0) : MS_VALUE_NONE;
    ms_op_norm_result result;
    assert_ok(
        ms_op_norm(graph, x, delta, weight, bias, (self->variant & NORM_RMS) != 0, 1e-3, &result));
    output(graph, result.y);
    if ((self->variant & NORM_SUM_OUT) != 0) {
        output(graph, result.sum);
    }
}

static void build_head_norm(ms_graph *graph, const test_case *self) {
    (void)self;
    int32_t y, x = matrix(graph, 0, 4, 12);
    assert_ok(ms_op_head_norm(graph, x, parameter(graph, 1, MS_F64, 4, 0), 4, 1e-3, &y));
    output(graph, y);
}

enum { ATTENTION_PACKED = 1, ATTENTION_GROUPED = 2, ATTENTION_DROPOUT = 4, ATTENTION_FULL = 8 };

static void build_attention(ms_graph *graph, const test_case *self) {
    int64_t B = 2, T = 5, H = 4, D = 4, G = (self->variant & ATTENTION_GROUPED) != 0 ? 2 : 4;
    bool packed = (self->variant & ATTENTION_PACKED) != 0;
    bool dropout = (self->variant & ATTENTION_DROPOUT) != 0;
    ms_attributes attributes = {.attention = {.packed = packed,
                                              .causal = (self->variant & ATTENTION_FULL) == 0,
                                              .batch = B,
                                              .positions = T,
                                              .heads = H,
                                              .kv_heads = G,
                                              .head_size = D,
                                              .heads_global = 8,
                                              .head_first = 4,
                                              .dropout = dropout ? 0.3 : 0,
                                              .key = ms_random_key_make(3, "attention")}};
    int32_t samples = dropout ? input(graph, MS_INPUT_SAMPLES, MS_I64, B) : MS_VALUE_NONE, out;
    if (packed) {
        int32_t qkv = matrix(graph, 0, B * T, (H + 2 * G) * D);
        assert_ok(
            ms_op_attention(graph, qkv, MS_VALUE_NONE, MS_VALUE_NONE, samples, &attributes, &out));
    } else {
        int32_t q = matrix(graph, 0, B * T, H * D), k = matrix(graph, 1, B * T, G * D);
        int32_t v = matrix(graph, 2, B * T, G * D);
        assert_ok(ms_op_attention(graph, q, k, v, samples, &attributes, &out));
    }
    output(graph, out);
}

static void build_activation(ms_graph *graph, const test_case *self) {
    int32_t y, a = matrix(graph, 0, 4, 5);
    int32_t up = self->variant >= 16 ? matrix(graph, 1, 4, 5) : MS_VALUE_NONE;
    assert_ok(ms_op_activation(graph, a, up, (ms_activation_function)(self->variant % 16), &y));
    output(graph, y);
}

static void build_rope(ms_graph *graph, const test_case *self) {
    ms_attributes attributes = {.rope = {.heads = 3,
                                         .head_size = 4,
                                         .position_max = 64,
                                         .theta = 100,
                                         .scaling = {.factor = 1}}};
    if (self->variant == 1) {
        attributes.rope.scaling = (ms_rope_scaling){.factor = 8,
                                                    .low_frequency_factor = 1,
                                                    .high_frequency_factor = 4,
                                                    .original_positions = 16};
    }
    int32_t y, x = matrix(graph, 0, 6, 12);
    int32_t positions = graph->nodes[0].inputs[0].value; /* 0 .. 5: the ids of the rows */
    assert_ok(ms_op_rope(graph, x, positions, &attributes, &y));
    output(graph, y);
}

static void build_dropout(ms_graph *graph, const test_case *self) {
    (void)self;
    ms_attributes attributes = {.dropout = {.probability = 0.4,
                                            .positions = 3,
                                            .key = ms_random_key_make(4, "dropout"),
                                            .columns_global = 8}};
    int32_t y, x = matrix(graph, 0, 6, 8), samples = input(graph, MS_INPUT_SAMPLES, MS_I64, 2);
    assert_ok(ms_op_dropout(graph, x, samples, &attributes, &y));
    output(graph, y);
}

static void build_add(ms_graph *graph, const test_case *self) {
    int32_t c, a = matrix(graph, 0, 4, 5);
    int32_t b = self->variant == 0 ? matrix(graph, 1, 4, 5) : a; /* a + a */
    assert_ok(ms_op_add(graph, a, b, &c));
    output(graph, c);
}

static void build_cast(ms_graph *graph, const test_case *self) {
    ms_dtype from = self->variant == 0 ? MS_F64 : MS_F32, to = self->variant == 0 ? MS_F32 : MS_F64;
    int32_t y, x = activation_of(graph, 0, from, 4, 5);
    assert_ok(ms_op_cast(graph, x, to, &y));
    output(graph, y);
}

/* A value read by several operators, before and after: contributions meet in every way there is. */
static void build_residual(ms_graph *graph, const test_case *self) {
    (void)self;
    int32_t x = matrix(graph, 0, 5, 6), early, late, end;
    assert_ok(
        ms_op_linear(graph, x, parameter(graph, 1, MS_F64, 6, 6), MS_VALUE_NONE, true, &early));
    ms_op_norm_result first, second;
    assert_ok(ms_op_norm(graph, x, MS_VALUE_NONE, parameter(graph, 2, MS_F64, 6, 0), MS_VALUE_NONE,
                         true, 1e-3, &first));
    /* The weight of `early` again: its gradient has two contributions. */
    assert_ok(ms_op_linear(graph, first.y, parameter(graph, 1, MS_F64, 6, 6), MS_VALUE_NONE, false,
                           &late));
    assert_ok(ms_op_norm(graph, x, late, parameter(graph, 3, MS_F64, 6, 0),
                         parameter(graph, 4, MS_F64, 6, 0), false, 1e-3, &second));
    assert_ok(ms_op_add(graph, second.sum, second.y, &end));
    output(graph, early);
    output(graph, end);
}

static void build_head_loss(ms_graph *graph, const test_case *self) {
    int64_t rows = 7, width = 4, vocabulary = 6;
    int32_t loss, x = matrix(graph, 0, rows, width);
    assert_ok(ms_op_copy(graph, x, MS_AXIS_TENSOR, &x));
    ms_op_head_loss_options options = {.x = x,
                                       .w = parameter(graph, 1, MS_F64, vocabulary, width),
                                       .targets = input(graph, MS_INPUT_TARGETS, MS_I32, rows),
                                       .scale = input(graph, MS_INPUT_SCALE, MS_F64, 1),
                                       .first = vocabulary * graph->axis_index[MS_AXIS_TENSOR],
                                       .chunk_rows = self->variant,
                                       .train = true};
    assert_ok(ms_op_head_loss(graph, &options, &loss));
}

static void build_collective(ms_graph *graph, const test_case *self) {
    static ms_status (*const builders[])(ms_graph *, int32_t, ms_axis, int32_t *) = {
        ms_op_all_gather, ms_op_reduce_scatter, ms_op_all_reduce, ms_op_copy};
    int32_t y, x = matrix(graph, 0, 6, 4);
    assert_ok(builders[self->variant](graph, x, MS_AXIS_TENSOR, &y));
    /* Nothing but a collective between two nodes would be too little to trip over. */
    assert_ok(ms_op_linear(graph, y, parameter(graph, 1, MS_F64, 4, 3), MS_VALUE_NONE, false, &y));
    output(graph, y);
}

static const test_case cases[] = {
    {.name = "linear [in,out]", .build = build_linear, .variant = 0},
    {.name = "linear [out,in]", .build = build_linear, .variant = 1},
    {.name = "linear [in,out], bias", .build = build_linear, .variant = 2},
    {.name = "linear [out,in], bias", .build = build_linear, .variant = 3},
    {.name = "embedding", .build = build_embedding},
    {.name = "embedding, addend", .build = build_embedding, .variant = 1},
    {.name = "embedding of a shard", .build = build_embedding, .variant = 2},
    {.name = "layer norm", .build = build_norm, .variant = NORM_BIAS},
    {.name = "layer norm, no bias", .build = build_norm},
    {.name = "layer norm, delta", .build = build_norm, .variant = NORM_BIAS | NORM_DELTA},
    {.name = "layer norm, delta, sum goes on",
     .build = build_norm,
     .variant = NORM_BIAS | NORM_DELTA | NORM_SUM_OUT},
    {.name = "RMS norm", .build = build_norm, .variant = NORM_RMS},
    {.name = "RMS norm, x goes on", .build = build_norm, .variant = NORM_RMS | NORM_SUM_OUT},
    {.name = "RMS norm, delta, sum goes on",
     .build = build_norm,
     .variant = NORM_RMS | NORM_DELTA | NORM_SUM_OUT},
    {.name = "head norm", .build = build_head_norm},
    {.name = "attention", .build = build_attention},
    {.name = "attention, not causal", .build = build_attention, .variant = ATTENTION_FULL},
    {.name = "attention, packed", .build = build_attention, .variant = ATTENTION_PACKED},
    {.name = "attention, grouped", .build = build_attention, .variant = ATTENTION_GROUPED},
    {.name = "attention, packed, grouped",
     .build = build_attention,
     .variant = ATTENTION_PACKED | ATTENTION_GROUPED},
    {.name = "attention, dropout", .build = build_attention, .variant = ATTENTION_DROPOUT},
    {.name = "attention, packed, grouped, dropout",
     .build = build_attention,
     .variant = ATTENTION_PACKED | ATTENTION_GROUPED | ATTENTION_DROPOUT},
    {.name = "gelu, tanh", .build = build_activation, .variant = MS_GELU_TANH},
    {.name = "gelu, exact", .build = build_activation, .variant = MS_GELU_ERF},
    {.name = "silu", .build = build_activation, .variant = MS_SILU},
    {.name = "relu", .build = build_activation, .variant = MS_RELU},
    {.name = "gelu, tanh, gated", .build = build_activation, .variant = 16 + MS_GELU_TANH},
    {.name = "gelu, exact, gated", .build = build_activation, .variant = 16 + MS_GELU_ERF},
    {.name = "silu, gated", .build = build_activation, .variant = 16 + MS_SILU},
    {.name = "relu, gated", .build = build_activation, .variant = 16 + MS_RELU},
    {.name = "rope", .build = build_rope},
    {.name = "rope, scaled", .build = build_rope, .variant = 1},
    {.name = "dropout", .build = build_dropout},
    {.name = "add", .build = build_add},
    {.name = "add, of itself", .build = build_add, .variant = 1},
    {.name = "cast to fp32", .build = build_cast, .step = 0.25, .tolerance = 1e-6},
    {.name = "cast from fp32", .build = build_cast, .variant = 1, .step = 0.25, .tolerance = 1e-6},
    {.name = "residual stream", .build = build_residual},
    {.name = "loss, one chunk", .build = build_head_loss, .variant = 7},
    {.name = "loss, chunks of 3 rows", .build = build_head_loss, .variant = 3},
    {.name = "loss, vocabulary of 3 ranks",
     .build = build_head_loss,
     .variant = 3,
     .ranks = 3,
     .shared_parameters = true,
     .own = 2,
     .count_once = true},
    {.name = "all-gather", .build = build_collective, .variant = 0, .ranks = 3},
    {.name = "reduce-scatter", .build = build_collective, .variant = 1, .ranks = 3},
    {.name = "all-reduce",
     .build = build_collective,
     .variant = 2,
     .ranks = 3,
     .shared_parameters = true,
     .own = 1,
     .count_once = true},
    {.name = "copy",
     .build = build_collective,
     .variant = 3,
     .ranks = 3,
     .shared_parameters = true,
     .own = 2},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

/* ---- filling ---- */

/* Not near 0, where relu has no derivative. */
static double some_number(uint64_t *state) {
    double value = test_random_real(state);
    return value + (value < 0 ? -0.02 : 0.02);
}

static bool differs(const test_case *test, int32_t parameter_index) {
    return !test->shared_parameters || (test->own >> parameter_index & 1u) != 0;
}

static void fill_input(const graph_rank *rank, int32_t v, uint64_t *state) {
    static const int32_t tokens[] = {3, 0, 3, 4, 1, 3, 0, 2, 6}; /* repeated; 6 is in no table */
    static const int32_t targets[] = {2, 5, MS_IGNORED_TARGET, 0, 3, 3, 1};
    const ms_value *value = &rank->graph->values[v];
    for (int64_t i = 0; i < graph_elements(rank->graph, v); i++) {
        double number = value->input == MS_INPUT_TOKENS      ? tokens[i]
                        : value->input == MS_INPUT_TARGETS   ? targets[i]
                        : value->input == MS_INPUT_POSITIONS ? (double)i
                        : value->input == MS_INPUT_SAMPLES   ? (double)(i + 5000000000)
                        : value->input == MS_INPUT_SCALE     ? 1.0 / 7
                                                             : some_number(state);
        graph_set(rank, v, i, number);
    }
}

static void fill(const test_case *test, const graph_rank *ranks, int count) {
    for (int r = 0; r < count; r++) {
        const ms_graph *graph = ranks[r].graph;
        for (int32_t v = 0; v < graph->value_count; v++) {
            const ms_value *value = &graph->values[v];
            bool own = value->kind == MS_VALUE_PARAMETER ? differs(test, value->parameter)
                                                         : !test->count_once;
            uint64_t state = 77 + 1000 * (uint64_t)v + (own ? (uint64_t)r : 0);
            if (value->kind == MS_VALUE_INPUT) {
                fill_input(&ranks[r], v, &state);
            } else if (value->kind == MS_VALUE_PARAMETER) {
                for (int64_t i = 0; i < graph_elements(graph, v); i++) {
                    graph_set(&ranks[r], v, i, some_number(&state));
                }
            }
        }
    }
}

/* ---- comparing ---- */

static double rank_objective(const graph_rank *rank) {
    const ms_graph *graph = rank->graph;
    double sum = 0;
    int32_t coefficients = 0; /* the inputs made by differentiation, in order of the outputs */
    for (int32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].output == MS_OUTPUT_FORWARD) {
            while (graph->values[coefficients].input != MS_INPUT_BACKWARD) {
                coefficients++;
            }
            for (int64_t i = 0; i < graph_elements(graph, v); i++) {
                sum += graph_get(rank, coefficients, i) * graph_get(rank, v, i);
            }
            coefficients++;
        } else if (graph->values[v].output == MS_OUTPUT_LOSS) {
            for (int64_t i = 0; i < graph_elements(graph, v); i++) {
                sum += graph_get(rank, v, i) / 7;
            }
        }
    }
    return sum;
}

static double objective(const test_case *test, const graph_rank *ranks, int count) {
    graph_run(ranks, count, false);
    double sum = 0;
    for (int r = 0; r < (test->count_once ? 1 : count); r++) {
        sum += rank_objective(&ranks[r]);
    }
    return sum;
}

/* Moves one element of a parameter of rank r; of all ranks, when it is the same on all. */
static void move(const test_case *test, const graph_rank *ranks, int count, int r, int32_t v,
                 int64_t i, double value) {
    bool own = differs(test, ranks[0].graph->values[v].parameter);
    for (int q = 0; q < count; q++) {
        if (q == r || !own) {
            graph_set(&ranks[q], v, i, value);
        }
    }
}

static double difference(const test_case *test, const graph_rank *ranks, int count, int r,
                         int32_t v, int64_t i) {
    double step = test->step > 0 ? test->step : 1e-5, at = graph_get(&ranks[r], v, i);
    move(test, ranks, count, r, v, i, at + step);
    double above = objective(test, ranks, count);
    move(test, ranks, count, r, v, i, at - step);
    double below = objective(test, ranks, count);
    move(test, ranks, count, r, v, i, at);
    return (above - below) / (2 * step);
}

static int32_t gradient_of(const ms_graph *graph, int32_t v) {
    for (int32_t g = 0; g < graph->value_count; g++) {
        if (graph->values[g].kind == MS_VALUE_GRADIENT &&
            graph->values[g].parameter == graph->values[v].parameter) {
            return g;
        }
    }
    return MS_VALUE_NONE;
}

static void compare_parameter(const test_case *test, const graph_rank *ranks, int count, int r,
                              int32_t v) {
    int32_t g = gradient_of(ranks[r].graph, v);
    if (g == MS_VALUE_NONE) {
        fail_msg("%s: value %d has no gradient", test->name, (int)v);
    }
    int64_t elements = graph_elements(ranks[r].graph, v);
    double *made = calloc((size_t)elements, sizeof *made), largest = 0;
    assert_non_null(made);
    objective(test, ranks, count);
    for (int64_t i = 0; i < elements; i++) {
        made[i] = graph_get(&ranks[r], g, i);
        largest = fmax(largest, fabs(made[i]));
    }
    assert_true(largest > 1e-6);
    graph_run(ranks, count, true); /* a second micro-batch adds as much again */
    for (int64_t i = 0; i < elements; i++) {
        assert_true(fabs(graph_get(&ranks[r], g, i) - 2 * made[i]) <= 1e-12 * largest);
    }
    double tolerance = test->tolerance > 0 ? test->tolerance : 1e-8;
    for (int64_t i = 0; i < elements; i++) {
        double wanted = difference(test, ranks, count, r, v, i);
        if (!(fabs(made[i] - wanted) <= tolerance * fmax(1, largest))) {
            fail_msg("%s: rank %d, parameter %d, element %d: gradient %.12g, difference %.12g",
                     test->name, r, (int)ranks[r].graph->values[v].parameter, (int)i, made[i],
                     wanted);
        }
    }
    free(made);
}

static void note_operators(const ms_graph *graph) {
    for (int32_t n = 0; n < graph->node_count; n++) {
        bool known = false;
        for (int i = 0; i < seen_count; i++) {
            known = known || seen[i] == graph->nodes[n].op;
        }
        if (!known && graph->nodes[n].phase == MS_PHASE_FORWARD) {
            assert_true(seen_count < OPS_MAX);
            seen[seen_count++] = graph->nodes[n].op;
        }
    }
}

static void run_case(const test_case *test) {
    graph_rank ranks[GRAPH_RANKS_MAX];
    int count = test->ranks > 0 ? test->ranks : 1;
    for (int r = 0; r < count; r++) {
        ms_graph *graph;
        assert_ok(ms_graph_create(PARAMETERS_MAX, &graph));
        graph->axis_size[MS_AXIS_TENSOR] = count;
        graph->axis_index[MS_AXIS_TENSOR] = r;
        test->build(graph, test);
        note_operators(graph);
        assert_ok(ms_graph_differentiate(graph));
        graph_rank_open(&ranks[r], graph, device);
    }
    fill(test, ranks, count);
    int parameters = 0;
    for (int32_t v = 0; v < ranks[0].graph->value_count; v++) {
        for (int r = 0; r < count && ranks[0].graph->values[v].kind == MS_VALUE_PARAMETER; r++) {
            compare_parameter(test, ranks, count, r, v);
            parameters++;
        }
    }
    assert_true(parameters > 0);
    for (int r = 0; r < count; r++) {
        graph_rank_close(&ranks[r]);
    }
}

static void gradients_equal_differences(void **state) {
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        run_case(&cases[i]);
    }
}

static void every_operator_with_a_gradient_is_tested(void **state) {
    (void)state;
    int with_gradient = 0;
    for (const ms_op *const *op = ms_op_table(); *op != NULL; op++) {
        bool tested = (*op)->gradient == NULL;
        for (int i = 0; i < seen_count; i++) {
            tested = tested || seen[i] == *op;
        }
        if (!tested) {
            fail_msg("operator %s has a gradient that nothing here compares", (*op)->name);
        }
        with_gradient += (*op)->gradient != NULL;
    }
    assert_true(with_gradient >= 12);
}

/* Of the evaluation's graph, which makes no gradients, the losses are the same. */
static void evaluation_has_the_loss_of_training(void **state) {
    (void)state;
    graph_rank ranks[2];
    int32_t losses[2];
    for (int train = 0; train < 2; train++) {
        ms_graph *graph;
        assert_ok(ms_graph_create(PARAMETERS_MAX, &graph));
        ms_op_head_loss_options options = {.x = matrix(graph, 0, 7, 4),
                                           .w = parameter(graph, 1, MS_F64, 6, 4),
                                           .targets = input(graph, MS_INPUT_TARGETS, MS_I32, 7),
                                           .scale = input(graph, MS_INPUT_SCALE, MS_F64, 1),
                                           .chunk_rows = 3 + train,
                                           .train = train == 1};
        assert_ok(ms_op_head_loss(graph, &options, &losses[train]));
        graph_rank_open(&ranks[train], graph, device);
        fill(&(test_case){.name = "loss"}, &ranks[train], 1);
        graph_run(&ranks[train], 1, false);
    }
    for (int64_t i = 0; i < 7; i++) {
        double loss = graph_get(&ranks[0], losses[0], i);
        assert_true(loss == graph_get(&ranks[1], losses[1], i));
        assert_true(i == 2 ? loss == 0 : loss > 0);
    }
    graph_rank_close(&ranks[0]);
    graph_rank_close(&ranks[1]);
}

/* Wrong shapes are refused with the operator's name, not computed. */
static void wrong_shapes_are_refused(void **state) {
    (void)state;
    ms_graph *graph;
    int32_t y;
    assert_ok(ms_graph_create(PARAMETERS_MAX, &graph));
    int32_t x = matrix(graph, 0, 5, 4), w = parameter(graph, 1, MS_F64, 6, 4);
    int32_t vector = parameter(graph, 2, MS_F64, 3, 0);
    assert_fails(MS_ERR_BUG, "matmul: inner sizes 4 and 6",
                 ms_op_linear(graph, x, w, MS_VALUE_NONE, false, &y));
    assert_fails(MS_ERR_BUG, "matmul: operands are not matrices",
                 ms_op_linear(graph, x, vector, MS_VALUE_NONE, false, &y));
    assert_fails(MS_ERR_BUG, "embedding: takes i32[N] ids",
                 ms_op_embedding(graph, x, w, 0, MS_VALUE_NONE, &y));
    ms_op_norm_result result;
    assert_fails(MS_ERR_BUG, "norm: the weight does not fit",
                 ms_op_norm(graph, x, MS_VALUE_NONE, vector, MS_VALUE_NONE, false, 1e-5, &result));
    assert_fails(MS_ERR_BUG, "add: operands of different sizes", ms_op_add(graph, x, w, &y));
    ms_attributes attributes = {
        .attention = {.batch = 2, .positions = 3, .heads = 1, .kv_heads = 1, .head_size = 4}};
    assert_fails(MS_ERR_BUG, "attention: q does not have",
                 ms_op_attention(graph, x, x, x, MS_VALUE_NONE, &attributes, &y));
    graph->axis_size[MS_AXIS_TENSOR] = 2;
    assert_fails(MS_ERR_CONFIG, "5 rows", ms_op_reduce_scatter(graph, x, MS_AXIS_TENSOR, &y));
    ms_graph_destroy(graph);
}

static int set_up(void **state) {
    (void)state;
    ms_device_options options = {
        .name = "cpu", .threads = 1, .isa_max = MS_ISA_COUNT, .variant = "ref"};
    return ms_device_open(&options, &device) == MS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    ms_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(every_operator_with_a_gradient_is_tested),
        cmocka_unit_test(evaluation_has_the_loss_of_training),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
