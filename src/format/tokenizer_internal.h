/*
 * tokenizer_internal.h - the parts of a tokenizer, shared by the tokenizer_*.c files.
 *
 *   text --added tokens--> segments --normal steps--> --split steps--> words --merges--> ids
 *
 * Everything in ms_tokenizer is fixed once ms__tokenizer_build has returned.
 */
#ifndef MS_FORMAT_TOKENIZER_INTERNAL_H
#define MS_FORMAT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/tokenizer.h"

#define MS_TOKENIZER_JSON_BYTES_MAX ((size_t)256 << 20)
#define MS_TOKENIZER_STEPS_MAX 16
#define MS_TOKEN_BYTES_MAX 65536

/* ---- vocabulary: id <-> bytes (tokenizer_vocabulary.c) ---- */

#define MS_TOKEN_PRESENT 1u /* the id exists */
#define MS_TOKEN_LITERAL 2u /* stands for its own text, outside the byte alphabet: never merged */
#define MS_TOKEN_ADDED 4u
#define MS_TOKEN_SPECIAL 8u
#define MS_TOKEN_OUTSIDE 16u /* an added token that the model's own vocabulary does not have */

typedef struct ms_token {
    uint32_t offset, length;                 /* of its key in the pool: what encode looks up */
    uint32_t decoded_offset, decoded_length; /* of what decode writes */
    uint8_t flags;
} ms_token;

typedef struct ms_vocabulary {
    char *pool;
    size_t pool_bytes, pool_capacity;
    ms_token *tokens;
    size_t count, capacity; /* count: largest id + 1 */
    int32_t *slots;         /* hash table of ids, -1 empty; LITERAL ones are not in it */
    size_t slot_count, used;
} ms_vocabulary;

void ms__vocabulary_release(ms_vocabulary *vocabulary);
/* MS_ERR_EXISTS when the id is taken or, unless LITERAL, the key is. `where` is for messages. */
ms_status ms__vocabulary_add(ms_vocabulary *vocabulary, int64_t id, const char *key, size_t length,
                             unsigned flags, const char *where);
/* Makes decode write other bytes than the key. */
ms_status ms__vocabulary_set_decoded(ms_vocabulary *vocabulary, int32_t id, const char *bytes,
                                     size_t length);
int32_t ms__vocabulary_find(const ms_vocabulary *vocabulary, const char *key, size_t length);
static inline const char *ms__vocabulary_key(const ms_vocabulary *vocabulary, int32_t id) {
    return vocabulary->pool + vocabulary->tokens[id].offset;
}
static inline bool ms__vocabulary_has(const ms_vocabulary *vocabulary, int64_t id) {
    return id >= 0 && (uint64_t)id < vocabulary->count &&
           (vocabulary->tokens[id].flags & MS_TOKEN_PRESENT) != 0;
}

/* GPT-2's printable alphabet: each byte is written as one code point. */
uint32_t ms__byte_to_code_point(uint8_t byte);
int ms__code_point_to_byte(uint32_t code_point); /* -1: not of the alphabet */
/* Text of the alphabet -> bytes. out has room for `length`; false when a character is not of it. */
bool ms__alphabet_decode(const char *text, size_t length, char *out, size_t *out_length);
ms_status ms__alphabet_encode(const char *bytes, size_t length, ms_text *out);

/* ---- merges (tokenizer_merge.c) ---- */

typedef struct ms_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: empty slot */
    uint32_t rank;
    int32_t id; /* of the result */
} ms_merge;

typedef struct ms_merge_table {
    ms_merge *slots;
    size_t slot_count; /* a power of two, or 0 */
    size_t count;
} ms_merge_table;

static inline uint64_t ms__pair(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}
ms_status ms__merge_table_reserve(ms_merge_table *table, size_t count);
/* Keeps the first rank of a pair; *added tells whether it was new. Room must have been reserved. */
void ms__merge_table_put(ms_merge_table *table, int32_t left, int32_t right, uint32_t rank,
                         int32_t id, bool *added);
const ms_merge *ms__merge_table_find(const ms_merge_table *table, int32_t left, int32_t right);
void ms__merge_table_release(ms_merge_table *table);

/* ---- normal steps (tokenizer_normal.c) ---- */

typedef enum ms_normal_kind {
    MS_NORMAL_UNICODE, /* NFC, NFD, NFKC, NFKD */
    MS_NORMAL_PREPEND,
    MS_NORMAL_REPLACE,
    MS_NORMAL_LOWERCASE,
    MS_NORMAL_STRIP,
} ms_normal_kind;

typedef struct ms_normal_step {
    ms_normal_kind kind;
    bool compose, compatible;     /* UNICODE */
    bool strip_left, strip_right; /* STRIP */
    char *pattern, *content;      /* REPLACE; PREPEND has content */
    size_t pattern_length, content_length;
} ms_normal_step;

/* ---- split steps (tokenizer_split.c) ---- */

typedef enum ms_split_behavior {
    MS_SPLIT_ISOLATED,
    MS_SPLIT_REMOVED,
    MS_SPLIT_MERGED_WITH_PREVIOUS,
    MS_SPLIT_MERGED_WITH_NEXT,
    MS_SPLIT_CONTIGUOUS,
} ms_split_behavior;

typedef struct ms_split_step {
    pcre2_code *code; /* NULL: the step only changes text */
    ms_split_behavior behavior;
    bool invert;
    bool add_prefix_space;  /* ByteLevel */
    bool prefix_first_only; /* Metaspace "first" */
    char *replacement;      /* Metaspace: what spaces become; else NULL */
} ms_split_step;

/* ---- the whole ---- */

typedef struct ms_added_token {
    char *content;
    size_t length;
    int32_t id;
    bool special, normalized, left_strip, right_strip, single_word;
} ms_added_token;

struct ms_tokenizer {
    ms_tokenizer_kind kind;
    json_t *config;  /* tokenizer.json without the model's vocab and merges */
    ms_arena *arena; /* strings of steps and added tokens */
    ms_vocabulary vocabulary;
    ms_merge_table merges;
    ms_normal_step normal[MS_TOKENIZER_STEPS_MAX];
    int normal_count;
    ms_split_step split[MS_TOKENIZER_STEPS_MAX];
    int split_count;
    ms_added_token *added; /* longest first */
    size_t added_count;
    bool added_first_byte[2][256]; /* [normalized]: the bytes that added tokens begin with */
    bool ignore_merges, byte_fallback, fuse_unknown;
    bool cut_at_marks;      /* no token has text before a MS_WORD_MARK: words may be cut there */
    bool strip_first_space; /* decode drops the space that encode put in front */
    int32_t unknown_id;
    int32_t byte_ids[256]; /* ids of single bytes: of the alphabet, or of byte fallback; -1: none */
    int32_t bos, eos, pad;
    bool nul_marked; /* MS_NUL_MARK stands for NUL in the strings of the document */
};

#define MS_WORD_MARK "\xe2\x96\x81" /* U+2581: stands for a space in pieces */

/* jansson has no NUL in keys, so a document that has some is read with this non-character instead.
 */
#define MS_NUL_MARK "\xef\xb7\x90" /* U+FDD0 */

/* One slot of the cache of words: as many bytes and ids as nearly every word needs. */
#define MS_CACHE_WORD_BYTES 32
#define MS_CACHE_WORD_IDS 7
#define MS_CACHE_SLOTS 16384
typedef struct ms_cache_slot {
    uint8_t length, id_count; /* length 0: empty */
    char bytes[MS_CACHE_WORD_BYTES];
    int32_t ids[MS_CACHE_WORD_IDS];
} ms_cache_slot;

typedef struct ms_symbol {
    int32_t id;
    int32_t previous, next; /* -1: none */
} ms_symbol;

typedef struct ms_heap_entry {
    uint32_t rank;
    int32_t position;    /* of the left symbol; among equal ranks the leftmost goes first */
    int32_t left, right; /* ids when the entry was made: it is stale if they changed */
    int32_t id;
} ms_heap_entry;

struct ms_tokenizer_scratch {
    pcre2_match_data *match_data[MS_TOKENIZER_STEPS_MAX];
    pcre2_match_context *match_context;
    pcre2_jit_stack *jit_stack;
    ms_text normal[2]; /* steps write from one to the other */
    ms_text prefixed;
    int32_t *code_points; /* of a piece under normalisation */
    size_t code_point_capacity;
    ms_symbol *symbols;
    size_t symbol_capacity;
    ms_heap_entry *heap;
    size_t heap_count, heap_capacity;
    ms_cache_slot *cache;
};

/* Making one, in order: new, configure, vocabulary and merges, finish (tokenizer.c, _json.c). */
ms_status ms__tokenizer_new(ms_tokenizer **tokenizer);
/* Takes over `config` (also on failure) and reads normalizer, pre_tokenizer, decoder and the
 * model's flags: after it the kind is known, which says what keys mean. */
ms_status ms__tokenizer_configure(ms_tokenizer *tokenizer, json_t *config, const char *name);
/* {"token": id}, in the spelling of files. */
ms_status ms__tokenizer_add_vocabulary(ms_tokenizer *tokenizer, const json_t *vocabulary,
                                       const char *name);
/* One merge of two tokens in the spelling of files. */
ms_status ms__tokenizer_add_merge(ms_tokenizer *tokenizer, const char *left, size_t left_length,
                                  const char *right, size_t right_length, uint32_t rank,
                                  const char *name);
/* All pairs that give a token, ranked by rank_of_id[result] (UINT32_MAX: not a result). */
ms_status ms__tokenizer_add_all_pairs(ms_tokenizer *tokenizer, const uint32_t *rank_of_id);
/* Added tokens, ids of bytes, what decode writes, the usual names of special ids. */
ms_status ms__tokenizer_finish(ms_tokenizer *tokenizer, const char *name);
ms_status ms__normal_parse(ms_tokenizer *tokenizer, const json_t *node, const char *name);
/* The normal form of a segment: *out points into the scratch, or at text when nothing changes. */
ms_status ms__normal_apply(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                           const char *text, size_t length, const char **out, size_t *out_length);

ms_status ms__split_parse(ms_tokenizer *tokenizer, const json_t *node, const char *name);
extern const char ms__pattern_gpt2[];
extern const char ms__pattern_character[]; /* of a char tokenizer: every character is a word */
ms_status ms__split_compile(const char *pattern, bool is_regex, const char *name,
                            pcre2_code **code);
/* Cuts a segment into words and hands each to `word`. is_first: it begins the text. */
typedef ms_status (*ms_word_function)(void *context, const char *word, size_t length);
ms_status ms__split_apply(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                          const char *text, size_t length, bool is_first, ms_word_function word,
                          void *context);

ms_status ms__added_parse(ms_tokenizer *tokenizer, const json_t *list, const char *name);
/* The first added token at or after *begin: its range and index; *index -1 when there is none. */
void ms__added_find(const ms_tokenizer *tokenizer, const char *text, size_t length, size_t from,
                    bool normalized, bool with_special, size_t *begin, size_t *end, int64_t *index);

/* Appends the ids of one word. */
ms_status ms__merge_word(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                         const char *word, size_t length, ms_tokens *tokens);
ms_status ms__tokens_push(ms_tokens *tokens, const int32_t *ids, size_t count);

/* Whether the bytes are a byte token "<0xXX>" of byte fallback, and of which byte. */
bool ms__is_byte_token(const char *text, size_t length, uint8_t *byte);

/* The files of one form each (tokenizer_json.c, tokenizer_files.c). `added` is the object
 * "added_tokens_decoder" of a tokenizer_config.json, or NULL: added tokens, if the document lacks
 * them. */
ms_status ms__tokenizer_from_json(const char *bytes, size_t length, const char *name,
                                  const json_t *added, ms_tokenizer **tokenizer);
ms_status ms__tokenizer_from_pieces(const json_t *pieces, const char *name,
                                    ms_tokenizer **tokenizer);
/* The document of a byte-level tokenizer with a pattern (UTF-8; NULL: GPT-2's; "": none). */
json_t *ms__byte_level_config(const char *pattern);
ms_status ms__config_add_special(json_t *config, const char *content, int64_t id);

#endif
