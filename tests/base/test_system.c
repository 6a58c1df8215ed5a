// labels: unit
// Log lines, clocks, the processor, threads.
#include "support/test_support.h"

#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/thread.h"

typedef struct lines {
    int count;
    ms_log_level level;
    char last[5000];
} lines;

static void keep_line(ms_log_level level, const char *line, void *context) {
    lines *kept = context;
    kept->count++;
    kept->level = level;
    snprintf(kept->last, sizeof kept->last, "%s", line);
}

static int reset_log(void **state) {
    (void)state;
    ms_log_set_sink(NULL, NULL);
    ms_log_set_level(MS_LOG_INFO);
    ms_log_set_rank(-1);
    return 0;
}

static int evaluations;
static int evaluate(void) {
    return ++evaluations;
}

static void test_log_lines(void **state) {
    (void)state;
    lines kept = {0};
    ms_log_set_sink(keep_line, &kept);
    ms_log_info("loss %.2f step %d", 1.5, 20);
    assert_string_equal(kept.last, "mindspeed: info: loss 1.50 step 20");
    ms_log_set_rank(3);
    ms_log_warn("slow");
    assert_string_equal(kept.last, "mindspeed: warn: [rank 3] slow");
    assert_int_equal(kept.level, MS_LOG_WARN);
    ms_log_error("two\nlines\tand\x1b[31m");
    assert_string_equal(kept.last, "mindspeed: error: [rank 3] two lines and [31m");
    /* Below the level nothing is formatted. */
    int before = kept.count;
    ms_log_debug("number %d", evaluate());
    assert_int_equal(kept.count, before);
    assert_int_equal(evaluations, 0);
    ms_log_set_level(MS_LOG_TRACE);
    ms_log_debug("number %d", evaluate());
    assert_int_equal(kept.count, before + 1);
    assert_int_equal(ms_log_get_level(), MS_LOG_TRACE);
    char big[6000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    ms_log_info("%s", big);
    size_t length = strlen(kept.last);
    assert_true(length > 3000 && length < 4096);
    assert_string_equal(kept.last + length - 3, "...");
}

static void test_log_goes_to_stderr(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    ms_log_info("one");
    ms_log_set_rank(0);
    ms_log_error("two");
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    char text[200] = "";
    ssize_t got = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    assert_true(got > 0);
    assert_string_equal(text, "mindspeed: info: one\nmindspeed: error: [rank 0] two\n");
}

static void *log_often(void *context) {
    for (int i = 0; i < 500; i++) {
        ms_log_info("thread %d line %d of a length that shows mixtures", *(int *)context, i);
    }
    return NULL;
}

/* Whole lines from several threads through one pipe. */
static void test_log_lines_do_not_mix(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    int fd = open(test_path(dir, "log", path), O_CREAT | O_WRONLY | O_APPEND, 0600);
    int before = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    ms_thread threads[3] = {0};
    int numbers[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++) {
        assert_ok(ms_thread_start(&threads[i], "logger", log_often, &numbers[i]));
    }
    for (int i = 0; i < 3; i++) {
        ms_thread_join(&threads[i]);
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(fd);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[256];
    int next[3] = {0};
    int count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        int thread, number;
        char wanted[256];
        assert_int_equal(sscanf(line, "mindspeed: info: thread %d line %d", &thread, &number), 2);
        assert_true(thread >= 0 && thread < 3);
        assert_int_equal(number, next[thread]++);
        snprintf(wanted, sizeof wanted,
                 "mindspeed: info: thread %d line %d of a length that shows mixtures\n", thread,
                 number);
        assert_string_equal(line, wanted);
        count++;
    }
    fclose(file);
    assert_int_equal(count, 1500);
    test_dir_remove(dir);
}

static void test_clock(void **state) {
    (void)state;
    int64_t before = ms_clock_ns();
    double before_s = ms_clock_s();
    ms_sleep_ms(20);
    ms_sleep_ms(0);
    ms_sleep_ms(-5);
    int64_t passed_ms = (ms_clock_ns() - before) / 1000000;
    assert_true(passed_ms >= 20 && passed_ms < 5000);
    assert_true(ms_clock_s() - before_s >= 0.0199);
    double wall_s = ms_wall_time_s();
    assert_true(wall_s > 1.7e9 && wall_s - (double)time(NULL) < 2.0);
}

/* Against what the kernel writes of the same processor. */
static void test_cpu_agrees_with_the_kernel(void **state) {
    (void)state;
    assert_true(ms_cpu_count() >= 1);
    assert_int_equal(ms_cpu_count(), omp_get_num_procs());
    assert_true(strlen(ms_cpu_name()) > 0);
    assert_ptr_equal(ms_cpu_name(), ms_cpu_name());
    assert_string_equal(ms_isa_name(MS_ISA_REF), "ref");
    assert_string_equal(ms_isa_name(MS_ISA_AVX2), "avx2");
    assert_string_equal(ms_isa_name(MS_ISA_AVX512), "avx512");
    assert_string_equal(ms_isa_name(MS_ISA_COUNT), "unknown");
    ms_text text = {0};
    if (ms_file_read("/proc/cpuinfo", 1 << 24, &text) != MS_OK ||
        strstr(text.bytes, "flags") == NULL) {
        ms_text_release(&text);
        print_message("skipped: no flags in /proc/cpuinfo\n");
        skip();
    }
    char *flags = strstr(text.bytes, "flags");
    *strchr(flags, '\n') = ' ';
    bool avx2 = strstr(flags, " avx2 ") != NULL && strstr(flags, " fma ") != NULL &&
                strstr(flags, " f16c ") != NULL;
    bool avx512 = avx2 && strstr(flags, " avx512f ") != NULL &&
                  strstr(flags, " avx512bw ") != NULL && strstr(flags, " avx512dq ") != NULL &&
                  strstr(flags, " avx512vl ") != NULL;
    assert_int_equal(ms_cpu_isa(), avx512 ? MS_ISA_AVX512 : avx2 ? MS_ISA_AVX2 : MS_ISA_REF);
    assert_int_equal(ms_cpu_has_avx512_bf16(), avx512 && strstr(flags, " avx512_bf16 ") != NULL);
    if (ms_cpu_has_amx_bf16()) {
        assert_non_null(strstr(flags, " amx_bf16 "));
        assert_non_null(strstr(flags, " amx_tile "));
    }
    ms_text_release(&text);
}

static void test_team(void **state) {
    (void)state;
    for (int wanted = 1; wanted <= 4; wanted++) {
        ms_thread_team_set(wanted);
        assert_int_equal(ms_thread_team_get(), wanted);
#ifndef __SANITIZE_THREAD__ /* libgomp's own synchronisation is invisible to it */
        int size = 0;
#pragma omp parallel
        {
#pragma omp single
            size = omp_get_num_threads();
        }
        assert_int_equal(size, wanted);
#endif
    }
    ms_thread_team_set(-3);
    assert_int_equal(ms_thread_team_get(), 1);
}

typedef struct observed {
    bool term_blocked;
} observed;

static void *observe(void *context) {
    observed *seen = context;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    seen->term_blocked = sigismember(&mask, SIGTERM) == 1;
    return NULL;
}

static void test_thread_blocks_signals(void **state) {
    (void)state;
    observed seen = {0};
    ms_thread thread = {0};
    ms_thread_join(&thread); /* never started */
    assert_ok(ms_thread_start(&thread, "a name longer than fifteen", observe, &seen));
    assert_int_equal(thread.started, 1);
    ms_thread_join(&thread);
    assert_int_equal(thread.started, 0);
    ms_thread_join(&thread);
    assert_true(seen.term_blocked);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGTERM)); /* ours is as before */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_log_lines, reset_log, reset_log),
        cmocka_unit_test_setup_teardown(test_log_goes_to_stderr, reset_log, reset_log),
        cmocka_unit_test_setup_teardown(test_log_lines_do_not_mix, reset_log, reset_log),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_cpu_agrees_with_the_kernel),
        cmocka_unit_test(test_team),
        cmocka_unit_test(test_thread_blocks_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
