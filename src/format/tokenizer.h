/*
 * tokenizer.h - text to token ids and back.
 *
 * Kinds: char (the code points of a text), byte (256 ids), byte-level BPE (GPT-2, Llama-3, Qwen,
 * tiktoken), and BPE over code points with byte fallback (Llama-2, SentencePiece). All of them load
 * from and save to tokenizer.json in Hugging Face's form.
 *
 * A tokenizer is immutable once made: any number of threads may use it, each with a scratch of its
 * own. Ids are int32. decode(encode(text)) == text for byte, char and byte-level BPE without a
 * normaliser.
 */
#ifndef MS_FORMAT_TOKENIZER_H
#define MS_FORMAT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define MS_TOKENIZER_VOCABULARY_MAX ((int64_t)1 << 22)

typedef struct ms_tokenizer ms_tokenizer;
typedef struct ms_tokenizer_scratch ms_tokenizer_scratch;

typedef enum ms_tokenizer_kind {
    MS_TOKENIZER_CHAR,
    MS_TOKENIZER_BYTE,
    MS_TOKENIZER_BYTE_BPE,
    MS_TOKENIZER_CODE_POINT_BPE,
} ms_tokenizer_kind;

/* A growing array of ids. Start from {0}; release with ms_tokens_release. */
typedef struct ms_tokens {
    int32_t *ids;
    size_t count;
    size_t capacity;
} ms_tokens;
void ms_tokens_release(ms_tokens *tokens);

/*
 * Loads by content:
 *   a directory   with tokenizer.json, or vocab.json/encoder.json and merges.txt/vocab.bpe, or one
 *                 *.tiktoken file; tokenizer_config.json there, if any, names the ids
 *                 that begin and end a text
 *   *.json        tokenizer.json, or {"pieces": [[piece, score], ...]} (SentencePiece as text)
 *   *.tiktoken    a rank file; its name (r50k_base, cl100k_base, o200k_base) chooses the pattern
 */
ms_status ms_tokenizer_load(const char *path, ms_tokenizer **tokenizer);
/* The text of a tokenizer.json (or of pieces) in memory; name is for messages. */
ms_status ms_tokenizer_load_memory(const char *bytes, size_t length, const char *name,
                                   ms_tokenizer **tokenizer);
/* GPT-2's two files: token -> id as JSON, and one merge a line. */
ms_status ms_tokenizer_load_gpt2(const char *vocabulary_path, const char *merges_path,
                                 ms_tokenizer **tokenizer);
/* encoding: "r50k_base", "cl100k_base", "o200k_base" (with their special tokens), or another text:
 * the pre-tokenizer's regular expression. */
ms_status ms_tokenizer_load_tiktoken(const char *path, const char *encoding,
                                     ms_tokenizer **tokenizer);
ms_status ms_tokenizer_create_byte(ms_tokenizer **tokenizer);
/* The sorted set of the code points of a text. */
ms_status ms_tokenizer_create_char(const char *text, size_t length, ms_tokenizer **tokenizer);
void ms_tokenizer_destroy(ms_tokenizer *tokenizer);
/* Writes dir/tokenizer.json (and dir/tokenizer_config.json) in one step each. */
ms_status ms_tokenizer_save(const ms_tokenizer *tokenizer, const char *dir);
/* The text of tokenizer.json. */
ms_status ms_tokenizer_emit(const ms_tokenizer *tokenizer, ms_text *json);

ms_tokenizer_kind ms_tokenizer_kind_get(const ms_tokenizer *tokenizer);
/* The largest id + 1, added tokens included: the rows an embedding needs. */
int64_t ms_tokenizer_vocabulary_size(const ms_tokenizer *tokenizer);
/* -1 when the tokenizer has none. */
int32_t ms_tokenizer_bos(const ms_tokenizer *tokenizer);
int32_t ms_tokenizer_eos(const ms_tokenizer *tokenizer);
int32_t ms_tokenizer_pad(const ms_tokenizer *tokenizer);
bool ms_tokenizer_is_special(const ms_tokenizer *tokenizer, int32_t id);
/* The id of a token given by its bytes, as ms_tokenizer_id_bytes returns them; -1 when there is
 * none. */
int32_t ms_tokenizer_find(const ms_tokenizer *tokenizer, const char *bytes, size_t length);
/* What an id stands for, owned by the tokenizer; MS_ERR_RANGE when there is no such id. */
ms_status ms_tokenizer_id_bytes(const ms_tokenizer *tokenizer, int32_t id, const char **bytes,
                                size_t *length);

/* Buffers and a cache of words, for one thread at a time. */
ms_status ms_tokenizer_scratch_create(const ms_tokenizer *tokenizer,
                                      ms_tokenizer_scratch **scratch);
void ms_tokenizer_scratch_destroy(ms_tokenizer_scratch *scratch);

/* Flags of encode. */
#define MS_ENCODE_SPECIAL                                                                          \
    1u                   /* special tokens written in the text become their ids; else plain text */
#define MS_ENCODE_BOS 2u /* put the beginning-of-text id first, if the tokenizer has one */
#define MS_ENCODE_EOS 4u /* put the end-of-text id last, if it has one */

/*
 * Appends the ids of a text. Text that is not UTF-8 is MS_ERR_FORMAT with the byte's offset (the
 * byte tokenizer takes anything); a character that a char tokenizer does not know is MS_ERR_RANGE.
 * On failure the array keeps its count.
 */
ms_status ms_tokenizer_encode(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                              const char *text, size_t length, unsigned flags, ms_tokens *tokens);

/* Flags of decode. */
#define MS_DECODE_SKIP_SPECIAL 1u /* leave special tokens out */
#define MS_DECODE_CONTINUE 2u     /* ids go on from ids decoded before: keep a leading space */
/*
 * Appends the bytes that ids stand for. The bytes may end inside a character when the ids do. A
 * SentencePiece-like tokenizer drops the space that it put before the text.
 */
ms_status ms_tokenizer_decode(const ms_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              unsigned flags, ms_text *text);

/*
 * Training a byte-level BPE vocabulary: the most frequent pair of tokens inside a word becomes a
 * token, again and again; among equal counts the pair of smaller ids wins. The result depends on
 * the text alone (and not on how it was cut into documents at word borders).
 */
typedef struct ms_tokenizer_trainer ms_tokenizer_trainer;
typedef struct ms_tokenizer_train_options {
    int64_t vocabulary_size;           /* 256 bytes + merges + special tokens */
    int64_t pair_count_min;            /* 0: 2; rarer pairs are never merged */
    const char *pattern;               /* NULL: GPT-2's */
    const char *const *special_tokens; /* get the last ids; may be NULL */
    int special_token_count;
} ms_tokenizer_train_options;
ms_status ms_tokenizer_trainer_create(const ms_tokenizer_train_options *options,
                                      ms_tokenizer_trainer **trainer);
ms_status ms_tokenizer_trainer_add(ms_tokenizer_trainer *trainer, const char *text, size_t length);
/* May be called once. progress may be NULL; it is called now and then with the tokens made so far.
 */
ms_status ms_tokenizer_trainer_finish(ms_tokenizer_trainer *trainer,
                                      void (*progress)(int64_t done, int64_t total, void *context),
                                      void *context, ms_tokenizer **tokenizer);
void ms_tokenizer_trainer_destroy(ms_tokenizer_trainer *trainer);

#endif
