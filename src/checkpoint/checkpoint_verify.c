/*
 * checkpoint_verify.c - reading all of a checkpoint to say whether it is good.
 *
 * Where it stands: `mindspeed checkpoint check` -> ms_checkpoint_verify. Loading checks what it
 * reads; this checks what nobody reads, and goes on after the first fault so that a person sees
 * them all.
 *
 *   manifest      its own hash, then every file: there, of the right size, every block
 *   structure     every file of tensors opens, the index agrees with them, the state can be read
 *   relation      every optimizer state has a weight of the same dims; one step in manifest and
 * state
 *
 * A model directory of others has no manifest: its structure is checked and the report says so.
 * Invariant: the status is the first fault's and its sentence stays this thread's last error.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/internal.h"

typedef struct verification {
    const char *path;
    ms_text *report;
    ms_status first; /* fault */
    char sentence[1024];
} verification;

/* Notes a fault of the checkpoint. Other failures, such as no memory, end the check: they are
 * returned. */
static ms_status note(verification *check, ms_status status) {
    if (status == MS_OK) {
        return MS_OK;
    }
    if (status == MS_ERR_MEMORY || status == MS_ERR_BUG) {
        return status;
    }
    if (check->first == MS_OK) {
        check->first = status;
        snprintf(check->sentence, sizeof check->sentence, "%s", ms_error_detail());
    }
    MS_TRY(ms_text_append_z(check->report, ms_error_detail()));
    return ms_text_append(check->report, "\n", 1);
}

/* Every block of a file; one line for each run of bad ones. */
static ms_status check_file(verification *check, const ms__manifest *manifest,
                            const ms__manifest_file *file) {
    char path[MS_PATH_BYTES];
    ms_file_map map = {0};
    MS_TRY(ms_path_join(check->path, file->name, path, sizeof path));
    ms_status opened = ms_file_map_open(path, &map);
    if (opened != MS_OK) {
        return note(check, opened);
    }
    ms_status status = MS_OK;
    if (map.bytes != file->bytes) {
        status = note(check, ms_fail(MS_ERR_FORMAT, "%s: is %zu bytes, the manifest says %" PRIu64,
                                     path, map.bytes, file->bytes));
        goto close_map;
    }
    for (int64_t i = 0; i < file->block_count; i++) {
        MS_TRY_GOTO(
            note(check, ms__manifest_check_block(manifest, file, path, i,
                                                 map.data + (uint64_t)i * manifest->block_bytes)),
            close_map);
    }
close_map:
    ms_file_map_close(&map);
    return status;
}

/* The index of Hugging Face's loaders must lead to the same tensors as the manifest's files: names
 * are unique in both, and opening has found each that the index names, so the counts tell. */
static ms_status check_index(verification *check, const ms__source *source) {
    ms_weights *weights = NULL;
    ms_status opened = ms_weights_open(check->path, &weights);
    if (opened != MS_OK) {
        return note(check, opened);
    }
    ms_status status = MS_OK;
    int64_t count = ms__source_count(source, MS__GROUP_MODEL);
    if (ms_weights_count(weights) != count) {
        status = ms_fail(MS_ERR_MISMATCH,
                         "%s: the index names %" PRId64 " tensors, the files hold %" PRId64,
                         check->path, ms_weights_count(weights), count);
    }
    ms_weights_close(weights);
    return note(check, status);
}

static ms_status check_state_tensor(const ms__source *source, int64_t index) {
    const ms_safetensors_tensor *state = ms__source_at(source, MS__GROUP_OPTIMIZER, index);
    char name[MS_CHECKPOINT_NAME_BYTES];
    const char *dot = strrchr(state->name, '.');
    if (dot == NULL || (size_t)(dot - state->name) >= sizeof name) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"%s\" is not the name of a weight and a state",
                       state->path, state->name);
    }
    memcpy(name, state->name, (size_t)(dot - state->name));
    name[dot - state->name] = '\0';
    int64_t weight_index = ms__source_find(source, MS__GROUP_MODEL, name);
    const ms_safetensors_tensor *weight =
        weight_index >= 0 ? ms__source_at(source, MS__GROUP_MODEL, weight_index) : NULL;
    bool equal = weight != NULL && weight->rank == state->rank;
    for (int i = 0; equal && i < state->rank; i++) {
        equal = weight->dims[i] == state->dims[i];
    }
    return equal ? MS_OK
                 : ms_fail(MS_ERR_MISMATCH, "%s: state \"%s\" has no weight of the same dims",
                           state->path, state->name);
}

static ms_status check_state_file(const char *path, const ms__manifest *manifest) {
    ms_train_state state;
    ms_status status = ms_checkpoint_read_state(path, &state);
    if (status == MS_ERR_NOT_FOUND) {
        return MS_OK; /* weights alone, as convert writes them */
    }
    MS_TRY(status);
    return state.step == manifest->step
               ? MS_OK
               : ms_fail(MS_ERR_MISMATCH,
                         "%s: the state is of step %" PRId64 ", the manifest of %" PRId64, path,
                         state.step, manifest->step);
}

static ms_status check_structure(verification *check, const ms__manifest *manifest) {
    ms__source *source = NULL;
    ms_status opened = ms__source_open(check->path, true, &source);
    if (opened != MS_OK) {
        return note(check, opened);
    }
    ms_status status;
    MS_TRY_GOTO(check_index(check, source), close_source);
    for (int64_t i = 0; i < ms__source_count(source, MS__GROUP_OPTIMIZER); i++) {
        MS_TRY_GOTO(note(check, check_state_tensor(source, i)), close_source);
    }
    MS_TRY_GOTO(note(check, check_state_file(check->path, manifest)), close_source);
close_source:
    ms__source_close(source);
    return status;
}

static ms_status check_checkpoint(verification *check) {
    ms__manifest manifest = {0};
    ms_status status = ms__manifest_read(check->path, &manifest);
    if (status != MS_OK) {
        return note(check, status);
    }
    for (int64_t i = 0; i < manifest.file_count; i++) {
        MS_TRY_GOTO(check_file(check, &manifest, &manifest.files[i]), release_manifest);
    }
    if (check->first == MS_OK) { /* else its bytes are known to be wrong */
        MS_TRY_GOTO(check_structure(check, &manifest), release_manifest);
    }
release_manifest:
    ms__manifest_release(&manifest);
    return status;
}

static ms_status check_foreign(verification *check) {
    ms_weights *weights = NULL;
    ms_status status = ms_weights_open(check->path, &weights);
    ms_weights_close(weights);
    if (status != MS_OK) {
        return note(check, status);
    }
    return ms_text_printf(check->report,
                          "%s: no " MS_CHECKPOINT_MANIFEST
                          ": only the structure of its files was checked\n",
                          check->path);
}

ms_status ms_checkpoint_verify(const char *path, ms_text *report) {
    char manifest[MS_PATH_BYTES];
    verification check = {.path = path, .report = report};
    MS_TRY(ms_path_join(path, MS_CHECKPOINT_MANIFEST, manifest, sizeof manifest));
    if (!ms_path_exists(path)) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: no such file or directory", path);
    }
    bool ours = ms_path_is_directory(path) && ms_path_exists(manifest);
    MS_TRY(ours ? check_checkpoint(&check) : check_foreign(&check));
    return check.first == MS_OK ? MS_OK : ms_fail(check.first, "%s", check.sentence);
}
