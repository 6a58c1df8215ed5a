/*
 * jsonl.h - files of one JSON object a line: a writer for metrics, a reader for corpora.
 *
 * Writer: numbers read back to the same double; NaN and infinities are null; a line reaches the
 * file with one write(2), so a kill leaves at most the last line cut short, which the next append
 * removes. Reader: over a map, in byte ranges for several threads; errors name the file and the
 * line.
 */
#ifndef MS_FORMAT_JSONL_H
#define MS_FORMAT_JSONL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

typedef struct ms_jsonl_writer ms_jsonl_writer;
/* append: go on after the last whole line of an existing file; otherwise start an empty file. */
ms_status ms_jsonl_writer_create(const char *path, bool append, ms_jsonl_writer **writer);
/*
 * Fields of the next line, in order; then end writes it. A failure of a field is kept and reported
 * by end (nothing is written then), so that calls can stand in a row. One thread at a time.
 */
void ms_jsonl_int(ms_jsonl_writer *writer, const char *key, int64_t value);
void ms_jsonl_real(ms_jsonl_writer *writer, const char *key, double value);
void ms_jsonl_bool(ms_jsonl_writer *writer, const char *key, bool value);
void ms_jsonl_string(ms_jsonl_writer *writer, const char *key, const char *value); /* NULL: null */
ms_status ms_jsonl_end(ms_jsonl_writer *writer);
ms_status ms_jsonl_writer_sync(ms_jsonl_writer *writer); /* fdatasync */
void ms_jsonl_writer_destroy(ms_jsonl_writer *writer);

typedef struct ms_jsonl_reader ms_jsonl_reader;
typedef struct ms_jsonl_options {
    size_t line_bytes_max;     /* 0: 64 MiB */
    uint64_t begin, end;       /* only lines whose first byte lies in [begin, end); end 0: all */
    bool allow_truncated_last; /* a last line without its newline that does not parse is skipped */
} ms_jsonl_options;
/* options may be NULL. */
ms_status ms_jsonl_reader_open(const char *path, const ms_jsonl_options *options,
                               ms_jsonl_reader **reader);
/* The bytes belong to the caller and must outlive the handle. */
ms_status ms_jsonl_reader_open_memory(const void *bytes, size_t length, const char *name,
                                      const ms_jsonl_options *options, ms_jsonl_reader **reader);
void ms_jsonl_reader_close(ms_jsonl_reader *reader);
/*
 * The next object that is not blank; *object is NULL at the end. It is owned by the reader until
 * the next call. Blank lines and a byte-order mark at the start of the file are passed over.
 */

ms_status ms_jsonl_reader_next(ms_jsonl_reader *reader, json_t **object);
/* The string under `key` of the next object; *text is NULL at the end. It may contain NUL. */
ms_status ms_jsonl_reader_next_text(ms_jsonl_reader *reader, const char *key, const char **text,
                                    size_t *length);
uint64_t ms_jsonl_reader_bytes(const ms_jsonl_reader *reader);  /* of the whole file */
uint64_t ms_jsonl_reader_offset(const ms_jsonl_reader *reader); /* where the next line begins */
int64_t ms_jsonl_reader_line(const ms_jsonl_reader *reader);    /* of the last object, from 1 */

#endif
