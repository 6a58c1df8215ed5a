/*
 * model.h - architectures as graphs: what the user's `model` section or a Hugging Face config.json says,
 * the logical parameters with their Hugging Face names and shard rules, and one pipeline chunk as a graph.
 *
 * ms_model_spec is plain data, everything resolved. Parameters are listed once for the whole model; a
 * chunk's graph refers to them by index. Thread-safe.
 */
#ifndef MS_MODEL_MODEL_H
#define MS_MODEL_MODEL_H

#include "base/config.h"
#include "graph/graph.h"
#include "layout/layout.h"

typedef enum ms_model_family {
    MS_FAMILY_GPT2,
    MS_FAMILY_LLAMA,
    MS_FAMILY_QWEN3,
    MS_FAMILY_COUNT
} ms_model_family;

/* Section `model` of the config. */
typedef struct ms_model_config {
    int family;
    const char *from; /* Hugging Face directory: config.json, and weights to start from */
    int64_t layers, hidden, heads, kv_heads, head_size, ffn, sequence, vocabulary;
    bool bias;
    double dropout;
    int tied_embeddings; /* auto, true, false */
    int activation;      /* auto, gelu, gelu_tanh, silu, relu */
    double norm_eps, rope_theta, init_std;
} ms_model_config;
extern const ms_config_section ms_model_section;

typedef struct ms_model_spec {
    ms_model_family family;
    int64_t layers, hidden, heads, kv_heads, head_size, ffn, positions, vocabulary;
    bool bias;          /* gpt2: all linears and norms */
    bool attention_bias; /* llama family: q, k, v (and o) */
    double dropout, attention_dropout, embedding_dropout;
    bool tied;
    ms_activation_function activation;
    double norm_epsilon, rope_theta, init_std;
    ms_rope_scaling rope_scaling;
    int64_t bos_id, eos_id; /* -1: none */
} ms_model_spec;

/* From the config; vocabulary_size is the tokenizer's, used where model.vocabulary is auto. */
ms_status ms_model_spec_from_config(const ms_model_config *config, int64_t vocabulary_size,
                                    ms_model_spec *spec);
/* From the text of a config.json; name is for messages. */
ms_status ms_model_spec_from_json(const char *text, size_t length, const char *name,
                                  ms_model_spec *spec);
ms_status ms_model_spec_from_directory(const char *directory, ms_model_spec *spec);
/* The config.json that Hugging Face reads. */
ms_status ms_model_spec_to_json(const ms_model_spec *spec, ms_text *text);
/* Divisibility and ranges, each with the arithmetic. */
ms_status ms_model_spec_check(const ms_model_spec *spec);

typedef struct ms_parameter {
    ms_tensor tensor;
    ms_shard_rule rule;
    int32_t layer;    /* 0 .. layers - 1, or one of the roles below */
    /* Its gradient on a tensor rank is a part, to be summed over the axis: always (heads' norms, biases
     * that one rank adds), or only when residuals are sharded along the sequence. */
    bool partial, partial_sequence;
} ms_parameter;
#define MS_LAYER_EMBEDDING (-1)
#define MS_LAYER_HEAD (-2)

typedef struct ms_model {
    ms_model_spec spec;
    ms_parameter *parameters;
    int32_t parameter_count;
    int32_t embedding;  /* index of the token embedding */
    int32_t head;       /* index of the output head: the embedding itself when tied */
} ms_model;

ms_status ms_model_create(const ms_model_spec *spec, ms_model **model);
void ms_model_destroy(ms_model *model);
int64_t ms_model_parameter_elements(const ms_model *model);
/*
 * Floating-point operations per token of a training step by the usual formula (PaLM, appendix B):
 * 6 x matmul parameters + 12 x layers x heads x head_size x sequence (no discount for causal masks).
 */
double ms_model_flops_per_token(const ms_model *model, int64_t sequence);

/* One pipeline part: layers [first, first + count), with the embedding or the head or both. */
typedef struct ms_model_part {
    int64_t first_layer, layer_count;
    bool embedding, head;
} ms_model_part;
bool ms_model_part_has(const ms_model *model, const ms_model_part *part, int32_t parameter);

typedef enum ms_model_mode { MS_MODE_TRAIN, MS_MODE_EVALUATE, MS_MODE_GENERATE } ms_model_mode;

typedef struct ms_model_request {
    ms_model_part part;
    ms_model_mode mode;
    int64_t batch, sequence; /* GENERATE: batch 1; sequence = new rows at once */
    int64_t cache_positions; /* GENERATE */
    ms_dtype compute;        /* fp64, fp32, bf16 */
    int64_t tensor_size, tensor_index;
    bool sequence_parallel;
    uint64_t seed;           /* dropout */
} ms_model_request;

/* The forward graph of a part, in training with the fused loss; not yet differentiated. */
ms_status ms_model_build(const ms_model *model, const ms_model_request *request, ms_graph **graph);
/* The shard of a parameter for one tensor rank. */
ms_status ms_model_shard(const ms_model *model, int32_t parameter, int64_t tensor_size,
                         int64_t tensor_index, ms_shard *shard);

#endif
