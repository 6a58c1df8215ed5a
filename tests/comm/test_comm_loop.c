// labels: unit
// timeout: 120
/* test_comm_loop.c - every operation between threads of one process, and what callers can do wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include <time.h>

#include "base/memory.h"
#include "conformance.h"

typedef bool (*rank_body)(ms_comm *comm);

typedef struct rank_thread {
    pthread_t thread;
    ms_comm *comm;
    rank_body body;
    bool good;
} rank_thread;

static void *run_rank(void *context) {
    rank_thread *rank = context;
    rank->good = rank->body(rank->comm);
    return NULL;
}

/* Runs body on `size` threads; true when every rank's was good. */
static bool run_threads_with(const ms_comm_options *options, int size,
                             const ms_loop_schedule *schedule, rank_body body) {
    ms_comm *comms[8];
    rank_thread ranks[8];
    assert_int_equal(ms_comm_create_loop_seeded(options, size, schedule, comms), MS_OK);
    for (int r = 0; r < size; r++) {
        ranks[r] = (rank_thread){.comm = comms[r], .body = body};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    bool good = true;
    for (int r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
        good = good && ranks[r].good;
    }
    for (int r = 0; r < size; r++) {
        ms_comm_destroy(comms[r]);
    }
    return good;
}

static bool run_threads(int size, rank_body body) {
    return run_threads_with(NULL, size, NULL, body);
}

static bool all_registered(ms_comm *comm) {
    return conform_all(comm, true);
}
static bool all_plain(ms_comm *comm) {
    return conform_all(comm, false);
}

static void test_every_operation(void **state) {
    (void)state;
    for (int size = 1; size <= 5; size++) {
        assert_true(run_threads(size, all_registered));
    }
}

static void test_staging_ring(void **state) {
    (void)state;
    ms_loop_schedule staged = {.staged = 1};
    for (int size = 2; size <= 3; size++) {
        assert_true(run_threads_with(NULL, size, &staged, all_plain));
    }
}

static void test_concurrent(void **state) {
    (void)state;
    for (int size = 1; size <= 5; size++) {
        assert_true(run_threads(size, conform_concurrent));
    }
}

static void test_progress_threads(void **state) {
    (void)state;
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.progress_thread = 1;
    for (int size = 1; size <= 3; size++) {
        assert_true(run_threads_with(&options, size, NULL, conform_concurrent));
    }
}

/* The progress thread alone finishes what the caller started and does not wait for. */
static bool unattended(ms_comm *comm) {
    static _Thread_local float values[200000];
    for (int i = 0; i < 200000; i++) {
        values[i] = (float)(i % 100);
    }
    ms_request *request;
    CONFORM_OK(comm,
               ms_comm_all_reduce(comm, values, values, 200000, MS_F32, MS_REDUCE_SUM, &request));
    ms_comm_counters counters;
    for (int tries = 0; tries < 5000; tries++) {
        counters = ms_comm_counters_get(comm);
        if (counters.operations == 1) {
            break;
        }
        struct timespec moment = {.tv_nsec = 1000000};
        nanosleep(&moment, NULL);
    }
    CONFORM(comm, counters.operations == 1, "nobody finished the operation");
    CONFORM_OK(comm, ms_request_test(&request));
    CONFORM(comm, values[199] == 99.0f * (float)ms_comm_size(comm), "wrong sum");
    return true;
}

static void test_unattended(void **state) {
    (void)state;
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.progress_thread = 1;
    assert_true(run_threads_with(&options, 3, NULL, unattended));
}

/* Several threads of one rank, each with a communicator of its own. */
typedef struct worker {
    ms_comm *comm;
    bool good;
} worker;

static void *work(void *context) {
    worker *own = context;
    own->good = true;
    for (int i = 0; i < 200 && own->good; i++) {
        int64_t value = i + ms_comm_rank(own->comm), sum = 0;
        own->good =
            ms_comm_all_reduce(own->comm, &value, &sum, 1, MS_I64, MS_REDUCE_SUM, NULL) == MS_OK &&
            sum == 2 * i + 1;
    }
    return NULL;
}

static bool many_callers(ms_comm *world) {
    worker workers[3];
    pthread_t threads[3];
    int both[2] = {0, 1};
    for (int i = 0; i < 3; i++) {
        CONFORM_OK(world, ms_comm_group(world, both, 2, &workers[i].comm));
    }
    for (int i = 0; i < 3; i++) {
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    bool good = true;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        good = good && workers[i].good;
        ms_comm_destroy(workers[i].comm);
    }
    CONFORM(world, good, "a caller got a wrong sum");
    return true;
}

static void test_many_callers(void **state) {
    (void)state;
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.progress_thread = 1;
    assert_true(run_threads_with(&options, 2, NULL, many_callers));
    assert_true(run_threads(2, many_callers));
}

/* ---- Refused calls ------------------------------------------------------------------------------
 */

static void test_arguments(void **state) {
    (void)state;
    ms_comm *comm;
    assert_int_equal(ms_comm_create(NULL, &comm), MS_OK);
    assert_string_equal(ms_comm_transport_name(comm), "loop");
    assert_int_equal(ms_comm_size(comm), 1);
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
    int64_t counts[1] = {4}, negative[1] = {-1};
    ms_request *request = NULL;
    assert_int_equal(ms_comm_all_reduce(NULL, values, out, 1, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_reduce(comm, NULL, out, 1, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_reduce(comm, values, out, -1, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_reduce(comm, values, out, INT64_MAX, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_reduce(comm, values, out, 1, MS_BOOL, MS_REDUCE_SUM, NULL),
                     MS_ERR_UNSUPPORTED);
    assert_int_equal(ms_comm_all_reduce(comm, values, values + 1, 4, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_non_null(strstr(ms_error_detail(), "overlap"));
    assert_int_equal(ms_comm_broadcast(comm, values, 1, MS_F32, 1, NULL), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_reduce_scatter(comm, values, out, NULL, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_gather(comm, values, out, negative, MS_F32, NULL),
                     MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_send(comm, values, 1, MS_F32, 0, -1, NULL), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_recv(comm, out, 1, MS_F32, 3, 0, NULL), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_all_to_all(comm, values, values, 4, MS_F32, NULL), MS_ERR_ARGUMENT);
    /* refused calls left no trace */
    assert_int_equal(ms_comm_all_reduce(comm, values, out, 8, MS_F32, MS_REDUCE_AVG, NULL), MS_OK);
    assert_memory_equal(values, out, sizeof out);
    memset(out, 0, sizeof out);
    assert_int_equal(ms_comm_reduce_scatter(comm, values, out, counts, MS_F32, MS_REDUCE_SUM, NULL),
                     MS_OK);
    assert_memory_equal(values, out, 16);
    assert_int_equal(ms_comm_all_gather(comm, values + 4, out, counts, MS_F32, &request), MS_OK);
    assert_int_equal(ms_request_wait(&request, -1), MS_OK);
    assert_null(request);
    assert_int_equal(ms_request_wait(&request, -1), MS_OK); /* nothing to wait for */
    assert_memory_equal(values + 4, out, 16);
    ms_comm_destroy(comm);
    ms_comm_destroy(NULL);
}

static void test_options(void **state) {
    (void)state;
    ms_comm *comms[2];
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.struct_size = 3;
    assert_int_equal(ms_comm_create(&options, comms), MS_ERR_ARGUMENT);
    options = (ms_comm_options)MS_COMM_OPTIONS_INIT;
    options.operation_timeout_s = 0;
    assert_int_equal(ms_comm_create(&options, comms), MS_ERR_ARGUMENT);
    options = (ms_comm_options)MS_COMM_OPTIONS_INIT;
    options.transport = MS_COMM_TRANSPORT_SHM;
    assert_int_equal(ms_comm_create(&options, comms), MS_ERR_UNSUPPORTED);
    assert_int_equal(ms_comm_create_loop(NULL, 0, comms), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_create_loop(NULL, 65, comms), MS_ERR_ARGUMENT);
    for (uint64_t n = 1; n < 40; n++) { /* every allocation fails in turn, and nothing is lost */
        ms_memory_fail_at(n);
        ms_status status = ms_comm_create_loop(NULL, 2, comms);
        ms_memory_fail_at(0);
        assert_true(status == MS_OK || status == MS_ERR_MEMORY);
        if (status == MS_OK) {
            ms_comm_destroy(comms[0]);
            ms_comm_destroy(comms[1]);
        }
    }
}

static void test_groups_refused(void **state) {
    (void)state;
    ms_comm *comms[3], *group;
    assert_int_equal(ms_comm_create_loop(NULL, 3, comms), MS_OK);
    int twice[] = {0, 0}, others[] = {1, 2}, beyond[] = {0, 3};
    assert_int_equal(ms_comm_group(comms[0], twice, 2, &group), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_group(comms[0], others, 2, &group), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_group(comms[0], beyond, 2, &group), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_group(comms[0], others, 0, &group), MS_ERR_ARGUMENT);
    assert_int_equal(ms_comm_group(comms[1], others, 2, &group), MS_OK);
    ms_comm_destroy(comms[1]); /* the group keeps what it needs */
    assert_int_equal(ms_comm_size(group), 2);
    assert_int_equal(ms_comm_world_rank(group, 1), 2);
    assert_int_equal(ms_comm_world_rank(group, 2), -1);
    ms_comm_destroy(group);
    ms_comm_destroy(comms[0]);
    ms_comm_destroy(comms[2]);
}

static void test_memory(void **state) {
    (void)state;
    ms_comm *comms[2];
    assert_int_equal(ms_comm_create_loop(NULL, 2, comms), MS_OK);
    void *a, *b;
    assert_int_equal(ms_comm_alloc(comms[0], 1000, &a), MS_OK);
    assert_int_equal(ms_comm_alloc(comms[0], 5000, &b), MS_OK);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(ms_comm_memory_bytes(comms[0]), 6000);
    assert_int_equal(ms_comm_memory_bytes(comms[1]), 0);
    ms_comm_free(comms[0], a);
    ms_comm_free(comms[0], NULL);
    assert_int_equal(ms_comm_memory_bytes(comms[0]), 5000);
    size_t before = ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN];
    ms_comm_destroy(comms[0]); /* frees b */
    assert_int_equal(ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN], before - 5000);
    ms_comm_destroy(comms[1]);
}

static void test_too_many(void **state) {
    (void)state;
    ms_comm *comms[2];
    assert_int_equal(ms_comm_create_loop(NULL, 2, comms), MS_OK);
    static char bytes[MS_COMM_REQUESTS_MAX + 1];
    ms_request *requests[MS_COMM_REQUESTS_MAX + 1];
    for (int i = 0; i < MS_COMM_REQUESTS_MAX; i++) {
        assert_int_equal(ms_comm_recv(comms[0], &bytes[i], 1, MS_U8, 1, i, &requests[i]), MS_OK);
    }
    assert_int_equal(ms_comm_barrier(comms[0], &requests[MS_COMM_REQUESTS_MAX]), MS_ERR_BUSY);
    for (int i = MS_COMM_REQUESTS_MAX - 1; i >= 0; i--) {
        char byte = (char)(i + 1);
        ms_request *sent;
        assert_int_equal(ms_comm_send(comms[1], &byte, 1, MS_U8, 0, i, &sent), MS_OK);
        assert_int_equal(ms_request_test(&requests[i]), MS_OK);
        assert_int_equal(ms_request_wait(&sent, 1), MS_OK);
        assert_int_equal(bytes[i], (char)(i + 1));
    }
    ms_comm_destroy(comms[0]);
    ms_comm_destroy(comms[1]);
}

/* More messages than the ring holds: later ones do not overtake, and an operation in place waits.
 */
static void test_full_ring(void **state) {
    (void)state;
    enum { SENDS = 60, COUNT = 1000 };
    static float sent[SENDS][COUNT], got[SENDS][COUNT], values[2][COUNT];
    ms_comm *comms[2];
    ms_request *sends[SENDS], *sums[2];
    assert_int_equal(ms_comm_create_loop(NULL, 2, comms), MS_OK);
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < COUNT; k++) {
            values[r][k] = (float)(k + r * 7);
        }
    }
    assert_int_equal(
        ms_comm_all_reduce(comms[1], values[1], values[1], COUNT, MS_F32, MS_REDUCE_SUM, &sums[1]),
        MS_OK);
    for (int i = 0; i < SENDS; i++) { /* long and short ones in turn */
        sent[i][0] = (float)i;
        sent[i][COUNT - 1] = (float)-i;
        assert_int_equal(
            ms_comm_send(comms[0], sent[i], i % 2 == 0 ? COUNT : 1, MS_F32, 1, 3, &sends[i]),
            MS_OK);
    }
    assert_int_equal(
        ms_comm_all_reduce(comms[0], values[0], values[0], COUNT, MS_F32, MS_REDUCE_SUM, &sums[0]),
        MS_OK);
    ms_comm_progress(comms[0]);
    for (int i = 0; i < SENDS; i++) {
        ms_request *receive;
        assert_int_equal(
            ms_comm_recv(comms[1], got[i], i % 2 == 0 ? COUNT : 1, MS_F32, 0, 3, &receive), MS_OK);
        ms_status status;
        while ((status = ms_request_test(&receive)) == MS_AGAIN) {
            ms_comm_progress(comms[0]);
        }
        assert_int_equal(status, MS_OK);
        assert_true(got[i][0] == (float)i);
        assert_true(i % 2 != 0 || got[i][COUNT - 1] == (float)-i);
    }
    while (ms_request_test(&sums[1]) == MS_AGAIN || sums[1] != NULL) {
        ms_comm_progress(comms[0]);
    }
    assert_int_equal(ms_request_wait(&sums[0], 1), MS_OK);
    for (int i = 0; i < SENDS; i++) {
        assert_int_equal(ms_request_wait(&sends[i], 1), MS_OK);
    }
    for (int k = 0; k < COUNT; k++) {
        assert_true(values[0][k] == (float)(2 * k + 7) && values[1][k] == (float)(2 * k + 7));
    }
    ms_comm_destroy(comms[0]);
    ms_comm_destroy(comms[1]);
}

/* Nothing of ours allocates once the endpoint stands. */
static bool steady(ms_comm *comm) {
    static _Thread_local double values[20000];
    for (int round = 0; round < 50; round++) {
        ms_request *requests[4];
        for (int i = 0; i < 4; i++) {
            CONFORM_OK(comm, ms_comm_all_reduce(comm, values + 5000 * i, values + 5000 * i, 5000,
                                                MS_F64, MS_REDUCE_SUM, &requests[i]));
        }
        for (int i = 0; i < 4; i++) {
            CONFORM_OK(comm, ms_request_wait(&requests[i], -1));
        }
    }
    return true;
}

static uint64_t calls_after_start;
static bool count_steady(ms_comm *comm) {
    CONFORM_OK(comm, ms_comm_barrier(comm, NULL));
    uint64_t before = ms_memory_counters_get().calls;
    bool good = steady(comm);
    CONFORM_OK(comm, ms_comm_barrier(comm, NULL));
    if (ms_comm_rank(comm) == 0) {
        calls_after_start = ms_memory_counters_get().calls - before;
    }
    CONFORM_OK(comm, ms_comm_barrier(comm, NULL));
    return good;
}

static void test_allocates_nothing(void **state) {
    (void)state;
    assert_true(run_threads(3, count_steady));
    assert_int_equal(calls_after_start, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),         cmocka_unit_test(test_options),
        cmocka_unit_test(test_groups_refused),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_full_ring),         cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_every_operation),   cmocka_unit_test(test_staging_ring),
        cmocka_unit_test(test_concurrent),        cmocka_unit_test(test_progress_threads),
        cmocka_unit_test(test_unattended),        cmocka_unit_test(test_many_callers),
        cmocka_unit_test(test_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
