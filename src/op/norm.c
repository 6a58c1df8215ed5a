/*
 * norm.c - residual addition and layer/RMS norm in one operator.
 *
 *   sum = x + delta;  y = norm(sum) * weight (+ bias)
 *
 * Its gradient adds the residual path's gradient in the same pass, so a residual stream costs no node of
 * its own. The columns are the weight's, so a norm over each head's elements is the same operator with
 * more rows.
 */
#include "op/op_internal.h"

enum { NORM_X, NORM_DELTA, NORM_WEIGHT, NORM_BIAS };
enum { NORM_SUM, NORM_Y, NORM_STATS };

static int64_t norm_columns(const ms_graph *graph, const ms_node *node, int weight_input) {
    return ms__input(graph, node, weight_input)->dims[0];
}

static ms_status norm_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    int64_t columns = norm_columns(graph, node, NORM_WEIGHT);
    int64_t elements = ms_operand_elements(graph, node->inputs[NORM_X]);
    if (columns <= 0 || ms__columns(graph, node->inputs[NORM_X]) % columns != 0) {
        return ms__shape_error(node, "the weight does not fit the columns");
    }
    ms__set_like(&outputs[NORM_SUM], graph, node->inputs[NORM_X]);
    ms__set_like(&outputs[NORM_Y], graph, node->inputs[NORM_X]);
    ms__set_shape(&outputs[NORM_STATS], ms__wide_type(outputs[NORM_Y].dtype), 2,
                  elements / columns, 2);
    return MS_OK;
}

/* Shows the kernel [rows, columns] for each argument that has x's elements. */
static void norm_reshape(ms_kernel_spec *spec, int64_t columns, const int *arguments, int count) {
    for (int i = 0; i < count; i++) {
        ms_argument *argument = &spec->arguments[arguments[i]];
        if (argument->rank >= 0) {
            int64_t dims[2] = {ms_argument_elements(argument) / columns, columns};
            *argument = ms_argument_of(argument->dtype, 2, dims);
        }
    }
}

static void norm_lower(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec) {
    const int arguments[] = {NORM_X, NORM_DELTA, 4 + NORM_SUM, 4 + NORM_Y};
    norm_reshape(spec, norm_columns(graph, node, NORM_WEIGHT), arguments, 4);
}

static void norm_redo_form(const ms_graph *graph, ms_node *node, const bool *dropped) {
    (void)graph;
    int32_t sum = node->outputs[NORM_SUM].value;
    if (sum >= 0 && !dropped[sum]) {
        node->inputs[NORM_X] = ms_whole(sum);
        node->inputs[NORM_DELTA].value = MS_VALUE_NONE;
        node->outputs[NORM_SUM].value = MS_VALUE_NONE;
    }
}

static ms_status norm_weight_gradient(ms_graph *graph, const ms_node *node, ms_operand sum,
                                      int32_t dy) {
    ms_node gradient = ms_node_of(&ms__op_norm_weight_grad);
    gradient.inputs[0] = ms_whole(dy);
    gradient.inputs[1] = sum;
    gradient.inputs[2] = node->outputs[NORM_STATS];
    gradient.attributes = node->attributes;
    MS_TRY(ms_graph_parameter_gradient(graph, node->inputs[NORM_WEIGHT].value,
                                       &gradient.outputs[0], &gradient.accumulate));
    if (node->inputs[NORM_BIAS].value != MS_VALUE_NONE) {
        MS_TRY(ms_graph_parameter_gradient(graph, node->inputs[NORM_BIAS].value,
                                           &gradient.outputs[1], &gradient.accumulate));
    }
    graph->phase = MS_PHASE_WEIGHT_GRAD;
    MS_TRY(ms_graph_add_node(graph, &gradient));
    graph->phase = MS_PHASE_INPUT_GRAD;
    return MS_OK;
}

static ms_status norm_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    bool residual = node.inputs[NORM_DELTA].value != MS_VALUE_NONE;
    ms_operand sum = residual ? node.outputs[NORM_SUM] : node.inputs[NORM_X];
    int32_t dy = ms_autodiff_gradient(autodiff, node.outputs[NORM_Y].value);
    /* What reached x (without delta) or the sum on the residual path. */
    int32_t dsum = ms_autodiff_gradient(autodiff, sum.value);
    if (dy != MS_VALUE_NONE) {
        ms_node dx = ms_node_of(&ms__op_norm_input_grad);
        dx.inputs[0] = ms_whole(dy);
        dx.inputs[1] = sum;
        dx.inputs[2] = node.inputs[NORM_WEIGHT];
        dx.inputs[3] = node.outputs[NORM_STATS];
        dx.inputs[4] = ms_whole(dsum);
        dx.outputs[0].value = MS_VALUE_NEW;
        dx.attributes = node.attributes;
        MS_TRY(ms_graph_add_node(graph, &dx));
        dsum = ms_graph_output(graph, 0);
        MS_TRY(norm_weight_gradient(graph, &node, sum, dy));
    }
    if (!residual) {
        ms_autodiff_replace(autodiff, sum.value, dsum);
        return MS_OK;
    }
    MS_TRY(ms_autodiff_contribute(autodiff, node.inputs[NORM_X].value, dsum));
    return ms_autodiff_contribute(autodiff, node.inputs[NORM_DELTA].value, dsum);
}

const ms_op ms__op_norm = {
    .name = "norm",
    .slot = MS_SLOT_NORM,
    .redo_outputs = 1u << NORM_Y,
    .input_count = 4,
    .output_count = 3,
    .infer = norm_infer,
    .lower = norm_lower,
    .flops = ms__flops_elements,
    .gradient = norm_gradient,
    .redo_form = norm_redo_form,
};

static ms_status norm_input_grad_infer(const ms_graph *graph, const ms_node *node,
                                       ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[1]);
    return MS_OK;
}

static void norm_input_grad_lower(const ms_graph *graph, const ms_node *node,
                                  ms_kernel_spec *spec) {
    const int arguments[] = {0, 1, 4, 5};
    norm_reshape(spec, norm_columns(graph, node, 2), arguments, 4);
}

const ms_op ms__op_norm_input_grad = {
    .name = "norm_input_grad",
    .slot = MS_SLOT_NORM_INPUT_GRAD,
    .input_count = 5,
    .output_count = 1,
    .infer = norm_input_grad_infer,
    .lower = norm_input_grad_lower,
    .flops = ms__flops_elements,
};

static ms_status norm_weight_grad_infer(const ms_graph *graph, const ms_node *node,
                                        ms_value *outputs) {
    (void)graph;
    (void)node;
    (void)outputs;
    return MS_OK;
}

static void norm_weight_grad_lower(const ms_graph *graph, const ms_node *node,
                                   ms_kernel_spec *spec) {
    const int arguments[] = {0, 1};
    norm_reshape(spec, graph->values[node->outputs[0].value].dims[0], arguments, 2);
}

const ms_op ms__op_norm_weight_grad = {
    .name = "norm_weight_grad",
    .slot = MS_SLOT_NORM_WEIGHT_GRAD,
    .input_count = 3,
    .output_count = 2,
    .infer = norm_weight_grad_infer,
    .lower = norm_weight_grad_lower,
    .flops = ms__flops_elements,
};

ms_status ms_op_norm(ms_graph *graph, int32_t x, int32_t delta, int32_t weight, int32_t bias,
                     bool rms, double epsilon, ms_op_norm_result *result) {
    ms_node node = ms_node_of(&ms__op_norm);
    node.inputs[NORM_X] = ms_whole(x);
    node.inputs[NORM_DELTA] = ms_whole(delta);
    node.inputs[NORM_WEIGHT] = ms_whole(weight);
    node.inputs[NORM_BIAS] = ms_whole(bias);
    node.outputs[NORM_SUM].value = delta == MS_VALUE_NONE ? MS_VALUE_NONE : MS_VALUE_NEW;
    node.outputs[NORM_Y].value = MS_VALUE_NEW;
    node.outputs[NORM_STATS].value = MS_VALUE_NEW;
    node.attributes.norm.rms = rms;
    node.attributes.norm.epsilon = epsilon;
    MS_TRY(ms_graph_add_node(graph, &node));
    result->sum = delta == MS_VALUE_NONE ? x : ms_graph_output(graph, NORM_SUM);
    result->y = ms_graph_output(graph, NORM_Y);
    return MS_OK;
}

ms_status ms_op_head_norm(ms_graph *graph, int32_t x, int32_t weight, int64_t head_size,
                          double epsilon, int32_t *y) {
    MS_CHECK(graph->values[weight].dims[0] == head_size);
    ms_op_norm_result result;
    MS_TRY(ms_op_norm(graph, x, MS_VALUE_NONE, weight, MS_VALUE_NONE, true, epsilon, &result));
    *y = result.y;
    return MS_OK;
}
