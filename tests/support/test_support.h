/*
 * test_support.h - what cmocka lacks: temporary folders, printed seeds, shared data, distances in
 * ULP.
 *
 * Header only, for test programs. Include it after base headers; it brings cmocka along.
 *
 *   char dir[MS_TEST_PATH_BYTES];
 *   test_dir_make(dir);                   a fresh folder; test_dir_remove(dir) at the end
 *   uint64_t seed = test_seed();          from the clock, printed; MS_TEST_SEED=123 replays
 *   uint64_t n = test_random_below(&seed, 10);
 *   char path[MS_TEST_PATH_BYTES];
 *   test_shared_path("names/names.txt", path);   skips the test, by name, when the data is absent
 *   assert_true(test_ulp_f32(a, b) <= 2);
 *   assert_ok(ms_file_read(...));         prints the error's sentence and trail
 *   assert_fails(MS_ERR_CONFIG, "nearest", ms_config_load(...));   status and a part of the
 * sentence
 */
#ifndef MS_TEST_SUPPORT_H
#define MS_TEST_SUPPORT_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

#define MS_TEST_PATH_BYTES 4096
#define MS_TEST_UNUSED __attribute__((unused))

/* Checks that succeed, or print why not: status, sentence and trail. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        ms_status assert_ok_status = (expression);                                                 \
        if (assert_ok_status != MS_OK) {                                                           \
            fail_msg("%s: %s: %s (%s)", #expression, ms_status_name(assert_ok_status),             \
                     ms_error_detail(), ms_error_trail());                                         \
        }                                                                                          \
    } while (0)

/* Checks that fail with a status and with `part` in the sentence. */
#define assert_fails(wanted, part, expression)                                                     \
    do {                                                                                           \
        ms_status assert_fails_status = (expression);                                              \
        if (assert_fails_status != (wanted)) {                                                     \
            fail_msg("%s: %s instead of %s", #expression, ms_status_name(assert_fails_status),     \
                     ms_status_name(wanted));                                                      \
        }                                                                                          \
        if (strstr(ms_error_detail(), (part)) == NULL) {                                           \
            fail_msg("%s: \"%s\" does not say \"%s\"", #expression, ms_error_detail(), (part));    \
        }                                                                                          \
    } while (0)

/* A fresh empty folder below TMPDIR or /tmp. */
MS_TEST_UNUSED static void test_dir_make(char dir[MS_TEST_PATH_BYTES]) {
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] == '\0') {
        base = "/tmp";
    }
    snprintf(dir, MS_TEST_PATH_BYTES, "%s/mindspeed-test-XXXXXX", base);
    if (mkdtemp(dir) == NULL) {
        fail_msg("cannot make a folder in %s", base);
    }
}

MS_TEST_UNUSED static void test_dir_remove(const char *dir) {
    assert_ok(ms_directory_remove(dir));
}

/* dir/name, as a path of MS_TEST_PATH_BYTES. */
MS_TEST_UNUSED static const char *test_path(const char *dir, const char *name,
                                            char path[MS_TEST_PATH_BYTES]) {
    assert_ok(ms_path_join(dir, name, path, MS_TEST_PATH_BYTES));
    return path;
}

MS_TEST_UNUSED static void test_write_file(const char *path, const void *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* A seed from the clock, or MS_TEST_SEED; printed, so that a failure can be replayed. */
MS_TEST_UNUSED static uint64_t test_seed(void) {
    const char *given = getenv("MS_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = (uint64_t)now.tv_sec * 1000003u + (uint64_t)now.tv_nsec;
    if (given != NULL && given[0] != '\0') {
        seed = strtoull(given, NULL, 10);
    }
    printf("seed %" PRIu64 " (MS_TEST_SEED=%" PRIu64 " replays)\n", seed, seed);
    return seed;
}

/* The next number of a simple stream (splitmix64), independent of the code under test. */
MS_TEST_UNUSED static uint64_t test_random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In [0, limit). */
MS_TEST_UNUSED static uint64_t test_random_below(uint64_t *state, uint64_t limit) {
    return test_random(state) % limit;
}

/* In [-1, 1). */
MS_TEST_UNUSED static double test_random_real(uint64_t *state) {
    return (double)(test_random(state) >> 11) * 0x1p-52 - 1.0;
}

/* Path of a file of the shared data. Without it the test is skipped and names the file. */
MS_TEST_UNUSED static void test_shared_path(const char *name, char path[MS_TEST_PATH_BYTES]) {
    const char *base = getenv("MS_TEST_SHARED");
    if (base == NULL || base[0] == '\0') {
        base = "../shared/data";
    }
    assert_ok(ms_path_join(base, name, path, MS_TEST_PATH_BYTES));
    if (access(path, R_OK) != 0) {
        print_message("skipped: shared data %s is absent\n", name);
        skip();
    }
}

/* Numbers of representable values between two; equal zeros and two NaN are 0 apart, NaN and a
 * number are as far as can be. */
MS_TEST_UNUSED static uint64_t test_ulp_f64(double a, double b) {
    if (a == b || (a != a && b != b)) {
        return 0;
    }
    if (a != a || b != b) {
        return UINT64_MAX;
    }
    int64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    /* Bits as a line of integers: negative numbers run the other way. */
    uint64_t ux = x < 0 ? UINT64_C(0x8000000000000000) - (uint64_t)(x & INT64_MAX)
                        : UINT64_C(0x8000000000000000) + (uint64_t)x;
    uint64_t uy = y < 0 ? UINT64_C(0x8000000000000000) - (uint64_t)(y & INT64_MAX)
                        : UINT64_C(0x8000000000000000) + (uint64_t)y;
    return ux > uy ? ux - uy : uy - ux;
}

MS_TEST_UNUSED static uint64_t test_ulp_f32(float a, float b) {
    if (a == b || (a != a && b != b)) {
        return 0;
    }
    if (a != a || b != b) {
        return UINT64_MAX;
    }
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    int64_t ix = x < 0 ? -(int64_t)(x & INT32_MAX) : x;
    int64_t iy = y < 0 ? -(int64_t)(y & INT32_MAX) : y;
    return (uint64_t)(ix > iy ? ix - iy : iy - ix);
}

#endif
