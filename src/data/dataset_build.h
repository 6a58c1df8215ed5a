/*
 * dataset_build.h - making training files (Megatron's .bin/.idx) from text and JSONL, joining them,
 * and what is in a file.
 */
#ifndef MS_DATA_DATASET_BUILD_H
#define MS_DATA_DATASET_BUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "format/tokenizer.h"

/* What one document is. */
typedef enum ms_documents {
    MS_DOCUMENTS_FILE,       /* the whole text file */
    MS_DOCUMENTS_PARAGRAPHS, /* up to and with the next empty line: together they are the text */
    MS_DOCUMENTS_LINES,      /* a line of text, without its end */
    MS_DOCUMENTS_JSONL,      /* the text of an object of a JSONL file */
} ms_documents;

typedef struct ms_build_progress {
    uint64_t bytes_done, bytes_total; /* of the input */
    int64_t tokens, documents;
    double seconds;
} ms_build_progress;

typedef struct ms_build_options {
    const char *const *inputs; /* *.jsonl, *.ndjson and *.json are JSONL, all else is text */
    int input_count;
    const char *output; /* the pair's prefix */
    const ms_tokenizer *tokenizer;
    const char *text_key;   /* of JSONL; NULL: "text" */
    ms_documents documents; /* of text files */
    bool append_eod;        /* the tokenizer's end-of-text id after each document */
    bool dtype_given;       /* else uint16 or int32, by the vocabulary's size */
    ms_dtype dtype;
    int threads; /* at least 1 */
    /* May be NULL; called by the calling thread, a few times a second and at the end. */
    void (*progress)(const ms_build_progress *progress, void *context);
    void *context;
} ms_build_options;

typedef struct ms_build_result {
    int64_t documents, tokens;
    int64_t empty_documents; /* left out */
    uint64_t input_bytes;
    double seconds;
    ms_dtype dtype;
} ms_build_result;

/*
 * Writes output.bin, output.idx and output.tokenizer/. The bytes do not depend on the number of
 * threads. The pair appears when all of it is on disk; on failure there is none.
 */
ms_status ms_dataset_build(const ms_build_options *options, ms_build_result *result);

/*
 * Joins pairs of one type in the order given; the output may be one of the inputs. Pairs whose
 * stored tokenizers differ are MS_ERR_MISMATCH; one that all of them share is stored again.
 */
ms_status ms_dataset_merge(const char *const *inputs, int input_count, const char *output,
                           ms_build_result *result);

/* What a file holds, without a tokenizer. Figures that do not apply are 0. */
typedef struct ms_data_facts {
    const char *kind; /* "text", "jsonl", "indexed" */
    uint64_t bytes;
    int64_t characters, distinct_characters; /* text, and the texts of JSONL */
    int64_t lines;                           /* text */
    int64_t documents;                       /* JSONL, indexed */
    int64_t sequences, tokens;               /* indexed */
    int64_t document_tokens_min, document_tokens_max;
    ms_dtype dtype;
    int32_t id_min, id_max; /* of all tokens: read with scan only */
} ms_data_facts;
ms_status ms_data_inspect(const char *path, const char *text_key, bool scan, ms_data_facts *facts);

#endif
