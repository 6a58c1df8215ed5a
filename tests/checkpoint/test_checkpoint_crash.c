// labels: fault unit
// timeout: 90
/*
 * test_checkpoint_crash.c - a save that is killed, or fails, at every point: the previous
 * checkpoint stays loadable, the next save works, nothing is left behind and nothing leaks.
 */
#define _GNU_SOURCE /* unshare */
#include "checkpoint_support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>

#define BIG_TENSORS 2

static ms_tensor tensors[MODEL_TENSORS];
static ms_tensor big[BIG_TENSORS];
static rank_slices ranks[LOOP_RANKS_MAX];

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    big[0] = tensor_of("wide", 2, 512, 400);
    big[1] = tensor_of("tall", 2, 900, 64);
    return 0;
}

/* ---- Faults at chosen operations --------------------------------------------------------------
 */

typedef struct fault {
    _Atomic int64_t seen; /* operations so far */
    int64_t at;           /* the one at which it happens; 0: never */
    int rank;             /* on this rank only; -1: any */
    bool kills;
    int code;
    _Atomic bool happened;
} fault;

static int fault_hook(const char *operation, const char *path, void *context) {
    (void)path;
    fault *plan = context;
    if (plan->rank >= 0 && current_rank != plan->rank) {
        return 0;
    }
    if (atomic_fetch_add(&plan->seen, 1) + 1 != plan->at) {
        return 0;
    }
    if (plan->kills) {
        raise(SIGKILL);
    }
    (void)operation;
    plan->happened = true;
    return plan->code;
}

/* Runs a save in a child that is killed at an operation; true when it was killed. */
static bool save_killed(const char *dir, int64_t step, int64_t keep, int64_t at) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fault plan = {.at = at, .rank = -1, .kills = true};
        ms__disk_set_hook(fault_hook, &plan);
        static rank_slices rank;
        whole_model(&rank, tensors, MODEL_TENSORS, step);
        ms_comm *comm = NULL;
        if (ms_comm_create_loop(NULL, 1, &comm) != MS_OK) {
            _exit(9);
        }
        ms_checkpoint_request request = {
            .dir = dir,
            .slices = rank.slices,
            .slice_count = rank.count,
            .state = {.step = step, .samples = step * 8, .best_val_loss = NAN},
            .keep = keep,
            .file_bytes_max = 8000,
        };
        _exit(ms_checkpoint_save(comm, &request) == MS_OK ? 0 : 8);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return true;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

static int64_t newest_step(const char *dir) {
    char path[MS_PATH_BYTES];
    ms_train_state state = {0};
    if (ms_checkpoint_find(dir, path, sizeof path) != MS_OK) {
        fail_msg("find: %s", ms_error_detail());
    }
    assert_int_equal(ms_checkpoint_read_state(path, &state), MS_OK);
    return state.step;
}

/* keep 1: the hardest case, since every save removes the only other checkpoint. */
static void killed_at_every_operation(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
    int64_t step = 1, at = 1;
    int before = 0, after = 0;
    while (save_killed(dir, step + 1, 1, at)) {
        int64_t newest = newest_step(dir);
        assert_true(newest == step || newest == step + 1);
        before += newest == step;
        after += newest == step + 1;
        expect_newest(dir, tensors, MODEL_TENSORS, newest);
        if (newest == step + 1 || at % 4 == 0) { /* and the next save works on what is left */
            step = newest + 1;
            assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, step, 1), MS_OK);
            expect_newest(dir, tensors, MODEL_TENSORS, step);
            assert_int_equal(count_names(dir, ".step"), 0);
            assert_int_equal(count_names(dir, "step"), 1);
        }
        at++;
    }
    assert_true(before > 30); /* operations before the rename */
    assert_true(after >= 2);  /* and after it: the removal of the old one */
    scratch_remove(dir);
}

/* Saving a step again swaps the directories: either the old or the new is there, whole. */
static void killed_while_replacing_the_same_step(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 4, 2), MS_OK);
    int64_t at = 1;
    for (; save_killed(dir, 4, 2, at); at++) {
        expect_newest(dir, tensors, MODEL_TENSORS, 4);
    }
    assert_true(at > 30);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 4, 2), MS_OK);
    assert_int_equal(count_names(dir, ".step"), 0);
    scratch_remove(dir);
}

static void save_big(const char *dir, int64_t step) {
    assert_int_equal(save_step(dir, big, BIG_TENSORS, step, 2), MS_OK);
}

/* Inside a write as well: kill -9 at random moments of saves of some megabytes. */
static void killed_at_random_moments(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    uint64_t random = random_seed();
    save_big(dir, 1);
    double start_s = ms_clock_s();
    save_big(dir, 2);
    int64_t save_us = (int64_t)((ms_clock_s() - start_s) * 1e6);
    int64_t step = 2;
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (int64_t next = step + 1;; next++) {
                save_big(dir, next);
            }
        }
        usleep((useconds_t)random_below(&random, 2 * save_us + 1000));
        assert_int_equal(kill(child, SIGKILL), 0);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        int64_t newest = newest_step(dir);
        assert_true(newest >= step);
        step = newest;
        if (round % 5 == 0) {
            expect_newest(dir, big, BIG_TENSORS, step);
            save_big(dir, ++step);
            assert_int_equal(count_names(dir, ".step"), 0);
            assert_int_equal(count_names(dir, "step"), 2);
        }
    }
    expect_newest(dir, big, BIG_TENSORS, step);
    scratch_remove(dir);
}

/* ---- Failures ---------------------------------------------------------------------------------
 */

static void layout_of_step(int size, int64_t step) {
    static const ms_dtype types[MODEL_TENSORS] = {MS_F32, MS_F32, MS_F32, MS_F32, MS_F32,
                                                  MS_F32, MS_F32, MS_F32, MS_F32};
    uint64_t random = 11;
    place_model(ranks, size, tensors, MODEL_TENSORS, types, false, &random);
    slices_fill(ranks, size, step);
    for (int i = 0; i < MODEL_TENSORS; i++) { /* the state that holds_step looks for */
        ms_shard whole = ms_shard_whole(&tensors[i]);
        slice_fill(slice_add(&ranks[size - 1], &tensors[i], "exp_avg", &whole, 0,
                             ms_tensor_elements(&tensors[i]), MS_F32, MS_F32, true),
                   step);
    }
}

/* Every operation of a save fails once, on one rank of three: all ranks say the same, nothing is
 * lost. */
static void failing_at_every_operation(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
    int refused = 0, survived = 0;
    log_lines lines = {0};
    ms_log_set_sink(log_catch, &lines);
    for (int rank = 0; rank < 3; rank++) {
        bool happened = true;
        /* Each of rank 0's; others write many slices, all in the same way. */
        for (int64_t at = 1; happened; at += rank == 0 || at < 4 ? 1 : 7) {
            fault plan = {.at = at, .rank = rank, .code = at % 2 == 0 ? ENOSPC : EIO};
            layout_of_step(3, 2);
            ms__disk_set_hook(fault_hook, &plan);
            ms_status status = save_model(dir, 2, ranks, 3, 1, 6000);
            ms__disk_set_hook(NULL, NULL);
            happened = plan.happened;
            slices_free(ranks, 3);
            if (status == MS_OK) {
                survived += happened;
                expect_newest(dir, tensors, MODEL_TENSORS, 2);
                scratch_remove(dir);
                assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
                continue;
            }
            refused++;
            assert_int_equal(status, MS_ERR_IO);
            assert_true(strstr(last_detail, "rank ") == last_detail &&
                        last_detail[5] == '0' + rank);
            assert_non_null(strstr(last_detail, strerror(plan.code)));
            int64_t newest = newest_step(dir);
            expect_newest(dir, tensors, MODEL_TENSORS, newest);
            assert_int_equal(count_names(dir, ".step"), 0);
            if (newest == 2) { /* only the sync after the rename failed */
                scratch_remove(dir);
                assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
            }
        }
    }
    ms_log_set_sink(NULL, NULL);
    assert_true(refused > 40);
    assert_true(survived >= 1); /* an old checkpoint that cannot be removed is a warning */
    assert_true(lines.count >= survived);
    scratch_remove(dir);
}

/* Every allocation of a save and of a load fails once: a status, nothing lost, nothing leaked. */
static void failing_at_every_allocation(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
    ms_comm *comm = NULL;
    assert_int_equal(ms_comm_create_loop(NULL, 1, &comm), MS_OK);
    whole_model(&ranks[0], tensors, MODEL_TENSORS, 2);
    ms_checkpoint_request request = {
        .dir = dir,
        .slices = ranks[0].slices,
        .slice_count = ranks[0].count,
        .state = {.step = 2, .samples = 16, .best_val_loss = NAN},
        .keep = 1,
        .file_bytes_max = 8000,
    };
    size_t live = live_bytes();
    ms_status status = MS_ERR_MEMORY;
    int failures = 0;
    for (uint64_t n = 1; status == MS_ERR_MEMORY; n++) {
        ms_memory_fail_at(n);
        status = ms_checkpoint_save(comm, &request);
        ms_memory_fail_at(0);
        assert_true(status == MS_OK || status == MS_ERR_MEMORY);
        assert_int_equal(live_bytes(), live);
        assert_int_equal(count_names(dir, ".step"), 0);
        failures += status != MS_OK;
        if (status != MS_OK && n % 10 == 0) {
            expect_newest(dir, tensors, MODEL_TENSORS, 1);
        }
    }
    assert_true(failures > 20);
    ms__step_dirs_purge(dir, 2, 1);
    expect_newest(dir, tensors, MODEL_TENSORS, 2);
    status = MS_ERR_MEMORY;
    for (uint64_t n = 1; status == MS_ERR_MEMORY; n++) {
        ms_memory_fail_at(n);
        status = ms_checkpoint_load(comm, path_in(dir, "step-00000002"), request.slices,
                                    request.slice_count);
        ms_memory_fail_at(0);
        assert_true(status == MS_OK || status == MS_ERR_MEMORY);
        assert_int_equal(live_bytes(), live);
    }
    slices_free(ranks, 1);
    ms_comm_destroy(comm);
    scratch_remove(dir);
}

/* In a child of its own: a limit on the size of files, which the disk reports as a full one would.
 */
static void a_file_size_limit_is_an_error(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    save_big(dir, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {1 << 20, 1 << 20};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        ms_status status = save_step(dir, big, BIG_TENSORS, 2, 1);
        _exit(status == MS_ERR_IO && count_names(dir, ".step") == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_newest(dir, big, BIG_TENSORS, 1);
    save_big(dir, 2);
    scratch_remove(dir);
}

/* A real full disk: a file system of 3 MiB in memory, in a name space of its own. */
static void a_full_disk_leaves_the_previous_checkpoint(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", dir, "tmpfs", 0, "size=3m") != 0) {
            _exit(77);
        }
        char run[MS_PATH_BYTES];
        snprintf(run, sizeof run, "%s/run", dir);
        bool good = save_step(run, big, BIG_TENSORS, 1, 1) == MS_OK &&
                    save_step(run, big, BIG_TENSORS, 2, 1) == MS_ERR_IO &&
                    strstr(last_detail, strerror(ENOSPC)) != NULL && count_names(run, ".step") == 0;
        expect_newest(run, big, BIG_TENSORS, 1);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    scratch_remove(dir);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("no file system may be mounted here: skipped\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void an_unwritable_place_is_an_error(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    write_text(path_in(dir, "file"), "x");
    layout_of_step(3, 2);
    assert_int_equal(save_model(path_in(dir, "file/run"), 2, ranks, 3, 1, 0), MS_ERR_IO);
    assert_non_null(strstr(last_detail, "rank 0"));
    assert_non_null(strstr(last_detail, "/file"));
    slices_free(ranks, 3);
    scratch_remove(dir);
}

/* ---- Leaks ------------------------------------------------------------------------------------
 */

static long resident_kib(void) {
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[256];
    long kib = -1;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) {
            break;
        }
    }
    fclose(file);
    return kib;
}

static void fifty_saves_take_no_memory(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    ms_comm *comm = NULL;
    assert_int_equal(ms_comm_create_loop(NULL, 1, &comm), MS_OK);
    whole_model(&ranks[0], tensors, MODEL_TENSORS, 2);
    size_t live = live_bytes();
    long after_ten = 0;
    for (int64_t step = 1; step <= 50; step++) {
        ms_checkpoint_request request = {
            .dir = dir,
            .slices = ranks[0].slices,
            .slice_count = ranks[0].count,
            .state = {.step = step, .best_val_loss = NAN},
            .keep = 2,
        };
        assert_int_equal(ms_checkpoint_save(comm, &request), MS_OK);
        assert_int_equal(live_bytes(), live);
        after_ten = step == 10 ? resident_kib() : after_ten;
    }
    assert_true(after_ten > 0);
    assert_true(resident_kib() - after_ten < 512);
    assert_int_equal(count_names(dir, "step"), 2);
    slices_free(ranks, 1);
    ms_comm_destroy(comm);
    scratch_remove(dir);
}

/* What the planner counts is what a save takes, however large a tensor and whatever the types. */
static void a_save_takes_the_scratch_it_says(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    ms_tensor large = tensor_of("large", 2, 4096, 1024);
    ms_shard whole = ms_shard_whole(&large);
    slice_add(&ranks[0], &large, NULL, &whole, 0, 4096 * 1024, MS_F32, MS_BF16, true);
    slice_add(&ranks[0], &large, "exp_avg", &whole, 0, 4096 * 1024, MS_F32, MS_F32, true);
    ms_comm *comm = NULL;
    assert_int_equal(ms_comm_create_loop(NULL, 1, &comm), MS_OK);
    size_t live = live_bytes();
    ms_checkpoint_request request = {
        .dir = dir, .slices = ranks[0].slices, .slice_count = 2, .state.step = 1, .keep = 1};
    assert_int_equal(ms_checkpoint_save(comm, &request), MS_OK);
    size_t peak = ms_memory_counters_get().peak_bytes;
    if (peak > live + MS_CHECKPOINT_SCRATCH_BYTES + (256 << 10)) {
        fail_msg("a save took %zu bytes, it says %zu", peak - live, MS_CHECKPOINT_SCRATCH_BYTES);
    }
    assert_int_equal(ms_checkpoint_load(comm, path_in(dir, "step-00000001"), request.slices, 2),
                     MS_OK);
    ms_checkpoint_conversion conversion = {.weight_type = MS_F16, .full = true};
    assert_int_equal(ms_checkpoint_convert(path_in(dir, "step-00000001"), path_in(dir, "converted"),
                                           &conversion),
                     MS_OK);
    peak = ms_memory_counters_get().peak_bytes;
    assert_true(peak <= live + MS_CHECKPOINT_SCRATCH_BYTES + (256 << 10));
    slices_free(ranks, 1);
    ms_comm_destroy(comm);
    scratch_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_save_takes_the_scratch_it_says), /* first: the peak is the process's */
    cmocka_unit_test(killed_at_every_operation),
    cmocka_unit_test(killed_while_replacing_the_same_step),
    cmocka_unit_test(killed_at_random_moments),
    cmocka_unit_test(failing_at_every_operation),
    cmocka_unit_test(failing_at_every_allocation),
    cmocka_unit_test(a_file_size_limit_is_an_error),
    cmocka_unit_test(a_full_disk_leaves_the_previous_checkpoint),
    cmocka_unit_test(an_unwritable_place_is_an_error),
    cmocka_unit_test(fifty_saves_take_no_memory),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, NULL);
}
