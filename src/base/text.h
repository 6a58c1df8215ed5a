/* text.h - growing byte strings, nearest names, figures for people, UTF-8, numbers. */
#ifndef MS_BASE_TEXT_H
#define MS_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"

/* A growing byte string, always NUL-terminated. Start from {0}; release with ms_text_release. */
typedef struct ms_text {
    char *bytes;
    size_t length;
    size_t capacity;
} ms_text;

ms_status ms_text_append(ms_text *text, const char *bytes, size_t length);
ms_status ms_text_append_z(ms_text *text, const char *string);
ms_status ms_text_printf(ms_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ms_text_clear(ms_text *text);
void ms_text_release(ms_text *text);

/* "12.3 MiB", "512 B": for people. buffer of at least 32 bytes; returns buffer. */
char *ms_format_bytes(uint64_t bytes, char *buffer, size_t buffer_bytes);
/* "1:02:03", "2:03", "12.3 s" or "345 ms". */
char *ms_format_duration(double seconds, char *buffer, size_t buffer_bytes);
/* 12345678 -> "12,345,678". */
char *ms_format_count(int64_t count, char *buffer, size_t buffer_bytes);
/* The shortest decimal text that reads back as the same double, in the C locale ("0.1", "10"). */
char *ms_format_f64(double value, char *buffer, size_t buffer_bytes);

/* Index of the name nearest to `wanted` by edit distance (Damerau), or -1 if none is near. */
int ms_nearest_name(const char *wanted, const char *const *names, int count);

/* Length of valid UTF-8 at the start of bytes; == length if all is valid. */
size_t ms_utf8_valid_prefix(const char *bytes, size_t length);
/* Decodes one code point (valid UTF-8 assumed); returns its length in bytes. */
int ms_utf8_decode(const char *bytes, size_t length, uint32_t *code_point);
int ms_utf8_encode(uint32_t code_point, char out[4]);

/* Parses a whole string as a number; false if anything is left over or it does not fit. */
bool ms_parse_i64(const char *text, int64_t *value);
bool ms_parse_f64(const char *text, double *value);

#endif
