/*
 * llama.c - Llama and Qwen3: rotary positions, RMS norm, SwiGLU, grouped-query attention; Qwen3 also norms
 * each head's q and k (Touvron et al. 2023; Qwen3 technical report 2025). Weights [out, in].
 */
#include <inttypes.h>
#include <stdio.h>

#include "model/model_internal.h"

static ms_status declare_norm(ms_declaration *declaration, const char *name) {
    ms_parameter *p;
    MS_TRY(ms__declare(declaration, name, 1, declaration->model->spec.hidden, 0, &p));
    ms__init_one(p);
    p->partial_sequence = true;
    return MS_OK;
}

static ms_status declare_projection(ms_declaration *declaration, const char *weight,
                                    const char *bias, int64_t out, int64_t granule) {
    const ms_model_spec *spec = &declaration->model->spec;
    ms_parameter *p;
    MS_TRY(ms__declare(declaration, weight, 2, out, spec->hidden, &p));
    ms__cut(p, 0, granule);
    if (spec->attention_bias) {
        MS_TRY(ms__declare(declaration, bias, 1, out, 0, &p));
        ms__cut(p, 0, granule);
    }
    return MS_OK;
}

static ms_status declare_attention(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    int64_t D = spec->head_size;
    ms_parameter *p;
    MS_TRY(declare_projection(declaration, "self_attn.q_proj.weight", "self_attn.q_proj.bias",
                              spec->heads * D, D));
    MS_TRY(declare_projection(declaration, "self_attn.k_proj.weight", "self_attn.k_proj.bias",
                              spec->kv_heads * D, D));
    MS_TRY(declare_projection(declaration, "self_attn.v_proj.weight", "self_attn.v_proj.bias",
                              spec->kv_heads * D, D));
    MS_TRY(ms__declare(declaration, "self_attn.o_proj.weight", 2, spec->hidden, spec->heads * D,
                       &p));
    ms__cut(p, 1, D);
    if (spec->attention_bias) {
        MS_TRY(ms__declare(declaration, "self_attn.o_proj.bias", 1, spec->hidden, 0, &p));
        p->partial = true;
    }
    if (spec->family == MS_FAMILY_QWEN3) {
        const char *const names[] = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"};
        for (int i = 0; i < 2; i++) {
            MS_TRY(ms__declare(declaration, names[i], 1, D, 0, &p));
            ms__init_one(p);
            p->partial = true; /* each tensor rank sees its own heads */
        }
    }
    return MS_OK;
}

static ms_status declare_mlp(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    ms_parameter *p;
    MS_TRY(ms__declare(declaration, "mlp.gate_proj.weight", 2, spec->ffn, spec->hidden, &p));
    ms__cut(p, 0, 1);
    MS_TRY(ms__declare(declaration, "mlp.up_proj.weight", 2, spec->ffn, spec->hidden, &p));
    ms__cut(p, 0, 1);
    MS_TRY(ms__declare(declaration, "mlp.down_proj.weight", 2, spec->hidden, spec->ffn, &p));
    ms__cut(p, 1, 1);
    return MS_OK;
}

ms_status ms__llama_declare(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    ms_parameter *p;
    declaration->layer = MS_LAYER_EMBEDDING;
    MS_TRY(ms__declare(declaration, "model.embed_tokens.weight", 2, spec->vocabulary,
                       spec->hidden, &p));
    ms__cut(p, 0, 1);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        declaration->layer = (int32_t)layer;
        snprintf(declaration->prefix, sizeof declaration->prefix, "model.layers.%" PRId64 ".",
                 layer);
        MS_TRY(declare_norm(declaration, "input_layernorm.weight"));
        MS_TRY(declare_attention(declaration));
        MS_TRY(declare_norm(declaration, "post_attention_layernorm.weight"));
        MS_TRY(declare_mlp(declaration));
    }
    declaration->layer = MS_LAYER_HEAD;
    declaration->prefix[0] = '\0';
    MS_TRY(declare_norm(declaration, "model.norm.weight"));
    if (!spec->tied) {
        MS_TRY(ms__declare(declaration, "lm_head.weight", 2, spec->vocabulary, spec->hidden, &p));
        ms__cut(p, 0, 1);
    }
    return MS_OK;
}

ms_status ms__llama_embed(ms_builder *builder) {
    int32_t table, x;
    ms_shard shard;
    MS_TRY(ms_model_shard(builder->model, builder->model->embedding, builder->request->tensor_size,
                          builder->request->tensor_index, &shard));
    MS_TRY(ms__parameter(builder, "model.embed_tokens.weight", &table));
    MS_TRY(ms_op_embedding(builder->graph, builder->tokens, table,
                           shard.dims[0].segments[0].start, MS_VALUE_NONE, &x));
    MS_TRY(ms__leave_parallel(builder, x, &x));
    return ms__dropout(builder, x, builder->model->spec.embedding_dropout, "embedding",
                       &builder->x);
}

static ms_status project(ms_builder *builder, int64_t layer, int32_t x, const char *name,
                         int32_t *y) {
    char weight[64], bias[64];
    int32_t w, b;
    snprintf(weight, sizeof weight, "self_attn.%s_proj.weight", name);
    snprintf(bias, sizeof bias, "self_attn.%s_proj.bias", name);
    MS_TRY(ms__layer_parameter(builder, layer, weight, &w));
    MS_TRY(ms__layer_parameter(builder, layer, bias, &b));
    return ms_op_linear(builder->graph, x, w, b, true, y);
}

/* q or k: projected, normed over each head (Qwen3), rotated. */
static ms_status project_rotated(ms_builder *builder, int64_t layer, int32_t x, const char *name,
                                 int64_t heads, int32_t *y) {
    const ms_model_spec *spec = &builder->model->spec;
    MS_TRY(project(builder, layer, x, name, y));
    char norm[64];
    int32_t weight;
    snprintf(norm, sizeof norm, "self_attn.%s_norm.weight", name);
    MS_TRY(ms__layer_parameter(builder, layer, norm, &weight));
    if (weight != MS_VALUE_NONE) {
        MS_TRY(ms_op_head_norm(builder->graph, *y, weight, spec->head_size, spec->norm_epsilon, y));
    }
    int64_t positions = builder->request->mode == MS_MODE_GENERATE
                            ? builder->request->cache_positions
                            : builder->request->sequence;
    ms_attributes attributes = {.rope = {.heads = heads,
                                         .head_size = spec->head_size,
                                         .position_max = positions,
                                         .theta = spec->rope_theta,
                                         .scaling = spec->rope_scaling}};
    return ms_op_rope(builder->graph, *y, builder->positions, &attributes, y);
}

static ms_status attention_block(ms_builder *builder, int64_t layer, int32_t x) {
    const ms_model_spec *spec = &builder->model->spec;
    const ms_model_request *request = builder->request;
    ms_segment heads = ms_split_even(spec->heads, request->tensor_index, request->tensor_size);
    ms_segment groups = ms_split_even(spec->kv_heads, request->tensor_index, request->tensor_size);
    int32_t q, k, v, attended, w, b, y;
    MS_TRY(project_rotated(builder, layer, x, "q", heads.count, &q));
    MS_TRY(project_rotated(builder, layer, x, "k", groups.count, &k));
    MS_TRY(project(builder, layer, x, "v", &v));
    MS_TRY(ms__attention(builder, layer, q, k, v, &attended));
    MS_TRY(ms__layer_parameter(builder, layer, "self_attn.o_proj.weight", &w));
    MS_TRY(ms__layer_parameter(builder, layer, "self_attn.o_proj.bias", &b));
    MS_TRY(ms_op_linear(builder->graph, attended, w, request->tensor_index == 0 ? b : MS_VALUE_NONE,
                        true, &y));
    MS_TRY(ms__leave_parallel(builder, y, &y));
    return ms__dropout(builder, y, spec->dropout, "attn.residual", &builder->delta);
}

static ms_status mlp_block(ms_builder *builder, int64_t layer, int32_t x) {
    ms_graph *graph = builder->graph;
    int32_t gate, up, down, y;
    MS_TRY(ms__layer_parameter(builder, layer, "mlp.gate_proj.weight", &gate));
    MS_TRY(ms__layer_parameter(builder, layer, "mlp.up_proj.weight", &up));
    MS_TRY(ms__layer_parameter(builder, layer, "mlp.down_proj.weight", &down));
    MS_TRY(ms_op_linear(graph, x, gate, MS_VALUE_NONE, true, &gate));
    MS_TRY(ms_op_linear(graph, x, up, MS_VALUE_NONE, true, &up));
    MS_TRY(ms_op_activation(graph, gate, up, builder->model->spec.activation, &y));
    MS_TRY(ms_op_linear(graph, y, down, MS_VALUE_NONE, true, &y));
    MS_TRY(ms__leave_parallel(builder, y, &y));
    return ms__dropout(builder, y, builder->model->spec.dropout, "mlp.residual", &builder->delta);
}

ms_status ms__llama_layer(ms_builder *builder, int64_t layer) {
    int32_t weight, y;
    MS_TRY(ms__layer_parameter(builder, layer, "input_layernorm.weight", &weight));
    MS_TRY(ms__residual_norm(builder, weight, MS_VALUE_NONE, true, &y));
    builder->graph->values[builder->x].keep = true; /* the layer's input */
    MS_TRY(ms__enter_parallel(builder, y, &y));
    MS_TRY(attention_block(builder, layer, y));
    MS_TRY(ms__layer_parameter(builder, layer, "post_attention_layernorm.weight", &weight));
    MS_TRY(ms__residual_norm(builder, weight, MS_VALUE_NONE, true, &y));
    MS_TRY(ms__enter_parallel(builder, y, &y));
    return mlp_block(builder, layer, y);
}

ms_status ms__llama_final_norm(ms_builder *builder, int32_t *y) {
    int32_t weight;
    MS_TRY(ms__parameter(builder, "model.norm.weight", &weight));
    return ms__residual_norm(builder, weight, MS_VALUE_NONE, true, y);
}
