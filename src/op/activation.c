/* activation.c - y = f(a), or the gated y = f(a) * up, and its gradient. */
#include "op/op_internal.h"

static ms_status activation_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    return MS_OK;
}

static ms_status activation_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    bool gated = node.inputs[1].value != MS_VALUE_NONE;
    ms_node gradient = ms_node_of(&ms__op_activation_grad);
    gradient.inputs[0] = ms_whole(ms_autodiff_gradient(autodiff, node.outputs[0].value));
    gradient.inputs[1] = node.inputs[0];
    gradient.inputs[2] = node.inputs[1];
    gradient.outputs[0].value = MS_VALUE_NEW;
    gradient.outputs[1].value = gated ? MS_VALUE_NEW : MS_VALUE_NONE;
    gradient.attributes = node.attributes;
    MS_TRY(ms_graph_add_node(graph, &gradient));
    int32_t da = ms_graph_output(graph, 0), dup = ms_graph_output(graph, 1);
    MS_TRY(ms_autodiff_contribute(autodiff, node.inputs[0].value, da));
    return gated ? ms_autodiff_contribute(autodiff, node.inputs[1].value, dup) : MS_OK;
}

const ms_op ms__op_activation = {
    .name = "activation",
    .slot = MS_SLOT_ACTIVATION,
    .redo_outputs = 1u,
    .input_count = 2,
    .output_count = 1,
    .infer = activation_infer,
    .flops = ms__flops_elements,
    .gradient = activation_gradient,
};

static ms_status activation_grad_infer(const ms_graph *graph, const ms_node *node,
                                       ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[1]);
    ms__set_like(&outputs[1], graph, node->inputs[1]);
    return MS_OK;
}

const ms_op ms__op_activation_grad = {
    .name = "activation_grad",
    .slot = MS_SLOT_ACTIVATION_GRAD,
    .input_count = 3,
    .output_count = 2,
    .infer = activation_grad_infer,
    .flops = ms__flops_elements,
};

ms_status ms_op_activation(ms_graph *graph, int32_t a, int32_t up, ms_activation_function function,
                           int32_t *y) {
    ms_node node = ms_node_of(&ms__op_activation);
    node.inputs[0] = ms_whole(a);
    node.inputs[1] = ms_whole(up);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes.activation.function = function;
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}
