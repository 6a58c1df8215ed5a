/*
 * dropout.c - dropout whose mask depends on seed, name and logical index only; the mask is made again in
 * the gradient, never stored.
 */
#include "op/op_internal.h"

static ms_status dropout_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    return MS_OK;
}

static ms_status dropout_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    ms_node again = ms_node_of(&ms__op_dropout);
    again.inputs[0] = ms_whole(ms_autodiff_gradient(autodiff, node.outputs[0].value));
    again.inputs[1] = node.inputs[1];
    again.outputs[0].value = MS_VALUE_NEW;
    again.attributes = node.attributes;
    MS_TRY(ms_graph_add_node(graph, &again));
    return ms_autodiff_contribute(autodiff, node.inputs[0].value, ms_graph_output(graph, 0));
}

const ms_op ms__op_dropout = {
    .name = "dropout",
    .slot = MS_SLOT_DROPOUT,
    .redo_outputs = 1u,
    .input_count = 2,
    .output_count = 1,
    .infer = dropout_infer,
    .flops = ms__flops_elements,
    .gradient = dropout_gradient,
};

ms_status ms_op_dropout(ms_graph *graph, int32_t x, int32_t samples,
                        const ms_attributes *attributes, int32_t *y) {
    if (attributes->dropout.probability <= 0) {
        *y = x;
        return MS_OK;
    }
    ms_node node = ms_node_of(&ms__op_dropout);
    node.inputs[0] = ms_whole(x);
    node.inputs[1] = ms_whole(samples);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes = *attributes;
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}
