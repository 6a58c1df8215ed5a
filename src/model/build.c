/*
 * build.c - one pipeline part as a graph, in what the families share: inputs, embedding exchange, residual
 * norms, attention, the way in and out of tensor-parallel regions, loss or logits.
 *
 * Main path: ms_model_build <- program/. The layers themselves are in gpt2.c and llama.c, and read like the
 * architecture. Tensor parallelism is written here once, as operators with known transposes: with
 * sequence parallelism residual rows are sharded and regions are entered by all-gather and left by
 * reduce-scatter; without, by copy and all-reduce.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

#define LOGITS_CHUNK_BYTES ((int64_t)64 << 20) /* of one chunk's logits: rows x vocabulary live once */

ms_status ms__parameter(ms_builder *builder, const char *name, int32_t *value) {
    const ms_model *model = builder->model;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        if (strcmp(model->parameters[i].tensor.name, name) != 0) {
            continue;
        }
        ms_shard shard;
        MS_TRY(ms_model_shard(model, i, builder->request->tensor_size,
                              builder->request->tensor_index, &shard));
        ms_dtype compute = builder->request->compute;
        bool wide = shard.rank == 1 && compute == MS_BF16;
        return ms_graph_parameter(builder->graph, i, wide ? MS_F32 : compute, shard.rank,
                                  shard.local_dims, value);
    }
    *value = MS_VALUE_NONE;
    return MS_OK;
}

ms_status ms__layer_parameter(ms_builder *builder, int64_t layer, const char *name,
                              int32_t *value) {
    char full[MS_TENSOR_NAME_BYTES];
    bool gpt2 = builder->model->spec.family == MS_FAMILY_GPT2;
    snprintf(full, sizeof full, "%s.%" PRId64 ".%s", gpt2 ? "transformer.h" : "model.layers",
             layer, name);
    return ms__parameter(builder, full, value);
}

ms_status ms__residual_norm(ms_builder *builder, int32_t weight, int32_t bias, bool rms,
                            int32_t *y) {
    ms_op_norm_result result;
    MS_TRY(ms_op_norm(builder->graph, builder->x, builder->delta, weight, bias, rms,
                      builder->model->spec.norm_epsilon, &result));
    builder->x = result.sum;
    builder->delta = MS_VALUE_NONE;
    *y = result.y;
    return MS_OK;
}

ms_status ms__enter_parallel(ms_builder *builder, int32_t x, int32_t *y) {
    return builder->request->sequence_parallel
               ? ms_op_all_gather(builder->graph, x, MS_AXIS_TENSOR, y)
               : ms_op_copy(builder->graph, x, MS_AXIS_TENSOR, y);
}

ms_status ms__leave_parallel(ms_builder *builder, int32_t x, int32_t *y) {
    return builder->request->sequence_parallel
               ? ms_op_reduce_scatter(builder->graph, x, MS_AXIS_TENSOR, y)
               : ms_op_all_reduce(builder->graph, x, MS_AXIS_TENSOR, y);
}

ms_status ms__dropout(ms_builder *builder, int32_t x, double probability, const char *name,
                      int32_t *y) {
    if (builder->request->mode != MS_MODE_TRAIN || probability <= 0) {
        *y = x;
        return MS_OK;
    }
    char stream[64];
    snprintf(stream, sizeof stream, "dropout:%d:%s", builder->graph->layer, name);
    ms_attributes attributes = {
        .dropout = {.probability = probability,
                    .key = ms_random_key_make(builder->request->seed, stream),
                    .positions = builder->request->sequence,
                    .row_first = builder->row_first,
                    .columns_global = builder->model->spec.hidden}};
    return ms_op_dropout(builder->graph, x, builder->samples, &attributes, y);
}

static ms_status add_cache(ms_builder *builder, int64_t columns, int32_t *cache) {
    ms_value value = {.kind = MS_VALUE_STATE, .dtype = builder->request->compute, .rank = 2,
                      .dims = {builder->request->cache_positions, columns}, .parameter = -1,
                      .layer = builder->graph->layer, .producer = -1, .alias = -1};
    return ms_graph_add_value(builder->graph, &value, cache);
}

ms_status ms__attention(ms_builder *builder, int64_t layer, int32_t q, int32_t k, int32_t v,
                        int32_t *out) {
    const ms_model_spec *spec = &builder->model->spec;
    const ms_model_request *request = builder->request;
    ms_segment heads = ms_split_even(spec->heads, request->tensor_index, request->tensor_size);
    ms_segment groups = ms_split_even(spec->kv_heads, request->tensor_index, request->tensor_size);
    char stream[64];
    snprintf(stream, sizeof stream, "dropout:%" PRId64 ":attention", layer);
    bool train = request->mode == MS_MODE_TRAIN;
    ms_attributes attributes = {
        .attention = {.packed = k == MS_VALUE_NONE,
                      .causal = true,
                      .batch = request->batch,
                      .positions = request->sequence,
                      .heads = heads.count,
                      .kv_heads = groups.count,
                      .head_size = spec->head_size,
                      .heads_global = spec->heads,
                      .head_first = heads.start,
                      .dropout = train ? spec->attention_dropout : 0}};
    if (attributes.attention.dropout > 0) { /* else all layers share one kernel */
        attributes.attention.key = ms_random_key_make(request->seed, stream);
    }
    if (request->mode != MS_MODE_GENERATE) {
        int32_t samples = attributes.attention.dropout > 0 ? builder->samples : MS_VALUE_NONE;
        return ms_op_attention(builder->graph, q, k, v, samples, &attributes, out);
    }
    int32_t cache_k, cache_v;
    MS_TRY(add_cache(builder, groups.count * spec->head_size, &cache_k));
    MS_TRY(add_cache(builder, groups.count * spec->head_size, &cache_v));
    return ms_op_attention_cached(builder->graph, q, k, v, cache_k, cache_v, &attributes, out);
}

static ms_status add_inputs(ms_builder *builder) {
    const ms_model_request *request = builder->request;
    ms_graph *graph = builder->graph;
    bool train = request->mode == MS_MODE_TRAIN;
    builder->rows = request->batch * request->sequence;
    builder->local_rows = builder->rows;
    if (request->sequence_parallel && request->tensor_size > 1) {
        if (builder->rows % request->tensor_size != 0) {
            return ms_fail(MS_ERR_CONFIG,
                           "train.micro_batch_size %" PRId64 " x model.sequence %" PRId64 " = %" PRId64
                           " rows do not divide among parallel.tensor %" PRId64
                           " ranks; set parallel.sequence_parallel: false or change the batch",
                           request->batch, request->sequence, builder->rows,
                           request->tensor_size);
        }
        builder->local_rows /= request->tensor_size;
        builder->row_first = builder->local_rows * request->tensor_index;
    }
    if (request->part.embedding) {
        MS_TRY(ms_graph_input(graph, MS_INPUT_TOKENS, MS_I32, 1, &builder->rows,
                              &builder->tokens));
    }
    MS_TRY(ms_graph_input(graph, MS_INPUT_POSITIONS, MS_I32, 1, &builder->rows,
                          &builder->positions));
    builder->local_positions = builder->positions;
    if (builder->local_rows != builder->rows) {
        MS_TRY(ms_graph_input(graph, MS_INPUT_POSITIONS, MS_I32, 1, &builder->local_rows,
                              &builder->local_positions));
        graph->values[builder->local_positions].row_first = builder->row_first;
    }
    const ms_model_spec *spec = &builder->model->spec;
    if (train && (spec->dropout > 0 || spec->attention_dropout > 0 || spec->embedding_dropout > 0)) {
        MS_TRY(ms_graph_input(graph, MS_INPUT_SAMPLES, MS_I64, 1, &request->batch,
                              &builder->samples));
    }
    if (request->part.head && request->mode != MS_MODE_GENERATE) {
        const int64_t one = 1;
        MS_TRY(ms_graph_input(graph, MS_INPUT_TARGETS, MS_I32, 1, &builder->rows,
                              &builder->targets));
        MS_TRY(ms_graph_input(graph, MS_INPUT_SCALE, MS_F64, 1, &one, &builder->scale));
    }
    if (!request->part.embedding) {
        int64_t dims[2] = {builder->local_rows, spec->hidden};
        MS_TRY(ms_graph_input(graph, MS_INPUT_FORWARD, request->compute, 2, dims, &builder->x));
    }
    return MS_OK;
}

static ms_status add_loss(ms_builder *builder, int32_t y, int32_t head) {
    const ms_model_request *request = builder->request;
    ms_shard shard;
    MS_TRY(ms_model_shard(builder->model, builder->model->head, request->tensor_size,
                          request->tensor_index, &shard));
    int64_t row_bytes = shard.local_dims[0] * (int64_t)(request->compute == MS_F64 ? 8 : 4);
    int64_t rows = ms_max_i64(32, LOGITS_CHUNK_BYTES / row_bytes / 32 * 32);
    /* Equal chunks: a short last one would run at a fraction of the speed. Whole tiles of rows. */
    int64_t chunks = ms_ceil_div(builder->rows, rows);
    rows = (int64_t)ms_align_up((size_t)ms_ceil_div(builder->rows, chunks), 32);
    ms_op_head_loss_options options = {
        .x = y,
        .w = head,
        .targets = builder->targets,
        .scale = builder->scale,
        .first = shard.dims[0].segments[0].start,
        .chunk_rows = rows,
        .train = request->mode == MS_MODE_TRAIN,
    };
    int32_t loss;
    return ms_op_head_loss(builder->graph, &options, &loss);
}

static ms_status add_head(ms_builder *builder) {
    bool gpt2 = builder->model->spec.family == MS_FAMILY_GPT2;
    ms_graph *graph = builder->graph;
    graph->layer = -1;
    int32_t y, head;
    MS_TRY(gpt2 ? ms__gpt2_final_norm(builder, &y) : ms__llama_final_norm(builder, &y));
    MS_TRY(ms__enter_parallel(builder, y, &y));
    MS_TRY(ms__parameter(builder, builder->model->parameters[builder->model->head].tensor.name,
                         &head));
    if (builder->request->mode != MS_MODE_GENERATE) {
        return add_loss(builder, y, head);
    }
    int32_t logits;
    MS_TRY(ms_op_linear(graph, y, head, MS_VALUE_NONE, true, &logits));
    MS_TRY(ms_op_cast(graph, logits, builder->request->compute == MS_F64 ? MS_F64 : MS_F32,
                      &logits));
    graph->values[logits].output = MS_OUTPUT_LOGITS;
    return MS_OK;
}

/* The residual stream leaves the chunk as one value. */
static ms_status add_border(ms_builder *builder) {
    ms_graph *graph = builder->graph;
    graph->layer = -1;
    if (builder->delta != MS_VALUE_NONE) {
        MS_TRY(ms_op_add(graph, builder->x, builder->delta, &builder->x));
    }
    if (graph->values[builder->x].kind == MS_VALUE_INPUT) {
        return ms_fail(MS_ERR_CONFIG, "a pipeline stage without layers is not supported");
    }
    graph->values[builder->x].output = MS_OUTPUT_FORWARD;
    return MS_OK;
}

static ms_status build_part(ms_builder *builder) {
    bool gpt2 = builder->model->spec.family == MS_FAMILY_GPT2;
    const ms_model_part *part = &builder->request->part;
    MS_TRY(add_inputs(builder));
    if (part->embedding) {
        MS_TRY(gpt2 ? ms__gpt2_embed(builder) : ms__llama_embed(builder));
    }
    for (int64_t layer = part->first_layer; layer < part->first_layer + part->layer_count;
         layer++) {
        builder->graph->layer = (int32_t)layer;
        MS_TRY(gpt2 ? ms__gpt2_layer(builder, layer) : ms__llama_layer(builder, layer));
    }
    return part->head ? add_head(builder) : add_border(builder);
}

ms_status ms_model_build(const ms_model *model, const ms_model_request *request,
                         ms_graph **graph) {
    if (request->sequence > model->spec.positions) {
        return ms_fail(MS_ERR_CONFIG, "sequence of %" PRId64 " tokens is longer than the model's %" PRId64
                       " positions", request->sequence, model->spec.positions);
    }
    if (model->spec.kv_heads % request->tensor_size != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.tensor %" PRId64 " does not divide the model's %" PRId64
                       " key/value heads; each rank needs whole groups of heads",
                       request->tensor_size, model->spec.kv_heads);
    }
    ms_graph *made;
    MS_TRY(ms_graph_create(model->parameter_count, &made));
    made->axis_size[MS_AXIS_TENSOR] = request->tensor_size;
    made->axis_index[MS_AXIS_TENSOR] = request->tensor_index;
    ms_builder builder = {.model = model, .request = request, .graph = made,
                          .samples = MS_VALUE_NONE, .delta = MS_VALUE_NONE};
    ms_status status = build_part(&builder);
    if (status != MS_OK) {
        ms_graph_destroy(made);
        return status;
    }
    *graph = made;
    return MS_OK;
}
