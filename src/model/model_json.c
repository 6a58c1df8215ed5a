/*
 * model_json.c - Hugging Face's config.json in and out, for gpt2, llama and qwen3. Facts: the
 * configuration classes of these models in the transformers library.
 *
 * A key that changes what is computed is read or refused, never passed over.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "model/model.h"

#define SIZE_MAX_JSON ((int64_t)1 << 40)

static ms_status read_size(const ms_json *json, const char *key, int64_t *value) {
    return ms_json_need_int(json, key, 1, SIZE_MAX_JSON, value);
}

static ms_status read_activation(const ms_json *json, const char *key, const char *fallback,
                                 ms_activation_function *function) {
    static const struct {
        const char *name;
        ms_activation_function function;
    } known[] = {{"gelu_new", MS_GELU_TANH}, {"gelu_pytorch_tanh", MS_GELU_TANH},
                 {"gelu_fast", MS_GELU_TANH}, {"gelu", MS_GELU_ERF},
                 {"silu", MS_SILU}, {"swish", MS_SILU}, {"relu", MS_RELU}};
    const char *name;
    MS_TRY(ms_json_get_string(json, key, fallback, &name));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) {
            *function = known[i].function;
            return MS_OK;
        }
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "%s: %s \"%s\" is not supported (gelu_new, gelu, silu, relu are)",
                   json->name, key, name);
}

static ms_status read_token_id(const ms_json *json, const char *key, int64_t *id) {
    const json_t *value = ms_json_find(json, key);
    if (value != NULL && json_is_array(value)) {
        value = json_array_get(value, 0); /* Llama 3 lists several ends; the first one stops us */
    }
    *id = value != NULL && json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    return MS_OK;
}

/* For what we compute in one way only. */
static ms_status need_bool(const ms_json *json, const char *key, bool wanted) {
    bool value;
    MS_TRY(ms_json_get_bool(json, key, wanted, &value));
    return value == wanted ? MS_OK
                           : ms_fail(MS_ERR_UNSUPPORTED, "%s: %s %s is not supported", json->name,
                                     key, value ? "true" : "false");
}

static ms_status read_gpt2(const ms_json *json, ms_model_spec *spec) {
    spec->family = MS_FAMILY_GPT2;
    MS_TRY(read_size(json, "n_layer", &spec->layers));
    MS_TRY(read_size(json, "n_embd", &spec->hidden));
    MS_TRY(read_size(json, "n_head", &spec->heads));
    MS_TRY(ms_json_get_int(json, "n_positions", 1024, 1, SIZE_MAX_JSON, &spec->positions));
    MS_TRY(ms_json_get_int(json, "n_inner", 4 * spec->hidden, 1, SIZE_MAX_JSON, &spec->ffn));
    MS_TRY(ms_json_get_real(json, "layer_norm_epsilon", 1e-5, 0, 1, &spec->norm_epsilon));
    MS_TRY(ms_json_get_real(json, "resid_pdrop", 0.1, 0, 0.99, &spec->dropout));
    MS_TRY(ms_json_get_real(json, "attn_pdrop", 0.1, 0, 0.99, &spec->attention_dropout));
    MS_TRY(ms_json_get_real(json, "embd_pdrop", 0.1, 0, 0.99, &spec->embedding_dropout));
    MS_TRY(ms_json_get_bool(json, "bias", true, &spec->bias));
    MS_TRY(ms_json_get_bool(json, "tie_word_embeddings", true, &spec->tied));
    MS_TRY(read_activation(json, "activation_function", "gelu_new", &spec->activation));
    MS_TRY(need_bool(json, "scale_attn_weights", true));
    MS_TRY(need_bool(json, "scale_attn_by_inverse_layer_idx", false));
    spec->kv_heads = spec->heads;
    if (spec->hidden % spec->heads != 0) {
        return ms_fail(MS_ERR_CONFIG, "%s: n_embd %" PRId64 " is not a multiple of n_head %" PRId64,
                       json->name, spec->hidden, spec->heads);
    }
    spec->head_size = spec->hidden / spec->heads;
    return MS_OK;
}

static ms_status need_rope_real(const ms_json *json, const char *object, const char *name,
                                double minimum, double *value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", object, name);
    return ms_json_need_real(json, key, minimum, 1e12, value);
}

/* `object` is rope_scaling, or rope_parameters, as newer configurations write it, with the base
 * inside. */
static ms_status read_rope_scaling(const ms_json *json, const char *object, ms_model_spec *spec) {
    char key[96];
    const char *type = NULL;
    snprintf(key, sizeof key, "%s.rope_type", object);
    MS_TRY(ms_json_get_string(json, key, NULL, &type));
    if (type == NULL) {
        snprintf(key, sizeof key, "%s.type", object);
        MS_TRY(ms_json_get_string(json, key, "default", &type));
    }
    if (strcmp(type, "default") == 0) {
        return MS_OK;
    }
    ms_rope_scaling *out = &spec->rope_scaling;
    out->linear = strcmp(type, "linear") == 0;
    if (!out->linear && strcmp(type, "llama3") != 0) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: %s type \"%s\" is not supported (llama3, linear, default are)",
                       json->name, object, type);
    }
    MS_TRY(need_rope_real(json, object, "factor", 1, &out->factor));
    if (out->linear) {
        return MS_OK;
    }
    MS_TRY(need_rope_real(json, object, "low_freq_factor", 1e-6, &out->low_frequency_factor));
    MS_TRY(need_rope_real(json, object, "high_freq_factor", 1e-6, &out->high_frequency_factor));
    snprintf(key, sizeof key, "%s.original_max_position_embeddings", object);
    return ms_json_need_int(json, key, 1, SIZE_MAX_JSON, &out->original_positions);
}

static ms_status read_rope(const ms_json *json, ms_model_spec *spec) {
    MS_TRY(ms_json_get_real(json, "rope_theta", 10000, 1, 1e12, &spec->rope_theta));
    if (ms_json_find(json, "rope_parameters") != NULL) {
        MS_TRY(ms_json_get_real(json, "rope_parameters.rope_theta", spec->rope_theta, 1, 1e12,
                                &spec->rope_theta));
        MS_TRY(read_rope_scaling(json, "rope_parameters", spec));
    }
    bool scaled = ms_json_find(json, "rope_scaling") != NULL;
    return scaled ? read_rope_scaling(json, "rope_scaling", spec) : MS_OK;
}

static ms_status read_llama(const ms_json *json, const char *type, ms_model_spec *spec) {
    bool qwen3 = strcmp(type, "qwen3") == 0;
    spec->family = qwen3 ? MS_FAMILY_QWEN3 : MS_FAMILY_LLAMA;
    MS_TRY(read_size(json, "num_hidden_layers", &spec->layers));
    MS_TRY(read_size(json, "hidden_size", &spec->hidden));
    MS_TRY(read_size(json, "num_attention_heads", &spec->heads));
    MS_TRY(ms_json_get_int(json, "num_key_value_heads", spec->heads, 1, SIZE_MAX_JSON, &spec->kv_heads));
    MS_TRY(read_size(json, "intermediate_size", &spec->ffn));
    MS_TRY(ms_json_get_int(json, "max_position_embeddings", 2048, 1, SIZE_MAX_JSON, &spec->positions));
    MS_TRY(ms_json_get_int(json, "head_dim", qwen3 ? 128 : spec->hidden / spec->heads, 1, 4096,
                           &spec->head_size));
    MS_TRY(ms_json_get_real(json, "rms_norm_eps", 1e-6, 0, 1, &spec->norm_epsilon));
    MS_TRY(ms_json_get_real(json, "attention_dropout", 0, 0, 0.99, &spec->attention_dropout));
    MS_TRY(ms_json_get_bool(json, "attention_bias", false, &spec->attention_bias));
    MS_TRY(need_bool(json, "mlp_bias", false));
    MS_TRY(need_bool(json, "use_sliding_window", false));
    MS_TRY(ms_json_get_bool(json, "tie_word_embeddings", false, &spec->tied));
    MS_TRY(read_activation(json, "hidden_act", "silu", &spec->activation));
    return read_rope(json, spec);
}

static ms_status read_spec(const ms_json *json, ms_model_spec *spec) {
    const char *type;
    MS_TRY(ms_json_need_string(json, "model_type", &type));
    MS_TRY(read_size(json, "vocab_size", &spec->vocabulary));
    MS_TRY(ms_json_get_real(json, "initializer_range", 0.02, 0, 10, &spec->init_std));
    MS_TRY(read_token_id(json, "bos_token_id", &spec->bos_id));
    MS_TRY(read_token_id(json, "eos_token_id", &spec->eos_id));
    if (strcmp(type, "gpt2") == 0) {
        return read_gpt2(json, spec);
    }
    if (strcmp(type, "llama") == 0 || strcmp(type, "qwen3") == 0) {
        return read_llama(json, type, spec);
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "%s: model_type \"%s\" is not supported (gpt2, llama, qwen3 are)",
                   json->name, type);
}

ms_status ms_model_spec_from_json(const char *text, size_t length, const char *name,
                                  ms_model_spec *spec) {
    ms_json json = {0};
    MS_TRY(ms_json_parse(text, length, name, &json));
    ms_model_spec made = {.rope_scaling = {.factor = 1}, .rope_theta = 10000};
    ms_status status = read_spec(&json, &made);
    ms_json_close(&json);
    MS_TRY(status);
    status = ms_model_spec_check(&made);
    if (status != MS_OK) {
        ms_error_prefix("%s", name);
        return status;
    }
    *spec = made;
    return MS_OK;
}

ms_status ms_model_spec_from_directory(const char *directory, ms_model_spec *spec) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(directory, "config.json", path, sizeof path));
    ms_text text = {0};
    ms_status status = ms_file_read(path, MS_JSON_BYTES_MAX, &text);
    if (status == MS_OK) {
        status = ms_model_spec_from_json(text.bytes, text.length, path, spec);
    }
    ms_text_release(&text);
    return status;
}

static ms_status write_ids(const ms_model_spec *spec, ms_text *text) {
    if (spec->bos_id >= 0) {
        MS_TRY(ms_text_printf(text, "  \"bos_token_id\": %" PRId64 ",\n", spec->bos_id));
    }
    if (spec->eos_id >= 0) {
        MS_TRY(ms_text_printf(text, "  \"eos_token_id\": %" PRId64 ",\n", spec->eos_id));
    }
    return MS_OK;
}

static const char *const activation_names[] = {"gelu_new", "gelu", "silu", "relu"};
static const char *const json_bool[] = {"false", "true"};

static ms_status write_gpt2(const ms_model_spec *spec, ms_text *text) {
    return ms_text_printf(
        text,
        "  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"n_layer\": %" PRId64 ",\n  \"n_embd\": %" PRId64 ",\n  \"n_head\": %" PRId64 ",\n"
        "  \"n_positions\": %" PRId64 ",\n  \"n_ctx\": %" PRId64 ",\n  \"n_inner\": %" PRId64 ",\n"
        "  \"activation_function\": \"%s\",\n  \"layer_norm_epsilon\": %.17g,\n"
        "  \"resid_pdrop\": %.17g,\n  \"attn_pdrop\": %.17g,\n  \"embd_pdrop\": %.17g,\n"
        "  \"bias\": %s,\n",
        spec->layers, spec->hidden, spec->heads, spec->positions, spec->positions, spec->ffn,
        activation_names[spec->activation], spec->norm_epsilon, spec->dropout,
        spec->attention_dropout, spec->embedding_dropout, json_bool[spec->bias]);
}

static ms_status write_llama(const ms_model_spec *spec, ms_text *text) {
    bool qwen3 = spec->family == MS_FAMILY_QWEN3;
    MS_TRY(ms_text_printf(
        text,
        "  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n"
        "  \"num_hidden_layers\": %" PRId64 ",\n  \"hidden_size\": %" PRId64 ",\n"
        "  \"num_attention_heads\": %" PRId64 ",\n  \"num_key_value_heads\": %" PRId64 ",\n"
        "  \"head_dim\": %" PRId64 ",\n  \"intermediate_size\": %" PRId64 ",\n"
        "  \"max_position_embeddings\": %" PRId64 ",\n  \"rms_norm_eps\": %.17g,\n"
        "  \"rope_theta\": %.17g,\n  \"hidden_act\": \"%s\",\n  \"attention_bias\": %s,\n"
        "  \"attention_dropout\": %.17g,\n",
        qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM", qwen3 ? "qwen3" : "llama", spec->layers,
        spec->hidden, spec->heads, spec->kv_heads, spec->head_size, spec->ffn, spec->positions,
        spec->norm_epsilon, spec->rope_theta, activation_names[spec->activation],
        json_bool[spec->attention_bias], spec->attention_dropout));
    const ms_rope_scaling *scaling = &spec->rope_scaling;
    if (scaling->factor == 1) {
        return MS_OK;
    }
    if (scaling->linear) {
        return ms_text_printf(text, "  \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": %.17g},\n",
                              scaling->factor);
    }
    return ms_text_printf(text,
                          "  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %.17g, "
                          "\"low_freq_factor\": %.17g, \"high_freq_factor\": %.17g, "
                          "\"original_max_position_embeddings\": %" PRId64 "},\n",
                          scaling->factor, scaling->low_frequency_factor,
                          scaling->high_frequency_factor, scaling->original_positions);
}

ms_status ms_model_spec_to_json(const ms_model_spec *spec, ms_text *text) {
    MS_TRY(ms_text_append_z(text, "{\n"));
    MS_TRY(spec->family == MS_FAMILY_GPT2 ? write_gpt2(spec, text) : write_llama(spec, text));
    MS_TRY(write_ids(spec, text));
    return ms_text_printf(text,
                          "  \"initializer_range\": %.17g,\n  \"tie_word_embeddings\": %s,\n"
                          "  \"torch_dtype\": \"float32\",\n  \"vocab_size\": %" PRId64 "\n}\n",
                          spec->init_std, json_bool[spec->tied], spec->vocabulary);
}
