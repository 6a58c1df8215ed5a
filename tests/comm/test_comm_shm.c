// labels: multi
// timeout: 120
/* test_comm_shm.c - every operation between processes, memory included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "conformance.h"
#include "ranks.h"

static int all_registered(ms_comm *comm) {
    return conform_all(comm, true) ? 0 : 1;
}
static int all_plain(ms_comm *comm) {
    return conform_all(comm, false) ? 0 : 1;
}
static int concurrent(ms_comm *comm) {
    return conform_concurrent(comm) ? 0 : 1;
}

static void test_every_operation(void **state) {
    (void)state;
    for (int size = 1; size <= 5; size++) {
        assert_true(ranks_run(size, all_registered, 60));
    }
}

static void test_staging_ring(void **state) {
    (void)state;
    assert_true(ranks_run(2, all_plain, 60));
    assert_true(ranks_run(3, all_plain, 60));
}

static void test_without_progress_thread(void **state) {
    (void)state;
    ranks_options.progress_thread = 0;
    assert_true(ranks_run(2, all_plain, 60));
    assert_true(ranks_run(3, concurrent, 60));
    ranks_options.progress_thread = -1;
}

static void test_concurrent(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) {
        assert_true(ranks_run(size, concurrent, 60));
    }
}

/* Allocations come and go; the slots are used again under new names. */
static bool churn_memory(ms_comm *comm) {
    int rank = ms_comm_rank(comm), size = ms_comm_size(comm);
    int64_t counts[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        counts[r] = 5000;
    }
    for (int round = 0; round < 60; round++) {
        void *memory;
        CONFORM_OK(comm, ms_comm_alloc(comm, (size_t)size * 5000 * sizeof(int32_t), &memory));
        int32_t *values = memory;
        for (int i = 0; i < size * 5000; i++) {
            CONFORM(comm, values[i] == 0, "new memory is not zero");
        }
        for (int i = 0; i < 5000; i++) {
            values[rank * 5000 + i] = rank * 1000000 + round * 10000 + i;
        }
        CONFORM_OK(comm,
                   ms_comm_all_gather(comm, values + rank * 5000, values, counts, MS_I32, NULL));
        for (int i = 0; i < size * 5000; i++) {
            CONFORM(comm, values[i] == i / 5000 * 1000000 + round * 10000 + i % 5000,
                    "round %d element %d is %d", round, i, values[i]);
        }
        ms_comm_free(comm, memory);
    }
    CONFORM(comm, ms_comm_memory_bytes(comm) == 0, "bytes are still counted");
    return true;
}
static int churn(ms_comm *comm) {
    return churn_memory(comm) ? 0 : 1;
}

static void test_memory_comes_and_goes(void **state) {
    (void)state;
    assert_true(ranks_run(3, churn, 60));
}

static bool long_run(ms_comm *comm) {
    int fds_before = count_entries("/proc/self/fd");
    uint64_t calls_before = ms_memory_counters_get().calls;
    for (int i = 0; i < 20000; i++) {
        int64_t value = i + ms_comm_rank(comm), sum;
        CONFORM_OK(comm, ms_comm_all_reduce(comm, &value, &sum, 1, MS_I64, MS_REDUCE_SUM, NULL));
        CONFORM(comm, sum == 2 * i + 1, "sum %lld in round %d", (long long)sum, i);
    }
    CONFORM(comm, count_entries("/proc/self/fd") == fds_before, "descriptors were left open");
    CONFORM(comm, ms_memory_counters_get().calls == calls_before, "memory was allocated");
    return true;
}
static int many_operations(ms_comm *comm) {
    return long_run(comm) ? 0 : 1;
}

static void test_many_operations(void **state) {
    (void)state;
    assert_true(ranks_run(2, many_operations, 60));
}

/* A rank that has done its part may leave while others still read from it. */
static int leave_early(ms_comm *comm) {
    if (ms_comm_rank(comm) == 0) {
        ms_sleep_ms(100); /* the last one finds frames of ranks that are gone */
    }
    int32_t value = ms_comm_rank(comm), sum = -1;
    ms_request *request;
    if (ms_comm_rank(comm) != 0) {
        if (ms_comm_send(comm, &value, 1, MS_I32, 0, ms_comm_rank(comm), &request) != MS_OK ||
            ms_request_wait(&request, -1) != MS_OK) {
            return 1;
        }
        return 0;
    }
    for (int peer = ms_comm_size(comm) - 1; peer > 0; peer--) {
        if (ms_comm_recv(comm, &sum, 1, MS_I32, peer, peer, NULL) != MS_OK || sum != peer) {
            return 2;
        }
        ms_sleep_ms(20);
    }
    return 0;
}

static void test_leave_early(void **state) {
    (void)state;
    assert_true(ranks_run(4, leave_early, 20));
}

static void test_nothing_is_left(void **state) {
    (void)state;
    int shm_before = count_entries("/dev/shm"), fds_before = count_entries("/proc/self/fd");
    for (int i = 0; i < 20; i++) {
        assert_true(ranks_run(2, leave_early, 20));
    }
    assert_int_equal(count_entries("/dev/shm"), shm_before);
    assert_int_equal(count_entries("/proc/self/fd"), fds_before);
}

static int join_twice(ms_comm *comm) {
    ms_comm *second;
    (void)comm;
    return ms_comm_create(NULL, &second) == MS_OK;
}

static void test_joins_once(void **state) {
    (void)state;
    assert_true(ranks_run(2, join_twice, 20));
}

static void test_bad_environment(void **state) {
    (void)state;
    ms_comm *comm;
    setenv("MS_LAUNCH_RANK", "0", 1);
    assert_int_equal(ms_comm_create(NULL, &comm), MS_ERR_CONFIG);
    assert_non_null(strstr(ms_error_detail(), "MS_LAUNCH_SIZE"));
    setenv("MS_LAUNCH_SIZE", "2", 1);
    setenv("MS_LAUNCH_RANK", "2", 1);
    assert_int_equal(ms_comm_create(NULL, &comm), MS_ERR_CONFIG);
    assert_non_null(strstr(ms_error_detail(), "MS_LAUNCH_RANK"));
    setenv("MS_LAUNCH_RANK", "1", 1);
    setenv("MS_LAUNCH_JOB", "1", 1);
    setenv("MS_LAUNCH_EPOCH", "0", 1);
    setenv("MS_LAUNCH_PID", "1", 1);
    setenv("MS_LAUNCH_MAILBOX", "900", 1);
    setenv("MS_LAUNCH_LIFELINE", "901", 1);
    setenv("MS_LAUNCH_PEERS", "0,", 1);
    assert_int_equal(ms_comm_create(NULL, &comm), MS_ERR_CONFIG);
    assert_non_null(strstr(ms_error_detail(), "900"));
    setenv("MS_LAUNCH_MAILBOX", "0", 1);
    setenv("MS_LAUNCH_LIFELINE", "0", 1);
    assert_int_equal(ms_comm_create(NULL, &comm), MS_ERR_CONFIG);
    assert_non_null(strstr(ms_error_detail(), "MS_LAUNCH_PEERS"));
    static const char *const names[] = {"RANK", "SIZE",    "JOB",      "EPOCH",
                                        "PID",  "MAILBOX", "LIFELINE", "PEERS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[40];
        snprintf(name, sizeof name, "MS_LAUNCH_%s", names[i]);
        unsetenv(name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation),
        cmocka_unit_test(test_staging_ring),
        cmocka_unit_test(test_without_progress_thread),
        cmocka_unit_test(test_concurrent),
        cmocka_unit_test(test_memory_comes_and_goes),
        cmocka_unit_test(test_many_operations),
        cmocka_unit_test(test_leave_early),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_joins_once),
        cmocka_unit_test(test_bad_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
