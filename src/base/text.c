/*
 * text.c - growing byte strings, and figures written for people.
 *
 * Where it stands: used by every writer of YAML, JSON, SVG and messages above.
 *
 * Invariants: after the first append, bytes[length] is NUL and length < capacity. A failed append
 * leaves the text as it was. Numbers are read and written in the C locale whatever the host program
 * has set, since they go into files.
 */
#define _GNU_SOURCE 1 /* strtod_l */

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void c_locale_make(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

ms_status ms_text_append(ms_text *text, const char *bytes, size_t length) {
    size_t needed;
    if (!ms_size_add(text->length, length, &needed) || !ms_size_add(needed, 1, &needed)) {
        return ms_fail(MS_ERR_MEMORY, "out of memory: a text of %zu + %zu bytes", text->length,
                       length);
    }
    void *memory = text->bytes;
    MS_TRY(ms_array_reserve(&memory, &text->capacity, needed, 1, MS_MEMORY_CALLER));
    text->bytes = memory;
    if (length > 0) {
        memcpy(text->bytes + text->length, bytes, length);
    }
    text->length += length;
    text->bytes[text->length] = '\0';
    return MS_OK;
}

ms_status ms_text_append_z(ms_text *text, const char *string) {
    return ms_text_append(text, string, strlen(string));
}

ms_status ms_text_printf(ms_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    size_t needed;
    if (wanted < 0 || !ms_size_add(text->length, (size_t)wanted + 1, &needed)) {
        return ms_fail(MS_ERR_ARGUMENT, "text cannot be formatted by \"%s\"", format);
    }
    void *memory = text->bytes;
    MS_TRY(ms_array_reserve(&memory, &text->capacity, needed, 1, MS_MEMORY_CALLER));
    text->bytes = memory;
    va_start(arguments, format);
    vsnprintf(text->bytes + text->length, (size_t)wanted + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)wanted;
    return MS_OK;
}

void ms_text_clear(ms_text *text) {
    text->length = 0;
    if (text->bytes != NULL) {
        text->bytes[0] = '\0';
    }
}

void ms_text_release(ms_text *text) {
    ms_free(text->bytes);
    *text = (ms_text){0};
}

char *ms_format_bytes(uint64_t bytes, char *buffer, size_t buffer_bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buffer, buffer_bytes, "%" PRIu64 " B", bytes);
        return buffer;
    }
    double value = (double)bytes / 1024.0;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(buffer, buffer_bytes, "%.1f %s", value, units[unit]);
    return buffer;
}

char *ms_format_duration(double seconds, char *buffer, size_t buffer_bytes) {
    if (!isfinite(seconds) || seconds >= 1e15) {
        snprintf(buffer, buffer_bytes, "unknown");
    } else if (seconds < 0.0) {
        snprintf(buffer, buffer_bytes, "0.0 s");
    } else if (seconds < 0.9995) {
        snprintf(buffer, buffer_bytes, "%.0f ms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(buffer, buffer_bytes, "%.1f s", seconds);
    } else {
        int64_t whole = (int64_t)(seconds + 0.5);
        int64_t hours = whole / 3600;
        int minutes = (int)(whole / 60 % 60);
        int rest = (int)(whole % 60);
        if (hours > 0) {
            snprintf(buffer, buffer_bytes, "%" PRId64 ":%02d:%02d", hours, minutes, rest);
        } else {
            snprintf(buffer, buffer_bytes, "%d:%02d", minutes, rest);
        }
    }
    return buffer;
}

char *ms_format_count(int64_t count, char *buffer, size_t buffer_bytes) {
    char digits[32];
    char grouped[48];
    snprintf(digits, sizeof digits, "%" PRId64, count);
    size_t length = strlen(digits);
    size_t first = count < 0 ? 1 : 0;
    size_t out = 0;
    for (size_t i = 0; i < length; i++) {
        if (i > first && (length - i) % 3 == 0) {
            grouped[out++] = ',';
        }
        grouped[out++] = digits[i];
    }
    grouped[out] = '\0';
    snprintf(buffer, buffer_bytes, "%s", grouped);
    return buffer;
}

static double read_f64(const char *text, char **end) {
    pthread_once(&c_locale_once, c_locale_make);
    return c_locale != (locale_t)0 ? strtod_l(text, end, c_locale) : strtod(text, end);
}

char *ms_format_f64(double value, char *buffer, size_t buffer_bytes) {
    pthread_once(&c_locale_once, c_locale_make);
    locale_t before = c_locale != (locale_t)0 ? uselocale(c_locale) : (locale_t)0;
    /* Whole numbers in full: "10", not the "1e+01" that one digit gives. */
    bool is_whole = fabs(value) < 1e15 && value == trunc(value);
    snprintf(buffer, buffer_bytes, "%.0f", value);
    for (int digits = 1; digits <= 17 && !is_whole; digits++) {
        snprintf(buffer, buffer_bytes, "%.*g", digits, value);
        double back = read_f64(buffer, NULL);
        if (memcmp(&back, &value, sizeof back) == 0) {
            break;
        }
    }
    if (before != (locale_t)0) {
        uselocale(before);
    }
    return buffer;
}

/* Names compare without case and with '-' as '_': such slips cost nothing. */
static int folded(char c) {
    return c == '-' ? '_' : tolower((unsigned char)c);
}

#define NAME_LENGTH_MAX 64

/* Damerau's distance (optimal string alignment): insert, delete, replace, swap neighbours. */
static int edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    int rows[3][NAME_LENGTH_MAX + 1];
    int *before = rows[0];
    int *last = rows[1];
    int *now = rows[2];
    for (size_t j = 0; j <= b_length; j++) {
        last[j] = (int)j;
        before[j] = 0;
    }
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int cost = folded(a[i - 1]) != folded(b[j - 1]);
            int best = last[j - 1] + cost;
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                folded(a[i - 2]) == folded(b[j - 1]) && before[j - 2] + 1 < best) {
                best = before[j - 2] + 1;
            }
            now[j] = best;
        }
        int *recycled = before;
        before = last;
        last = now;
        now = recycled;
    }
    return last[b_length];
}

static bool contains_folded(const char *text, size_t length, const char *part, size_t part_length) {
    for (size_t start = 0; start + part_length <= length; start++) {
        size_t i = 0;
        while (i < part_length && folded(text[start + i]) == folded(part[i])) {
            i++;
        }
        if (i == part_length) {
            return true;
        }
    }
    return false;
}

int ms_nearest_name(const char *wanted, const char *const *names, int count) {
    size_t wanted_length = strlen(wanted);
    if (wanted_length == 0 || wanted_length > NAME_LENGTH_MAX) {
        return -1;
    }
    int limit = wanted_length <= 2 ? 1 : (int)(wanted_length / 3) + 1;
    int best_index = -1;
    int best_distance = limit + 1;
    int part_index = -1;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        if (length == 0 || length > NAME_LENGTH_MAX) {
            continue;
        }
        int distance = edit_distance(wanted, wanted_length, names[i], length);
        /* A distance as long as a name would turn any word into any other. */
        size_t longer = length > wanted_length ? length : wanted_length;
        if (distance < best_distance && (size_t)distance < longer) {
            best_distance = distance;
            best_index = i;
        }
        if (part_index < 0 && wanted_length >= 3 && length >= 3 &&
            (contains_folded(names[i], length, wanted, wanted_length) ||
             contains_folded(wanted, wanted_length, names[i], length))) {
            part_index = i;
        }
    }
    /* "batch_size" for "micro_batch_size": far by edits, near by sense. */
    return best_index >= 0 ? best_index : part_index;
}

/* Length of the sequence that starts at bytes, or 0 if it is not valid (RFC 3629). */
static size_t utf8_sequence(const unsigned char *bytes, size_t length) {
    unsigned char first = bytes[0];
    if (first < 0x80) {
        return 1;
    }
    size_t wanted;
    unsigned char low = 0x80, high = 0xbf; /* limits of the second byte */
    if (first >= 0xc2 && first <= 0xdf) {
        wanted = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        wanted = 3;
        low = first == 0xe0 ? 0xa0 : 0x80;  /* no overlong forms */
        high = first == 0xed ? 0x9f : 0xbf; /* no surrogates */
    } else if (first >= 0xf0 && first <= 0xf4) {
        wanted = 4;
        low = first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xf4 ? 0x8f : 0xbf; /* up to U+10FFFF */
    } else {
        return 0;
    }
    if (length < wanted || bytes[1] < low || bytes[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < wanted; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return wanted;
}

size_t ms_utf8_valid_prefix(const char *bytes, size_t length) {
    size_t at = 0;
    while (at < length) {
        /* Most text is ASCII: eight bytes at a time. */
        uint64_t eight;
        while (length - at >= sizeof eight) {
            memcpy(&eight, bytes + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) != 0) {
                break;
            }
            at += sizeof eight;
        }
        if (at == length) {
            break;
        }
        size_t step = utf8_sequence((const unsigned char *)bytes + at, length - at);
        if (step == 0) {
            break;
        }
        at += step;
    }
    return at;
}

int ms_utf8_decode(const char *bytes, size_t length, uint32_t *code_point) {
    const unsigned char *b = (const unsigned char *)bytes;
    size_t step = length > 0 ? utf8_sequence(b, length) : 0;
    switch (step) {
    case 1:
        *code_point = b[0];
        return 1;
    case 2:
        *code_point = ((uint32_t)(b[0] & 0x1f) << 6) | (b[1] & 0x3fu);
        return 2;
    case 3:
        *code_point =
            ((uint32_t)(b[0] & 0x0f) << 12) | ((uint32_t)(b[1] & 0x3f) << 6) | (b[2] & 0x3fu);
        return 3;
    case 4:
        *code_point = ((uint32_t)(b[0] & 0x07) << 18) | ((uint32_t)(b[1] & 0x3f) << 12) |
                      ((uint32_t)(b[2] & 0x3f) << 6) | (b[3] & 0x3fu);
        return 4;
    default:
        /* Not valid after all: one byte, shown as the replacement character, so a loop goes on. */
        *code_point = 0xfffd;
        return length > 0 ? 1 : 0;
    }
}

int ms_utf8_encode(uint32_t code_point, char out[4]) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xc0 | (code_point >> 6));
        out[1] = (char)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point <= 0xdfff)) {
        code_point = 0xfffd;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xe0 | (code_point >> 12));
        out[1] = (char)(0x80 | ((code_point >> 6) & 0x3f));
        out[2] = (char)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (code_point >> 18));
    out[1] = (char)(0x80 | ((code_point >> 12) & 0x3f));
    out[2] = (char)(0x80 | ((code_point >> 6) & 0x3f));
    out[3] = (char)(0x80 | (code_point & 0x3f));
    return 4;
}

bool ms_parse_i64(const char *text, int64_t *value) {
    const char *first = text + (text[0] == '-' || text[0] == '+');
    if (!isdigit((unsigned char)*first)) {
        return false; /* strtoll would skip spaces and accept "0x" only with base 16 */
    }
    errno = 0;
    char *end;
    long long parsed = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0) {
        return false;
    }
    *value = parsed;
    return true;
}

bool ms_parse_f64(const char *text, double *value) {
    if (text[0] == '\0' || isspace((unsigned char)text[0]) || strpbrk(text, "xX") != NULL) {
        return false;
    }
    char *end;
    double parsed = read_f64(text, &end);
    if (end == text || *end != '\0') {
        return false;
    }
    /* A finite text that overflows "does not fit"; "inf" written out does. */
    if (isinf(parsed) && strpbrk(text, "0123456789") != NULL) {
        return false;
    }
    *value = parsed;
    return true;
}
