/*
 * gpt2.c - GPT-2: learned positions, pre-norm layers, GELU, output head tied to the embedding (Radford et
 * al. 2019). Weights [in, out] as in Hugging Face's Conv1D; q|k|v fused in c_attn.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "model/model_internal.h"

static ms_status declare_bias(ms_declaration *declaration, const char *name, int64_t size,
                              ms_parameter **parameter) {
    *parameter = NULL;
    return declaration->model->spec.bias ? ms__declare(declaration, name, 1, size, 0, parameter)
                                         : MS_OK;
}

static ms_status declare_norm(ms_declaration *declaration, const char *weight, const char *bias) {
    ms_parameter *parameter;
    MS_TRY(ms__declare(declaration, weight, 1, declaration->model->spec.hidden, 0, &parameter));
    ms__init_one(parameter);
    parameter->partial_sequence = true;
    MS_TRY(declare_bias(declaration, bias, declaration->model->spec.hidden, &parameter));
    if (parameter != NULL) {
        parameter->partial_sequence = true;
    }
    return MS_OK;
}

static void cut_qkv(ms_parameter *parameter, int dim, int64_t hidden, int64_t head_size) {
    parameter->rule.split_dim = dim;
    parameter->rule.part_count = 3;
    for (int i = 0; i < 3; i++) {
        parameter->rule.parts[i] = hidden;
        parameter->rule.granules[i] = head_size;
    }
}

static ms_status declare_attention(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    int64_t C = spec->hidden;
    ms_parameter *p;
    MS_TRY(ms__declare(declaration, "attn.c_attn.weight", 2, C, 3 * C, &p));
    cut_qkv(p, 1, C, spec->head_size);
    MS_TRY(declare_bias(declaration, "attn.c_attn.bias", 3 * C, &p));
    if (p != NULL) {
        cut_qkv(p, 0, C, spec->head_size);
    }
    MS_TRY(ms__declare(declaration, "attn.c_proj.weight", 2, C, C, &p));
    ms__cut(p, 0, spec->head_size);
    p->tensor.init_std = spec->init_std / sqrt(2.0 * (double)spec->layers);
    MS_TRY(declare_bias(declaration, "attn.c_proj.bias", C, &p));
    if (p != NULL) {
        p->partial = true;
    }
    return MS_OK;
}

static ms_status declare_mlp(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    ms_parameter *p;
    MS_TRY(ms__declare(declaration, "mlp.c_fc.weight", 2, spec->hidden, spec->ffn, &p));
    ms__cut(p, 1, 1);
    MS_TRY(declare_bias(declaration, "mlp.c_fc.bias", spec->ffn, &p));
    if (p != NULL) {
        ms__cut(p, 0, 1);
    }
    MS_TRY(ms__declare(declaration, "mlp.c_proj.weight", 2, spec->ffn, spec->hidden, &p));
    ms__cut(p, 0, 1);
    p->tensor.init_std = spec->init_std / sqrt(2.0 * (double)spec->layers);
    MS_TRY(declare_bias(declaration, "mlp.c_proj.bias", spec->hidden, &p));
    if (p != NULL) {
        p->partial = true;
    }
    return MS_OK;
}

ms_status ms__gpt2_declare(ms_declaration *declaration) {
    const ms_model_spec *spec = &declaration->model->spec;
    ms_parameter *p;
    declaration->layer = MS_LAYER_EMBEDDING;
    MS_TRY(ms__declare(declaration, "transformer.wte.weight", 2, spec->vocabulary, spec->hidden,
                       &p));
    ms__cut(p, 0, 1);
    MS_TRY(ms__declare(declaration, "transformer.wpe.weight", 2, spec->positions, spec->hidden,
                       &p));
    p->partial_sequence = true;
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        declaration->layer = (int32_t)layer;
        snprintf(declaration->prefix, sizeof declaration->prefix, "transformer.h.%" PRId64 ".",
                 layer);
        MS_TRY(declare_norm(declaration, "ln_1.weight", "ln_1.bias"));
        MS_TRY(declare_attention(declaration));
        MS_TRY(declare_norm(declaration, "ln_2.weight", "ln_2.bias"));
        MS_TRY(declare_mlp(declaration));
    }
    declaration->layer = MS_LAYER_HEAD;
    declaration->prefix[0] = '\0';
    MS_TRY(declare_norm(declaration, "transformer.ln_f.weight", "transformer.ln_f.bias"));
    if (!spec->tied) {
        MS_TRY(ms__declare(declaration, "lm_head.weight", 2, spec->vocabulary, spec->hidden, &p));
        ms__cut(p, 0, 1);
    }
    return MS_OK;
}

ms_status ms__gpt2_embed(ms_builder *builder) {
    ms_graph *graph = builder->graph;
    int32_t wte, wpe, x;
    ms_shard shard;
    MS_TRY(ms_model_shard(builder->model, builder->model->embedding, builder->request->tensor_size,
                          builder->request->tensor_index, &shard));
    MS_TRY(ms__parameter(builder, "transformer.wte.weight", &wte));
    MS_TRY(ms__parameter(builder, "transformer.wpe.weight", &wpe));
    MS_TRY(ms_op_embedding(graph, builder->tokens, wte, shard.dims[0].segments[0].start,
                           MS_VALUE_NONE, &x));
    MS_TRY(ms__leave_parallel(builder, x, &x));
    MS_TRY(ms_op_embedding(graph, builder->local_positions, wpe, 0, x, &x));
    return ms__dropout(builder, x, builder->model->spec.embedding_dropout, "embedding",
                       &builder->x);
}

/* A linear whose inputs are cut over the tensor ranks: one of them adds the bias. */
static ms_status row_linear(ms_builder *builder, int64_t layer, int32_t x, const char *weight,
                            const char *bias, const char *dropout_name) {
    int32_t w, b, y;
    MS_TRY(ms__layer_parameter(builder, layer, weight, &w));
    MS_TRY(ms__layer_parameter(builder, layer, bias, &b));
    MS_TRY(ms_op_linear(builder->graph, x, w,
                        builder->request->tensor_index == 0 ? b : MS_VALUE_NONE, false, &y));
    MS_TRY(ms__leave_parallel(builder, y, &y));
    return ms__dropout(builder, y, builder->model->spec.dropout, dropout_name, &builder->delta);
}

static ms_status column_linear(ms_builder *builder, int64_t layer, int32_t x, const char *weight,
                               const char *bias, int32_t *y) {
    int32_t w, b;
    MS_TRY(ms__layer_parameter(builder, layer, weight, &w));
    MS_TRY(ms__layer_parameter(builder, layer, bias, &b));
    return ms_op_linear(builder->graph, x, w, b, false, y);
}

static ms_status layer_norm(ms_builder *builder, int64_t layer, const char *weight,
                            const char *bias, int32_t *y) {
    int32_t w, b;
    MS_TRY(ms__layer_parameter(builder, layer, weight, &w));
    MS_TRY(ms__layer_parameter(builder, layer, bias, &b));
    return ms__residual_norm(builder, w, b, false, y);
}

ms_status ms__gpt2_layer(ms_builder *builder, int64_t layer) {
    ms_graph *graph = builder->graph;
    int32_t y, qkv, attended, wide;
    MS_TRY(layer_norm(builder, layer, "ln_1.weight", "ln_1.bias", &y));
    graph->values[builder->x].keep = true; /* the layer's input */
    MS_TRY(ms__enter_parallel(builder, y, &y));
    MS_TRY(column_linear(builder, layer, y, "attn.c_attn.weight", "attn.c_attn.bias", &qkv));
    MS_TRY(ms__attention(builder, layer, qkv, MS_VALUE_NONE, MS_VALUE_NONE, &attended));
    MS_TRY(row_linear(builder, layer, attended, "attn.c_proj.weight", "attn.c_proj.bias",
                      "attn.residual"));
    MS_TRY(layer_norm(builder, layer, "ln_2.weight", "ln_2.bias", &y));
    MS_TRY(ms__enter_parallel(builder, y, &y));
    MS_TRY(column_linear(builder, layer, y, "mlp.c_fc.weight", "mlp.c_fc.bias", &wide));
    MS_TRY(ms_op_activation(graph, wide, MS_VALUE_NONE, builder->model->spec.activation, &wide));
    return row_linear(builder, layer, wide, "mlp.c_proj.weight", "mlp.c_proj.bias",
                      "mlp.residual");
}

ms_status ms__gpt2_final_norm(ms_builder *builder, int32_t *y) {
    int32_t w, b;
    MS_TRY(ms__parameter(builder, "transformer.ln_f.weight", &w));
    MS_TRY(ms__parameter(builder, "transformer.ln_f.bias", &b));
    return ms__residual_norm(builder, w, b, false, y);
}
