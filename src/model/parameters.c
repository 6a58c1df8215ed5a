/*
 * parameters.c - the logical parameters of a model, listed once.
 *
 * Names, shapes and layouts are Hugging Face's, so a checkpoint needs no renaming. Each parameter's shard
 * rule stands beside it; fused parts are declared once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

ms_status ms__declare(ms_declaration *declaration, const char *name, int rank, int64_t d0,
                      int64_t d1, ms_parameter **parameter) {
    ms_model *model = declaration->model;
    MS_TRY(ms_array_reserve((void **)&model->parameters, &declaration->capacity,
                            (size_t)model->parameter_count + 1, sizeof *model->parameters,
                            MS_MEMORY_PROCESS));
    ms_parameter *made = &model->parameters[model->parameter_count++];
    *made = (ms_parameter){.layer = declaration->layer,
                           .rule = {.axis = MS_AXIS_TENSOR, .split_dim = -1}};
    int written = snprintf(made->tensor.name, sizeof made->tensor.name, "%s%s",
                           declaration->prefix, name);
    MS_CHECK(written > 0 && (size_t)written < sizeof made->tensor.name);
    made->tensor.rank = rank;
    made->tensor.dims[0] = d0;
    made->tensor.dims[1] = d1;
    made->tensor.initializer = rank > 1 ? MS_INIT_NORMAL : MS_INIT_ZERO;
    made->tensor.init_std = model->spec.init_std;
    made->tensor.decay = rank > 1;
    *parameter = made;
    return MS_OK;
}

void ms__cut(ms_parameter *parameter, int dim, int64_t granule) {
    parameter->rule.split_dim = dim;
    parameter->rule.part_count = 1;
    parameter->rule.parts[0] = parameter->tensor.dims[dim];
    parameter->rule.granules[0] = granule;
}

void ms__init_one(ms_parameter *parameter) { parameter->tensor.initializer = MS_INIT_ONE; }

static int32_t find(const ms_model *model, const char *name) {
    for (int32_t i = 0; i < model->parameter_count; i++) {
        if (strcmp(model->parameters[i].tensor.name, name) == 0) {
            return i;
        }
    }
    return -1;
}

ms_status ms_model_create(const ms_model_spec *spec, ms_model **model) {
    MS_TRY(ms_model_spec_check(spec));
    ms_model *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->spec = *spec;
    ms_declaration declaration = {.model = made};
    bool gpt2 = spec->family == MS_FAMILY_GPT2;
    ms_status status = gpt2 ? ms__gpt2_declare(&declaration) : ms__llama_declare(&declaration);
    if (status != MS_OK) {
        ms_model_destroy(made);
        return status;
    }
    made->embedding = find(made, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    made->head = spec->tied ? made->embedding : find(made, "lm_head.weight");
    *model = made;
    return MS_OK;
}

void ms_model_destroy(ms_model *model) {
    if (model != NULL) {
        ms_free(model->parameters);
        ms_free(model);
    }
}

int64_t ms_model_parameter_elements(const ms_model *model) {
    int64_t elements = 0;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        elements += ms_tensor_elements(&model->parameters[i].tensor);
    }
    return elements;
}

double ms_model_flops_per_token(const ms_model *model, int64_t sequence) {
    double matmul = 0;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        const ms_parameter *parameter = &model->parameters[i];
        bool lookup_only = (i == model->embedding && !model->spec.tied) ||
                           (parameter->layer == MS_LAYER_EMBEDDING && i != model->embedding);
        if (parameter->tensor.rank == 2 && !lookup_only) {
            matmul += (double)ms_tensor_elements(&parameter->tensor);
        }
    }
    const ms_model_spec *spec = &model->spec;
    return 6 * matmul + 12 * (double)spec->layers * (double)spec->heads *
                            (double)spec->head_size * (double)sequence;
}

bool ms_model_part_has(const ms_model *model, const ms_model_part *part, int32_t parameter) {
    if (part->head && parameter == model->head) {
        return true;
    }
    int32_t layer = model->parameters[parameter].layer;
    if (layer == MS_LAYER_EMBEDDING) {
        return part->embedding;
    }
    if (layer == MS_LAYER_HEAD) {
        return part->head;
    }
    return layer >= part->first_layer && layer < part->first_layer + part->layer_count;
}

ms_status ms_model_shard(const ms_model *model, int32_t parameter, int64_t tensor_size,
                         int64_t tensor_index, ms_shard *shard) {
    const ms_parameter *declared = &model->parameters[parameter];
    return ms_shard_make(&declared->tensor, &declared->rule, tensor_index, tensor_size, shard);
}
