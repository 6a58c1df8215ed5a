// labels: multi fault
// timeout: 60
/*
 * test_launcher.c - the launcher's statuses, signals and promises about orphans. Ranks are this
 * program again, with the name of what they are to do as an argument.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/launcher.h"
#include "comm/comm.h"

/* ---- What ranks do
 * ------------------------------------------------------------------------------- */

static volatile sig_atomic_t got_signal;
static void note_signal(int number) {
    got_signal = number;
}

static int rank_sum(ms_comm *comm) {
    int64_t value = ms_comm_rank(comm) + 1, sum = 0;
    if (ms_comm_all_reduce(comm, &value, &sum, 1, MS_I64, MS_REDUCE_SUM, NULL) != MS_OK) {
        fprintf(stderr, "rank %d: %s\n", ms_comm_rank(comm), ms_error_detail());
        return 9;
    }
    int64_t size = ms_comm_size(comm);
    return sum == size * (size + 1) / 2 && strcmp(ms_comm_transport_name(comm), "shm") == 0 ? 0 : 8;
}

/* Ranks 0 and 2 wait for rank 1, which dies; they end with the status that says so. */
static int rank_killed(ms_comm *comm) {
    if (ms_comm_barrier(comm, NULL) != MS_OK) {
        return 9;
    }
    if (ms_comm_rank(comm) == 1) {
        kill(getpid(), SIGKILL);
    }
    return ms_comm_barrier(comm, NULL) == MS_ERR_PEER &&
                   strstr(ms_error_detail(), "rank 1 (pid") != NULL
               ? 60
               : 9;
}

/* Rank 1 fails by itself and says so; the others end because of it, perhaps before it. */
static int rank_aborts(ms_comm *comm) {
    if (ms_comm_rank(comm) == 1) {
        ms_comm_abort(comm, "it cannot go on");
        ms_sleep_ms(20);
        return 5;
    }
    return ms_comm_barrier(comm, NULL) == MS_ERR_ABORTED ? 60 : 9;
}

/* Rank 2 fails; the others take no notice and must be ended. */
static int rank_stuck(ms_comm *comm) {
    if (ms_comm_rank(comm) == 2) {
        return 3;
    }
    for (;;) {
        ms_sleep_ms(1000);
    }
}

/* As above, deaf to SIGTERM. */
static int rank_deaf(ms_comm *comm) {
    signal(SIGTERM, SIG_IGN);
    return ms_comm_barrier(comm, NULL) != MS_OK ? 9 : rank_stuck(comm);
}

static int rank_signalled(ms_comm *comm) {
    signal(SIGUSR1, note_signal);
    signal(SIGTERM, note_signal);
    if (ms_comm_barrier(comm, NULL) != MS_OK) {
        return 9;
    }
    if (ms_comm_rank(comm) == 0) {
        kill(getppid(), SIGUSR1);
    }
    for (int i = 0; i < 5000 && got_signal == 0; i++) {
        ms_sleep_ms(1);
    }
    ms_sleep_ms(ms_comm_rank(comm) * 100); /* ranks do not stop at one moment */
    return got_signal == SIGUSR1 ? 75 : 9;
}

static int rank_waits(ms_comm *comm) {
    if (got_signal != 0) {
        signal(SIGTERM, SIG_IGN);
    }
    if (ms_comm_barrier(comm, NULL) != MS_OK) {
        return 9;
    }
    printf("%d\n", (int)getpid());
    fflush(stdout);
    for (;;) {
        ms_sleep_ms(1000);
    }
}

/* As above, deaf to SIGTERM. */
static int rank_waits_deaf(ms_comm *comm) {
    got_signal = 1;
    return rank_waits(comm);
}

static int rank_status(ms_comm *comm) {
    return ms_comm_rank(comm) == 1 ? 42 : 0;
}

static const struct {
    const char *name;
    int (*body)(ms_comm *comm);
} bodies[] = {{"sum", rank_sum},     {"killed", rank_killed}, {"stuck", rank_stuck},
              {"deaf", rank_deaf},   {"status", rank_status}, {"signalled", rank_signalled},
              {"waits", rank_waits}, {"aborts", rank_aborts}, {"waits-deaf", rank_waits_deaf}};

static int run_rank(const char *name) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        if (strcmp(bodies[i].name, name) == 0) {
            ms_comm *comm;
            if (ms_comm_create(NULL, &comm) != MS_OK) {
                fprintf(stderr, "%s\n", ms_error_detail());
                return 99;
            }
            int status = bodies[i].body(comm);
            ms_comm_destroy(comm);
            return status;
        }
    }
    return 98;
}

/* ---- Tests
 * --------------------------------------------------------------------------------------- */

static ms_status launch_with(ms_launch_options options, int ranks, const char *name,
                             int *exit_status) {
    const char *argv[] = {"test_launcher", "--rank", name, NULL};
    options.ranks = ranks;
    options.argv = argv;
    *exit_status = -1;
    return ms_launch_ranks(&options, exit_status);
}

static ms_status launch(int ranks, const char *name, int *exit_status) {
    return launch_with((ms_launch_options)MS_LAUNCH_OPTIONS_INIT, ranks, name, exit_status);
}

static bool no_children(void) {
    return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

static void test_success(void **state) {
    (void)state;
    int status;
    for (int ranks = 1; ranks <= 4; ranks++) {
        ms_status result = launch(ranks, "sum", &status);
        if (result != MS_OK) {
            fail_msg("%d ranks: %s", ranks, ms_error_detail());
        }
        assert_int_equal(status, 0);
    }
    assert_true(no_children());
}

static void test_exit_status(void **state) {
    (void)state;
    int status;
    assert_int_equal(launch(3, "status", &status), MS_ERR_PEER);
    assert_int_equal(status, 42);
    assert_string_equal(ms_error_detail(), "rank 1 exited with status 42");
}

static void test_killed_rank(void **state) {
    (void)state;
    int status;
    for (int i = 0; i < 5; i++) { /* the cause is named, not the ranks that ended because of it */
        double start_s = ms_clock_s();
        assert_int_equal(launch(3, "killed", &status), MS_ERR_PEER);
        assert_int_equal(status, 128 + SIGKILL);
        assert_string_equal(ms_error_detail(), "rank 1 was killed by signal 9 (Killed)");
        assert_true(ms_clock_s() - start_s < 1.0);
    }
    assert_true(no_children());
}

static void test_cause_and_consequence(void **state) {
    (void)state;
    int status;
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    options.peer_status = 60;
    assert_int_equal(launch_with(options, 3, "aborts", &status), MS_ERR_PEER);
    assert_int_equal(status, 5);
    assert_string_equal(ms_error_detail(), "rank 1 exited with status 5");
    assert_int_equal(launch_with(options, 3, "killed", &status), MS_ERR_PEER);
    assert_int_equal(status, 128 + SIGKILL);
}

static void test_the_rest_is_ended(void **state) {
    (void)state;
    int status;
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    options.report_ms = 100;
    options.kill_ms = 3000;
    double start_s = ms_clock_s();
    assert_int_equal(launch_with(options, 3, "stuck", &status), MS_ERR_PEER);
    assert_int_equal(status, 3);
    assert_string_equal(ms_error_detail(), "rank 2 exited with status 3");
    double took_s = ms_clock_s() - start_s;
    assert_true(took_s >= 0.1 && took_s < 2.0);
    options.kill_ms = 300;
    start_s = ms_clock_s();
    assert_int_equal(launch_with(options, 3, "deaf", &status), MS_ERR_PEER);
    assert_int_equal(status, 3);
    took_s = ms_clock_s() - start_s;
    assert_true(took_s >= 0.4 && took_s < 5.0);
    assert_true(no_children());
}

static void test_signals_reach_all(void **state) {
    (void)state;
    int status;
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    options.stop_status = 75;
    options.report_ms = 0;
    options.kill_ms = 0; /* would end the slower ranks if the status counted as a failure */
    assert_int_equal(launch_with(options, 3, "signalled", &status), MS_OK);
    assert_int_equal(status, 75);
    options = (ms_launch_options)MS_LAUNCH_OPTIONS_INIT;
    assert_int_equal(launch_with(options, 2, "signalled", &status), MS_ERR_PEER);
    assert_int_equal(status, 75);
}

/* Starts a launcher of its own process and reads its ranks' numbers. */
static pid_t start_launcher(int ranks, const char *name, pid_t *pids) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t launcher = fork();
    assert_true(launcher >= 0);
    if (launcher == 0) {
        int status;
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        ms_status result = launch(ranks, name, &status);
        _exit(result == MS_ERR_PEER ? status : 97);
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    for (int i = 0; i < ranks; i++) {
        int pid = 0;
        assert_int_equal(fscanf(lines, "%d", &pid), 1);
        pids[i] = pid;
    }
    fclose(lines);
    return launcher;
}

static bool is_gone(pid_t pid) {
    char path[40], line[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY);
    if (file < 0) {
        return true;
    }
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    if (length <= 0) {
        return true;
    }
    line[length] = '\0';
    const char *after = strrchr(line, ')');
    return after == NULL || after[2] == 'Z';
}

static bool all_gone_within(const pid_t *pids, int count, double limit_s) {
    double start_s = ms_clock_s();
    while (ms_clock_s() - start_s < limit_s) {
        int gone = 0;
        for (int i = 0; i < count; i++) {
            gone += is_gone(pids[i]);
        }
        if (gone == count) {
            return true;
        }
        ms_sleep_ms(2);
    }
    return false;
}

static void test_killed_launcher_leaves_no_orphan(void **state) {
    (void)state;
    pid_t pids[3];
    pid_t launcher = start_launcher(3, "waits", pids);
    for (int i = 0; i < 3; i++) {
        assert_false(is_gone(pids[i]));
    }
    kill(launcher, SIGKILL);
    assert_true(all_gone_within(pids, 3, 2.0));
    waitpid(launcher, NULL, 0);
}

static void test_terminated_launcher(void **state) {
    (void)state;
    pid_t pids[2];
    int status;
    pid_t launcher = start_launcher(2, "waits", pids);
    kill(launcher, SIGTERM); /* goes to the ranks, which die of it */
    assert_true(all_gone_within(pids, 2, 2.0));
    waitpid(launcher, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
}

static void test_third_request_kills(void **state) {
    (void)state;
    pid_t pids[2];
    int status;
    pid_t launcher = start_launcher(2, "waits-deaf", pids);
    for (int i = 0; i < 3; i++) {
        assert_false(all_gone_within(pids, 2, 0.05));
        kill(launcher, SIGTERM);
    }
    assert_true(all_gone_within(pids, 2, 2.0));
    waitpid(launcher, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGKILL);
}

static void test_refused(void **state) {
    (void)state;
    int status = -1;
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    assert_int_equal(launch(0, "sum", &status), MS_ERR_ARGUMENT);
    assert_int_equal(launch(65, "sum", &status), MS_ERR_ARGUMENT);
    assert_int_equal(ms_launch_ranks(&options, &status), MS_ERR_ARGUMENT);
    options.program = "/nonexistent/program";
    assert_int_equal(launch_with(options, 2, "sum", &status), MS_ERR_SYSTEM);
    assert_non_null(strstr(ms_error_detail(), "cannot start rank 0: No such file"));
    assert_int_equal(status, -1);
    assert_true(no_children());
}

int main(int argument_count, char **arguments) {
    if (argument_count == 3 && strcmp(arguments[1], "--rank") == 0) {
        return run_rank(arguments[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_success),
        cmocka_unit_test(test_exit_status),
        cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_cause_and_consequence),
        cmocka_unit_test(test_the_rest_is_ended),
        cmocka_unit_test(test_signals_reach_all),
        cmocka_unit_test(test_killed_launcher_leaves_no_orphan),
        cmocka_unit_test(test_terminated_launcher),
        cmocka_unit_test(test_third_request_kills),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
