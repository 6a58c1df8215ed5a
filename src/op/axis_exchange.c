/*
 * axis_exchange.c - communication inside a step as operators with known transposes:
 *
 *   all_gather <-> reduce_scatter      copy (identity) <-> all_reduce
 *
 * (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.)
 * Rows are gathered rank after rank. On an axis of one rank nothing is added.
 */
#include "op/op_internal.h"

static ms_status gather_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    outputs[0].dims[0] *= graph->axis_size[node->axis];
    return MS_OK;
}

static ms_status scatter_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    int64_t ranks = graph->axis_size[node->axis];
    if (outputs[0].dims[0] % ranks != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "%lld rows (micro_batch_size x sequence) do not divide among %lld ranks of "
                       "parallel.tensor; set parallel.sequence_parallel: false or change the batch",
                       (long long)outputs[0].dims[0], (long long)ranks);
    }
    outputs[0].dims[0] /= ranks;
    return MS_OK;
}

static ms_status same_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_like(&outputs[0], graph, node->inputs[0]);
    if (node->op == &ms__op_copy) {
        outputs[0].alias = node->inputs[0].value;
    }
    return MS_OK;
}

static ms_status add_collective(ms_graph *graph, const ms_op *op, int32_t x, ms_axis axis,
                                int32_t *y) {
    if (graph->axis_size[axis] == 1) {
        *y = x;
        return MS_OK;
    }
    ms_node node = ms_node_of(op);
    node.inputs[0] = ms_whole(x);
    node.outputs[0].value = MS_VALUE_NEW;
    node.axis = axis;
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}

static ms_status transpose(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    const ms_op *op = node.op == &ms__op_all_gather       ? &ms__op_reduce_scatter
                      : node.op == &ms__op_reduce_scatter ? &ms__op_all_gather
                      : node.op == &ms__op_copy           ? &ms__op_all_reduce
                                                          : &ms__op_copy;
    int32_t dx;
    MS_TRY(add_collective(graph, op, ms_autodiff_gradient(autodiff, node.outputs[0].value),
                          node.axis, &dx));
    return ms_autodiff_contribute(autodiff, node.inputs[0].value, dx);
}

const ms_op ms__op_all_gather = {
    .name = "all_gather",
    .slot = MS_SLOT_COUNT,
    .collective = MS_COLLECTIVE_ALL_GATHER,
    .input_count = 1,
    .output_count = 1,
    .infer = gather_infer,
    .gradient = transpose,
};
const ms_op ms__op_reduce_scatter = {
    .name = "reduce_scatter",
    .slot = MS_SLOT_COUNT,
    .collective = MS_COLLECTIVE_REDUCE_SCATTER,
    .input_count = 1,
    .output_count = 1,
    .infer = scatter_infer,
    .gradient = transpose,
};
const ms_op ms__op_all_reduce = {
    .name = "all_reduce",
    .slot = MS_SLOT_COUNT,
    .collective = MS_COLLECTIVE_ALL_REDUCE,
    .input_count = 1,
    .output_count = 1,
    .infer = same_infer,
    .gradient = transpose,
};
const ms_op ms__op_copy = {
    .name = "copy",
    .slot = MS_SLOT_COUNT,
    .collective = MS_COLLECTIVE_NONE,
    .input_count = 1,
    .output_count = 1,
    .infer = same_infer,
    .gradient = transpose,
};

ms_status ms_op_all_gather(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y) {
    return add_collective(graph, &ms__op_all_gather, x, axis, y);
}
ms_status ms_op_reduce_scatter(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y) {
    return add_collective(graph, &ms__op_reduce_scatter, x, axis, y);
}
ms_status ms_op_all_reduce(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y) {
    return add_collective(graph, &ms__op_all_reduce, x, axis, y);
}
ms_status ms_op_copy(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y) {
    return add_collective(graph, &ms__op_copy, x, axis, y);
}
