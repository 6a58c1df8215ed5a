/*
 * Added tokens: texts such as "<|endoftext|>" that are one id whatever the merges say.
 *
 * Stands first in encode: the text is cut at them before anything else touches it. Special ones are
 * only recognised when the caller asks (text from outside must not be able to end a document);
 * others always are. Those marked `normalized` are looked for in the normal form of what lies
 * between.
 *
 * Data: the tokens, longest first, so that the first that fits is the longest; a table of first
 * bytes makes the search pass over text at the speed of a scan.
 *
 * Rejected: an automaton for all of them at once (there are tens to hundreds, nearly all begin
 * "<|").
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "format/tokenizer_internal.h"

static int compare_added(const void *a, const void *b) {
    const ms_added_token *left = a, *right = b;
    if (left->length != right->length) {
        return left->length > right->length ? -1 : 1;
    }
    return left->id < right->id ? -1 : left->id > right->id;
}

static ms_status parse_one(ms_tokenizer *tokenizer, const json_t *node, const char *name,
                           ms_added_token *token) {
    const json_t *id = json_object_get(node, "id");
    const char *content = json_string_value(json_object_get(node, "content"));
    if (!json_is_integer(id) || content == NULL || content[0] == '\0') {
        return ms_fail(MS_ERR_FORMAT, "%s: an added token lacks an \"id\" or its \"content\"",
                       name);
    }
    json_int_t number = json_integer_value(id);
    if (number < 0 || number >= MS_TOKENIZER_VOCABULARY_MAX) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: added token \"%.64s\" has id %" PRId64 ", allowed are 0 to %" PRId64,
                       name, content, (int64_t)number, MS_TOKENIZER_VOCABULARY_MAX - 1);
    }
    *token = (ms_added_token){
        .length = strlen(content),
        .id = (int32_t)number,
        .special = json_is_true(json_object_get(node, "special")),
        .normalized = json_is_true(json_object_get(node, "normalized")),
        .left_strip = json_is_true(json_object_get(node, "lstrip")),
        .right_strip = json_is_true(json_object_get(node, "rstrip")),
        .single_word = json_is_true(json_object_get(node, "single_word")),
    };
    return ms_arena_strdup(tokenizer->arena, content, &token->content);
}

/* Enters the token into the vocabulary, or marks the entry that the model has for it already. */
static ms_status enter(ms_tokenizer *tokenizer, const ms_added_token *token, const char *name) {
    ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    unsigned flags = MS_TOKEN_ADDED | (token->special ? MS_TOKEN_SPECIAL : 0u);
    if (!ms__vocabulary_has(vocabulary, token->id)) {
        /* LITERAL: a word of the same bytes still goes through the merges, as it is not this token.
         */
        return ms__vocabulary_add(vocabulary, token->id, token->content, token->length,
                                  flags | MS_TOKEN_LITERAL | MS_TOKEN_OUTSIDE, name);
    }
    ms_token *entry = &vocabulary->tokens[token->id];
    if ((entry->flags & MS_TOKEN_ADDED) != 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: two added tokens have id %" PRId32, name, token->id);
    }
    if (entry->length != token->length ||
        memcmp(ms__vocabulary_key(vocabulary, token->id), token->content, token->length) != 0) {
        MS_TRY(ms__vocabulary_set_decoded(vocabulary, token->id, token->content, token->length));
    }
    vocabulary->tokens[token->id].flags |= (uint8_t)flags;
    return MS_OK;
}

ms_status ms__added_parse(ms_tokenizer *tokenizer, const json_t *list, const char *name) {
    if (list == NULL || json_is_null(list)) {
        return MS_OK;
    }
    if (!json_is_array(list)) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"added_tokens\" is not a list", name);
    }
    MS_TRY(ms_arena_alloc(tokenizer->arena, json_array_size(list) * sizeof *tokenizer->added,
                          (void **)&tokenizer->added));
    for (size_t i = 0; i < json_array_size(list); i++) {
        ms_added_token *token = &tokenizer->added[i];
        MS_TRY(parse_one(tokenizer, json_array_get(list, i), name, token));
        MS_TRY(enter(tokenizer, token, name));
        tokenizer->added_count++;
        tokenizer->added_first_byte[token->normalized][(uint8_t)token->content[0]] = true;
    }
    qsort(tokenizer->added, tokenizer->added_count, sizeof *tokenizer->added, compare_added);
    return MS_OK;
}

static bool is_word_character(const char *text, size_t length, size_t at) {
    uint32_t code_point;
    ms_utf8_decode(text + at, length - at, &code_point);
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

static size_t character_before(const char *text, size_t at) {
    do {
        at--;
    } while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static bool is_single_word(const char *text, size_t length, size_t begin, size_t end) {
    return (begin == 0 || !is_word_character(text, length, character_before(text, begin))) &&
           (end == length || !is_word_character(text, length, end));
}

static bool is_space(const char *text, size_t length, size_t at) {
    uint32_t code_point;
    ms_utf8_decode(text + at, length - at, &code_point);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code_point);
    return (code_point >= 9 && code_point <= 13) || code_point == 0x85 ||
           category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

static void widen(const ms_added_token *token, const char *text, size_t length, size_t from,
                  size_t *begin, size_t *end) {
    while (token->left_strip && *begin > from) {
        size_t before = character_before(text, *begin);
        if (!is_space(text, length, before)) {
            break;
        }
        *begin = before;
    }
    while (token->right_strip && *end < length && is_space(text, length, *end)) {
        uint32_t code_point;
        *end += (size_t)ms_utf8_decode(text + *end, length - *end, &code_point);
    }
}

void ms__added_find(const ms_tokenizer *tokenizer, const char *text, size_t length, size_t from,
                    bool normalized, bool with_special, size_t *begin, size_t *end,
                    int64_t *index) {
    const bool *first_byte = tokenizer->added_first_byte[normalized];
    *index = -1;
    if (tokenizer->added_count == 0) {
        return;
    }
    for (size_t at = from; at < length; at++) {
        if (!first_byte[(uint8_t)text[at]]) {
            continue;
        }
        for (size_t i = 0; i < tokenizer->added_count; i++) {
            const ms_added_token *token = &tokenizer->added[i];
            if (token->normalized != normalized || (token->special && !with_special) ||
                token->length > length - at ||
                memcmp(text + at, token->content, token->length) != 0 ||
                (token->single_word && !is_single_word(text, length, at, at + token->length))) {
                continue;
            }
            *begin = at;
            *end = at + token->length;
            *index = (int64_t)i;
            widen(token, text, length, from, begin, end);
            return;
        }
    }
}
