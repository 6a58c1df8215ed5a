/*
 * config_value.c - one value: parsed by its key's type, checked against its range, stored.
 *
 * Where it stands: all sources (default, file, environment, --set) end here, so a value means the
 * same and is refused in the same words wherever it was given.
 *
 * Invariants: a struct is written only after the value passed every check. A refused value names
 * the place, the key, what was seen and what may stand there.
 */
#include "base/config_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SEEN_BYTES_MAX 80 /* of a refused value, in its message */

/* Where no bound is meant: tables write INT64_MAX, 1e300 or INFINITY. */
static bool is_unbounded(double bound) {
    return !(fabs(bound) < 1e15);
}

static ms_status describe_range(const ms_key *key, ms_text *text) {
    char low[32], high[32];
    if (key->minimum == 0.0 && key->maximum == 0.0) {
        return MS_OK;
    }
    ms_format_f64(key->minimum, low, sizeof low);
    ms_format_f64(key->maximum, high, sizeof high);
    if (key->type == MS_KEY_INT) {
        snprintf(low, sizeof low, "%.0f", is_unbounded(key->minimum) ? 0.0 : key->minimum);
        snprintf(high, sizeof high, "%.0f", is_unbounded(key->maximum) ? 0.0 : key->maximum);
    }
    if (is_unbounded(key->minimum) && is_unbounded(key->maximum)) {
        return MS_OK;
    }
    if (is_unbounded(key->maximum)) {
        return ms_text_printf(text, " of at least %s", low);
    }
    if (is_unbounded(key->minimum)) {
        return ms_text_printf(text, " of at most %s", high);
    }
    return ms_text_printf(text, " from %s to %s", low, high);
}

ms_status ms__config_describe(const ms_key *key, ms_text *text) {
    switch (key->type) {
    case MS_KEY_BOOL:
        MS_TRY(ms_text_append_z(text, "true or false"));
        break;
    case MS_KEY_INT:
    case MS_KEY_REAL:
        MS_TRY(ms_text_append_z(text, key->type == MS_KEY_INT ? "a whole number" : "a number"));
        MS_TRY(describe_range(key, text));
        if (key->unit != NULL && key->unit[0] != '\0') {
            MS_TRY(ms_text_printf(text, " (%s)", key->unit));
        }
        break;
    case MS_KEY_STRING:
        MS_TRY(ms_text_append_z(text, "a text"));
        break;
    case MS_KEY_ENUM:
        MS_TRY(ms_text_append_z(text, "one of"));
        for (int i = 0; key->choices[i] != NULL; i++) {
            MS_TRY(ms_text_printf(text, "%s %s", i > 0 ? "," : "", key->choices[i]));
        }
        return MS_OK; /* auto, if allowed, is among them */
    case MS_KEY_LIST:
        MS_TRY(ms_text_append_z(text, "a text or a list of texts and {path, weight}"));
        break;
    }
    if (key->allow_auto) {
        MS_TRY(ms_text_append_z(text, ", or auto"));
    }
    return MS_OK;
}

/* The beginning of a value for a message, cut between characters. */
static const char *seen(const char *text, char buffer[SEEN_BYTES_MAX + 4]) {
    size_t length = strlen(text);
    if (length > SEEN_BYTES_MAX) {
        length = ms_utf8_valid_prefix(text, SEEN_BYTES_MAX);
        memcpy(buffer, text, length);
        memcpy(buffer + length, "...", 4);
        return buffer;
    }
    return text;
}

/* Always fails; writes what was seen and what may stand there. */
static ms_status refuse(const ms_config_section *section, const ms_key *key, const char *text,
                        const char *where) {
    char buffer[SEEN_BYTES_MAX + 4];
    char hint[MS_CONFIG_HINT_BYTES] = "";
    if (key->type == MS_KEY_ENUM) {
        int count = 0;
        while (key->choices[count] != NULL) {
            count++;
        }
        int nearest = ms_nearest_name(text, key->choices, count);
        if (nearest >= 0) {
            snprintf(hint, sizeof hint, "; did you mean \"%s\"?", key->choices[nearest]);
        }
    }
    ms_text legal = {0};
    ms_status status;
    MS_TRY_GOTO(ms__config_describe(key, &legal), release_text);
    status = text[0] == '\0'
                 ? ms_fail(MS_ERR_CONFIG, "%s: %s.%s has no value; it must be %s", where,
                           section->name, key->name, legal.bytes)
                 : ms_fail(MS_ERR_CONFIG, "%s: %s.%s is \"%s\"; it must be %s%s", where,
                           section->name, key->name, seen(text, buffer), legal.bytes, hint);
release_text:
    ms_text_release(&legal);
    return status;
}

/*
 * A number without its underscores, each of which must stand between two digits. False if one does
 * not, or if the number is too long for the buffer.
 */
static bool strip_underscores(const char *text, char *plain, size_t plain_bytes) {
    size_t out = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (text[i] == '_') {
            if (i == 0 || !isdigit((unsigned char)text[i - 1]) ||
                !isdigit((unsigned char)text[i + 1])) {
                return false;
            }
            continue;
        }
        if (out + 1 >= plain_bytes) {
            return false;
        }
        plain[out++] = text[i];
    }
    plain[out] = '\0';
    return true;
}

/*
 * Digits, point and exponent as an exact integer: "2.5e3" is 2500, "1.5" is none. Not through
 * double, which would turn 9007199254740993.0 into its neighbour without a word.
 */
static bool parse_scientific_i64(const char *text, int64_t *value) {
    const char *at = text;
    bool negative = *at == '-';
    at += *at == '-' || *at == '+';
    char digits[64];
    int digit_count = 0, fraction_count = 0;
    bool after_point = false, any = false;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !after_point); at++) {
        if (*at == '.') {
            after_point = true;
            continue;
        }
        any = true;
        fraction_count += after_point;
        if (digit_count > 0 || *at != '0') {
            if (digit_count == (int)sizeof digits) {
                return false;
            }
            digits[digit_count++] = *at;
        }
    }
    int64_t exponent = 0;
    if (any && (*at == 'e' || *at == 'E')) {
        if (!ms_parse_i64(at + 1, &exponent) || exponent < -1000 || exponent > 1000) {
            return false;
        }
        at += strlen(at);
    }
    if (!any || *at != '\0') {
        return false;
    }
    int64_t zeros = exponent - fraction_count; /* to append, or to find at the end and drop */
    for (; zeros < 0 && digit_count > 0; zeros++) {
        if (digits[--digit_count] != '0') {
            return false;
        }
    }
    int64_t result = 0;
    for (int64_t i = 0; i < digit_count + (digit_count > 0 ? zeros : 0); i++) {
        int64_t digit = i < digit_count ? digits[i] - '0' : 0;
        if (!ms_i64_mul(result, 10, &result) ||
            !ms_i64_add(result, negative ? -digit : digit, &result)) {
            return false;
        }
    }
    *value = result;
    return true;
}

static bool parse_integer(const char *text, int64_t *value) {
    char plain[96];
    return strip_underscores(text, plain, sizeof plain) &&
           (ms_parse_i64(plain, value) || parse_scientific_i64(plain, value));
}

static bool parse_real(const char *text, double *value) {
    char plain[96];
    double parsed;
    if (!strip_underscores(text, plain, sizeof plain) || !ms_parse_f64(plain, &parsed) ||
        !isfinite(parsed)) {
        return false;
    }
    *value = parsed;
    return true;
}

static bool parse_bool(const char *text, bool *value) {
    static const char *const words[] = {"true",  "false", "True", "False", "TRUE",
                                        "FALSE", "yes",   "no",   "on",    "off"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = i % 2 == 0;
            return true;
        }
    }
    return false;
}

static bool in_range(const ms_key *key, double value) {
    return (key->minimum == 0.0 && key->maximum == 0.0) ||
           (value >= key->minimum && value <= key->maximum);
}

static bool is_null_word(const char *text) {
    return strcmp(text, "null") == 0 || strcmp(text, "~") == 0 || strcmp(text, "Null") == 0 ||
           strcmp(text, "NULL") == 0;
}

static void mark_set(ms_config *config, int section, int key, const char *where) {
    ms__config_state *state = &config->states[section][key];
    state->where = where;
    state->is_set = strcmp(where, MS_CONFIG_WHERE_DEFAULT) != 0;
}

static int choice_index(const ms_key *key, const char *text) {
    for (int i = 0; key->choices[i] != NULL; i++) {
        if (strcmp(key->choices[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

/* Numbers, words of a choice and truth values; *stored says whether the text was one. */
static void store_simple(const ms_key *key, const char *text, void *target, bool *stored) {
    bool is_auto = key->allow_auto && strcmp(text, "auto") == 0;
    int64_t integer = MS_AUTO;
    double real = MS_AUTO_REAL;
    bool truth = false;
    int choice;
    *stored = false;
    switch (key->type) {
    case MS_KEY_INT:
        /* The smallest integer is the mark of auto, so no number may be it. */
        if (is_auto || (parse_integer(text, &integer) && integer != MS_AUTO &&
                        in_range(key, (double)integer))) {
            *(int64_t *)target = integer;
            *stored = true;
        }
        break;
    case MS_KEY_REAL:
        if (is_auto || (parse_real(text, &real) && in_range(key, real))) {
            *(double *)target = real;
            *stored = true;
        }
        break;
    case MS_KEY_BOOL:
        if (parse_bool(text, &truth)) {
            *(bool *)target = truth;
            *stored = true;
        }
        break;
    case MS_KEY_ENUM:
        choice = choice_index(key, text);
        if (choice >= 0) {
            *(int *)target = choice;
            *stored = true;
        }
        break;
    case MS_KEY_STRING:
    case MS_KEY_LIST:
        break;
    }
}

ms_status ms__config_set_scalar(ms_config *config, int section, int key, const char *text,
                                bool plain, const char *where) {
    const ms_config_section *table = config->sections[section];
    const ms_key *entry = &table->keys[key];
    char *target = (char *)config->values[section] + entry->offset;
    if (plain && is_null_word(text)) {
        text = "";
    }
    if (entry->type == MS_KEY_STRING) {
        char *copy = NULL;
        if (text[0] != '\0') {
            MS_TRY(ms_arena_strdup(config->arena, text, &copy));
        }
        *(const char **)(void *)target = copy;
        mark_set(config, section, key, where);
        return MS_OK;
    }
    if (entry->type == MS_KEY_LIST) {
        ms_config_entry *entries = NULL;
        if (text[0] != '\0') {
            char *copy;
            void *memory;
            MS_TRY(ms_arena_strdup(config->arena, text, &copy));
            MS_TRY(ms_arena_alloc(config->arena, sizeof *entries, &memory));
            entries = memory;
            *entries = (ms_config_entry){.path = copy, .weight = 1.0};
        }
        return ms__config_set_list(config, section, key, entries, entries != NULL, where);
    }
    bool stored;
    store_simple(entry, text, target, &stored);
    if (!stored) {
        return refuse(table, entry, text, where);
    }
    mark_set(config, section, key, where);
    return MS_OK;
}

ms_status ms__config_set_list(ms_config *config, int section, int key, ms_config_entry *entries,
                              int count, const char *where) {
    const ms_key *entry = &config->sections[section]->keys[key];
    ms_config_list *list = NULL;
    if (count > 0) {
        void *memory;
        MS_TRY(ms_arena_alloc(config->arena, sizeof *list, &memory));
        list = memory;
        list->count = count;
        list->entries = entries;
    }
    char *target = (char *)config->values[section] + entry->offset;
    *(ms_config_list **)(void *)target = list;
    mark_set(config, section, key, where);
    return MS_OK;
}

ms_status ms__config_set_section_auto(ms_config *config, int section, const char *where) {
    const ms_config_section *table = config->sections[section];
    for (int key = 0; key < table->key_count; key++) {
        if (table->keys[key].allow_auto) {
            MS_TRY(ms__config_set_scalar(config, section, key, "auto", true, where));
        }
    }
    return MS_OK;
}

ms_status ms__config_parse_weight(const char *text, const char *where, const char *section,
                                  const char *key, double *weight) {
    char buffer[SEEN_BYTES_MAX + 4];
    double value;
    if (!parse_real(text, &value) || value <= 0.0) {
        return ms_fail(MS_ERR_CONFIG, "%s: %s.%s: weight is \"%s\"; it must be a number above 0",
                       where, section, key, seen(text, buffer));
    }
    *weight = value;
    return MS_OK;
}
