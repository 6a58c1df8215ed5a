/* add.c - c = a + b; the gradient goes to both. */
#include "op/op_internal.h"

static ms_status add_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    if (ms_operand_elements(graph, node->inputs[0]) !=
        ms_operand_elements(graph, node->inputs[1])) {
        return ms__shape_error(node, "operands of different sizes");
    }
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    return MS_OK;
}

static ms_status add_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_node node = ms_autodiff_graph(autodiff)->nodes[node_index];
    int32_t dc = ms_autodiff_gradient(autodiff, node.outputs[0].value);
    MS_TRY(ms_autodiff_contribute(autodiff, node.inputs[0].value, dc));
    return ms_autodiff_contribute(autodiff, node.inputs[1].value, dc);
}

const ms_op ms__op_add = {
    .name = "add",
    .slot = MS_SLOT_ADD,
    .input_count = 2,
    .output_count = 1,
    .infer = add_infer,
    .lower = ms__lower_flat,
    .flops = ms__flops_elements,
    .gradient = add_gradient,
};

ms_status ms_op_add(ms_graph *graph, int32_t a, int32_t b, int32_t *c) {
    ms_node node = ms_node_of(&ms__op_add);
    node.inputs[0] = ms_whole(a);
    node.inputs[1] = ms_whole(b);
    node.outputs[0].value = MS_VALUE_NEW;
    MS_TRY(ms_graph_add_node(graph, &node));
    *c = ms_graph_output(graph, 0);
    return MS_OK;
}
