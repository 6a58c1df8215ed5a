/*
 * linear.c - y = x w (+ bias), its input gradient dy w^T and its weight gradient x^T dy.
 *
 * One operator, matmul, serves all three; the weight is stored as Hugging Face stores it, [out, in] or
 * [in, out], and the transposes follow. FLOPs: 2 M N K.
 */
#include "op/op_internal.h"

static ms_status matmul_dims(const ms_graph *graph, const ms_node *node, int64_t *m, int64_t *n,
                             int64_t *k) {
    ms_argument a = ms_operand_argument(graph, node->inputs[0]);
    ms_argument b = ms_operand_argument(graph, node->inputs[1]);
    if (a.rank != 2 || b.rank != 2) {
        return ms__shape_error(node, "operands are not matrices");
    }
    bool ta = node->attributes.matmul.transpose_a, tb = node->attributes.matmul.transpose_b;
    *m = a.dims[ta ? 1 : 0];
    *k = a.dims[ta ? 0 : 1];
    *n = b.dims[tb ? 0 : 1];
    if (b.dims[tb ? 1 : 0] != *k) {
        return ms_fail(MS_ERR_BUG, "operator matmul: inner sizes %lld and %lld differ",
                       (long long)*k, (long long)b.dims[tb ? 1 : 0]);
    }
    return MS_OK;
}

static ms_status matmul_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    int64_t m, n, k;
    MS_TRY(matmul_dims(graph, node, &m, &n, &k));
    ms__set_shape(&outputs[0], ms__input(graph, node, 0)->dtype, 2, m, n);
    return MS_OK;
}

static double matmul_flops(const ms_graph *graph, const ms_node *node) {
    int64_t m = 0, n = 0, k = 0;
    if (matmul_dims(graph, node, &m, &n, &k) != MS_OK) {
        return 0;
    }
    return 2.0 * (double)m * (double)n * (double)k;
}

static ms_status weight_gradient(ms_graph *graph, const ms_node *node, int32_t dy) {
    ms_node gradient = ms_node_of(&ms__op_matmul);
    bool transposed = node->attributes.matmul.transpose_b;
    gradient.inputs[0] = transposed ? ms_whole(dy) : node->inputs[0];
    gradient.inputs[1] = transposed ? node->inputs[0] : ms_whole(dy);
    gradient.attributes.matmul.transpose_a = true;
    MS_TRY(ms_graph_parameter_gradient(graph, node->inputs[1].value, &gradient.outputs[0],
                                       &gradient.accumulate));
    return ms_graph_add_node(graph, &gradient);
}

static ms_status bias_gradient(ms_graph *graph, const ms_node *node, int32_t dy) {
    ms_node gradient = ms_node_of(&ms__op_column_sum);
    gradient.inputs[0] = ms_whole(dy);
    MS_TRY(ms_graph_parameter_gradient(graph, node->inputs[2].value, &gradient.outputs[0],
                                       &gradient.accumulate));
    return ms_graph_add_node(graph, &gradient);
}

static ms_status linear_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    int32_t dy = ms_autodiff_gradient(autodiff, node.outputs[0].value);
    if (ms_autodiff_wanted(autodiff, node.inputs[0].value)) {
        ms_node dx = ms_node_of(&ms__op_matmul);
        dx.inputs[0] = ms_whole(dy);
        dx.inputs[1] = node.inputs[1];
        dx.attributes.matmul.transpose_b = !node.attributes.matmul.transpose_b;
        dx.outputs[0].value = MS_VALUE_NEW;
        MS_TRY(ms_graph_add_node(graph, &dx));
        MS_TRY(ms_autodiff_contribute(autodiff, node.inputs[0].value, ms_graph_output(graph, 0)));
    }
    graph->phase = MS_PHASE_WEIGHT_GRAD;
    MS_TRY(weight_gradient(graph, &node, dy));
    if (node.inputs[2].value != MS_VALUE_NONE) {
        MS_TRY(bias_gradient(graph, &node, dy));
    }
    graph->phase = MS_PHASE_INPUT_GRAD;
    return MS_OK;
}

const ms_op ms__op_matmul = {
    .name = "matmul",
    .slot = MS_SLOT_MATMUL,
    .input_count = 3,
    .output_count = 1,
    .infer = matmul_infer,
    .flops = matmul_flops,
    .gradient = linear_gradient,
};

static ms_status column_sum_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_shape(&outputs[0], ms__wide_type(ms__input(graph, node, 0)->dtype), 1,
                  ms__columns(graph, node->inputs[0]), 0);
    return MS_OK;
}

static double column_sum_flops(const ms_graph *graph, const ms_node *node) {
    return (double)ms_operand_elements(graph, node->inputs[0]);
}

const ms_op ms__op_column_sum = {
    .name = "column_sum",
    .slot = MS_SLOT_COLUMN_SUM,
    .input_count = 1,
    .output_count = 1,
    .infer = column_sum_infer,
    .flops = column_sum_flops,
};

ms_status ms_op_linear(ms_graph *graph, int32_t x, int32_t w, int32_t bias, bool transposed,
                       int32_t *y) {
    ms_node node = ms_node_of(&ms__op_matmul);
    node.inputs[0] = ms_whole(x);
    node.inputs[1] = ms_whole(w);
    node.inputs[2] = ms_whole(bias);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes.matmul.transpose_b = transposed;
    MS_TRY(ms_graph_add_node(graph, &node));
    *y = ms_graph_output(graph, 0);
    return MS_OK;
}
