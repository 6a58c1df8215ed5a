/*
 * error.c - the last error of each thread: its sentence and the places it passed through.
 *
 * Where it stands: below everything. Every ms_fail of the library ends in ms_fail_at, every MS_TRY
 * in ms_error_trail_add.
 *
 * Data: one fixed block per thread,
 *     detail  "gpt.yaml:3: train.stpes: unknown key ..."
 *     trail   "base/config_load.c:120 train/loop.c:88"
 * so reporting an error allocates nothing and works when memory is what failed.
 *
 * Invariants: both strings are always terminated; what does not fit ends in "...". A new ms_fail
 * empties the trail. A sentence is one line: control characters, which may come from a file that is
 * quoted, become spaces. The sentence is formatted in a second buffer first, since its arguments
 * may point into the current one (ms_fail(status, "%s", ms_error_detail())).
 *
 * Rejected: error objects passed by pointer (each would need an owner and an allocation), and errno
 * style integers alone (they cannot name a file or a line).
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETAIL_BYTES 2048
#define TRAIL_BYTES 1024

typedef struct error_state {
    char detail[DETAIL_BYTES];
    char trail[TRAIL_BYTES];
} error_state;

static _Thread_local error_state state;

/* "room/file.c" of a path: enough to find it, and the same whatever the build folder. */
static const char *short_file(const char *file) {
    const char *end = file + strlen(file);
    int slashes = 0;
    while (end > file) {
        if (end[-1] == '/' && ++slashes == 2) {
            break;
        }
        end--;
    }
    return end;
}

/* Stores a formatted sentence of which `wanted` bytes should have been. */
static void keep_detail(char scratch[DETAIL_BYTES], int wanted) {
    if (wanted >= DETAIL_BYTES) {
        memcpy(scratch + DETAIL_BYTES - 4, "...", 4);
    }
    for (char *at = scratch; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = ' ';
        }
    }
    memcpy(state.detail, scratch, DETAIL_BYTES);
}

void ms_error_trail_add(const char *file, int line) {
    size_t used = strlen(state.trail);
    size_t left = TRAIL_BYTES - used;
    int wanted =
        snprintf(state.trail + used, left, "%s%s:%d", used > 0 ? " " : "", short_file(file), line);
    if (wanted < 0 || (size_t)wanted >= left) {
        /* Full: the innermost places matter most, the rest is dropped whole. */
        state.trail[used] = '\0';
    }
}

ms_status ms_fail_at(ms_status status, const char *file, int line, const char *format, ...) {
    char scratch[DETAIL_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(scratch, sizeof scratch, format, arguments);
    va_end(arguments);
    if (wanted < 0) {
        snprintf(scratch, sizeof scratch, "%s", ms_status_text(status));
    }
    keep_detail(scratch, wanted);
    state.trail[0] = '\0';
    ms_error_trail_add(file, line);
    return status;
}

void ms_error_prefix(const char *format, ...) {
    char scratch[DETAIL_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(scratch, sizeof scratch, format, arguments);
    va_end(arguments);
    if (wanted < 0) {
        return;
    }
    size_t used = strlen(scratch);
    int more = snprintf(scratch + used, sizeof scratch - used, ": %s", state.detail);
    keep_detail(scratch, more < 0 ? more : (int)used + more);
}

void ms_error_clear(void) {
    state.detail[0] = '\0';
    state.trail[0] = '\0';
}

const char *ms_error_detail(void) {
    return state.detail;
}

const char *ms_error_trail(void) {
    return state.trail;
}

const char *ms_status_name(ms_status status) {
    switch (status) {
#define MS_STATUS_NAME(name, value, class, text)                                                   \
    case MS_##name:                                                                                \
        return "MS_" #name;
        MS_STATUS_LIST(MS_STATUS_NAME)
#undef MS_STATUS_NAME
    }
    return "MS_ERR_UNKNOWN";
}

const char *ms_status_text(ms_status status) {
    switch (status) {
#define MS_STATUS_TEXT(name, value, class, text)                                                   \
    case MS_##name:                                                                                \
        return text;
        MS_STATUS_LIST(MS_STATUS_TEXT)
#undef MS_STATUS_TEXT
    }
    return "unknown status";
}

void ms_check_failed(const char *file, int line, const char *expression) {
    fprintf(stderr, "mindspeed: check failed at %s:%d: %s\n", short_file(file), line, expression);
    if (state.detail[0] != '\0') {
        fprintf(stderr, "mindspeed: last error of this thread: %s (%s)\n", state.detail,
                state.trail);
    }
    abort();
}
