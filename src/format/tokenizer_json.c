/*
 * tokenizer.json, Hugging Face's form: reading and writing.
 *
 * Stands between files and the parts of a tokenizer. The document is kept (`config`) except for the
 * vocabulary and the merges, which become tables; writing puts them back, so what was read and is
 * not ours to understand (post_processor, truncation, ...) survives a round trip.
 *
 *   {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder",
 *    "model": {"type": "BPE", "vocab": {token: id}, "merges": [[left, right], ...], ...}}
 *
 * A char tokenizer is a WordLevel model whose words are single characters; a byte tokenizer is a
 * byte-level BPE without merges whose ids are the bytes. Hugging Face's library reads both.
 *
 * Invariant: a part of the document that would change the ids and that we do not know is an error
 * with its name, never ignored.
 *
 * Rejected: a format of our own for char and byte (then no other program could read the models).
 */
#define _GNU_SOURCE /* memmem */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "format/tokenizer_internal.h"

/* ---- configuration ---- */

static ms_status check_model(const json_t *model, const char *name) {
    static const char *const unknown[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const char *text = json_string_value(json_object_get(model, unknown[i]));
        if (text != NULL && text[0] != '\0') {
            return ms_fail(MS_ERR_UNSUPPORTED, "%s: model.%s \"%.40s\" is not supported", name,
                           unknown[i], text);
        }
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0.0) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: model.dropout %g is not supported", name,
                       json_number_value(dropout));
    }
    return MS_OK;
}

static ms_status read_decoder_step(ms_tokenizer *tokenizer, const json_t *node, const char *name) {
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: a decoder has no \"type\"", name);
    }
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0 ||
        strcmp(type, "ByteFallback") == 0) {
        return MS_OK; /* what decode does anyway, by the kind */
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_string_value(json_object_get(node, "prepend_scheme"));
        tokenizer->strip_first_space =
            scheme != NULL ? strcmp(scheme, "never") != 0
                           : !json_is_false(json_object_get(node, "add_prefix_space"));
        return MS_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        const char *content = json_string_value(json_object_get(node, "content"));
        json_int_t start = json_integer_value(json_object_get(node, "start"));
        json_int_t stop = json_integer_value(json_object_get(node, "stop"));
        if (content != NULL && strcmp(content, " ") == 0 && start <= 1 && stop == 0) {
            tokenizer->strip_first_space = start == 1;
            return MS_OK;
        }
    }
    if (strcmp(type, "Replace") == 0) {
        const char *pattern =
            json_string_value(json_object_get(json_object_get(node, "pattern"), "String"));
        const char *content = json_string_value(json_object_get(node, "content"));
        if (pattern != NULL && content != NULL && strcmp(pattern, MS_WORD_MARK) == 0 &&
            strcmp(content, " ") == 0) {
            return MS_OK;
        }
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "%s: decoder \"%.40s\" is not supported", name, type);
}

static ms_status read_decoder(ms_tokenizer *tokenizer, const json_t *node, const char *name) {
    if (node == NULL || json_is_null(node)) {
        return MS_OK;
    }
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0) {
        return read_decoder_step(tokenizer, node, name);
    }
    const json_t *list = json_object_get(node, "decoders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        MS_TRY(read_decoder_step(tokenizer, json_array_get(list, i), name));
    }
    return MS_OK;
}

/* A WordLevel model is taken when its words are characters. */
static ms_status configure_characters(ms_tokenizer *tokenizer, const char *name) {
    const json_t *split = json_object_get(tokenizer->config, "pre_tokenizer");
    const char *pattern =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (pattern == NULL || strcmp(pattern, ms__pattern_character) != 0 || behavior == NULL ||
        strcmp(behavior, "Isolated") != 0) {
        return ms_fail(
            MS_ERR_UNSUPPORTED,
            "%s: a WordLevel model is supported for single characters only (pre_tokenizer "
            "Split %s, Isolated)",
            name, ms__pattern_character);
    }
    if (!json_is_null(json_object_get(tokenizer->config, "normalizer"))) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: a normalizer before a WordLevel model", name);
    }
    tokenizer->kind = MS_TOKENIZER_CHAR;
    return MS_OK;
}

ms_status ms__tokenizer_configure(ms_tokenizer *tokenizer, json_t *config, const char *name) {
    tokenizer->config = config; /* released with the tokenizer, whatever happens here */
    const json_t *model = json_object_get(config, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model)) {
        return ms_fail(MS_ERR_FORMAT, "%s: no object \"model\"", name);
    }
    if (type != NULL && strcmp(type, "WordLevel") == 0) {
        return configure_characters(tokenizer, name);
    }
    if (type != NULL && strcmp(type, "BPE") != 0) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: model \"%.40s\" is not supported; BPE is", name,
                       type);
    }
    tokenizer->kind = MS_TOKENIZER_CODE_POINT_BPE; /* until a ByteLevel step says otherwise */
    MS_TRY(check_model(model, name));
    tokenizer->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    tokenizer->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    tokenizer->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    MS_TRY(ms__normal_parse(tokenizer, json_object_get(config, "normalizer"), name));
    MS_TRY(ms__split_parse(tokenizer, json_object_get(config, "pre_tokenizer"), name));
    return read_decoder(tokenizer, json_object_get(config, "decoder"), name);
}

/* ---- vocabulary and merges ---- */

/* From a file's spelling to the key; *literal when a byte-level token is not of the alphabet. */
static ms_status spell_key(const ms_tokenizer *tokenizer, const char *text, size_t length,
                           ms_text *key, bool *literal) {
    ms_text_clear(key);
    *literal = false;
    if (tokenizer->kind == MS_TOKENIZER_BYTE_BPE) {
        size_t bytes = 0;
        MS_TRY(ms_text_append(key, text, length)); /* for the room */
        if (ms__alphabet_decode(text, length, key->bytes, &bytes)) {
            key->length = bytes;
            key->bytes[bytes] = '\0';
            return MS_OK;
        }
        ms_text_clear(key);
        *literal = true;
    }
    for (const char *mark; tokenizer->nul_marked && (mark = strstr(text, MS_NUL_MARK)) != NULL;) {
        size_t before = (size_t)(mark - text), skip = before + sizeof MS_NUL_MARK - 1;
        if (skip > length) {
            break;
        }
        MS_TRY(ms_text_append(key, text, before));
        MS_TRY(ms_text_append(key, "", 1));
        text += skip;
        length -= skip;
    }
    return ms_text_append(key, text, length);
}

static ms_status add_vocabulary(ms_tokenizer *tokenizer, const json_t *vocabulary, const char *name,
                                ms_text *key) {
    const char *token;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocabulary, token, id) {
        if (!json_is_integer(id)) {
            return ms_fail(MS_ERR_FORMAT, "%s: the id of token \"%.64s\" is not an integer", name,
                           token);
        }
        bool literal = false;
        size_t length = strlen(token);
        MS_TRY(spell_key(tokenizer, token, length, key, &literal));
        if (tokenizer->kind == MS_TOKENIZER_CHAR) {
            uint32_t code_point;
            if (length == 0 || (size_t)ms_utf8_decode(token, length, &code_point) != length) {
                return ms_fail(MS_ERR_UNSUPPORTED,
                               "%s: word \"%.64s\" of a WordLevel model is not "
                               "a single character",
                               name, token);
            }
        }
        MS_TRY(ms__vocabulary_add(&tokenizer->vocabulary, (int64_t)json_integer_value(id),
                                  key->bytes, key->length, literal ? MS_TOKEN_LITERAL : 0u, name));
    }
    return MS_OK;
}

ms_status ms__tokenizer_add_vocabulary(ms_tokenizer *tokenizer, const json_t *vocabulary,
                                       const char *name) {
    if (!json_is_object(vocabulary) || json_object_size(vocabulary) == 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: no vocabulary of the form {\"token\": id, ...}", name);
    }
    ms_text key = {0};
    ms_status status = add_vocabulary(tokenizer, vocabulary, name, &key);
    ms_text_release(&key);
    return status;
}

static ms_status add_merge(ms_tokenizer *tokenizer, ms_text *key, const char *left,
                           size_t left_length, const char *right, size_t right_length,
                           uint32_t rank, const char *name) {
    bool literal = false;
    int32_t ids[3];
    const struct {
        const char *text;
        size_t length;
    } parts[2] = {{left, left_length}, {right, right_length}};
    ms_text both = {0};
    ms_status status = MS_OK;
    for (int i = 0; i < 2 && status == MS_OK; i++) {
        MS_TRY_GOTO(spell_key(tokenizer, parts[i].text, parts[i].length, key, &literal),
                    release_both);
        ids[i] =
            literal ? -1 : ms__vocabulary_find(&tokenizer->vocabulary, key->bytes, key->length);
        MS_TRY_GOTO(ms_text_append(&both, key->bytes, key->length), release_both);
    }
    ids[2] = ms__vocabulary_find(&tokenizer->vocabulary, both.bytes, both.length);
    for (int i = 0; i < 3; i++) {
        if (ids[i] < 0) {
            status = ms_fail(MS_ERR_FORMAT,
                             "%s: merge %" PRIu32 " \"%.*s %.*s\": its %s is not in the vocabulary",
                             name, rank, (int)(left_length < 64 ? left_length : 64), left,
                             (int)(right_length < 64 ? right_length : 64), right,
                             i == 0   ? "left part"
                             : i == 1 ? "right part"
                                      : "result");
            goto release_both;
        }
    }
    bool added;
    MS_TRY_GOTO(ms__merge_table_reserve(&tokenizer->merges, tokenizer->merges.count + 1),
                release_both);
    ms__merge_table_put(&tokenizer->merges, ids[0], ids[1], rank, ids[2], &added);
release_both:
    ms_text_release(&both);
    return status;
}

ms_status ms__tokenizer_add_merge(ms_tokenizer *tokenizer, const char *left, size_t left_length,
                                  const char *right, size_t right_length, uint32_t rank,
                                  const char *name) {
    ms_text key = {0};
    ms_status status =
        add_merge(tokenizer, &key, left, left_length, right, right_length, rank, name);
    ms_text_release(&key);
    return status;
}

static ms_status add_merges(ms_tokenizer *tokenizer, const json_t *merges, const char *name) {
    size_t count = json_array_size(merges);
    if (!json_is_array(merges) || count >= UINT32_MAX) {
        return ms_fail(MS_ERR_FORMAT, "%s: model.merges is not a list", name);
    }
    MS_TRY(ms__merge_table_reserve(&tokenizer->merges, count));
    for (size_t i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        size_t left_length = left != NULL ? strlen(left) : 0;
        if (json_is_string(merge)) {
            left = json_string_value(merge);
            const char *space = strchr(left, ' ');
            left_length = space != NULL ? (size_t)(space - left) : 0;
            right = space != NULL ? space + 1 : NULL;
        }
        if (left == NULL || right == NULL || left_length == 0 || right[0] == '\0') {
            return ms_fail(MS_ERR_FORMAT, "%s: merge %zu is neither \"left right\" nor a pair",
                           name, i);
        }
        MS_TRY(ms__tokenizer_add_merge(tokenizer, left, left_length, right, strlen(right),
                                       (uint32_t)i, name));
    }
    return MS_OK;
}

ms_status ms__tokenizer_add_all_pairs(ms_tokenizer *tokenizer, const uint32_t *rank_of_id) {
    const ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    for (size_t id = 0; id < vocabulary->count; id++) {
        const ms_token *token = &vocabulary->tokens[id];
        if ((token->flags & MS_TOKEN_PRESENT) == 0 || rank_of_id[id] == UINT32_MAX) {
            continue;
        }
        const char *key = vocabulary->pool + token->offset;
        for (size_t cut = 1; cut < token->length; cut++) {
            int32_t left = ms__vocabulary_find(vocabulary, key, cut);
            int32_t right =
                left < 0 ? -1 : ms__vocabulary_find(vocabulary, key + cut, token->length - cut);
            if (right >= 0) {
                bool added;
                MS_TRY(ms__merge_table_reserve(&tokenizer->merges, tokenizer->merges.count + 1));
                ms__merge_table_put(&tokenizer->merges, left, right, rank_of_id[id], (int32_t)id,
                                    &added);
            }
        }
    }
    return MS_OK;
}

/* ---- finishing ---- */

/* Keys of code-point BPE are pieces: byte tokens stand for bytes, marks for spaces. */
static ms_status spell_decoded(ms_tokenizer *tokenizer) {
    ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    ms_text text = {0};
    ms_status status = MS_OK;
    for (size_t id = 0; id < vocabulary->count && status == MS_OK; id++) {
        ms_token token = vocabulary->tokens[id];
        const char *key = vocabulary->pool + token.offset;
        if ((token.flags & MS_TOKEN_PRESENT) == 0 || (token.flags & MS_TOKEN_ADDED) != 0) {
            continue;
        }
        uint8_t byte;
        ms_text_clear(&text);
        if (tokenizer->byte_fallback && ms__is_byte_token(key, token.length, &byte)) {
            tokenizer->byte_ids[byte] = (int32_t)id;
            status = ms_text_append(&text, (const char *)&byte, 1);
        } else {
            size_t mark = sizeof MS_WORD_MARK - 1;
            for (size_t i = 0; i < token.length && status == MS_OK;) {
                bool is_mark = token.length - i >= mark && memcmp(key + i, MS_WORD_MARK, mark) == 0;
                status = ms_text_append(&text, is_mark ? " " : key + i, 1);
                i += is_mark ? mark : 1;
            }
        }
        if (status == MS_OK && token.length > 0 &&
            (text.length != token.length || memcmp(text.bytes, key, text.length) != 0)) {
            status = ms__vocabulary_set_decoded(vocabulary, (int32_t)id, text.bytes, text.length);
        }
    }
    ms_text_release(&text);
    return status;
}

/*
 * Llama-2's tokenizers have no pre-tokenizer: a whole text is one word. When marks stand at the
 * beginning of tokens only, no merge reaches over the place before one, so cutting there changes
 * nothing, and the cache of words is of use.
 */
static bool can_cut_at_marks(const ms_tokenizer *tokenizer) {
    const ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    const size_t mark = sizeof MS_WORD_MARK - 1;
    bool possible =
        !tokenizer->ignore_merges && ms__vocabulary_find(vocabulary, MS_WORD_MARK, mark) >= 0;
    for (size_t id = 0; id < vocabulary->count && possible; id++) {
        const ms_token *token = &vocabulary->tokens[id];
        const char *key = vocabulary->pool + token->offset;
        size_t at = 0;
        while (token->length - at >= mark && memcmp(key + at, MS_WORD_MARK, mark) == 0) {
            at += mark;
        }
        possible = (token->flags & MS_TOKEN_PRESENT) == 0 ||
                   memmem(key + at, token->length - at, MS_WORD_MARK, mark) == NULL;
    }
    return possible;
}

static void find_byte_ids(ms_tokenizer *tokenizer) {
    unsigned count = tokenizer->kind == MS_TOKENIZER_CHAR ? 128 : 256;
    for (unsigned byte = 0; byte < count; byte++) {
        char text = (char)byte;
        tokenizer->byte_ids[byte] = ms__vocabulary_find(&tokenizer->vocabulary, &text, 1);
    }
}

static int32_t find_content(const ms_tokenizer *tokenizer, const char *content) {
    return ms_tokenizer_find(tokenizer, content, strlen(content));
}

static int32_t find_added(const ms_tokenizer *tokenizer, const char *const *names) {
    for (size_t i = 0; names[i] != NULL; i++) {
        int32_t id = find_content(tokenizer, names[i]);
        if (id >= 0 && (tokenizer->vocabulary.tokens[id].flags & MS_TOKEN_ADDED) != 0) {
            return id;
        }
    }
    return -1;
}

/* The template of post_processor says what is put before and after a text. */
static void read_template(ms_tokenizer *tokenizer, const json_t *node) {
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type != NULL && strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(node, "processors");
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *inner = json_array_get(list, i);
            const char *inner_type = json_string_value(json_object_get(inner, "type"));
            if (inner_type != NULL && strcmp(inner_type, "TemplateProcessing") == 0) {
                read_template(tokenizer, inner);
            }
        }
        return;
    }
    if (type == NULL || strcmp(type, "TemplateProcessing") != 0) {
        return;
    }
    const json_t *single = json_object_get(node, "single");
    bool after = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *content =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (content == NULL) {
            after = true;
        } else if (after) {
            tokenizer->eos = find_content(tokenizer, content);
        } else {
            tokenizer->bos = find_content(tokenizer, content);
        }
    }
}

static void find_special_ids(ms_tokenizer *tokenizer) {
    static const char *const bos[] = {"<s>", "<|begin_of_text|>", "<bos>", NULL};
    static const char *const eos[] = {"</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", NULL};
    static const char *const pad[] = {"<pad>", "[PAD]", "<|finetune_right_pad_id|>", NULL};
    read_template(tokenizer, json_object_get(tokenizer->config, "post_processor"));
    tokenizer->bos = tokenizer->bos >= 0 ? tokenizer->bos : find_added(tokenizer, bos);
    tokenizer->eos = tokenizer->eos >= 0 ? tokenizer->eos : find_added(tokenizer, eos);
    tokenizer->pad = find_added(tokenizer, pad);
}

/* Ids that are the bytes, and nothing else: then encode is a copy, of any bytes. */
static bool is_plain_bytes(const ms_tokenizer *tokenizer) {
    bool plain = tokenizer->kind == MS_TOKENIZER_BYTE_BPE && tokenizer->merges.count == 0 &&
                 tokenizer->vocabulary.count == 256 && tokenizer->added_count == 0 &&
                 tokenizer->normal_count == 0 && tokenizer->split_count == 1 &&
                 tokenizer->split[0].code == NULL && !tokenizer->split[0].add_prefix_space;
    for (int32_t byte = 0; byte < 256 && plain; byte++) {
        plain = tokenizer->byte_ids[byte] == byte;
    }
    return plain;
}

ms_status ms__tokenizer_finish(ms_tokenizer *tokenizer, const char *name) {
    const json_t *model = json_object_get(tokenizer->config, "model");
    MS_TRY(ms__added_parse(tokenizer, json_object_get(tokenizer->config, "added_tokens"), name));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (unknown != NULL && tokenizer->kind != MS_TOKENIZER_CHAR) {
        tokenizer->unknown_id = find_content(tokenizer, unknown);
        if (tokenizer->unknown_id < 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: model.unk_token \"%.64s\" is not in the vocabulary",
                           name, unknown);
        }
    }
    if (tokenizer->kind == MS_TOKENIZER_CODE_POINT_BPE) {
        MS_TRY(spell_decoded(tokenizer));
        tokenizer->cut_at_marks = can_cut_at_marks(tokenizer);
    } else {
        find_byte_ids(tokenizer);
    }
    find_special_ids(tokenizer);
    if (is_plain_bytes(tokenizer)) {
        tokenizer->kind = MS_TOKENIZER_BYTE;
    }
    return MS_OK;
}

/*
 * Writes `bytes` with each escaped NUL as MS_NUL_MARK; leaves `out` empty when there is none. (JSON
 * has backslashes in strings only, so what follows one is an escape.)
 */
static ms_status mark_nul(const char *bytes, size_t length, const char *name, ms_text *out) {
    static const char escape[] = "\\u0000";
    const size_t escape_length = sizeof escape - 1;
    size_t done = 0;
    for (size_t i = 0; i + escape_length <= length; i++) {
        if (bytes[i] != '\\') {
            continue;
        }
        if (memcmp(bytes + i, escape, escape_length) != 0) {
            i++; /* the escaped character */
            continue;
        }
        MS_TRY(ms_text_append(out, bytes + done, i - done));
        MS_TRY(ms_text_append_z(out, MS_NUL_MARK));
        done = i + escape_length;
        i = done - 1;
    }
    if (done == 0) {
        return MS_OK;
    }
    if (memmem(bytes, length, MS_NUL_MARK, sizeof MS_NUL_MARK - 1) != NULL) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: has both NUL and U+FDD0 in its strings", name);
    }
    return ms_text_append(out, bytes + done, length - done);
}

/* Only tokens may hold a NUL: once vocabulary and merges are taken out, no mark must be left. */
static ms_status check_marks(const json_t *root, const char *name) {
    char *text = json_dumps(root, 0);
    if (text == NULL) {
        return ms_fail(MS_ERR_MEMORY, "%s: no memory for its text", name);
    }
    bool found = strstr(text, MS_NUL_MARK) != NULL;
    free(text); /* jansson's own allocation */
    return found
               ? ms_fail(MS_ERR_FORMAT, "%s: a string outside the vocabulary has a NUL in it", name)
               : MS_OK;
}

/* Appends the added tokens that the document does not have yet. */
static ms_status extend_added(json_t *root, const json_t *added, const char *name) {
    json_t *list = json_object_get(root, "added_tokens");
    if (list == NULL || json_is_null(list)) {
        list = json_array();
        json_object_set_new(root, "added_tokens", list);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)added, key, value) {
        int64_t id;
        if (!ms_parse_i64(key, &id) || !json_is_object(value)) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: added_tokens_decoder: \"%.40s\" is no id of an object", name, key);
        }
        bool found = false;
        for (size_t i = 0; i < json_array_size(list) && !found; i++) {
            found = json_integer_value(json_object_get(json_array_get(list, i), "id")) == id;
        }
        if (!found) {
            json_t *token = json_pack("{s:I}", "id", (json_int_t)id);
            json_object_update(token, value);
            json_array_append_new(list, token);
        }
    }
    return MS_OK;
}

static ms_status fill_from_json(ms_tokenizer *tokenizer, json_t *root, const json_t *added,
                                const char *name) {
    json_t *model = json_object_get(root, "model");
    json_t *vocabulary = json_incref(json_object_get(model, "vocab"));
    json_t *merges = json_incref(json_object_get(model, "merges"));
    json_object_del(model, "vocab");
    json_object_del(model, "merges");
    ms_status status;
    if (tokenizer->nul_marked) {
        MS_TRY_GOTO(check_marks(root, name), release_tables);
    }
    MS_TRY_GOTO(ms__tokenizer_configure(tokenizer, json_incref(root), name), release_tables);
    if (added != NULL) {
        MS_TRY_GOTO(extend_added(root, added, name), release_tables);
    }
    MS_TRY_GOTO(ms__tokenizer_add_vocabulary(tokenizer, vocabulary, name), release_tables);
    if (tokenizer->kind != MS_TOKENIZER_CHAR) {
        MS_TRY_GOTO(add_merges(tokenizer, merges, name), release_tables);
    }
    MS_TRY_GOTO(ms__tokenizer_finish(tokenizer, name), release_tables);
release_tables:
    json_decref(vocabulary);
    json_decref(merges);
    return status;
}

static ms_status from_document(const ms_json *json, bool nul_marked, const json_t *added,
                               ms_tokenizer **tokenizer) {
    const json_t *pieces = json_object_get(json->root, "pieces");
    if (pieces != NULL) {
        return ms__tokenizer_from_pieces(pieces, json->name, tokenizer);
    }
    ms_tokenizer *made = NULL;
    MS_TRY(ms__tokenizer_new(&made));
    made->nul_marked = nul_marked;
    ms_status status = fill_from_json(made, json->root, added, json->name);
    if (status != MS_OK) {
        ms_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return MS_OK;
}

ms_status ms__tokenizer_from_json(const char *bytes, size_t length, const char *name,
                                  const json_t *added, ms_tokenizer **tokenizer) {
    ms_json json = {0};
    ms_text marked = {0};
    ms_status status;
    MS_TRY_GOTO(mark_nul(bytes, length, name, &marked), release_marked);
    bool nul_marked = marked.length > 0;
    MS_TRY_GOTO(ms_json_parse(nul_marked ? marked.bytes : bytes,
                              nul_marked ? marked.length : length, name, &json),
                release_marked);
    status = from_document(&json, nul_marked, added, tokenizer);
    ms_json_close(&json);
release_marked:
    ms_text_release(&marked);
    return status;
}
