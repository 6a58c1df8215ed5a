/*
 * data_internal.h - shared by the files of data/.
 *
 *   dataset.c        samples, over blend.c (which source) and data_source.c (its tokens)
 *   dataset_build.c  pairs written, over tokenize.c
 *   data_source.c    a stream of tokens, over tokenize.c (text, JSONL) or format/indexed (pairs)
 *   tokenize.c       text to tokens on several threads, over text_units.c (where it may be cut)
 */
#ifndef MS_DATA_DATA_INTERNAL_H
#define MS_DATA_DATA_INTERNAL_H

#include "base/file.h"
#include "data/dataset.h"
#include "data/dataset_build.h"
#include "format/indexed.h"

/* ---- text to tokens ---- */

/* A piece of one file's text: bytes [begin, end) of it. */
typedef struct ms_text_part {
    const char *name, *bytes;
    size_t length; /* of the whole file, which is mapped */
    size_t begin, end;
    ms_documents documents;
    const char *text_key; /* JSONL */
} ms_text_part;

/* What one thread tokenises at once: bytes [begin, end) of part number `part`. */
typedef struct ms_text_unit {
    int64_t part;
    size_t begin, end;
    bool is_last; /* of its part */
} ms_text_unit;

/* The tokens of a unit. `ends` says where documents end among them; a document may go on in the
 * next unit. */
typedef struct ms_token_batch {
    int64_t part;
    ms_tokens tokens;
    int64_t *ends;
    size_t end_count, end_capacity;
    int64_t empty_documents; /* left out */
    uint64_t source_bytes;
} ms_token_batch;

typedef struct ms_tokenize_job {
    const ms_tokenizer *tokenizer;
    int32_t eod; /* put after each document; -1: none */
    const ms_text_part *parts;
    int64_t part_count;
    int threads;
    /* Called by the thread that called ms__tokenize, in the order of the text. */
    ms_status (*take)(void *context, const ms_token_batch *batch);
    void *context;
} ms_tokenize_job;

ms_status ms__tokenize(const ms_tokenize_job *job);
/* The caller frees *units. */
ms_status ms__text_units_make(const ms_tokenizer *tokenizer, const ms_text_part *parts,
                              int64_t part_count, ms_text_unit **units, int64_t *count);
/* Code points, of valid UTF-8. */
int64_t ms__text_characters(const char *bytes, size_t length);
/* The byte at which character floor(fraction x characters) begins. */
size_t ms__text_split(const char *bytes, size_t length, double fraction);
/* Length of two line ends (LF or CR LF) at `at`, which end a paragraph; 0 when they are not there.
 */
size_t ms__paragraph_end(const char *bytes, size_t at, size_t end);

/* ---- sources ---- */

typedef enum ms_source_kind { MS_SOURCE_TEXT, MS_SOURCE_JSONL, MS_SOURCE_INDEXED } ms_source_kind;
ms_status ms__data_source_kind_of(const char *path, ms_source_kind *kind);
const char *ms__data_source_kind_name(ms_source_kind kind);

typedef struct ms_source_request {
    const ms_dataset_options *options;
    const char *path; /* must outlive the source */
    bool whole;       /* else the part that options->split names */
} ms_source_request;

typedef struct ms_source {
    const char *path;
    ms_source_kind kind;
    ms_indexed *indexed; /* or, in memory: */
    uint16_t *narrow;    /* ids of vocabularies up to 65,536 */
    int32_t *wide;
    size_t capacity;
    int64_t vocabulary_size; /* of the model; 0: not checked */
    int64_t stream_tokens;   /* of the whole stream, or of what is in memory */
    int64_t first, tokens;   /* the part of the stream that is used */
    int64_t samples, left_over;
} ms_source;

ms_status ms__data_source_open(const ms_source_request *request, ms_source *source);
void ms__data_source_close(ms_source *source);
/* Tokens [first, first + count) of the part. */
ms_status ms__data_source_read(const ms_source *source, int64_t first, int64_t count,
                               int64_t vocabulary_size, int32_t *tokens);

/* ---- blends ---- */

#define MS_BLEND_PERIOD_MAX 65536
#define MS_BLEND_SOURCES_MAX 4096

typedef struct ms_blend {
    int64_t period;
    int64_t *shares;     /* [sources]: places of each in a period */
    uint16_t *source_at; /* [period] */
    uint16_t *rank_at;   /* [period]: how many places of that source come before this one */
} ms_blend;

/* weights: above 0 and finite. Start from {0}. */
ms_status ms__blend_make(const double *weights, int count, ms_blend *blend);
void ms__blend_release(ms_blend *blend);
/* Source of sample `index` and how many samples before it came from that source. */
void ms__blend_at(const ms_blend *blend, int64_t index, int *source, int64_t *counter);

#endif
