/*
 * attention.c - scaled dot-product attention, its gradient, and the cached form for generation.
 *
 * FLOPs: two products of T x T x D for each query head forward, five in the gradient (scores again, then
 * dv, dp, dq, dk); half of that when causal.
 */
#include "op/op_internal.h"

static ms_status attention_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    const ms_value *q = ms__input(graph, node, 0);
    int64_t heads = node->attributes.attention.heads;
    int64_t size = node->attributes.attention.head_size;
    int64_t batch = node->attributes.attention.batch;
    int64_t positions = node->attributes.attention.positions;
    if (q->rank != 2 || q->dims[0] != batch * positions) {
        return ms__shape_error(node, "q does not have batch x positions rows");
    }
    ms__set_shape(&outputs[0], q->dtype, 2, q->dims[0], heads * size);
    outputs[1].dtype = ms__wide_type(q->dtype);
    outputs[1].rank = 3;
    outputs[1].dims[0] = batch;
    outputs[1].dims[1] = heads;
    outputs[1].dims[2] = positions;
    return MS_OK;
}

static double attention_pair_flops(const ms_node *node) {
    double flops = 2.0 * (double)node->attributes.attention.batch *
                   (double)node->attributes.attention.heads *
                   (double)node->attributes.attention.positions *
                   (double)node->attributes.attention.positions *
                   (double)node->attributes.attention.head_size;
    return node->attributes.attention.causal ? flops / 2 : flops;
}

static double attention_flops(const ms_graph *graph, const ms_node *node) {
    (void)graph;
    return 2.0 * attention_pair_flops(node);
}

static ms_status attention_gradient(ms_autodiff *autodiff, int32_t node_index) {
    ms_graph *graph = ms_autodiff_graph(autodiff);
    ms_node node = graph->nodes[node_index];
    ms_node gradient = ms_node_of(&ms__op_attention_grad);
    for (int i = 0; i < 4; i++) {
        gradient.inputs[i] = node.inputs[i];
    }
    gradient.inputs[4] = node.outputs[0];
    gradient.inputs[5] = node.outputs[1];
    gradient.inputs[6] = ms_whole(ms_autodiff_gradient(autodiff, node.outputs[0].value));
    gradient.attributes = node.attributes;
    int parts = node.attributes.attention.packed ? 1 : 3;
    for (int i = 0; i < parts; i++) {
        gradient.outputs[i].value = MS_VALUE_NEW;
    }
    MS_TRY(ms_graph_add_node(graph, &gradient));
    int32_t outputs[3];
    for (int i = 0; i < parts; i++) {
        outputs[i] = ms_graph_output(graph, i);
    }
    for (int i = 0; i < parts; i++) {
        MS_TRY(ms_autodiff_contribute(autodiff, node.inputs[i].value, outputs[i]));
    }
    return MS_OK;
}

const ms_op ms__op_attention = {
    .name = "attention",
    .slot = MS_SLOT_ATTENTION,
    .input_count = 4,
    .output_count = 2,
    .infer = attention_infer,
    .flops = attention_flops,
    .gradient = attention_gradient,
};

static ms_status attention_grad_infer(const ms_graph *graph, const ms_node *node,
                                      ms_value *outputs) {
    for (int i = 0; i < 3; i++) {
        if (node->inputs[i].value >= 0) {
            ms__set_like(&outputs[i], graph, node->inputs[i]);
        }
    }
    return MS_OK;
}

static double attention_grad_flops(const ms_graph *graph, const ms_node *node) {
    (void)graph;
    return 5.0 * attention_pair_flops(node);
}

const ms_op ms__op_attention_grad = {
    .name = "attention_grad",
    .slot = MS_SLOT_ATTENTION_GRAD,
    .input_count = 7,
    .output_count = 3,
    .infer = attention_grad_infer,
    .flops = attention_grad_flops,
};

ms_status ms_op_attention(ms_graph *graph, int32_t q, int32_t k, int32_t v, int32_t samples,
                          const ms_attributes *attributes, int32_t *out) {
    ms_node node = ms_node_of(&ms__op_attention);
    node.inputs[0] = ms_whole(q);
    node.inputs[1] = ms_whole(k);
    node.inputs[2] = ms_whole(v);
    node.inputs[3] = ms_whole(samples);
    node.outputs[0].value = MS_VALUE_NEW;
    node.outputs[1].value = MS_VALUE_NEW;
    node.attributes = *attributes;
    MS_TRY(ms_graph_add_node(graph, &node));
    *out = ms_graph_output(graph, 0);
    return MS_OK;
}

static ms_status attention_cached_infer(const ms_graph *graph, const ms_node *node,
                                        ms_value *outputs) {
    const ms_value *q = ms__input(graph, node, 0);
    ms__set_shape(&outputs[0], q->dtype, 2, q->dims[0],
                  node->attributes.attention.heads * node->attributes.attention.head_size);
    return MS_OK;
}

const ms_op ms__op_attention_cached = {
    .name = "attention_cached",
    .slot = MS_SLOT_ATTENTION_CACHED,
    .input_count = 5,
    .output_count = 1,
    .infer = attention_cached_infer,
    .flops = attention_flops,
};

ms_status ms_op_attention_cached(ms_graph *graph, int32_t q, int32_t k, int32_t v, int32_t cache_k,
                                 int32_t cache_v, const ms_attributes *attributes, int32_t *out) {
    ms_node node = ms_node_of(&ms__op_attention_cached);
    node.inputs[0] = ms_whole(q);
    node.inputs[1] = ms_whole(k);
    node.inputs[2] = ms_whole(v);
    node.inputs[3] = ms_whole(cache_k);
    node.inputs[4] = ms_whole(cache_v);
    node.outputs[0].value = MS_VALUE_NEW;
    node.attributes = *attributes;
    MS_TRY(ms_graph_add_node(graph, &node));
    *out = ms_graph_output(graph, 0);
    return MS_OK;
}
