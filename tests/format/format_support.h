/* format_support.h - what the tests of format/ share: shared data by name, temporary folders,
 * files. */
#ifndef MS_TEST_FORMAT_SUPPORT_H
#define MS_TEST_FORMAT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

/* The call succeeds; else its sentence is printed. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        ms_status assert_ok_status = (expression);                                                 \
        if (assert_ok_status != MS_OK) {                                                           \
            fail_msg("%s: %s: %s", #expression, ms_status_name(assert_ok_status),                  \
                     ms_error_detail());                                                           \
        }                                                                                          \
    } while (0)

/* The call fails with the status, and its sentence has the text in it. */
#define assert_fails(expression, expected_status, text)                                            \
    do {                                                                                           \
        ms_status assert_fails_status = (expression);                                              \
        assert_int_equal(assert_fails_status, expected_status);                                    \
        if (strstr(ms_error_detail(), text) == NULL) {                                             \
            fail_msg("%s: the sentence \"%s\" does not have \"%s\"", #expression,                  \
                     ms_error_detail(), text);                                                     \
        }                                                                                          \
    } while (0)

/* A path below the folder of shared data; the test is skipped by name when the file is not there.
 */
static inline const char *shared_path(const char *name) {
    static char paths[8][MS_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];
    const char *root = getenv("MS_TEST_SHARED");
    snprintf(path, MS_PATH_BYTES, "%s/%s", root != NULL ? root : "../shared/data", name);
    if (!ms_path_exists(path)) {
        print_message("skipped: no shared data %s\n", name);
        skip();
    }
    return path;
}

static inline ms_text read_shared(const char *name) {
    ms_text text = {0};
    assert_ok(ms_file_read(shared_path(name), (size_t)1 << 30, &text));
    return text;
}

/* A fresh folder, removed by the test that made it. */
static inline char *make_folder(void) {
    char *path = strdup("/tmp/ms-test-format-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void remove_folder(char *path) {
    assert_ok(ms_directory_remove(path));
    free(path);
}

static inline const char *in_folder(const char *folder, const char *name) {
    static char paths[8][MS_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, MS_PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *path, const void *bytes, size_t length) {
    assert_ok(ms_file_write_atomic(path, bytes, length));
}

static inline void assert_files_equal(const char *left, const char *right) {
    ms_text a = {0}, b = {0};
    assert_ok(ms_file_read(left, (size_t)1 << 30, &a));
    assert_ok(ms_file_read(right, (size_t)1 << 30, &b));
    assert_int_equal(a.length, b.length);
    assert_memory_equal(a.bytes, b.bytes, a.length);
    ms_text_release(&a);
    ms_text_release(&b);
}

#endif
