/*
 * JSON documents from outside: config.json, tokenizer.json, safetensors headers and indexes.
 *
 * Stands between jansson and the rooms that read fields: jansson parses, this file bounds the
 * input, refuses duplicate keys and NUL, and turns a wrong field into one sentence with file, key,
 * value and what was expected.
 *
 * Invariant: an ms_json that was opened holds an object and a name; both die in ms_json_close.
 *
 * Rejected: a table of fields per caller, as for YAML (a config.json has fields that are not ours,
 * so unknown keys are no error and nothing would be gained); JSON_ALLOW_NUL (names go to C
 * strings). jansson's own memory does not come from ms_alloc: setting its allocator would be a
 * process-wide change under the feet of a program that links us.
 */
#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define KEY_BYTES_MAX 256

ms_status ms_json_parse(const char *bytes, size_t length, const char *name, ms_json *json) {
    json_error_t error;
    json_t *root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: not valid JSON at line %d, column %d (byte %d): %s",
                       name, error.line, error.column, error.position, error.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return ms_fail(MS_ERR_FORMAT, "%s: the document must be an object { ... }", name);
    }
    char *copy = NULL;
    ms_status status = ms_alloc(strlen(name) + 1, MS_MEMORY_CALLER, (void **)&copy);
    if (status != MS_OK) {
        json_decref(root);
        return status;
    }
    memcpy(copy, name, strlen(name) + 1);
    json->root = root;
    json->name = copy;
    return MS_OK;
}

ms_status ms_json_open(const char *path, size_t bytes_max, ms_json *json) {
    ms_text text = {0};
    ms_status status = ms_file_read(path, bytes_max, &text);
    if (status == MS_OK) {
        status = ms_json_parse(text.bytes != NULL ? text.bytes : "", text.length, path, json);
    }
    ms_text_release(&text);
    return status;
}

void ms_json_close(ms_json *json) {
    json_decref(json->root);
    ms_free(json->name);
    json->root = NULL;
    json->name = NULL;
}

static const json_t *find_in(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (value != NULL) {
        return value;
    }
    const char *dot = strchr(key, '.');
    char head[KEY_BYTES_MAX];
    if (dot == NULL || (size_t)(dot - key) >= sizeof head) {
        return NULL;
    }
    memcpy(head, key, (size_t)(dot - key));
    head[dot - key] = '\0';
    const json_t *child = json_object_get(object, head);
    return json_is_object(child) ? find_in(child, dot + 1) : NULL;
}

const json_t *ms_json_find(const ms_json *json, const char *key) {
    const json_t *value = find_in(json->root, key);
    return json_is_null(value) ? NULL : value;
}

bool ms_json_has(const ms_json *json, const char *key) {
    return ms_json_find(json, key) != NULL;
}

/* What a value is, for messages: its text if it is short, else its type. */
static const char *describe(const json_t *value, char *buffer, size_t buffer_bytes) {
    if (json_is_string(value)) {
        snprintf(buffer, buffer_bytes, "\"%.60s\"", json_string_value(value));
    } else if (json_is_integer(value)) {
        snprintf(buffer, buffer_bytes, "%" PRId64, (int64_t)json_integer_value(value));
    } else if (json_is_real(value)) {
        snprintf(buffer, buffer_bytes, "%.17g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        snprintf(buffer, buffer_bytes, "%s", json_is_true(value) ? "true" : "false");
    } else {
        snprintf(buffer, buffer_bytes, "%s", json_is_array(value) ? "a list" : "an object");
    }
    return buffer;
}

static ms_status fail_type(const ms_json *json, const char *key, const json_t *value,
                           const char *expected) {
    char buffer[96];
    return ms_fail(MS_ERR_FORMAT, "%s: \"%s\" is %s, expected %s", json->name, key,
                   describe(value, buffer, sizeof buffer), expected);
}

static ms_status fail_missing(const ms_json *json, const char *key, const char *expected) {
    return ms_fail(MS_ERR_NOT_FOUND, "%s: \"%s\" is missing, expected %s", json->name, key,
                   expected);
}

ms_status ms_json_need_int(const ms_json *json, const char *key, int64_t minimum, int64_t maximum,
                           int64_t *value) {
    const json_t *node = ms_json_find(json, key);
    if (node == NULL) {
        return fail_missing(json, key, "an integer");
    }
    int64_t number;
    if (json_is_integer(node)) {
        number = (int64_t)json_integer_value(node);
    } else if (json_is_real(node) && json_real_value(node) == floor(json_real_value(node)) &&
               fabs(json_real_value(node)) < 0x1p63) {
        number = (int64_t)json_real_value(node);
    } else {
        return fail_type(json, key, node, "an integer");
    }
    if (number < minimum || number > maximum) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: \"%s\" is %" PRId64 ", allowed are %" PRId64 " to %" PRId64, json->name,
                       key, number, minimum, maximum);
    }
    *value = number;
    return MS_OK;
}

ms_status ms_json_get_int(const ms_json *json, const char *key, int64_t default_value,
                          int64_t minimum, int64_t maximum, int64_t *value) {
    if (!ms_json_has(json, key)) {
        *value = default_value;
        return MS_OK;
    }
    return ms_json_need_int(json, key, minimum, maximum, value);
}

ms_status ms_json_need_real(const ms_json *json, const char *key, double minimum, double maximum,
                            double *value) {
    const json_t *node = ms_json_find(json, key);
    if (node == NULL) {
        return fail_missing(json, key, "a number");
    }
    if (!json_is_number(node)) {
        return fail_type(json, key, node, "a number");
    }
    double number = json_number_value(node);
    if (!(number >= minimum && number <= maximum)) {
        return ms_fail(MS_ERR_RANGE, "%s: \"%s\" is %.17g, allowed are %g to %g", json->name, key,
                       number, minimum, maximum);
    }
    *value = number;
    return MS_OK;
}

ms_status ms_json_get_real(const ms_json *json, const char *key, double default_value,
                           double minimum, double maximum, double *value) {
    if (!ms_json_has(json, key)) {
        *value = default_value;
        return MS_OK;
    }
    return ms_json_need_real(json, key, minimum, maximum, value);
}

ms_status ms_json_get_bool(const ms_json *json, const char *key, bool default_value, bool *value) {
    const json_t *node = ms_json_find(json, key);
    if (node != NULL && !json_is_boolean(node)) {
        return fail_type(json, key, node, "true or false");
    }
    *value = node != NULL ? json_is_true(node) : default_value;
    return MS_OK;
}

ms_status ms_json_need_string(const ms_json *json, const char *key, const char **value) {
    const json_t *node = ms_json_find(json, key);
    if (node == NULL) {
        return fail_missing(json, key, "a string");
    }
    if (!json_is_string(node)) {
        return fail_type(json, key, node, "a string");
    }
    *value = json_string_value(node);
    return MS_OK;
}

ms_status ms_json_get_string(const ms_json *json, const char *key, const char *default_value,
                             const char **value) {
    if (!ms_json_has(json, key)) {
        *value = default_value;
        return MS_OK;
    }
    return ms_json_need_string(json, key, value);
}

ms_status ms_json_append_string(ms_text *text, const char *bytes, size_t length) {
    MS_TRY(ms_text_append(text, "\"", 1));
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f) {
            continue;
        }
        MS_TRY(ms_text_append(text, bytes + plain, i - plain));
        plain = i + 1;
        if (byte == '"' || byte == '\\') {
            MS_TRY(ms_text_printf(text, "\\%c", byte));
        } else if (byte == '\n') {
            MS_TRY(ms_text_append(text, "\\n", 2));
        } else if (byte == '\t') {
            MS_TRY(ms_text_append(text, "\\t", 2));
        } else {
            MS_TRY(ms_text_printf(text, "\\u%04x", byte));
        }
    }
    MS_TRY(ms_text_append(text, bytes + plain, length - plain));
    return ms_text_append(text, "\"", 1);
}

ms_status ms_json_append_real(ms_text *text, double value) {
    if (!isfinite(value)) {
        return ms_text_append(text, "null", 4);
    }
    char buffer[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) {
            break;
        }
    }
    /* A program that set a locale gets its decimal comma from printf; JSON has points. */
    char *comma = strchr(buffer, ',');
    if (comma != NULL) {
        *comma = '.';
    }
    MS_TRY(ms_text_append_z(text, buffer));
    /* "2.0", not "2": a reader that tells integers from reals then sees what was meant. */
    return strpbrk(buffer, ".e") == NULL ? ms_text_append(text, ".0", 2) : MS_OK;
}
