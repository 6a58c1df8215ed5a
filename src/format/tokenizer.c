/*
 * Tokenizers: the handle, encode and decode.
 *
 * Stands between data/ and generation above and the parts of a tokenizer below (tokenizer_*.c); see
 * tokenizer_internal.h for the path of a text. Loading and saving are in tokenizer_json.c and
 * tokenizer_files.c, training in tokenizer_train.c.
 *
 * Invariants: a tokenizer is never written to after it was made (all state of an encode is in the
 * scratch); ids handed out are in [0, vocabulary size); a failed encode leaves the caller's array
 * as it was.
 *
 * Rejected: a table of functions per kind (two of four kinds are five lines each).
 */
#define _GNU_SOURCE /* memmem */
#include "format/tokenizer_internal.h"

#include <inttypes.h>
#include <string.h>

#define MATCH_LIMIT 10000000u
#define JIT_STACK_BYTES_MAX ((size_t)8 << 20)

void ms_tokens_release(ms_tokens *tokens) {
    ms_free(tokens->ids);
    *tokens = (ms_tokens){0};
}

ms_status ms__tokenizer_new(ms_tokenizer **tokenizer) {
    ms_arena *arena = NULL;
    ms_tokenizer *made = NULL;
    MS_TRY(ms_arena_create(16384, MS_MEMORY_CALLER, &arena));
    ms_status status = ms_arena_alloc(arena, sizeof *made, (void **)&made);
    if (status != MS_OK) {
        ms_arena_destroy(arena);
        return status;
    }
    made->arena = arena;
    made->unknown_id = made->bos = made->eos = made->pad = -1;
    memset(made->byte_ids, 0xff, sizeof made->byte_ids);
    *tokenizer = made;
    return MS_OK;
}

void ms_tokenizer_destroy(ms_tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    for (int i = 0; i < tokenizer->split_count; i++) {
        pcre2_code_free(tokenizer->split[i].code);
    }
    json_decref(tokenizer->config);
    ms__merge_table_release(&tokenizer->merges);
    ms__vocabulary_release(&tokenizer->vocabulary);
    ms_arena_destroy(tokenizer->arena); /* holds the tokenizer itself */
}

ms_tokenizer_kind ms_tokenizer_kind_get(const ms_tokenizer *tokenizer) {
    return tokenizer->kind;
}

int64_t ms_tokenizer_vocabulary_size(const ms_tokenizer *tokenizer) {
    return (int64_t)tokenizer->vocabulary.count;
}

int32_t ms_tokenizer_bos(const ms_tokenizer *tokenizer) {
    return tokenizer->bos;
}
int32_t ms_tokenizer_eos(const ms_tokenizer *tokenizer) {
    return tokenizer->eos;
}
int32_t ms_tokenizer_pad(const ms_tokenizer *tokenizer) {
    return tokenizer->pad;
}

bool ms_tokenizer_is_special(const ms_tokenizer *tokenizer, int32_t id) {
    return ms__vocabulary_has(&tokenizer->vocabulary, id) &&
           (tokenizer->vocabulary.tokens[id].flags & MS_TOKEN_SPECIAL) != 0;
}

int32_t ms_tokenizer_find(const ms_tokenizer *tokenizer, const char *bytes, size_t length) {
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        if (tokenizer->added[i].length == length &&
            memcmp(tokenizer->added[i].content, bytes, length) == 0) {
            return tokenizer->added[i].id;
        }
    }
    if (tokenizer->kind != MS_TOKENIZER_CODE_POINT_BPE) {
        return ms__vocabulary_find(&tokenizer->vocabulary, bytes, length);
    }
    const ms_vocabulary *vocabulary =
        &tokenizer->vocabulary; /* what decode writes is not the key */
    for (size_t id = 0; id < vocabulary->count; id++) {
        const ms_token *token = &vocabulary->tokens[id];
        if ((token->flags & MS_TOKEN_PRESENT) != 0 && token->decoded_length == length &&
            memcmp(vocabulary->pool + token->decoded_offset, bytes, length) == 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

ms_status ms_tokenizer_id_bytes(const ms_tokenizer *tokenizer, int32_t id, const char **bytes,
                                size_t *length) {
    const ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    if (!ms__vocabulary_has(vocabulary, id)) {
        return ms_fail(MS_ERR_RANGE, "token id %" PRId32 " is not in the vocabulary of %zu", id,
                       vocabulary->count);
    }
    *bytes = vocabulary->pool + vocabulary->tokens[id].decoded_offset;
    *length = vocabulary->tokens[id].decoded_length;
    return MS_OK;
}

static ms_status fill_scratch(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch) {
    MS_TRY(MS_NEW(MS_CACHE_SLOTS, MS_MEMORY_CALLER, &scratch->cache));
    if (tokenizer->split_count == 0) {
        return MS_OK;
    }
    scratch->match_context = pcre2_match_context_create(NULL);
    scratch->jit_stack = pcre2_jit_stack_create(32768, JIT_STACK_BYTES_MAX, NULL);
    if (scratch->match_context == NULL || scratch->jit_stack == NULL) {
        return ms_fail(MS_ERR_MEMORY, "no memory for matching patterns");
    }
    pcre2_set_match_limit(scratch->match_context, MATCH_LIMIT);
    pcre2_jit_stack_assign(scratch->match_context, NULL, scratch->jit_stack);
    for (int i = 0; i < tokenizer->split_count; i++) {
        if (tokenizer->split[i].code != NULL) {
            scratch->match_data[i] =
                pcre2_match_data_create_from_pattern(tokenizer->split[i].code, NULL);
            if (scratch->match_data[i] == NULL) {
                return ms_fail(MS_ERR_MEMORY, "no memory for matching patterns");
            }
        }
    }
    return MS_OK;
}

ms_status ms_tokenizer_scratch_create(const ms_tokenizer *tokenizer,
                                      ms_tokenizer_scratch **scratch) {
    ms_tokenizer_scratch *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = fill_scratch(tokenizer, made);
    if (status != MS_OK) {
        ms_tokenizer_scratch_destroy(made);
        return status;
    }
    *scratch = made;
    return MS_OK;
}

void ms_tokenizer_scratch_destroy(ms_tokenizer_scratch *scratch) {
    if (scratch == NULL) {
        return;
    }
    for (int i = 0; i < MS_TOKENIZER_STEPS_MAX; i++) {
        pcre2_match_data_free(scratch->match_data[i]);
    }
    pcre2_match_context_free(scratch->match_context);
    pcre2_jit_stack_free(scratch->jit_stack);
    ms_text_release(&scratch->normal[0]);
    ms_text_release(&scratch->normal[1]);
    ms_text_release(&scratch->prefixed);
    ms_free(scratch->code_points);
    ms_free(scratch->symbols);
    ms_free(scratch->heap);
    ms_free(scratch->cache);
    ms_free(scratch);
}

typedef struct encoder {
    const ms_tokenizer *tokenizer;
    ms_tokenizer_scratch *scratch;
    ms_tokens *tokens;
    bool with_special;
} encoder;

static ms_status encode_word(void *context, const char *word, size_t length) {
    encoder *run = context;
    const size_t mark = sizeof MS_WORD_MARK - 1;
    size_t done = 0;
    while (run->tokenizer->cut_at_marks && done < length) {
        size_t from = done; /* behind the marks that the word begins with */
        while (length - from >= mark && memcmp(word + from, MS_WORD_MARK, mark) == 0) {
            from += mark;
        }
        const char *next = memmem(word + from, length - from, MS_WORD_MARK, mark);
        if (next == NULL) {
            break;
        }
        size_t end = (size_t)(next - word);
        MS_TRY(ms__merge_word(run->tokenizer, run->scratch, word + done, end - done, run->tokens));
        done = end;
    }
    return ms__merge_word(run->tokenizer, run->scratch, word + done, length - done, run->tokens);
}

/* A segment in normal form: cut at the added tokens that are looked for there, then into words. */
static ms_status encode_normal(encoder *run, const char *text, size_t length, bool is_first) {
    size_t done = 0;
    while (done < length) {
        size_t begin = length, end = length;
        int64_t index;
        ms__added_find(run->tokenizer, text, length, done, true, run->with_special, &begin, &end,
                       &index);
        MS_TRY(ms__split_apply(run->tokenizer, run->scratch, text + done, begin - done,
                               is_first && done == 0, encode_word, run));
        if (index >= 0) {
            MS_TRY(ms__tokens_push(run->tokens, &run->tokenizer->added[index].id, 1));
        }
        done = end;
    }
    return MS_OK;
}

static ms_status encode_pairs(encoder *run, const char *text, size_t length) {
    size_t done = 0;
    while (done < length) {
        size_t begin = length, end = length;
        int64_t index;
        ms__added_find(run->tokenizer, text, length, done, false, run->with_special, &begin, &end,
                       &index);
        const char *normal = NULL;
        size_t normal_length = 0;
        MS_TRY(ms__normal_apply(run->tokenizer, run->scratch, text + done, begin - done, &normal,
                                &normal_length));
        MS_TRY(encode_normal(run, normal, normal_length, done == 0));
        if (index >= 0) {
            MS_TRY(ms__tokens_push(run->tokens, &run->tokenizer->added[index].id, 1));
        }
        done = end;
    }
    return MS_OK;
}

static ms_status encode_bytes(const char *text, size_t length, ms_tokens *tokens) {
    MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + length,
                            sizeof *tokens->ids, MS_MEMORY_CALLER));
    for (size_t i = 0; i < length; i++) {
        tokens->ids[tokens->count++] = (uint8_t)text[i];
    }
    return MS_OK;
}

static ms_status encode_code_points(const ms_tokenizer *tokenizer, const char *text, size_t length,
                                    ms_tokens *tokens) {
    MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + length,
                            sizeof *tokens->ids, MS_MEMORY_CALLER));
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        size_t bytes = (size_t)ms_utf8_decode(text + i, length - i, &code_point);
        int32_t id = code_point < 128
                         ? tokenizer->byte_ids[code_point]
                         : ms__vocabulary_find(&tokenizer->vocabulary, text + i, bytes);
        if (id < 0) {
            return ms_fail(MS_ERR_RANGE,
                           "character U+%04" PRIX32 " at byte %zu is not among the %zu of the char "
                           "tokenizer",
                           code_point, i, tokenizer->vocabulary.count);
        }
        tokens->ids[tokens->count++] = id;
        i += bytes;
    }
    return MS_OK;
}

static ms_status encode_text(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                             const char *text, size_t length, unsigned flags, ms_tokens *tokens) {
    if (tokenizer->kind == MS_TOKENIZER_BYTE) {
        return encode_bytes(text, length, tokens);
    }
    size_t valid = ms_utf8_valid_prefix(text, length);
    if (valid != length) {
        return ms_fail(MS_ERR_FORMAT, "text is not UTF-8 at byte %zu (0x%02x)", valid,
                       (unsigned)(uint8_t)text[valid]);
    }
    if (tokenizer->kind == MS_TOKENIZER_CHAR) {
        return encode_code_points(tokenizer, text, length, tokens);
    }
    encoder run = {.tokenizer = tokenizer,
                   .scratch = scratch,
                   .tokens = tokens,
                   .with_special = (flags & MS_ENCODE_SPECIAL) != 0};
    return encode_pairs(&run, text, length);
}

ms_status ms_tokenizer_encode(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                              const char *text, size_t length, unsigned flags, ms_tokens *tokens) {
    size_t before = tokens->count;
    ms_status status = MS_OK;
    if ((flags & MS_ENCODE_BOS) != 0 && tokenizer->bos >= 0) {
        MS_TRY_GOTO(ms__tokens_push(tokens, &tokenizer->bos, 1), restore_count);
    }
    MS_TRY_GOTO(encode_text(tokenizer, scratch, text, length, flags, tokens), restore_count);
    if ((flags & MS_ENCODE_EOS) != 0 && tokenizer->eos >= 0) {
        MS_TRY_GOTO(ms__tokens_push(tokens, &tokenizer->eos, 1), restore_count);
    }
    return MS_OK;
restore_count:
    tokens->count = before;
    return status;
}

ms_status ms_tokenizer_decode(const ms_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              unsigned flags, ms_text *text) {
    bool strips = tokenizer->strip_first_space && (flags & MS_DECODE_CONTINUE) == 0;
    for (size_t i = 0; i < count; i++) {
        const char *bytes = NULL;
        size_t length = 0;
        MS_TRY(ms_tokenizer_id_bytes(tokenizer, ids[i], &bytes, &length));
        if (ms_tokenizer_is_special(tokenizer, ids[i])) {
            if ((flags & MS_DECODE_SKIP_SPECIAL) == 0) {
                MS_TRY(ms_text_append(text, bytes, length));
            }
            continue;
        }
        if (strips && length > 0) {
            strips = false;
            size_t skip = bytes[0] == ' ' ? 1 : 0;
            bytes += skip;
            length -= skip;
        }
        MS_TRY(ms_text_append(text, bytes, length));
    }
    return MS_OK;
}
