/*
 * indexed.h - Megatron's IndexedDataset: PREFIX.bin holds tokens, PREFIX.idx says where sequences
 * and documents begin.
 *
 *   .idx  "MMIDIDX\0\0" | u64 version 1 | u8 type code | u64 sequences S | u64 entries D
 *         | i32 lengths[S] | i64 byte offsets[S] | i64 document index[D] | optional i8 modes[S]
 *
 * Opening checks sizes, offsets and the document index; every position is 64 bits wide. Errors name
 * the file and the byte offset. A reader is immutable: any number of threads may use it.
 */
#ifndef MS_FORMAT_INDEXED_H
#define MS_FORMAT_INDEXED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"

typedef struct ms_indexed ms_indexed;

/* path is the prefix, or the prefix with ".bin" or ".idx". */
ms_status ms_indexed_open(const char *path, ms_indexed **data);
/* The bytes belong to the caller and must outlive the handle. */
ms_status ms_indexed_open_memory(const void *idx, size_t idx_bytes, const void *bin,
                                 size_t bin_bytes, const char *name, ms_indexed **data);
void ms_indexed_close(ms_indexed *data);
/* Whether both files of the pair are there. */
bool ms_indexed_exists(const char *path);

ms_dtype ms_indexed_dtype(const ms_indexed *data);
int64_t ms_indexed_sequence_count(const ms_indexed *data);
int64_t ms_indexed_document_count(const ms_indexed *data);
int64_t ms_indexed_token_count(const ms_indexed *data);
bool ms_indexed_has_modes(const ms_indexed *data);

/* Sequence i: its tokens are [*first, *first + *count) of the stream of all tokens. */
ms_status ms_indexed_sequence(const ms_indexed *data, int64_t sequence, int64_t *first,
                              int64_t *count);
ms_status ms_indexed_sequence_mode(const ms_indexed *data, int64_t sequence, int8_t *mode);
/* Document i consists of sequences [*first, *first + *count). */
ms_status ms_indexed_document(const ms_indexed *data, int64_t document, int64_t *first,
                              int64_t *count);
/*
 * Tokens [first, first + count) of the stream, as int32. When vocabulary_size is not 0, an id
 * outside [0, vocabulary_size) is MS_ERR_RANGE that names it and its place.
 */
ms_status ms_indexed_read(const ms_indexed *data, int64_t first, int64_t count,
                          int64_t vocabulary_size, int32_t *tokens);

/* uint16 below 65,500 entries, else int32: Megatron's rule. */
ms_dtype ms_indexed_dtype_for(int64_t vocabulary_size);

/*
 * Writing: tokens stream to disk; of each sequence only its length stays in memory. The pair
 * appears under its names in finish (.bin first, .idx last, both durable); destroy without finish
 * leaves nothing. One thread at a time.
 */
typedef struct ms_indexed_writer ms_indexed_writer;
ms_status ms_indexed_writer_create(const char *prefix, ms_dtype dtype, bool with_modes,
                                   ms_indexed_writer **writer);
/* One sequence. An id that does not fit the type is MS_ERR_RANGE; nothing is written then. */
ms_status ms_indexed_writer_add(ms_indexed_writer *writer, const int32_t *tokens, int64_t count,
                                int8_t mode);
ms_status ms_indexed_writer_end_document(ms_indexed_writer *writer);
/* All sequences and documents of another pair of the same type (merging). */
ms_status ms_indexed_writer_append(ms_indexed_writer *writer, const ms_indexed *data);
int64_t ms_indexed_writer_token_count(const ms_indexed_writer *writer);
ms_status ms_indexed_writer_finish(ms_indexed_writer *writer);
void ms_indexed_writer_destroy(ms_indexed_writer *writer);

#endif
