// labels: multi fault
// timeout: 60
/*
 * test_checkpoint_processes.c - ranks as processes: a save and a load over shared memory, and a
 * rank that is killed in the middle of a save. The survivors get an error and end; the previous
 * checkpoint is loadable.
 */
#include "checkpoint_support.h"

#include "comm/ranks.h"

#include <signal.h>

static ms_tensor tensors[MODEL_TENSORS];
static rank_slices slices[LOOP_RANKS_MAX];
static char dir[MS_PATH_BYTES];
static int64_t step_now;
static int victim;      /* which rank is killed; -1: none */
static int64_t kill_at; /* at which of its operations on the disk */
static int64_t operations;

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    return 0;
}

static int kill_hook(const char *operation, const char *path, void *context) {
    (void)operation;
    (void)path;
    (void)context;
    if (++operations == kill_at) {
        raise(SIGKILL);
    }
    return 0;
}

/* The same random layout in every process; this rank's slices are its own. */
static void place(int size) {
    static const ms_dtype types[MODEL_TENSORS] = {0};
    uint64_t random = (uint64_t)step_now;
    place_model(slices, size, tensors, MODEL_TENSORS, types, true, &random);
}

static int save_rank(ms_comm *comm) {
    int rank = ms_comm_rank(comm);
    place(ms_comm_size(comm));
    slices_fill(slices, ms_comm_size(comm), step_now);
    if (rank == victim) {
        ms__disk_set_hook(kill_hook, NULL);
    }
    ms_checkpoint_request request = {
        .dir = dir,
        .slices = slices[rank].slices,
        .slice_count = slices[rank].count,
        .state = {.step = step_now, .samples = step_now * 8, .best_val_loss = NAN},
        .keep = 1,
        .file_bytes_max = 5000,
    };
    ms_status status = ms_checkpoint_save(comm, &request);
    if (status == MS_OK) {
        return 0;
    }
    /* 3: an error as it should be, naming the rank that died. */
    char name[32];
    snprintf(name, sizeof name, "rank %d", victim);
    if (victim < 0) {
        fprintf(stderr, "save: %s (%s)\n", ms_error_detail(), ms_error_trail());
    }
    return status == MS_ERR_PEER && strstr(ms_error_detail(), name) != NULL ? 3 : 4;
}

static int load_rank(ms_comm *comm) {
    int rank = ms_comm_rank(comm);
    char path[MS_PATH_BYTES];
    ms_train_state state;
    place(ms_comm_size(comm));
    if (ms_checkpoint_load_newest(comm, dir, slices[rank].slices, slices[rank].count, path,
                                  sizeof path, &state) != MS_OK) {
        fprintf(stderr, "load: %s\n", ms_error_detail());
        return 5;
    }
    rank_slices own = slices[rank];
    for (int64_t i = 0; i < own.count; i++) { /* shards point into the original */
        own.slices[i].shard = slices[rank].slices[i].shard;
    }
    return slices_wrong(&own, 1, state.step) == 0 ? 0 : 6;
}

static int64_t newest(void) {
    char path[MS_PATH_BYTES];
    ms_train_state state = {0};
    assert_int_equal(ms_checkpoint_find(dir, path, sizeof path), MS_OK);
    assert_int_equal(ms_checkpoint_read_state(path, &state), MS_OK);
    return state.step;
}

static void processes_save_and_load(void **unused) {
    (void)unused;
    scratch_make(dir);
    victim = -1;
    for (int size = 1; size <= 4; size++) {
        step_now = size;
        assert_true(ranks_run(size, save_rank, 30));
        assert_int_equal(newest(), size);
        assert_true(ranks_run(5 - size, load_rank, 30));
    }
    assert_int_equal(count_names(dir, ""), 1);
    scratch_remove(dir);
}

static void a_killed_rank_ends_the_save(void **unused) {
    (void)unused;
    scratch_make(dir);
    victim = -1;
    step_now = 1;
    assert_true(ranks_run(3, save_rank, 30));
    int killed = 0;
    for (int round = 0; round < 12; round++) {
        ranks_job job;
        int64_t before = newest();
        victim = round % 3;
        kill_at = 1 + round * 3;
        step_now = before + 1;
        double start_s = ms_clock_s();
        assert_true(ranks_start(&job, 3, save_rank));
        assert_true(ranks_wait(&job, 20));
        bool was_killed = WIFSIGNALED(job.statuses[victim]);
        for (int rank = 0; rank < 3 && was_killed; rank++) {
            if (rank != victim) {
                assert_true(WIFEXITED(job.statuses[rank]));
                assert_int_equal(WEXITSTATUS(job.statuses[rank]), 3);
            }
        }
        assert_true(ms_clock_s() - start_s < 5);
        killed += was_killed;
        assert_true(newest() == before || newest() == step_now);
        assert_true(ranks_run(1 + round % 4, load_rank, 30));
        victim = -1;
        step_now = newest() + 1;
        assert_true(ranks_run(2, save_rank, 30)); /* on what is left */
        assert_int_equal(newest(), step_now);
        assert_int_equal(count_names(dir, ""), 1);
    }
    assert_true(killed >= 8);
    scratch_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(processes_save_and_load),
    cmocka_unit_test(a_killed_rank_ends_the_save),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, NULL);
}
