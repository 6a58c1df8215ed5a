/*
 * test_model.c - config.json in and out for the three families, what is refused and by which key,
 * and the parameters' names and shapes, which are Hugging Face's.
 */
#include "model/model.h"
#include "support/test_support.h"

#include <jansson.h>

static const char gpt2_json[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": 50257,"
    "\"n_positions\": 1024, \"n_ctx\": 1024, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
    "\"n_inner\": null, \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1,"
    "\"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"layer_norm_epsilon\": 1e-05,"
    "\"initializer_range\": 0.02, \"bos_token_id\": 50256, \"eos_token_id\": 50256,"
    "\"scale_attn_weights\": true, \"summary_type\": \"cls_index\"}";

static const char llama_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 128256,"
    "\"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16,"
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 64,"
    "\"max_position_embeddings\": 131072, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05,"
    "\"rope_theta\": 500000.0, \"attention_bias\": false, \"attention_dropout\": 0.0,"
    "\"mlp_bias\": false, \"tie_word_embeddings\": true, \"initializer_range\": 0.02,"
    "\"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"},"
    "\"bos_token_id\": 128000, \"eos_token_id\": [128001, 128008, 128009], \"use_cache\": true}";

static const char qwen3_json[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 151936,"
    "\"hidden_size\": 1024, \"intermediate_size\": 3072, \"num_hidden_layers\": 28,"
    "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 128,"
    "\"max_position_embeddings\": 40960, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06,"
    "\"rope_theta\": 1000000, \"attention_bias\": false, \"attention_dropout\": 0.0,"
    "\"tie_word_embeddings\": true, \"initializer_range\": 0.02, \"rope_scaling\": null,"
    "\"sliding_window\": null, \"use_sliding_window\": false, \"bos_token_id\": 151643,"
    "\"eos_token_id\": 151645}";

static ms_model_spec read_spec(const char *text) {
    ms_model_spec spec;
    assert_ok(ms_model_spec_from_json(text, strlen(text), "config.json", &spec));
    return spec;
}

static void write_spec(const ms_model_spec *spec, ms_text *text) {
    *text = (ms_text){0};
    assert_ok(ms_model_spec_to_json(spec, text));
}

static void check_same_spec(const ms_model_spec *a, const ms_model_spec *b) {
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_size, b->head_size);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->vocabulary, b->vocabulary);
    assert_int_equal(a->bias, b->bias);
    assert_int_equal(a->attention_bias, b->attention_bias);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->activation, b->activation);
    assert_int_equal(a->bos_id, b->bos_id);
    assert_int_equal(a->eos_id, b->eos_id);
    assert_true(a->dropout == b->dropout && a->attention_dropout == b->attention_dropout &&
                a->embedding_dropout == b->embedding_dropout);
    assert_true(a->norm_epsilon == b->norm_epsilon && a->rope_theta == b->rope_theta &&
                a->init_std == b->init_std);
    assert_true(a->rope_scaling.factor == b->rope_scaling.factor &&
                a->rope_scaling.linear == b->rope_scaling.linear &&
                a->rope_scaling.low_frequency_factor == b->rope_scaling.low_frequency_factor &&
                a->rope_scaling.high_frequency_factor == b->rope_scaling.high_frequency_factor &&
                a->rope_scaling.original_positions == b->rope_scaling.original_positions);
}

/* 32 and 32.0 are the same number. */
static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a)) {
        return json_is_number(b) && json_number_value(a) == json_number_value(b);
    }
    if (!json_is_object(a)) {
        return json_equal(a, b) == 1;
    }
    bool same = json_is_object(b) && json_object_size(a) == json_object_size(b);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value) {
        same = same && same_value(value, json_object_get(b, key));
    }
    return same;
}

/* Every key that we write has the value that the original has, if it has it. */
static void check_same_keys(const char *original, const char *written) {
    json_t *from = json_loads(original, 0, NULL), *to = json_loads(written, 0, NULL);
    assert_non_null(from);
    assert_non_null(to);
    const char *key;
    json_t *value;
    int same = 0;
    json_object_foreach(to, key, value) {
        json_t *wanted = json_object_get(from, key);
        if (wanted == NULL || json_is_null(wanted)) {
            continue;
        }
        wanted =
            json_is_array(wanted) && json_is_integer(value) ? json_array_get(wanted, 0) : wanted;
        if (!same_value(wanted, value)) {
            fail_msg("%s is written as %s", key, json_dumps(value, JSON_ENCODE_ANY));
        }
        same++;
    }
    assert_true(same >= 14);
    json_decref(from);
    json_decref(to);
}

static void read_and_written_again(void **state) {
    (void)state;
    static const char *const originals[] = {gpt2_json, llama_json, qwen3_json};
    for (int i = 0; i < 3; i++) {
        ms_model_spec spec = read_spec(originals[i]);
        ms_text first, second;
        write_spec(&spec, &first);
        ms_model_spec again = read_spec(first.bytes);
        check_same_spec(&spec, &again);
        write_spec(&again, &second);
        assert_string_equal(first.bytes, second.bytes);
        check_same_keys(originals[i], first.bytes);
        ms_text_release(&first);
        ms_text_release(&second);
    }
}

static void values_are_understood(void **state) {
    (void)state;
    ms_model_spec gpt2 = read_spec(gpt2_json);
    assert_true(gpt2.bias && gpt2.tied && gpt2.activation == MS_GELU_TANH);
    assert_int_equal(gpt2.ffn, 3072);
    assert_int_equal(gpt2.head_size, 64);
    assert_int_equal(gpt2.positions, 1024);
    ms_model_spec llama = read_spec(llama_json);
    assert_int_equal(llama.kv_heads, 8);
    assert_int_equal(llama.eos_id, 128001);
    assert_true(llama.rope_theta == 500000 && llama.rope_scaling.factor == 32);
    assert_int_equal(llama.rope_scaling.original_positions, 8192);
    ms_model_spec qwen3 = read_spec(qwen3_json);
    assert_int_equal(qwen3.head_size, 128); /* not hidden / heads */
    assert_true(qwen3.norm_epsilon == 1e-6 && qwen3.rope_scaling.factor == 1);
}

/* The newer way of writing the same; and a linear scaling. */
static void rope_parameters_are_read(void **state) {
    (void)state;
    static const char base[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 32,"
        "\"intermediate_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, %s}";
    char text[1024];
    snprintf(text, sizeof text, base,
             "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\","
             "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
             "\"original_max_position_embeddings\": 8192}");
    ms_model_spec spec = read_spec(text);
    assert_true(spec.rope_theta == 500000 && spec.rope_scaling.factor == 8);
    assert_false(spec.rope_scaling.linear);
    assert_int_equal(spec.kv_heads, 4);
    snprintf(text, sizeof text, base, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}");
    spec = read_spec(text);
    assert_true(spec.rope_scaling.linear && spec.rope_scaling.factor == 2.5 &&
                spec.rope_theta == 10000);
    ms_text written;
    write_spec(&spec, &written);
    ms_model_spec again = read_spec(written.bytes);
    check_same_spec(&spec, &again);
    ms_text_release(&written);
}

typedef struct bad_config {
    const char *original, *key, *value; /* value NULL: the key is missing */
    ms_status status;
    const char *part;
} bad_config;

static const bad_config bad_configs[] = {
    {gpt2_json, "model_type", NULL, MS_ERR_NOT_FOUND, "model_type"},
    {gpt2_json, "model_type", "\"bert\"", MS_ERR_UNSUPPORTED, "model_type \"bert\""},
    {gpt2_json, "model_type", "7", MS_ERR_FORMAT, "model_type"},
    {gpt2_json, "vocab_size", NULL, MS_ERR_NOT_FOUND, "vocab_size"},
    {gpt2_json, "vocab_size", "1", MS_ERR_CONFIG, "vocabulary 1"},
    {gpt2_json, "vocab_size", "1e30", MS_ERR_FORMAT, "vocab_size"},
    {gpt2_json, "n_layer", "0", MS_ERR_RANGE, "n_layer"},
    {gpt2_json, "n_layer", "-3", MS_ERR_RANGE, "n_layer"},
    {gpt2_json, "n_layer", "2.5", MS_ERR_FORMAT, "n_layer"},
    {gpt2_json, "n_layer", "\"12\"", MS_ERR_FORMAT, "n_layer"},
    {gpt2_json, "n_head", "7", MS_ERR_CONFIG, "n_embd 768 is not a multiple of n_head 7"},
    {gpt2_json, "activation_function", "\"swiglu\"", MS_ERR_UNSUPPORTED,
     "activation_function \"swiglu\""},
    {gpt2_json, "resid_pdrop", "1.5", MS_ERR_RANGE, "resid_pdrop"},
    {gpt2_json, "scale_attn_weights", "false", MS_ERR_UNSUPPORTED, "scale_attn_weights false"},
    {gpt2_json, "scale_attn_by_inverse_layer_idx", "true", MS_ERR_UNSUPPORTED,
     "scale_attn_by_inverse_layer_idx true"},
    {llama_json, "hidden_size", NULL, MS_ERR_NOT_FOUND, "hidden_size"},
    {llama_json, "intermediate_size", NULL, MS_ERR_NOT_FOUND, "intermediate_size"},
    {llama_json, "num_key_value_heads", "5", MS_ERR_CONFIG, "32 is not a multiple"},
    {llama_json, "head_dim", "63", MS_ERR_CONFIG, "head size 63 is odd"},
    {llama_json, "mlp_bias", "true", MS_ERR_UNSUPPORTED, "mlp_bias true"},
    {llama_json, "tie_word_embeddings", "\"yes\"", MS_ERR_FORMAT, "tie_word_embeddings"},
    {llama_json, "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", MS_ERR_UNSUPPORTED,
     "rope_scaling type \"yarn\""},
    {llama_json, "rope_scaling", "{\"rope_type\": \"llama3\"}", MS_ERR_NOT_FOUND,
     "rope_scaling.factor"},
    {llama_json, "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", MS_ERR_NOT_FOUND,
     "rope_scaling.low_freq_factor"},
    {llama_json, "rope_parameters", "{\"rope_type\": \"dynamic\"}", MS_ERR_UNSUPPORTED,
     "rope_parameters type \"dynamic\""},
    {llama_json, "rope_theta", "0", MS_ERR_RANGE, "rope_theta"},
    {qwen3_json, "use_sliding_window", "true", MS_ERR_UNSUPPORTED, "use_sliding_window true"},
    {qwen3_json, "num_hidden_layers", "[1]", MS_ERR_FORMAT, "num_hidden_layers"},
};

static void bad_ones_are_refused_by_key(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_configs / sizeof bad_configs[0]; i++) {
        const bad_config *bad = &bad_configs[i];
        json_t *root = json_loads(bad->original, 0, NULL);
        if (bad->value == NULL) {
            json_object_del(root, bad->key);
        } else {
            json_object_set_new(root, bad->key, json_loads(bad->value, JSON_DECODE_ANY, NULL));
        }
        char *text = json_dumps(root, 0);
        ms_model_spec spec = {.layers = 77};
        ms_status status = ms_model_spec_from_json(text, strlen(text), "dir/config.json", &spec);
        if (status == MS_OK || strstr(ms_error_detail(), bad->part) == NULL ||
            strstr(ms_error_detail(), "dir/config.json") == NULL) {
            fail_msg("%s = %s: %s: %s", bad->key, bad->value, ms_status_name(status),
                     status != MS_OK ? ms_error_detail() : "");
        }
        if (status != bad->status) {
            fail_msg("%s = %s: %s instead of %s", bad->key, bad->value, ms_status_name(status),
                     ms_status_name(bad->status));
        }
        assert_int_equal(spec.layers, 77); /* untouched */
        free(text);
        json_decref(root);
    }
    ms_model_spec spec;
    assert_true(ms_model_spec_from_json("{", 1, "broken.json", &spec) != MS_OK);
    assert_non_null(strstr(ms_error_detail(), "broken.json"));
    assert_true(ms_model_spec_from_directory("/nowhere/at/all", &spec) != MS_OK);
    assert_non_null(strstr(ms_error_detail(), "/nowhere/at/all/config.json"));
}

/* ---- names and shapes ---- */

typedef struct shape {
    const char *name;
    int64_t d0, d1; /* d1 0: a vector */
} shape;

static ms_model_spec small(const char *type, const char *more) {
    char text[1024];
    bool gpt2 = strcmp(type, "gpt2") == 0;
    snprintf(text, sizeof text,
             gpt2 ? "{\"model_type\": \"%s\", \"vocab_size\": 11, \"n_embd\": 8, \"n_layer\": 2,"
                    "\"n_head\": 2, \"n_positions\": 6, \"n_inner\": 20%s}"
                  : "{\"model_type\": \"%s\", \"vocab_size\": 11, \"hidden_size\": 8,"
                    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                    "\"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 20%s}",
             type, more);
    return read_spec(text);
}

/* The whole-model names and those of one layer, with %d for it; nothing else may be there. */
static void check_shapes(const ms_model_spec *spec, const shape *whole, int whole_count,
                         const shape *layer, int layer_count) {
    ms_model *model;
    assert_ok(ms_model_create(spec, &model));
    assert_int_equal(model->parameter_count, whole_count + 2 * layer_count);
    int64_t elements = 0;
    for (int i = 0; i < whole_count + 2 * layer_count; i++) {
        const shape *wanted = i < whole_count ? &whole[i] : &layer[(i - whole_count) / 2];
        char name[160];
        int index = (i - whole_count) % 2;
        const char *mark = strchr(wanted->name, '#');
        snprintf(name, sizeof name, "%s", wanted->name);
        if (mark != NULL) {
            name[mark - wanted->name] = (char)('0' + index);
        }
        const ms_parameter *found = NULL;
        for (int32_t p = 0; p < model->parameter_count; p++) {
            found =
                strcmp(model->parameters[p].tensor.name, name) == 0 ? &model->parameters[p] : found;
        }
        if (found == NULL) {
            fail_msg("there is no parameter %s", name);
            return;
        }
        assert_int_equal(found->tensor.rank, wanted->d1 > 0 ? 2 : 1);
        assert_int_equal(found->tensor.dims[0], wanted->d0);
        assert_true(wanted->d1 == 0 || found->tensor.dims[1] == wanted->d1);
        assert_int_equal(found->tensor.decay, wanted->d1 > 0);
        assert_true(mark == NULL ? found->layer < 0 : found->layer == index);
        elements += wanted->d0 * (wanted->d1 > 0 ? wanted->d1 : 1);
    }
    assert_int_equal(ms_model_parameter_elements(model), elements);
    ms_model_destroy(model);
}

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void names_of_gpt2(void **state) {
    (void)state;
    static const shape whole[] = {{"transformer.wte.weight", 11, 8},
                                  {"transformer.wpe.weight", 6, 8},
                                  {"transformer.ln_f.weight", 8, 0},
                                  {"transformer.ln_f.bias", 8, 0},
                                  {"lm_head.weight", 11, 8}};
    static const shape layer[] = {
        {"transformer.h.#.ln_1.weight", 8, 0},         {"transformer.h.#.ln_1.bias", 8, 0},
        {"transformer.h.#.attn.c_attn.weight", 8, 24}, {"transformer.h.#.attn.c_attn.bias", 24, 0},
        {"transformer.h.#.attn.c_proj.weight", 8, 8},  {"transformer.h.#.attn.c_proj.bias", 8, 0},
        {"transformer.h.#.ln_2.weight", 8, 0},         {"transformer.h.#.ln_2.bias", 8, 0},
        {"transformer.h.#.mlp.c_fc.weight", 8, 20},    {"transformer.h.#.mlp.c_fc.bias", 20, 0},
        {"transformer.h.#.mlp.c_proj.weight", 20, 8},  {"transformer.h.#.mlp.c_proj.bias", 8, 0}};
    ms_model_spec spec = small("gpt2", "");
    check_shapes(&spec, whole, COUNT(whole) - 1, layer, COUNT(layer));
    spec = small("gpt2", ", \"tie_word_embeddings\": false");
    check_shapes(&spec, whole, COUNT(whole), layer, COUNT(layer));
}

static void names_of_llama_and_qwen3(void **state) {
    (void)state;
    static const shape whole[] = {{"model.embed_tokens.weight", 11, 8},
                                  {"model.norm.weight", 8, 0},
                                  {"lm_head.weight", 11, 8}};
    static const shape layer[] = {{"model.layers.#.input_layernorm.weight", 8, 0},
                                  {"model.layers.#.self_attn.q_proj.weight", 24, 8},
                                  {"model.layers.#.self_attn.k_proj.weight", 12, 8},
                                  {"model.layers.#.self_attn.v_proj.weight", 12, 8},
                                  {"model.layers.#.self_attn.o_proj.weight", 8, 24},
                                  {"model.layers.#.post_attention_layernorm.weight", 8, 0},
                                  {"model.layers.#.mlp.gate_proj.weight", 20, 8},
                                  {"model.layers.#.mlp.up_proj.weight", 20, 8},
                                  {"model.layers.#.mlp.down_proj.weight", 8, 20},
                                  /* Qwen3 */
                                  {"model.layers.#.self_attn.q_norm.weight", 6, 0},
                                  {"model.layers.#.self_attn.k_norm.weight", 6, 0}};
    ms_model_spec spec = small("llama", "");
    check_shapes(&spec, whole, COUNT(whole), layer, COUNT(layer) - 2);
    spec = small("llama", ", \"tie_word_embeddings\": true");
    check_shapes(&spec, whole, COUNT(whole) - 1, layer, COUNT(layer) - 2);
    spec = small("qwen3", "");
    check_shapes(&spec, whole, COUNT(whole), layer, COUNT(layer));
    shape biased[COUNT(layer) + 2];
    static const shape biases[] = {{"model.layers.#.self_attn.q_proj.bias", 24, 0},
                                   {"model.layers.#.self_attn.k_proj.bias", 12, 0},
                                   {"model.layers.#.self_attn.v_proj.bias", 12, 0},
                                   {"model.layers.#.self_attn.o_proj.bias", 8, 0}};
    memcpy(biased, layer, (COUNT(layer) - 2) * sizeof layer[0]);
    memcpy(biased + COUNT(layer) - 2, biases, sizeof biases);
    spec = small("llama", ", \"attention_bias\": true");
    check_shapes(&spec, whole, COUNT(whole), biased, COUNT(layer) + 2);
}

/* Each stage's part together is the model once, the tied embedding twice. */
static void parts_cover_the_model(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        ms_model_spec spec = small("qwen3", tied ? ", \"tie_word_embeddings\": true" : "");
        ms_model *model;
        assert_ok(ms_model_create(&spec, &model));
        const ms_model_part parts[] = {{.first_layer = 0, .layer_count = 1, .embedding = true},
                                       {.first_layer = 1, .layer_count = 1, .head = true}};
        for (int32_t p = 0; p < model->parameter_count; p++) {
            int holders = (int)ms_model_part_has(model, &parts[0], p) +
                          (int)ms_model_part_has(model, &parts[1], p);
            assert_int_equal(holders, tied && p == model->embedding ? 2 : 1);
        }
        assert_int_equal(model->head == model->embedding, tied);
        ms_model_destroy(model);
    }
}

/* The formula by hand, for GPT-2's small shape: 6 x (12 x 12 x 768^2 + 50257 x 768) + 12 x 12 x 768
 * x T. */
static void flops_per_token(void **state) {
    (void)state;
    ms_model_spec spec = read_spec(gpt2_json);
    ms_model *model;
    assert_ok(ms_model_create(&spec, &model));
    assert_int_equal(ms_model_parameter_elements(model), 124439808);
    double wanted = 6.0 * (12.0 * 12 * 768 * 768 + 50257.0 * 768) + 12.0 * 12 * 768 * 1024;
    assert_true(ms_model_flops_per_token(model, 1024) == wanted);
    ms_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_and_written_again),
        cmocka_unit_test(values_are_understood),
        cmocka_unit_test(rope_parameters_are_read),
        cmocka_unit_test(bad_ones_are_refused_by_key),
        cmocka_unit_test(names_of_gpt2),
        cmocka_unit_test(names_of_llama_and_qwen3),
        cmocka_unit_test(parts_cover_the_model),
        cmocka_unit_test(flops_per_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
