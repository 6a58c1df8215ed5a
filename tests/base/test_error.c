// labels: unit
// Errors: the sentence, the trail, cutting, threads, and the tables of statuses.
#include "support/test_support.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <mindspeed/version.h>

static ms_status decide(int line_out[1]) {
    line_out[0] = __LINE__ + 1;
    return ms_fail(MS_ERR_FORMAT, "%s: header is %d bytes", "a.bin", 7);
}

static ms_status pass_on(int lines[2]) {
    lines[1] = __LINE__ + 1;
    MS_TRY(decide(lines));
    return MS_OK;
}

static ms_status pass_by_goto(int lines[3], int *undone) {
    ms_status status;
    lines[2] = __LINE__ + 1;
    MS_TRY_GOTO(pass_on(lines), undo);
    return MS_OK;
undo:
    *undone = 1;
    return status;
}

static void test_trail_names_every_place(void **state) {
    (void)state;
    int lines[3];
    int undone = 0;
    assert_int_equal(pass_by_goto(lines, &undone), MS_ERR_FORMAT);
    assert_int_equal(undone, 1);
    assert_string_equal(ms_error_detail(), "a.bin: header is 7 bytes");
    char wanted[256];
    snprintf(wanted, sizeof wanted,
             "base/test_error.c:%d base/test_error.c:%d base/test_error.c:%d", lines[0], lines[1],
             lines[2]);
    assert_string_equal(ms_error_trail(), wanted);
    /* A new error starts afresh. */
    (void)decide(lines);
    snprintf(wanted, sizeof wanted, "base/test_error.c:%d", lines[0]);
    assert_string_equal(ms_error_trail(), wanted);
    ms_error_clear();
    assert_string_equal(ms_error_detail(), "");
    assert_string_equal(ms_error_trail(), "");
}

static void test_prefix_and_own_sentence(void **state) {
    (void)state;
    (void)ms_fail(MS_ERR_IO, "disk full");
    ms_error_prefix("rank %d", 3);
    assert_string_equal(ms_error_detail(), "rank 3: disk full");
    (void)ms_fail(MS_ERR_FORMAT, "two\nlines\t%s", "\x1b[31m\x7f \xc3\xa9");
    assert_string_equal(ms_error_detail(), "two lines  [31m  \xc3\xa9");
    (void)ms_fail(MS_ERR_IO, "rank 3: disk full");
    /* The old sentence as an argument of the new one. */
    (void)ms_fail(MS_ERR_BUG, "while saving: %s", ms_error_detail());
    assert_string_equal(ms_error_detail(), "while saving: rank 3: disk full");
}

static void test_long_sentences_are_cut(void **state) {
    (void)state;
    char big[5000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    (void)ms_fail(MS_ERR_IO, "%s", big);
    size_t length = strlen(ms_error_detail());
    assert_true(length > 1000 && length < 4096);
    assert_string_equal(ms_error_detail() + length - 3, "...");
    ms_error_prefix("%s", "front");
    assert_int_equal(strlen(ms_error_detail()), length);
    assert_memory_equal(ms_error_detail(), "front: xxx", 10);
    assert_string_equal(ms_error_detail() + length - 3, "...");
    /* A full trail keeps the innermost places and only whole ones. */
    for (int i = 0; i < 1000; i++) {
        ms_error_trail_add("/somewhere/room/file.c", i);
    }
    const char *trail = ms_error_trail();
    assert_non_null(strstr(trail, "base/test_error.c"));
    assert_non_null(strstr(trail, " room/file.c:0 room/file.c:1 "));
    const char *last = strrchr(trail, ' ');
    int number;
    assert_int_equal(sscanf(last, " room/file.c:%d", &number), 1);
    char whole[64];
    snprintf(whole, sizeof whole, " room/file.c:%d", number);
    assert_string_equal(last, whole);
}

static void *fail_elsewhere(void *context) {
    (void)context;
    (void)ms_fail(MS_ERR_BUSY, "of the other thread");
    return NULL;
}

static void test_errors_are_per_thread(void **state) {
    (void)state;
    (void)ms_fail(MS_ERR_IO, "of this thread");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(ms_error_detail(), "of this thread");
}

static void test_every_status_has_name_and_text(void **state) {
    (void)state;
    int count = 0;
#define CHECK_STATUS(name, value, class, words)                                                    \
    assert_int_equal(MS_##name, value);                                                            \
    assert_string_equal(ms_status_name(MS_##name), "MS_" #name);                                   \
    assert_string_equal(ms_status_text(MS_##name), words);                                         \
    count++;
    MS_STATUS_LIST(CHECK_STATUS)
    assert_true(count >= 20);
    assert_string_equal(ms_status_name((ms_status)-1000), "MS_ERR_UNKNOWN");
    assert_string_equal(ms_status_text((ms_status)12), "unknown status");
}

static void test_version(void **state) {
    (void)state;
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%d.%d.%d", MS_VERSION_MAJOR, MS_VERSION_MINOR,
             MS_VERSION_PATCH);
    assert_string_equal(ms_version(), wanted);
}

static void test_check_aborts_and_says_where(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        (void)ms_fail(MS_ERR_IO, "the last error");
        MS_CHECK(1 + 1 == 2);
        MS_CHECK(1 + 1 == 3);
        _exit(0);
    }
    close(ends[1]);
    char words[1024] = "";
    size_t used = 0;
    ssize_t got;
    while ((got = read(ends[0], words + used, sizeof words - 1 - used)) > 0) {
        used += (size_t)got;
    }
    close(ends[0]);
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    assert_non_null(strstr(words, "check failed at base/test_error.c:"));
    assert_non_null(strstr(words, "1 + 1 == 3"));
    assert_non_null(strstr(words, "the last error"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trail_names_every_place),
        cmocka_unit_test(test_prefix_and_own_sentence),
        cmocka_unit_test(test_long_sentences_are_cut),
        cmocka_unit_test(test_errors_are_per_thread),
        cmocka_unit_test(test_every_status_has_name_and_text),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_check_aborts_and_says_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
