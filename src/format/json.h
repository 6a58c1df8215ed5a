/*
 * json.h - reading JSON documents from outside with a bound, and typed getters with plain messages.
 *
 * A document is parsed by jansson. Duplicate keys and strings with NUL are refused. Every error
 * names the file, the key (or line, column and byte) and what was expected. A key is looked up
 * literally first; "rope_scaling.factor" then means key "factor" inside object "rope_scaling". A
 * missing key and a null value are the same. Thread-safe as long as nobody closes the document.
 */
#ifndef MS_FORMAT_JSON_H
#define MS_FORMAT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define MS_JSON_BYTES_MAX ((size_t)64 << 20) /* the usual bound for ms_json_open */

typedef struct ms_json {
    json_t *root; /* owned */
    char *name;   /* the file, for messages; owned */
} ms_json;

/* Start from {0}. On failure *json is untouched. The root must be an object. */
ms_status ms_json_open(const char *path, size_t bytes_max, ms_json *json);
ms_status ms_json_parse(const char *bytes, size_t length, const char *name, ms_json *json);
void ms_json_close(ms_json *json);

/* NULL when there is no such key or it is null. */
const json_t *ms_json_find(const ms_json *json, const char *key);
bool ms_json_has(const ms_json *json, const char *key);

/*
 * Values with a default when the key is missing; *value is written only on success. An integer may
 * be written 1e6 or 4096.0 when it is integral. minimum and maximum are inclusive.
 */
ms_status ms_json_get_int(const ms_json *json, const char *key, int64_t default_value,
                          int64_t minimum, int64_t maximum, int64_t *value);
ms_status ms_json_get_real(const ms_json *json, const char *key, double default_value,
                           double minimum, double maximum, double *value);
ms_status ms_json_get_bool(const ms_json *json, const char *key, bool default_value, bool *value);
/* The string is owned by the document (or is default_value, which may be NULL). */
ms_status ms_json_get_string(const ms_json *json, const char *key, const char *default_value,
                             const char **value);
/* As the getters above for keys that must be there. */
ms_status ms_json_need_int(const ms_json *json, const char *key, int64_t minimum, int64_t maximum,
                           int64_t *value);
ms_status ms_json_need_real(const ms_json *json, const char *key, double minimum, double maximum,
                            double *value);
ms_status ms_json_need_string(const ms_json *json, const char *key, const char **value);

/* Writing: a quoted, escaped string (valid UTF-8 assumed); a number that reads back to the same
 * double (%.17g or shorter; NaN and infinities as null). */
ms_status ms_json_append_string(ms_text *text, const char *bytes, size_t length);
ms_status ms_json_append_real(ms_text *text, double value);

#endif
