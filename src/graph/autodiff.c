/*
 * autodiff.c - reverse-mode differentiation of a graph, by each operator's own rule.
 *
 * Walks the forward nodes backwards. For each value it keeps the one gradient that has arrived so far; a
 * second contribution is added to it, unless the operator's rule can fold it in (the norm adds the
 * residual path's gradient in its own kernel). Which values want a gradient is found beforehand: those
 * that depend on a parameter or on the previous pipeline part.
 *
 * The gradient's nodes are appended in the order of the walk, each weight gradient right after the input
 * gradient it shares operands with: what a plain backward runs. A zero-bubble schedule runs the
 * weight_grad ones later.
 */
#include "graph/graph.h"

#include "graph/graph_internal.h"

struct ms_autodiff {
    ms_graph *graph;
    int32_t forward_values; /* values there were before differentiating */
    int32_t *gradients;     /* per forward value */
    bool *wanted;
};

ms_graph *ms_autodiff_graph(ms_autodiff *autodiff) { return autodiff->graph; }

int32_t ms_autodiff_gradient(const ms_autodiff *autodiff, int32_t value) {
    return value < 0 ? MS_VALUE_NONE : autodiff->gradients[value];
}

bool ms_autodiff_wanted(const ms_autodiff *autodiff, int32_t value) {
    return value >= 0 && value < autodiff->forward_values && autodiff->wanted[value];
}

void ms_autodiff_replace(ms_autodiff *autodiff, int32_t value, int32_t gradient) {
    autodiff->gradients[value] = gradient;
}

ms_status ms_autodiff_contribute(ms_autodiff *autodiff, int32_t value, int32_t gradient) {
    if (!ms_autodiff_wanted(autodiff, value)) {
        return MS_OK;
    }
    int32_t before = autodiff->gradients[value];
    if (before == MS_VALUE_NONE) {
        autodiff->gradients[value] = gradient;
        return MS_OK;
    }
    ms_node add = ms_node_of(&ms__op_accumulate);
    add.inputs[0] = ms_whole(before);
    add.inputs[1] = ms_whole(gradient);
    add.outputs[0].value = MS_VALUE_NEW;
    MS_TRY(ms_graph_add_node(autodiff->graph, &add));
    autodiff->gradients[value] = ms_graph_output(autodiff->graph, 0);
    return MS_OK;
}

static ms_status add_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    const ms_value *a = &graph->values[node->inputs[0].value];
    outputs[0].dtype = a->dtype;
    outputs[0].rank = a->rank;
    for (int i = 0; i < a->rank; i++) {
        outputs[0].dims[i] = a->dims[i];
    }
    return MS_OK;
}

static void add_lower(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec) {
    (void)graph;
    (void)node;
    for (int i = 0; i < spec->argument_count; i++) {
        int64_t elements = ms_argument_elements(&spec->arguments[i]);
        spec->arguments[i] = ms_argument_of(spec->arguments[i].dtype, 1, &elements);
    }
}

static double add_flops(const ms_graph *graph, const ms_node *node) {
    return (double)ms_operand_elements(graph, node->inputs[0]);
}

/* Where two gradients of one value meet; the one operator that differentiation itself needs. */
const ms_op ms__op_accumulate = {
    .name = "accumulate",
    .slot = MS_SLOT_ADD,
    .input_count = 2,
    .output_count = 1,
    .infer = add_infer,
    .lower = add_lower,
    .flops = add_flops,
};

static void find_wanted(ms_autodiff *autodiff, int32_t forward_nodes) {
    ms_graph *graph = autodiff->graph;
    for (int32_t v = 0; v < autodiff->forward_values; v++) {
        const ms_value *value = &graph->values[v];
        autodiff->wanted[v] =
            value->kind == MS_VALUE_PARAMETER || value->input == MS_INPUT_FORWARD;
    }
    for (int32_t n = 0; n < forward_nodes; n++) {
        const ms_node *node = &graph->nodes[n];
        bool wanted = false;
        for (int i = 0; i < node->op->input_count; i++) {
            wanted = wanted || ms_autodiff_wanted(autodiff, node->inputs[i].value);
        }
        for (int i = 0; i < node->op->output_count; i++) {
            int32_t output = node->outputs[i].value;
            if (output >= 0 && graph->values[output].kind == MS_VALUE_ACTIVATION) {
                autodiff->wanted[output] = autodiff->wanted[output] || wanted;
            }
        }
    }
}

static bool gradient_arrived(const ms_autodiff *autodiff, const ms_node *node) {
    for (int i = 0; i < node->op->output_count; i++) {
        if (ms_autodiff_gradient(autodiff, node->outputs[i].value) != MS_VALUE_NONE) {
            return true;
        }
    }
    return false;
}

static ms_status seed_gradients(ms_autodiff *autodiff) {
    ms_graph *graph = autodiff->graph;
    for (int i = 0; i < graph->seed_count; i++) {
        MS_TRY(ms_autodiff_contribute(autodiff, graph->seeds[i].value, graph->seeds[i].gradient));
    }
    for (int32_t v = 0; v < autodiff->forward_values; v++) {
        if (graph->values[v].output == MS_OUTPUT_FORWARD) {
            ms_value value = graph->values[v];
            int32_t gradient;
            MS_TRY(ms_graph_input(graph, MS_INPUT_BACKWARD, value.dtype, value.rank, value.dims,
                                  &gradient));
            MS_TRY(ms_autodiff_contribute(autodiff, v, gradient));
        }
    }
    return MS_OK;
}

static ms_status walk_backwards(ms_autodiff *autodiff, int32_t forward_nodes) {
    ms_graph *graph = autodiff->graph;
    MS_TRY(seed_gradients(autodiff));
    for (int32_t n = forward_nodes - 1; n >= 0; n--) {
        /* The rule appends nodes, which may move graph->nodes: it gets an index. */
        if (graph->nodes[n].op->gradient == NULL || graph->nodes[n].phase != MS_PHASE_FORWARD ||
            !gradient_arrived(autodiff, &graph->nodes[n])) {
            continue;
        }
        graph->layer = graph->nodes[n].layer;
        graph->phase = MS_PHASE_INPUT_GRAD;
        MS_TRY(graph->nodes[n].op->gradient(autodiff, n));
    }
    for (int32_t v = 0; v < autodiff->forward_values; v++) {
        if (graph->values[v].input == MS_INPUT_FORWARD) {
            int32_t gradient = autodiff->gradients[v];
            if (gradient == MS_VALUE_NONE) {
                return ms_fail(MS_ERR_BUG, "no gradient reaches the chunk's input");
            }
            graph->values[gradient].output = MS_OUTPUT_BACKWARD;
        }
    }
    return MS_OK;
}

ms_status ms_graph_differentiate(ms_graph *graph) {
    ms_autodiff autodiff = {.graph = graph, .forward_values = graph->value_count};
    int32_t forward_nodes = graph->node_count;
    size_t count = (size_t)graph->value_count;
    ms_status status;
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &autodiff.gradients), done);
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &autodiff.wanted), done);
    for (size_t i = 0; i < count; i++) {
        autodiff.gradients[i] = MS_VALUE_NONE;
    }
    find_wanted(&autodiff, forward_nodes);
    status = walk_backwards(&autodiff, forward_nodes);
done:
    ms_free(autodiff.gradients);
    ms_free(autodiff.wanted);
    return status;
}
