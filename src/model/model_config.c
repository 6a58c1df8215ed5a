/*
 * model_config.c - section `model`: keys, defaults that depend on the family, and checks.
 */
#include <inttypes.h>

#include "model/model.h"

#define FIELD(name) offsetof(ms_model_config, name)

static const char *const families[] = {"gpt2", "llama", "qwen3", NULL};
static const char *const tied_choices[] = {"auto", "true", "false", NULL};
static const char *const activation_choices[] = {"auto", "gelu", "gelu_tanh", "silu", "relu", NULL};

static const ms_key keys[] = {
    {"family", MS_KEY_ENUM, FIELD(family), "gpt2", "", 0, 0, families, false,
     "Architecture: GPT-2 (learned positions, GELU), Llama or Qwen3 (rotary positions, RMS norm, SwiGLU)."},
    {"from", MS_KEY_STRING, FIELD(from), "", "", 0, 0, NULL, false,
     "Hugging Face model directory: its config.json describes the model, its weights are the start; other keys of this section are then ignored."},
    {"layers", MS_KEY_INT, FIELD(layers), "4", "", 1, 100000, NULL, false,
     "Number of transformer layers."},
    {"hidden", MS_KEY_INT, FIELD(hidden), "128", "", 1, 1048576, NULL, false,
     "Width of the residual stream."},
    {"heads", MS_KEY_INT, FIELD(heads), "4", "", 1, 65536, NULL, false,
     "Query heads of attention."},
    {"kv_heads", MS_KEY_INT, FIELD(kv_heads), "auto", "", 1, 65536, NULL, true,
     "Key/value heads; auto: as many as heads."},
    {"head_size", MS_KEY_INT, FIELD(head_size), "auto", "", 1, 4096, NULL, true,
     "Elements of one head; auto: hidden / heads."},
    {"ffn", MS_KEY_INT, FIELD(ffn), "auto", "", 1, 16777216, NULL, true,
     "Width of the feed-forward layer; auto: 4 x hidden for gpt2, 8/3 x hidden rounded up to a multiple of 64 otherwise."},
    {"sequence", MS_KEY_INT, FIELD(sequence), "64", "tokens", 1, 16777216, NULL, false,
     "Tokens of one training sequence, and the positions the model is made for."},
    {"vocabulary", MS_KEY_INT, FIELD(vocabulary), "auto", "", 2, 16777216, NULL, true,
     "Vocabulary size; auto: the tokenizer's."},
    {"bias", MS_KEY_BOOL, FIELD(bias), "false", "", 0, 0, NULL, false,
     "Biases in gpt2's linear layers and norms."},
    {"dropout", MS_KEY_REAL, FIELD(dropout), "0.0", "", 0, 0.99, NULL, false,
     "Dropout probability of embeddings, attention probabilities and residual branches."},
    {"tied_embeddings", MS_KEY_ENUM, FIELD(tied_embeddings), "auto", "", 0, 0, tied_choices, false,
     "Whether the output head is the token embedding; auto: true for gpt2, false otherwise."},
    {"activation", MS_KEY_ENUM, FIELD(activation), "auto", "", 0, 0, activation_choices, false,
     "Activation function; auto: gelu_tanh for gpt2, silu otherwise."},
    {"norm_eps", MS_KEY_REAL, FIELD(norm_eps), "1e-5", "", 0, 1, NULL, false,
     "Added to the variance in norms."},
    {"rope_theta", MS_KEY_REAL, FIELD(rope_theta), "10000", "", 1, 1e12, NULL, false,
     "Base of the rotary frequencies."},
    {"init_std", MS_KEY_REAL, FIELD(init_std), "0.02", "", 0, 10, NULL, false,
     "Standard deviation of initial weights; gpt2 divides that of residual projections by sqrt(2 x layers)."},
};

const ms_config_section ms_model_section = {
    .name = "model",
    .doc = "The model: its architecture, or the directory it comes from.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_model_config),
};

ms_status ms_model_spec_from_config(const ms_model_config *config, int64_t vocabulary_size,
                                    ms_model_spec *spec) {
    if (config->from != NULL) {
        return ms_model_spec_from_directory(config->from, spec);
    }
    ms_model_spec made = {
        .family = (ms_model_family)config->family,
        .layers = config->layers,
        .hidden = config->hidden,
        .heads = config->heads,
        .kv_heads = config->kv_heads == MS_AUTO ? config->heads : config->kv_heads,
        .positions = config->sequence,
        .vocabulary = config->vocabulary == MS_AUTO ? vocabulary_size : config->vocabulary,
        .norm_epsilon = config->norm_eps,
        .rope_theta = config->rope_theta,
        .init_std = config->init_std,
        .rope_scaling = {.factor = 1},
        .dropout = config->dropout,
        .attention_dropout = config->dropout,
        .embedding_dropout = config->dropout,
        .bos_id = -1,
        .eos_id = -1,
    };
    bool gpt2 = made.family == MS_FAMILY_GPT2;
    made.bias = gpt2 && config->bias;
    made.attention_bias = !gpt2 && config->bias;
    made.tied = config->tied_embeddings == 0 ? gpt2 : config->tied_embeddings == 1;
    if (config->head_size == MS_AUTO && made.hidden % made.heads != 0) {
        return ms_fail(MS_ERR_CONFIG, "model.hidden %" PRId64 " is not a multiple of model.heads %" PRId64
                       "; set model.head_size or change one of them", made.hidden, made.heads);
    }
    made.head_size = config->head_size == MS_AUTO ? made.hidden / made.heads : config->head_size;
    made.ffn = config->ffn != MS_AUTO ? config->ffn
               : gpt2                 ? 4 * made.hidden
                                      : ms_ceil_div(8 * made.hidden, 3 * 64) * 64;
    static const ms_activation_function functions[] = {MS_GELU_TANH, MS_GELU_ERF, MS_GELU_TANH,
                                                       MS_SILU, MS_RELU};
    made.activation = config->activation == 0 ? (gpt2 ? MS_GELU_TANH : MS_SILU)
                                              : functions[config->activation];
    MS_TRY(ms_model_spec_check(&made));
    *spec = made;
    return MS_OK;
}

ms_status ms_model_spec_check(const ms_model_spec *spec) {
    if (spec->layers < 1 || spec->hidden < 1 || spec->heads < 1 || spec->kv_heads < 1 ||
        spec->head_size < 1 || spec->ffn < 1 || spec->positions < 1 || spec->vocabulary < 2) {
        return ms_fail(MS_ERR_CONFIG, "model: layers %" PRId64 ", hidden %" PRId64 ", heads %" PRId64
                       ", kv_heads %" PRId64 ", ffn %" PRId64 ", sequence %" PRId64
                       " and vocabulary %" PRId64 " must all be positive", spec->layers, spec->hidden,
                       spec->heads, spec->kv_heads, spec->ffn, spec->positions, spec->vocabulary);
    }
    if (spec->heads % spec->kv_heads != 0) {
        return ms_fail(MS_ERR_CONFIG, "model.heads %" PRId64 " is not a multiple of model.kv_heads %" PRId64,
                       spec->heads, spec->kv_heads);
    }
    if (spec->family != MS_FAMILY_GPT2 && spec->head_size % 2 != 0) {
        return ms_fail(MS_ERR_CONFIG, "rotary embedding rotates pairs: head size %" PRId64 " is odd",
                       spec->head_size);
    }
    if (spec->family == MS_FAMILY_GPT2 &&
        (spec->heads * spec->head_size != spec->hidden || spec->kv_heads != spec->heads)) {
        return ms_fail(MS_ERR_CONFIG, "gpt2: heads x head_size = %" PRId64 " must be hidden %" PRId64
                       " and kv_heads must be heads", spec->heads * spec->head_size, spec->hidden);
    }
    return MS_OK;
}
