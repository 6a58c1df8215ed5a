/*
 * log.h - one line a message, to stderr or to a sink of the caller's.
 *
 * Lower case, `name value` pairs, no '='. Each line carries the rank (once known) and the level.
 * Thread-safe; a message is written with one write(2).
 */
#ifndef MS_BASE_LOG_H
#define MS_BASE_LOG_H

typedef enum ms_log_level {
    MS_LOG_ERROR,
    MS_LOG_WARN,
    MS_LOG_INFO,
    MS_LOG_DEBUG,
    MS_LOG_TRACE,
} ms_log_level;

typedef void (*ms_log_sink)(ms_log_level level, const char *line, void *context);

void ms_log_set_level(ms_log_level level);
ms_log_level ms_log_get_level(void);
void ms_log_set_rank(int rank);                        /* -1: no rank is printed */
void ms_log_set_sink(ms_log_sink sink, void *context); /* NULL: stderr */
void ms_log_write(ms_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define ms_log(level, ...)                                                                         \
    ((level) <= ms_log_get_level() ? ms_log_write((level), __VA_ARGS__) : (void)0)
#define ms_log_error(...) ms_log(MS_LOG_ERROR, __VA_ARGS__)
#define ms_log_warn(...) ms_log(MS_LOG_WARN, __VA_ARGS__)
#define ms_log_info(...) ms_log(MS_LOG_INFO, __VA_ARGS__)
#define ms_log_debug(...) ms_log(MS_LOG_DEBUG, __VA_ARGS__)

#endif
