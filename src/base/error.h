/*
 * error.h - deciding and passing on errors inside the library.
 *
 *   return ms_fail(MS_ERR_FORMAT, "%s: header is %" PRIu64 " bytes, file has %" PRIu64, ...);
 *   MS_TRY(ms_file_read(...));
 *
 * The first decider writes the sentence (what, where, what to do); callers only pass the status on.
 * ms_fail starts a fresh trail, MS_TRY appends its place to it. Nothing here allocates.
 */
#ifndef MS_BASE_ERROR_H
#define MS_BASE_ERROR_H

#include <mindspeed/status.h>

ms_status ms_fail_at(ms_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));
/* Puts "prefix: " before the current sentence: for a caller that knows the file or rank. */
void ms_error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
void ms_error_trail_add(const char *file, int line) __attribute__((cold));
void ms_error_clear(void);

#define ms_fail(status, ...) ms_fail_at((status), __FILE__, __LINE__, __VA_ARGS__)

#define MS_TRY(expression)                                                                         \
    do {                                                                                           \
        ms_status ms_try_status = (expression);                                                    \
        if (__builtin_expect(ms_try_status != MS_OK, 0)) {                                         \
            ms_error_trail_add(__FILE__, __LINE__);                                                \
            return ms_try_status;                                                                  \
        }                                                                                          \
    } while (0)

/* As MS_TRY, for functions with something to undo: stores into `status` and jumps. */
#define MS_TRY_GOTO(expression, label)                                                             \
    do {                                                                                           \
        status = (expression);                                                                     \
        if (__builtin_expect(status != MS_OK, 0)) {                                                \
            ms_error_trail_add(__FILE__, __LINE__);                                                \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Always on: going on would corrupt a checkpoint or a peer. Prints and aborts. */
void ms_check_failed(const char *file, int line, const char *expression)
    __attribute__((noreturn, cold));
#define MS_CHECK(expression)                                                                       \
    ((expression) ? (void)0 : ms_check_failed(__FILE__, __LINE__, #expression))

/* Invariants, checked in debug and sanitizer builds. */
#ifdef MS_DEBUG
#define MS_ASSERT(expression) MS_CHECK(expression)
#else
#define MS_ASSERT(expression) ((void)sizeof(expression))
#endif

#endif
