/* cast.c - change of floating type; the gradient is cast back. */
#include "op/op_internal.h"

static ms_status cast_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    (void)graph;
    (void)node;
    (void)outputs; /* the builder makes the output: its type is the operator's argument */
    return MS_OK;
}

static ms_status cast_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    int32_t dx;
    MS_TRY(ms_op_cast(graph, ms_autodiff_gradient(autodiff, node.outputs[0].value),
                      graph->values[node.inputs[0].value].dtype, &dx));
    return ms_autodiff_contribute(autodiff, node.inputs[0].value, dx);
}

const ms_op ms__op_cast = {
    .name = "cast",
    .slot = MS_SLOT_CAST,
    .input_count = 1,
    .output_count = 1,
    .infer = cast_infer,
    .lower = ms__lower_flat,
    .flops = ms__flops_elements,
    .gradient = cast_gradient,
};

ms_status ms_op_cast(ms_graph *graph, int32_t x, ms_dtype dtype, int32_t *y) {
    ms_value value = graph->values[x];
    if (value.dtype == dtype) {
        *y = x;
        return MS_OK;
    }
    value.kind = MS_VALUE_ACTIVATION;
    value.dtype = dtype;
    value.producer = -1;
    value.alias = -1;
    value.keep = false;
    value.input = MS_INPUT_NONE;
    value.output = MS_OUTPUT_NONE;
    value.layer = graph->layer;
    ms_node node = ms_node_of(&ms__op_cast);
    node.inputs[0] = ms_whole(x);
    MS_TRY(ms_graph_add_value(graph, &value, &node.outputs[0].value));
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}
