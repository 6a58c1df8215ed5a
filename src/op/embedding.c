/*
 * embedding.c - rows of a table by id, optionally added to another value (GPT-2's positions), and the
 * gradient: rows of dy added into the table's gradient.
 */
#include "op/op_internal.h"

static ms_status embedding_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    const ms_value *ids = ms__input(graph, node, 0);
    const ms_value *table = ms__input(graph, node, 1);
    if (ids->rank != 1 || ids->dtype != MS_I32 || table->rank != 2) {
        return ms__shape_error(node, "takes i32[N] ids and a [V,C] table");
    }
    ms__set_shape(&outputs[0], table->dtype, 2, ids->dims[0], table->dims[1]);
    return MS_OK;
}

static ms_status embedding_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    int32_t dy = ms_autodiff_gradient(autodiff, node.outputs[0].value);
    ms_node gradient = ms_node_of(&ms__op_embedding_grad);
    gradient.inputs[0] = node.inputs[0];
    gradient.inputs[1] = ms_whole(dy);
    gradient.attributes = node.attributes;
    MS_TRY(ms_graph_parameter_gradient(graph, node.inputs[1].value, &gradient.outputs[0],
                                       &gradient.accumulate));
    graph->phase = MS_PHASE_WEIGHT_GRAD;
    MS_TRY(ms_graph_add_node(graph, &gradient));
    graph->phase = MS_PHASE_INPUT_GRAD;
    return ms_autodiff_contribute(autodiff, node.inputs[2].value, dy);
}

const ms_op ms__op_embedding = {
    .name = "embedding",
    .slot = MS_SLOT_EMBEDDING,
    .input_count = 3,
    .output_count = 1,
    .infer = embedding_infer,
    .gradient = embedding_gradient,
};

static ms_status embedding_grad_infer(const ms_graph *graph, const ms_node *node,
                                      ms_value *outputs) {
    (void)outputs;
    return ms__input(graph, node, 1)->rank == 2 ? MS_OK
                                                : ms__shape_error(node, "dy is not a matrix");
}

static double embedding_grad_flops(const ms_graph *graph, const ms_node *node) {
    return (double)ms_operand_elements(graph, node->inputs[1]);
}

const ms_op ms__op_embedding_grad = {
    .name = "embedding_grad",
    .slot = MS_SLOT_EMBEDDING_GRAD,
    .input_count = 2,
    .output_count = 1,
    .infer = embedding_grad_infer,
    .flops = embedding_grad_flops,
};

ms_status ms_op_embedding(ms_graph *graph, int32_t ids, int32_t table, int64_t first,
                          int32_t addend, int32_t *out) {
    ms_node node = ms_node_of(&ms__op_embedding);
    node.inputs[0] = ms_whole(ids);
    node.inputs[1] = ms_whole(table);
    node.inputs[2] = ms_whole(addend);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes.embedding.first = first;
    MS_TRY(ms_graph_add_node(graph, &node));
    *out = ms_graph_output(graph, 0);
    return MS_OK;
}
