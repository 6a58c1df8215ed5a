/*
 * status.h - how every call of the library reports success or failure.
 *
 * A call returns ms_status: 0 is success, negative values are errors. The sentence that explains an
 * error (what, where, what to do) is written once, by the code that decided it, and is read with
 * ms_error_detail(). Both are per thread. Thread-safety: every function here may be called from any
 * thread. Since 0.1.
 */
#ifndef MINDSPEED_STATUS_H
#define MINDSPEED_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#error "MindSpeed runs on Linux"
#endif

/* Marks what the shared library exports; everything else is hidden. */
#define MS_API __attribute__((visibility("default")))

/*
 * X(name, value, class, text). The class says whose matter it is: caller (a wrong call or
 * configuration), resource (this machine lacks something), data (a file or message is bad), peer
 * (another rank), bug (our own fault), again (nothing wrong, ask later).
 */
#define MS_STATUS_LIST(X)                                                                          \
    X(OK, 0, none, "ok")                                                                           \
    X(ERR_ARGUMENT, -1, caller, "invalid argument")                                                \
    X(ERR_CONFIG, -2, caller, "invalid configuration")                                             \
    X(ERR_UNSUPPORTED, -3, caller, "not supported")                                                \
    X(ERR_NOT_FOUND, -4, caller, "not found")                                                      \
    X(ERR_EXISTS, -5, caller, "exists already")                                                    \
    X(ERR_BUSY, -6, caller, "in use")                                                              \
    X(ERR_MEMORY, -20, resource, "out of memory")                                                  \
    X(ERR_MEMORY_LIMIT, -21, resource, "does not fit the memory limit")                            \
    X(ERR_IO, -22, resource, "input/output error")                                                 \
    X(ERR_SYSTEM, -23, resource, "system call failed")                                             \
    X(ERR_FORMAT, -40, data, "malformed data")                                                     \
    X(ERR_CHECKSUM, -41, data, "checksum mismatch")                                                \
    X(ERR_RANGE, -42, data, "value out of range")                                                  \
    X(ERR_MISMATCH, -43, data, "does not match")                                                   \
    X(ERR_NUMERIC, -44, data, "not a finite number")                                               \
    X(ERR_PEER, -60, peer, "a rank failed")                                                        \
    X(ERR_TIMEOUT, -61, peer, "deadline passed")                                                   \
    X(ERR_ABORTED, -62, peer, "aborted")                                                           \
    X(ERR_BUG, -80, bug, "internal error")                                                         \
    X(AGAIN, -90, again, "in progress")                                                            \
    X(INTERRUPTED, -91, again, "stopped on request")

typedef enum ms_status {
#define MS_STATUS_ENUM(name, value, class, text) MS_##name = (value),
    MS_STATUS_LIST(MS_STATUS_ENUM)
#undef MS_STATUS_ENUM
} ms_status;

/* The enum's name, such as "MS_ERR_FORMAT"; never NULL. The pointer lives for ever. */
MS_API const char *ms_status_name(ms_status status);

/* The general text of a status, such as "malformed data"; never NULL. The pointer lives for ever. */
MS_API const char *ms_status_text(ms_status status);

/*
 * The sentence written where this thread's last error was decided, or "" if there was none. The
 * pointer is valid until this thread's next failing call.
 */
MS_API const char *ms_error_detail(void);

/*
 * The places the last error passed through, innermost first, as "file:line file:line ...". Same
 * life time as ms_error_detail().
 */
MS_API const char *ms_error_trail(void);

#ifdef __cplusplus
}
#endif
#endif
