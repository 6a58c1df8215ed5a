/*
 * log.c - formats one line and hands it to stderr or to the sink.
 *
 * Where it stands: called by anyone, also from the progress thread of net/; so it never allocates.
 *
 * Invariants: a message is one line (control characters become spaces) and one write(2), so lines
 * of several ranks on one terminal do not mix. A longer message is cut and ends in "...". The lock
 * is held for reading while a sink runs: once ms_log_set_sink returns, the former sink is not
 * running. A sink must not call ms_log_set_sink.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX 4096

static _Atomic int current_level = MS_LOG_INFO;
static _Atomic int current_rank = -1;
static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static ms_log_sink current_sink;
static void *current_context;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void ms_log_set_level(ms_log_level level) {
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

ms_log_level ms_log_get_level(void) {
    return (ms_log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void ms_log_set_rank(int rank) {
    atomic_store_explicit(&current_rank, rank, memory_order_relaxed);
}

void ms_log_set_sink(ms_log_sink sink, void *context) {
    pthread_rwlock_wrlock(&sink_lock);
    current_sink = sink;
    current_context = context;
    pthread_rwlock_unlock(&sink_lock);
}

static void write_line(const char *line, size_t length) {
    while (length > 0) {
        ssize_t put = write(STDERR_FILENO, line, length);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return; /* nobody to tell */
        }
        line += put;
        length -= (size_t)put;
    }
}

void ms_log_write(ms_log_level level, const char *format, ...) {
    int errno_before = errno;
    char line[LINE_BYTES_MAX + 1];
    const char *name = (unsigned)level <= MS_LOG_TRACE ? level_names[level] : "info";
    int rank = atomic_load_explicit(&current_rank, memory_order_relaxed);
    int start = rank >= 0 ? snprintf(line, sizeof line, "mindspeed: %s: [rank %d] ", name, rank)
                          : snprintf(line, sizeof line, "mindspeed: %s: ", name);
    size_t used = (size_t)start;
    va_list arguments;
    va_start(arguments, format);
    errno = errno_before; /* for %m */
    int wanted = vsnprintf(line + used, LINE_BYTES_MAX - used, format, arguments);
    va_end(arguments);
    if (wanted > 0 && (size_t)wanted >= LINE_BYTES_MAX - used) {
        memcpy(line + LINE_BYTES_MAX - 4, "...", 4);
    }
    for (char *at = line + used; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = ' ';
        }
    }
    pthread_rwlock_rdlock(&sink_lock);
    if (current_sink != NULL) {
        current_sink(level, line, current_context);
    } else {
        size_t length = strlen(line);
        line[length] = '\n'; /* the byte beyond LINE_BYTES_MAX is kept for it */
        write_line(line, length + 1);
    }
    pthread_rwlock_unlock(&sink_lock);
    errno = errno_before;
}
