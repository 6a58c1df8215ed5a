// labels: unit
// timeout: 60
/*
 * test_checkpoint_retention.c - which checkpoints stay, what is never touched, who may use a
 * directory, and the configuration of all that.
 */
#include "checkpoint_support.h"

#include <signal.h>

static ms_tensor tensors[MODEL_TENSORS];

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    return 0;
}

static void save_good(const char *dir, int64_t step, int64_t keep) {
    if (save_step(dir, tensors, MODEL_TENSORS, step, keep) != MS_OK) {
        fail_msg("save: %s", last_detail);
    }
}

static bool has(const char *dir, const char *name) {
    return ms_path_exists(path_in(dir, name));
}

static void the_newest_stay(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    for (int64_t step = 10; step <= 50; step += 10) {
        save_good(dir, step, 3);
    }
    assert_int_equal(count_names(dir, ""), 3);
    assert_true(has(dir, "step-00000030") && has(dir, "step-00000040") &&
                has(dir, "step-00000050"));
    save_good(dir, 60, 1);
    assert_int_equal(count_names(dir, ""), 1);
    /* A run that went back: later steps are not older ones, and the new one stays. */
    save_good(dir, 20, 1);
    assert_true(has(dir, "step-00000020") && has(dir, "step-00000060"));
    save_good(dir, 123456789, 2); /* nine digits */
    assert_int_equal(count_names(dir, "step-"), 2);
    expect_newest(dir, tensors, MODEL_TENSORS, 123456789);
    save_good(dir, 123456790, 1);
    assert_int_equal(count_names(dir, "step-"), 1);
    scratch_remove(dir);
}

static void foreign_names_stay(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], elsewhere[MS_PATH_BYTES];
    scratch_make(dir);
    scratch_make(elsewhere);
    static const char *const directories[] = {
        "step-1",         "step-0000000a", "step-00000001x", "step-00000002.bak",
        "step-000000003", "best",          "step-00000004",  ".step-5.tmp"};
    static const char *const files[] = {"metrics.jsonl", "step-00000006", ".step-00000007",
                                        "notes"};
    size_t directory_count = sizeof directories / sizeof directories[0];
    size_t file_count = sizeof files / sizeof files[0];
    for (size_t i = 0; i < directory_count; i++) {
        assert_int_equal(ms_directory_make(path_in(dir, directories[i])), MS_OK);
        write_text(path_in(path_in(dir, directories[i]), "mine"), "x");
    }
    for (size_t i = 0; i < file_count; i++) {
        write_text(path_in(dir, files[i]), "x");
    }
    /* A checkpoint of ours somewhere else, with a link to it here. */
    save_good(elsewhere, 8, 1);
    assert_int_equal(symlink(path_in(elsewhere, "step-00000008"), path_in(dir, "step-00000008")),
                     0);
    save_good(dir, 100, 1);
    save_good(dir, 101, 1);
    for (size_t i = 0; i < directory_count; i++) {
        assert_true(has(path_in(dir, directories[i]), "mine"));
    }
    for (size_t i = 0; i < file_count; i++) {
        assert_true(has(dir, files[i]));
    }
    assert_true(has(dir, "step-00000008"));
    expect_newest(elsewhere, tensors, MODEL_TENSORS, 8);
    assert_false(has(dir, "step-00000100"));
    /* A step whose name is taken by something else is not overwritten. */
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 4, 1), MS_ERR_EXISTS);
    assert_non_null(strstr(last_detail, "is not a checkpoint"));
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 6, 1), MS_ERR_EXISTS);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 8, 1), MS_ERR_EXISTS);
    assert_int_equal(count_names(dir, ".step-0000000"), 1);
    scratch_remove(dir);
    scratch_remove(elsewhere);
}

/* Notes that somebody put into a checkpoint outlive it. */
static void foreign_files_in_a_checkpoint_stay(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    save_good(dir, 1, 1);
    write_text(path_in(dir, "step-00000001/notes.txt"), "the good one");
    save_good(dir, 2, 1);
    assert_int_equal(count_names(path_in(dir, "step-00000001"), ""), 1);
    assert_true(has(dir, "step-00000001/notes.txt"));
    save_good(dir, 3, 1);
    assert_true(has(dir, "step-00000001/notes.txt"));
    assert_false(has(dir, "step-00000002"));
    scratch_remove(dir);
}

/* Names planted where a save would go lead nowhere. */
static void links_are_not_followed(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], victim[MS_PATH_BYTES];
    scratch_make(dir);
    scratch_make(victim);
    write_text(path_in(victim, "precious"), "x");
    assert_int_equal(symlink(victim, path_in(dir, ".step-00000001.tmp")), 0);
    assert_int_equal(symlink(victim, path_in(dir, ".step-00000009.tmp")), 0);
    save_good(dir, 1, 1);
    assert_int_equal(count_names(victim, ""), 1);
    assert_int_equal(count_names(dir, "."), 0);
    expect_newest(dir, tensors, MODEL_TENSORS, 1);
    scratch_remove(dir);
    scratch_remove(victim);
}

/* What a dead save and a dead replacement leave, made by hand. */
static void leftovers_are_cleared_or_put_back(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    save_good(dir, 5, 2);
    assert_int_equal(ms_directory_make(path_in(dir, ".step-00000006.tmp")), MS_OK);
    write_text(path_in(dir, ".step-00000006.tmp/model.safetensors"), "half");
    /* Killed between the two renames of a replacement: the old one is found and put back. */
    assert_int_equal(rename(path_in(dir, "step-00000005"), path_in(dir, ".step-00000005.old")), 0);
    char path[MS_PATH_BYTES];
    assert_int_equal(ms_checkpoint_find(dir, path, sizeof path), MS_OK);
    assert_true(holds_step(path, tensors, MODEL_TENSORS, 5));
    save_good(dir, 6, 2);
    assert_true(has(dir, "step-00000005") && has(dir, "step-00000006"));
    assert_int_equal(count_names(dir, "."), 0);
    /* Killed after both: the old one is in the way. */
    assert_int_equal(ms_directory_make(path_in(dir, ".step-00000006.old")), MS_OK);
    save_good(dir, 7, 2);
    assert_int_equal(count_names(dir, "."), 0);
    /* An empty directory of the right name is no obstacle. */
    assert_int_equal(ms_directory_make(path_in(dir, "step-00000008")), MS_OK);
    save_good(dir, 8, 2);
    expect_newest(dir, tensors, MODEL_TENSORS, 8);
    scratch_remove(dir);
}

/* A bad checkpoint among the newest does not push a good one out. */
static void only_good_ones_count(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    save_good(dir, 1, 9);
    save_good(dir, 2, 9);
    save_good(dir, 3, 9);
    assert_int_equal(truncate(path_in(dir, "step-00000003/model.safetensors"), 100), 0);
    log_lines lines = {0};
    ms_log_set_sink(log_catch, &lines);
    save_good(dir, 4, 2);
    assert_true(has(dir, "step-00000002") && has(dir, "step-00000003") &&
                !has(dir, "step-00000001"));
    save_good(dir, 5, 2);
    assert_true(has(dir, "step-00000004") && !has(dir, "step-00000002") &&
                !has(dir, "step-00000003"));
    /* A bad one is replaced by a save of the same step. */
    assert_int_equal(truncate(path_in(dir, "step-00000005/manifest.json"), 100), 0);
    save_good(dir, 5, 2);
    ms_log_set_sink(NULL, NULL);
    expect_newest(dir, tensors, MODEL_TENSORS, 5);
    scratch_remove(dir);
}

static void steps_are_listed(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], path[MS_PATH_BYTES];
    int64_t *steps = NULL, count = 0;
    scratch_make(dir);
    assert_int_equal(ms_checkpoint_list(dir, &steps, &count), MS_OK);
    assert_int_equal(count, 0);
    ms_free(steps);
    assert_int_equal(ms_checkpoint_find(dir, path, sizeof path), MS_ERR_NOT_FOUND);
    save_good(dir, 2000, 9);
    save_good(dir, 30, 9);
    write_text(path_in(dir, "step-00000007"), "a file");
    assert_int_equal(ms_checkpoint_list(dir, &steps, &count), MS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(steps[0], 30);
    assert_int_equal(steps[1], 2000);
    ms_free(steps);
    assert_int_equal(ms_checkpoint_find_before(dir, 2000, path, sizeof path), MS_OK);
    assert_string_equal(path, path_in(dir, "step-00000030"));
    assert_int_equal(ms_checkpoint_find_before(dir, 30, path, sizeof path), MS_ERR_NOT_FOUND);
    assert_int_equal(ms_checkpoint_find(dir, path, 5), MS_ERR_RANGE);
    assert_int_equal(ms_checkpoint_find(path_in(dir, "nowhere"), path, sizeof path),
                     MS_ERR_NOT_FOUND);
    assert_int_equal(ms_checkpoint_list(path_in(dir, "nowhere"), &steps, &count), MS_ERR_NOT_FOUND);
    ms_checkpoint_summary summary;
    assert_int_equal(ms_checkpoint_step_path(dir, 30, path, sizeof path), MS_OK);
    assert_int_equal(ms_checkpoint_summarize(path, &summary), MS_OK);
    assert_int_equal(summary.tensors, MODEL_TENSORS);
    assert_int_equal(summary.state_tensors, MODEL_TENSORS);
    assert_int_equal(summary.parameters, 3693);
    assert_int_equal(summary.typed[MS_F32], 3693);
    assert_int_equal(summary.weight_bytes, 3693 * 4);
    assert_int_equal(summary.step, 30);
    assert_int_equal(summary.files, 4); /* model, optimizer, config.json, state.json */
    scratch_remove(dir);
}

/* ---- Locks ------------------------------------------------------------------------------------
 */

static void a_directory_has_one_run(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], run[MS_PATH_BYTES], pid[32];
    scratch_make(dir);
    snprintf(run, sizeof run, "%s/new/run", dir);
    ms_run_lock *lock = NULL, *second = NULL;
    assert_int_equal(ms_run_lock_take(run, &lock), MS_OK);
    assert_int_equal(ms_run_lock_take(run, &second), MS_ERR_BUSY);
    assert_null(second);
    snprintf(pid, sizeof pid, "pid %d ", (int)getpid());
    assert_non_null(strstr(ms_error_detail(), pid));
    assert_non_null(strstr(ms_error_detail(), run));
    ms_run_lock_release(lock);
    assert_int_equal(ms_run_lock_take(run, &lock), MS_OK);
    ms_run_lock_release(lock);
    ms_run_lock_release(NULL);
    save_good(run, 1, 1); /* the lock file is no obstacle, and stays */
    assert_int_equal(count_names(run, "."), 1);
    scratch_remove(dir);
}

static void a_dead_run_holds_nothing(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], pid[32];
    int ready[2];
    scratch_make(dir);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ms_run_lock *lock = NULL;
        char answer = ms_run_lock_take(dir, &lock) == MS_OK ? 'y' : 'n';
        alarm(20); /* does not outlive a failed test */
        if (write(ready[1], &answer, 1) == 1) {
            pause();
        }
        _exit(1);
    }
    char answer = 0;
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    ms_run_lock *lock = NULL;
    assert_int_equal(ms_run_lock_take(dir, &lock), MS_ERR_BUSY);
    snprintf(pid, sizeof pid, "pid %d ", (int)child);
    assert_non_null(strstr(ms_error_detail(), pid));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ms_run_lock_take(dir, &lock), MS_OK);
    ms_run_lock_release(lock);
    close(ready[0]);
    close(ready[1]);
    scratch_remove(dir);
}

/* ---- Configuration ----------------------------------------------------------------------------
 */

static ms_status load_config(const char *text, ms_checkpoint_config *values) {
    const ms_config_section *sections[] = {&ms_checkpoint_section};
    ms_config_source source = {.path = "run.yaml", .text = text};
    ms_config *config = NULL;
    ms_status status = ms_config_load(&source, sections, 1, &config);
    if (status == MS_OK) {
        *values = *(const ms_checkpoint_config *)ms_config_values(config, "checkpoint");
        values->dir = values->dir != NULL ? "set" : NULL;
        ms_config_destroy(config);
    }
    return status;
}

static void the_section_has_its_keys(void **unused) {
    (void)unused;
    ms_checkpoint_config values;
    assert_int_equal(load_config("{}", &values), MS_OK);
    assert_null(values.dir);
    assert_int_equal(values.every_steps, 500);
    assert_int_equal(values.keep, 2);
    assert_int_equal(values.resume, 0);
    assert_int_equal(values.on_save_failure, 0);
    assert_true(values.save_at_end);
    assert_int_equal(
        load_config("checkpoint: {dir: runs/a, every_steps: 0, keep: 1, resume: required, "
                    "on_save_failure: stop, save_at_end: false}",
                    &values),
        MS_OK);
    assert_non_null(values.dir);
    assert_int_equal(values.every_steps, 0);
    assert_int_equal(values.resume, 2);
    assert_int_equal(values.on_save_failure, 1);
    assert_false(values.save_at_end);
    assert_int_equal(load_config("checkpoint: {keep: 0}", &values), MS_ERR_CONFIG);
    assert_int_equal(load_config("checkpoint: {keeps: 1}", &values), MS_ERR_CONFIG);
    assert_non_null(strstr(ms_error_detail(), "keep"));
    assert_int_equal(load_config("checkpoint: {resume: maybe}", &values), MS_ERR_CONFIG);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_newest_stay),
    cmocka_unit_test(foreign_names_stay),
    cmocka_unit_test(foreign_files_in_a_checkpoint_stay),
    cmocka_unit_test(links_are_not_followed),
    cmocka_unit_test(leftovers_are_cleared_or_put_back),
    cmocka_unit_test(only_good_ones_count),
    cmocka_unit_test(steps_are_listed),
    cmocka_unit_test(a_directory_has_one_run),
    cmocka_unit_test(a_dead_run_holds_nothing),
    cmocka_unit_test(the_section_has_its_keys),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, NULL);
}
