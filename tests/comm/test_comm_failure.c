// labels: fault
// timeout: 120
/*
 * test_comm_failure.c - killed ranks, aborts, deadlines and mismatched calls: every survivor gets
 * an error that names the cause, in time, and its buffers stay as they were.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>

#include "conformance.h"
#include "ranks.h"

/* What a rank saw, in memory shared with the test. */
typedef struct report {
    int status;
    int culprit;
    double at_s;
    char sentence[400];
} report;

static report *reports; /* of RANKS_MAX ranks */
static int victim, kill_point;

#define PIECE 300000

/* Operations without end, of every kind, until one fails; the victim kills itself at the chosen
 * one. */
static ms_status endless(ms_comm *comm, float *values, float *more, int kind, bool die) {
    int size = ms_comm_size(comm), rank = ms_comm_rank(comm);
    int64_t counts[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        counts[r] = PIECE / RANKS_MAX;
    }
    ms_request *request = NULL;
    ms_status status;
    switch (kind) {
    case 0:
        status = ms_comm_all_reduce(comm, values, values, PIECE, MS_F32, MS_REDUCE_SUM, &request);
        break;
    case 1:
        status = ms_comm_broadcast(comm, values, PIECE, MS_F32, 0, &request);
        break;
    case 2:
        status =
            ms_comm_reduce_scatter(comm, values, more, counts, MS_F32, MS_REDUCE_SUM, &request);
        break;
    case 3:
        status = ms_comm_all_gather(comm, values, more, counts, MS_F32, &request);
        break;
    case 4:
        status = ms_comm_all_to_all(comm, values, more, PIECE / RANKS_MAX, MS_F32, &request);
        break;
    case 5:
        status = ms_comm_barrier(comm, &request);
        break;
    case 6:
        status = ms_comm_all_reduce(comm, values, more, 10, MS_F32, MS_REDUCE_SUM, &request);
        break;
    default:
        status =
            ms_comm_reduce(comm, values, more, PIECE, MS_F32, MS_REDUCE_MAX, size - 1, &request);
        break;
    }
    if (die) {
        reports[rank].at_s = ms_clock_s();
        kill(getpid(), SIGKILL);
    }
    return status != MS_OK ? status : ms_request_wait(&request, -1);
}

static int report_failure(ms_comm *comm, ms_status status) {
    report *own = &reports[ms_comm_rank(comm)];
    own->status = (int)status;
    snprintf(own->sentence, sizeof own->sentence, "%s", ms_error_detail());
    own->at_s = ms_clock_s();
    if (ms_comm_failure(comm, &own->culprit) != status) {
        return 3;
    }
    ms_request *request = NULL; /* later calls tell the same */
    float value = 0;
    if (ms_comm_all_reduce(comm, &value, &value, 1, MS_F32, MS_REDUCE_SUM, &request) != status ||
        request != NULL || strcmp(ms_error_detail(), own->sentence) != 0) {
        return 4;
    }
    return 0;
}

static int until_death(ms_comm *comm) {
    bool victim_is_me = ms_comm_rank(comm) == victim;
    void *memory, *more;
    if (ms_comm_alloc(comm, PIECE * sizeof(float), &memory) != MS_OK ||
        ms_comm_alloc(comm, PIECE * sizeof(float), &more) != MS_OK) {
        return 1;
    }
    for (int i = 0;; i++) {
        bool die = victim_is_me && i == 16 + kill_point;
        ms_status status = endless(comm, memory, more, i % 8, die);
        if (status != MS_OK) {
            int result = report_failure(comm, status);
            /* untouched from now on: nobody writes into what we write here */
            memset(memory, 0x77, PIECE * sizeof(float));
            ms_sleep_ms(2);
            for (size_t k = 0; k < PIECE * sizeof(float); k++) {
                if (((unsigned char *)memory)[k] != 0x77) {
                    return 5;
                }
            }
            return result;
        }
    }
}

static void check_death(int size, int dead) {
    victim = dead;
    memset(reports, 0, RANKS_MAX * sizeof *reports);
    ranks_job job;
    assert_true(ranks_start(&job, size, until_death));
    int victim_pid = (int)job.pids[dead];
    assert_true(ranks_wait(&job, 20));
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d (pid %d) died", dead, victim_pid);
    for (int rank = 0; rank < size; rank++) {
        if (rank == dead) {
            assert_true(WIFSIGNALED(job.statuses[rank]));
            continue;
        }
        assert_int_equal(job.statuses[rank], 0);
        assert_int_equal(reports[rank].status, MS_ERR_PEER);
        assert_int_equal(reports[rank].culprit, dead);
        assert_string_equal(reports[rank].sentence, expected);
        assert_true(reports[rank].at_s - reports[dead].at_s < 0.2);
    }
}

static void test_killed_rank(void **state) {
    (void)state;
    int shm_before = count_entries("/dev/shm");
    for (kill_point = 0; kill_point < 8; kill_point++) { /* inside each operation */
        check_death(3, kill_point % 3);
    }
    check_death(2, 0);
    check_death(5, 4);
    assert_int_equal(count_entries("/dev/shm"), shm_before);
}

/* The survivors compute and communicate nothing when it happens: they hear at their next call. */
static int idle_death(ms_comm *comm) {
    if (ms_comm_barrier(comm, NULL) != MS_OK) {
        return 1;
    }
    if (ms_comm_rank(comm) == 1) {
        ms_sleep_ms(100); /* the others are through the barrier by then */
        kill(getpid(), SIGKILL);
    }
    ms_sleep_ms(300);
    if (ms_comm_failure(comm, NULL) != MS_ERR_PEER) {
        return 2;
    }
    return report_failure(comm, MS_ERR_PEER);
}

static void test_killed_while_idle(void **state) {
    (void)state;
    memset(reports, 0, RANKS_MAX * sizeof *reports);
    ranks_job job;
    assert_true(ranks_start(&job, 3, idle_death));
    assert_true(ranks_wait(&job, 20));
    assert_int_equal(job.statuses[0], 0);
    assert_int_equal(job.statuses[2], 0);
    assert_int_equal(reports[2].culprit, 1);
}

/* Only the progress thread notices; the request that nobody waits for yet ends with the error. */
static int death_under_way(ms_comm *comm) {
    static float values[PIECE];
    ms_request *request = NULL;
    if (ms_comm_rank(comm) == 2) {
        ms_sleep_ms(30);
        kill(getpid(), SIGKILL);
    }
    if (ms_comm_all_reduce(comm, values, values, PIECE, MS_F32, MS_REDUCE_SUM, &request) != MS_OK) {
        return 1;
    }
    for (int i = 0; i < 5000 && ms_comm_counters_get(comm).operations == 0; i++) {
        ms_sleep_ms(1); /* nobody here waits for it */
    }
    ms_status status = ms_request_test(&request);
    return status == MS_ERR_PEER && request == NULL ? report_failure(comm, status) : 2;
}

static void test_killed_with_request_under_way(void **state) {
    (void)state;
    ranks_job job;
    assert_true(ranks_start(&job, 3, death_under_way));
    assert_true(ranks_wait(&job, 20));
    assert_int_equal(job.statuses[0], 0);
    assert_int_equal(job.statuses[1], 0);
}

/* ---- A rank that ends without saying why, in order, or aborts
 * ------------------------------------ */

static int leaves_in_order(ms_comm *comm) {
    if (ms_comm_rank(comm) == 1) {
        return 0;
    }
    ms_status status = ms_comm_barrier(comm, NULL);
    if (status != MS_ERR_PEER || strstr(ms_error_detail(), "rank 1") == NULL ||
        strstr(ms_error_detail(), "left the job before barrier") == NULL) {
        fprintf(stderr, "%s: %s\n", ms_status_name(status), ms_error_detail());
        return 1;
    }
    return 0;
}

static void test_left_in_order(void **state) {
    (void)state;
    assert_true(ranks_run(3, leaves_in_order, 20));
}

static int aborts(ms_comm *comm) {
    if (ms_comm_rank(comm) == 2) {
        ms_sleep_ms(20);
        ms_comm_abort(comm, "loss is not finite");
        ms_comm_abort(comm, "a second time");
    }
    ms_status status = ms_comm_barrier(comm, NULL);
    int culprit;
    ms_status again = ms_comm_failure(comm, &culprit);
    return status == MS_ERR_ABORTED && again == status && culprit == 2 &&
                   strcmp(ms_error_detail(), "rank 2 aborted: loss is not finite") == 0
               ? 0
               : 1;
}

static void test_abort(void **state) {
    (void)state;
    assert_true(ranks_run(3, aborts, 20));
}

/* One rank destroys its communicator in the middle of an operation. */
static int gives_up(ms_comm *comm) {
    if (ms_comm_rank(comm) == 0) {
        static char bytes[10];
        ms_request *request;
        return ms_comm_recv(comm, bytes, 10, MS_U8, 1, 0, &request) == MS_OK ? 0 : 1;
    }
    ms_status status = ms_comm_barrier(comm, NULL);
    return status == MS_ERR_ABORTED && strstr(ms_error_detail(), "rank 0 left") != NULL ? 0 : 1;
}

static void test_gives_up(void **state) {
    (void)state;
    assert_true(ranks_run(2, gives_up, 20));
}

static int times_out(ms_comm *comm) {
    double start_s = ms_clock_s();
    if (ms_comm_rank(comm) == 1) {
        ms_sleep_ms(700); /* computes for too long */
    }
    float values[4] = {0};
    ms_status status = ms_comm_all_reduce(comm, values, values, 4, MS_F32, MS_REDUCE_SUM, NULL);
    bool named = strstr(ms_error_detail(), "rank 1 (pid ") != NULL &&
                 strstr(ms_error_detail(),
                        "all_reduce(sum, fp32, 4 elements) (operation 0 of the world)") != NULL &&
                 strstr(ms_error_detail(), "did not arrive") != NULL;
    bool in_time = ms_comm_rank(comm) == 1 || ms_clock_s() - start_s < 0.55;
    if (status != MS_ERR_TIMEOUT || !named || !in_time) {
        fprintf(stderr, "%s: %s after %g s\n", ms_status_name(status), ms_error_detail(),
                ms_clock_s() - start_s);
        return 1;
    }
    return 0;
}

static void test_deadline(void **state) {
    (void)state;
    ranks_options.operation_timeout_s = 0.3;
    assert_true(ranks_run(3, times_out, 20));
    ranks_options.operation_timeout_s = 600;
}

/* A wait with a limit of its own gives up the wait, not the operation. */
static int waits_in_parts(ms_comm *comm) {
    int32_t value = 0;
    ms_request *request;
    if (ms_comm_rank(comm) == 1) {
        ms_sleep_ms(120);
        value = 42;
        return ms_comm_send(comm, &value, 1, MS_I32, 0, 0, NULL) == MS_OK ? 0 : 1;
    }
    if (ms_comm_recv(comm, &value, 1, MS_I32, 1, 0, &request) != MS_OK) {
        return 2;
    }
    double start_s = ms_clock_s();
    if (ms_request_wait(&request, 0.03) != MS_AGAIN || request == NULL ||
        ms_clock_s() - start_s < 0.03) {
        return 3;
    }
    return ms_request_wait(&request, 10) == MS_OK && value == 42 ? 0 : 4;
}

static void test_wait_limit(void **state) {
    (void)state;
    assert_true(ranks_run(2, waits_in_parts, 20));
}

static int launcher_dies(ms_comm *comm) {
    ms_status status = ms_comm_barrier(comm, NULL);
    if (status == MS_OK) {
        int32_t value;
        status = ms_comm_recv(comm, &value, 1, MS_I32, 1 - ms_comm_rank(comm), 0, NULL);
    }
    return status == MS_ERR_PEER && strstr(ms_error_detail(), "the launcher (pid ") != NULL ? 0 : 1;
}

static void test_launcher_dies(void **state) {
    (void)state;
    ranks_job job;
    assert_true(ranks_start(&job, 2, launcher_dies));
    ms_sleep_ms(50);
    close(job.offer.lifeline_write); /* what its death does */
    job.offer.lifeline_write = -1;
    assert_true(ranks_wait(&job, 20));
    assert_int_equal(job.statuses[0], 0);
    assert_int_equal(job.statuses[1], 0);
}

/* ---- Ranks that call different things
 * ------------------------------------------------------------ */

typedef ms_status (*mismatched_call)(ms_comm *comm, float *values, float *out);

static ms_status call_reduce(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_reduce(comm, values, out, 100, MS_F32, MS_REDUCE_SUM, NULL);
}
static ms_status call_count(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_reduce(comm, values, out, ms_comm_rank(comm) == 1 ? 99 : 100, MS_F32,
                              MS_REDUCE_SUM, NULL);
}
static ms_status call_large_count(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_reduce(comm, values, out, ms_comm_rank(comm) == 1 ? 9000 : 10, MS_F32,
                              MS_REDUCE_SUM, NULL);
}
static ms_status call_dtype(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_reduce(comm, values, out, 100, ms_comm_rank(comm) == 1 ? MS_I32 : MS_F32,
                              MS_REDUCE_SUM, NULL);
}
static ms_status call_op(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_reduce(comm, values, out, 100, MS_F32,
                              ms_comm_rank(comm) == 1 ? MS_REDUCE_MAX : MS_REDUCE_SUM, NULL);
}
static ms_status call_root(ms_comm *comm, float *values, float *out) {
    (void)out;
    return ms_comm_broadcast(comm, values, 100, MS_F32, ms_comm_rank(comm) == 1 ? 0 : 1, NULL);
}
static ms_status call_both_wait(ms_comm *comm, float *values, float *out) {
    (void)out; /* each thinks that the other is the root */
    return ms_comm_broadcast(comm, values, 100, MS_F32, 1 - ms_comm_rank(comm) % 2, NULL);
}
static ms_status call_kind(ms_comm *comm, float *values, float *out) {
    if (ms_comm_rank(comm) == 1) {
        return ms_comm_broadcast(comm, values, 100, MS_F32, 0, NULL);
    }
    return call_reduce(comm, values, out);
}
static ms_status call_order(ms_comm *comm, float *values, float *out) {
    if (ms_comm_rank(comm) == 1) {
        MS_TRY(ms_comm_barrier(comm, NULL));
        return call_reduce(comm, values, out);
    }
    MS_TRY(call_reduce(comm, values, out));
    return ms_comm_barrier(comm, NULL);
}
static ms_status call_counts(ms_comm *comm, float *values, float *out) {
    int64_t counts[3] = {10, 20, 10};
    if (ms_comm_rank(comm) == 1) {
        counts[0] = 20;
        counts[1] = 10;
    }
    return ms_comm_all_gather(comm, values, out, counts, MS_F32, NULL);
}
static ms_status call_to_all(ms_comm *comm, float *values, float *out) {
    return ms_comm_all_to_all(comm, values, out, ms_comm_rank(comm) == 1 ? 11 : 10, MS_F32, NULL);
}
static ms_status call_late(ms_comm *comm, float *values, float *out) {
    /* rank 1 is done with the broadcast when rank 2 takes it for one from rank 1 */
    if (ms_comm_rank(comm) == 2) {
        ms_sleep_ms(100);
    }
    ms_status status =
        ms_comm_broadcast(comm, values, 10, MS_F32, ms_comm_rank(comm) == 2 ? 1 : 0, NULL);
    if (status == MS_OK) {
        status = ms_comm_barrier(comm, NULL);
    }
    (void)out;
    return status;
}
static ms_status call_point(ms_comm *comm, float *values, float *out) {
    if (ms_comm_rank(comm) == 0) {
        return ms_comm_send(comm, values, 10, MS_F32, 1, 4, NULL);
    }
    if (ms_comm_rank(comm) == 1) {
        return ms_comm_recv(comm, out, 11, MS_F32, 0, 4, NULL);
    }
    return ms_comm_barrier(comm, NULL);
}

typedef struct mismatch_thread {
    pthread_t thread;
    ms_comm *comm;
    mismatched_call call;
    ms_status status;
    char sentence[500];
} mismatch_thread;

static void *run_mismatched(void *context) {
    mismatch_thread *own = context;
    float values[9000] = {0}, out[9000];
    memset(out, 0x3c, sizeof out);
    own->status = own->call(own->comm, values, out);
    snprintf(own->sentence, sizeof own->sentence, "%s", ms_error_detail());
    return NULL;
}

static void check_mismatch(mismatched_call call, const char *first, const char *second) {
    ms_comm *comms[3];
    mismatch_thread ranks[3];
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.operation_timeout_s = 5;
    assert_int_equal(ms_comm_create_loop(&options, 3, comms), MS_OK);
    for (int r = 0; r < 3; r++) {
        ranks[r] = (mismatch_thread){.comm = comms[r], .call = call};
        pthread_create(&ranks[r].thread, NULL, run_mismatched, &ranks[r]);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    for (int r = 0; r < 3; r++) {
        if (ranks[r].status != MS_ERR_MISMATCH || strstr(ranks[r].sentence, first) == NULL ||
            strstr(ranks[r].sentence, second) == NULL) {
            fail_msg("rank %d got %s: \"%s\", wanted \"%s\" and \"%s\"", r,
                     ms_status_name(ranks[r].status), ranks[r].sentence, first, second);
        }
        ms_comm_destroy(comms[r]);
    }
}

static void test_mismatches(void **state) {
    (void)state;
    check_mismatch(call_count, "rank 1 called all_reduce(sum, fp32, 99 elements)", "100 elements");
    check_mismatch(call_large_count, "rank 1 called all_reduce(sum, fp32, 9000 elements)",
                   "all_reduce(sum, fp32, 10 elements)");
    check_mismatch(call_dtype, "rank 1 called all_reduce(sum, int32, 100 elements)",
                   "all_reduce(sum, fp32, 100 elements)");
    check_mismatch(call_op, "rank 1 called all_reduce(max, fp32, 100 elements)",
                   "all_reduce(sum, fp32, 100 elements)");
    check_mismatch(call_root, "root 0)", "root 1)");
    check_mismatch(call_both_wait, "root 0)", "root 1)");
    check_mismatch(call_kind, "rank 1 called broadcast(fp32, 100 elements, root 0)",
                   "all_reduce(sum, fp32, 100 elements)");
    check_mismatch(call_order, "rank 1 called barrier", "as operation 0 of the world");
    check_mismatch(call_counts, "all_gather(fp32, 40 elements)", "with other counts for each rank");
    check_mismatch(call_to_all, "all_to_all(fp32)", "with other counts for each rank");
    check_mismatch(call_late, "root 1)", "root 0)");
    check_mismatch(call_point, "send/recv(fp32, 10 elements, tag 4)",
                   "send/recv(fp32, 11 elements, tag 4)");
}

int main(void) {
    reports = mmap(NULL, RANKS_MAX * sizeof *reports, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (reports == MAP_FAILED) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_killed_while_idle),
        cmocka_unit_test(test_killed_with_request_under_way),
        cmocka_unit_test(test_left_in_order),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_wait_limit),
        cmocka_unit_test(test_launcher_dies),
        cmocka_unit_test(test_mismatches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
