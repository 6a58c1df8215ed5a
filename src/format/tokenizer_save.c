/*
 * Writing a tokenizer as tokenizer.json and tokenizer_config.json, so that a checkpoint's directory
 * is one that Hugging Face's library reads.
 *
 * Stands beside tokenizer_json.c: the kept document is written back field by field, with the
 * model's vocabulary (in the order of ids) and merges (in the order of ranks) put in from the
 * tables.
 *
 * Invariant: loading what was written gives the same ids for every text. (One exception by the
 * form: merges that shared a rank, as in rank files, get ranks of their own, ordered by their
 * parts' ids, which is also how Hugging Face converts such files.)
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "format/tokenizer_internal.h"

static ms_status append_value(ms_text *json, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    if (text == NULL) {
        return ms_fail(MS_ERR_MEMORY, "no memory to write a tokenizer's configuration");
    }
    ms_status status = ms_text_append_z(json, text);
    free(text); /* jansson's own allocation */
    return status;
}

/* A key in the spelling of files, quoted. */
static ms_status append_token(const ms_tokenizer *tokenizer, int32_t id, ms_text *spelled,
                              ms_text *json) {
    const ms_token *token = &tokenizer->vocabulary.tokens[id];
    const char *key = ms__vocabulary_key(&tokenizer->vocabulary, id);
    bool is_bytes =
        (tokenizer->kind == MS_TOKENIZER_BYTE_BPE || tokenizer->kind == MS_TOKENIZER_BYTE) &&
        (token->flags & MS_TOKEN_LITERAL) == 0;
    if (!is_bytes) {
        return ms_json_append_string(json, key, token->length);
    }
    ms_text_clear(spelled);
    MS_TRY(ms__alphabet_encode(key, token->length, spelled));
    return ms_json_append_string(json, spelled->bytes, spelled->length);
}

static ms_status append_vocabulary(const ms_tokenizer *tokenizer, ms_text *spelled, ms_text *json) {
    const ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    bool first = true;
    MS_TRY(ms_text_append_z(json, "    \"vocab\": {"));
    for (size_t id = 0; id < vocabulary->count; id++) {
        unsigned flags = vocabulary->tokens[id].flags;
        if ((flags & MS_TOKEN_PRESENT) == 0 || (flags & MS_TOKEN_OUTSIDE) != 0) {
            continue;
        }
        MS_TRY(ms_text_append_z(json, first ? "\n      " : ",\n      "));
        MS_TRY(append_token(tokenizer, (int32_t)id, spelled, json));
        MS_TRY(ms_text_printf(json, ": %zu", id));
        first = false;
    }
    return ms_text_append_z(json, "\n    }");
}

static int compare_merges(const void *a, const void *b) {
    const ms_merge *left = a, *right = b;
    if (left->rank != right->rank) {
        return left->rank < right->rank ? -1 : 1;
    }
    return left->pair < right->pair ? -1 : left->pair > right->pair;
}

static ms_status append_merges(const ms_tokenizer *tokenizer, ms_text *spelled, ms_text *json) {
    const ms_merge_table *table = &tokenizer->merges;
    ms_merge *sorted = NULL;
    size_t count = 0;
    ms_status status = MS_OK;
    MS_TRY(MS_NEW(table->count, MS_MEMORY_CALLER, &sorted));
    for (size_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i].pair != UINT64_MAX) {
            sorted[count++] = table->slots[i];
        }
    }
    qsort(sorted, count, sizeof *sorted, compare_merges);
    MS_TRY_GOTO(ms_text_append_z(json, ",\n    \"merges\": ["), free_sorted);
    for (size_t i = 0; i < count; i++) {
        MS_TRY_GOTO(ms_text_append_z(json, i == 0 ? "\n      [" : ",\n      ["), free_sorted);
        MS_TRY_GOTO(append_token(tokenizer, (int32_t)(sorted[i].pair >> 32), spelled, json),
                    free_sorted);
        MS_TRY_GOTO(ms_text_append_z(json, ", "), free_sorted);
        MS_TRY_GOTO(append_token(tokenizer, (int32_t)(uint32_t)sorted[i].pair, spelled, json),
                    free_sorted);
        MS_TRY_GOTO(ms_text_append_z(json, "]"), free_sorted);
    }
    status = ms_text_append_z(json, count > 0 ? "\n    ]" : "]");
free_sorted:
    ms_free(sorted);
    return status;
}

static ms_status append_model(const ms_tokenizer *tokenizer, const json_t *model, ms_text *spelled,
                              ms_text *json) {
    const char *key;
    json_t *value;
    MS_TRY(ms_text_append_z(json, "  \"model\": {\n"));
    json_object_foreach((json_t *)(uintptr_t)model, key, value) {
        MS_TRY(ms_text_append_z(json, "    "));
        MS_TRY(ms_json_append_string(json, key, strlen(key)));
        MS_TRY(ms_text_append_z(json, ": "));
        MS_TRY(append_value(json, value));
        MS_TRY(ms_text_append_z(json, ",\n"));
    }
    MS_TRY(append_vocabulary(tokenizer, spelled, json));
    if (tokenizer->kind != MS_TOKENIZER_CHAR) {
        MS_TRY(append_merges(tokenizer, spelled, json));
    }
    return ms_text_append_z(json, "\n  }\n}\n");
}

static ms_status emit(const ms_tokenizer *tokenizer, ms_text *spelled, ms_text *json) {
    const char *key;
    json_t *value;
    MS_TRY(ms_text_append_z(json, "{\n"));
    json_object_foreach(tokenizer->config, key, value) {
        if (strcmp(key, "model") == 0) {
            continue; /* goes last */
        }
        MS_TRY(ms_text_append_z(json, "  "));
        MS_TRY(ms_json_append_string(json, key, strlen(key)));
        MS_TRY(ms_text_append_z(json, ": "));
        MS_TRY(append_value(json, value));
        MS_TRY(ms_text_append_z(json, ",\n"));
    }
    return append_model(tokenizer, json_object_get(tokenizer->config, "model"), spelled, json);
}

ms_status ms_tokenizer_emit(const ms_tokenizer *tokenizer, ms_text *json) {
    ms_text spelled = {0};
    ms_status status = emit(tokenizer, &spelled, json);
    ms_text_release(&spelled);
    return status;
}

static ms_status append_special(const ms_tokenizer *tokenizer, const char *key, int32_t id,
                                ms_text *json) {
    MS_TRY(ms_text_printf(json, "  \"%s\": ", key));
    if (id < 0) {
        return ms_text_append_z(json, "null,\n");
    }
    const char *bytes = NULL;
    size_t length = 0;
    MS_TRY(ms_tokenizer_id_bytes(tokenizer, id, &bytes, &length));
    MS_TRY(ms_json_append_string(json, bytes, length));
    return ms_text_append_z(json, ",\n");
}

static ms_status emit_config(const ms_tokenizer *tokenizer, ms_text *json) {
    MS_TRY(ms_text_append_z(json, "{\n"));
    MS_TRY(append_special(tokenizer, "bos_token", tokenizer->bos, json));
    MS_TRY(append_special(tokenizer, "eos_token", tokenizer->eos, json));
    MS_TRY(append_special(tokenizer, "pad_token", tokenizer->pad, json));
    return ms_text_append_z(json, "  \"clean_up_tokenization_spaces\": false,\n"
                                  "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

static ms_status write_text(const char *dir, const char *name, const ms_text *text) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, name, path, sizeof path));
    return ms_file_write_atomic(path, text->bytes, text->length);
}

ms_status ms_tokenizer_save(const ms_tokenizer *tokenizer, const char *dir) {
    ms_text json = {0};
    ms_status status;
    MS_TRY_GOTO(ms_tokenizer_emit(tokenizer, &json), release_json);
    MS_TRY_GOTO(write_text(dir, "tokenizer.json", &json), release_json);
    ms_text_clear(&json);
    MS_TRY_GOTO(emit_config(tokenizer, &json), release_json);
    MS_TRY_GOTO(write_text(dir, "tokenizer_config.json", &json), release_json);
release_json:
    ms_text_release(&json);
    return status;
}
