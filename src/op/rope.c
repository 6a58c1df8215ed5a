/* rope.c - rotary position embedding; a rotation, so its gradient is the rotation back. */
#include "op/op_internal.h"

static ms_status rope_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    return MS_OK;
}

static ms_status rope_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    ms_node back = ms_node_of(&ms__op_rope);
    back.inputs[0] = ms_whole(ms_autodiff_gradient(autodiff, node.outputs[0].value));
    back.inputs[1] = node.inputs[1];
    back.outputs[0].value = MS_VALUE_NEW;
    back.attributes = node.attributes;
    back.attributes.rope.inverse = !node.attributes.rope.inverse;
    MS_TRY(ms_graph_add_node(graph, &back));
    return ms_autodiff_contribute(autodiff, node.inputs[0].value, ms_graph_output(graph, 0));
}

const ms_op ms__op_rope = {
    .name = "rope",
    .slot = MS_SLOT_ROPE,
    .input_count = 2,
    .output_count = 1,
    .infer = rope_infer,
    .flops = ms__flops_elements,
    .gradient = rope_gradient,
};

ms_status ms_op_rope(ms_graph *graph, int32_t x, int32_t positions,
                     const ms_attributes *attributes, int32_t *y) {
    ms_node node = ms_node_of(&ms__op_rope);
    node.inputs[0] = ms_whole(x);
    node.inputs[1] = ms_whole(positions);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes = *attributes;
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}
