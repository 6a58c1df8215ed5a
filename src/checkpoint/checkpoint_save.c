/*
 * checkpoint_save.c - one save, as phases that every rank goes through together.
 *
 * Where it stands: train/loop.c -> ms_checkpoint_save -> save_plan.c (what goes where), staging.c
 * (files), step_dirs.c (names).
 *
 *   plan      all: exchange what each writes, check that it tiles every tensor, same layouts
 *   prepare   rank 0: clear dead saves, make DIR/.step-N.tmp, files with headers, small files
 *   write     all: slices by pwrite, fsync of what was touched
 *   hash      all: an equal share of the blocks each; gathered
 *   commit    rank 0: manifest, fsync, rename to DIR/step-N, fsync of DIR
 *   purge     rank 0: older ones beyond keep, now that the new one is durable
 *
 * Invariants: after each phase all ranks agree on its outcome before any begins the next, so a
 * failure on one is the same failure on all, and no rank waits for one that has left. Until the
 * rename nothing with a checkpoint's name has been touched. A kill at any point leaves a temporary
 * that the next save removes.
 *
 * Rejected: writing in the background (the step's memory would have to be copied first; a later
 * issue).
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/internal.h"

typedef struct save_job {
    ms_comm *comm;
    int rank, size;
    const ms_checkpoint_request *request;
    ms__save_plan plan;
    ms__staging staging;
    char partial[MS_PATH_BYTES], final[MS_PATH_BYTES], replaced[MS_PATH_BYTES];
    bool prepared; /* rank 0: the temporary directory may exist */
} save_job;

static ms_status check_request(const ms_checkpoint_request *request) {
    if (request->dir == NULL || request->dir[0] == '\0') {
        return ms_fail(MS_ERR_ARGUMENT, "checkpoint: no directory to save in");
    }
    if (request->state.step < 0 || request->keep < 1 || request->slice_count < 0 ||
        request->file_count < 0) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "checkpoint: step %" PRId64 ", keep %" PRId64 ", %" PRId64
                       " slices, %d files: none may be negative, keep must be 1 or more",
                       request->state.step, request->keep, request->slice_count,
                       request->file_count);
    }
    return MS_OK;
}

static ms_status make_paths(save_job *save) {
    char name[MS__STEP_NAME_BYTES];
    const char *dir = save->request->dir;
    int64_t step = save->request->state.step;
    MS_TRY(check_request(save->request));
    ms__step_name(step, name);
    MS_TRY(ms_path_join(dir, name, save->final, sizeof save->final));
    ms__step_name_partial(step, name);
    MS_TRY(ms_path_join(dir, name, save->partial, sizeof save->partial));
    ms__step_name_replaced(step, name);
    MS_TRY(ms_path_join(dir, name, save->replaced, sizeof save->replaced));
    return ms__staging_begin(&save->staging, save->partial, step);
}

static bool is_empty_directory(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return false;
    }
    int names = 0;
    while (names < 3 && readdir(folder) != NULL) {
        names++;
    }
    closedir(folder);
    return names == 2; /* "." and ".." */
}

/* What has the final name already must be a checkpoint: anything else is not ours to replace. */
static ms_status check_final(const save_job *save) {
    struct stat info;
    if (lstat(save->final, &info) != 0) {
        return errno == ENOENT ? MS_OK : ms_fail(MS_ERR_IO, "%s: cannot look at: %m", save->final);
    }
    char manifest[MS_PATH_BYTES];
    MS_TRY(ms_path_join(save->final, MS_CHECKPOINT_MANIFEST, manifest, sizeof manifest));
    if (S_ISDIR(info.st_mode) && (ms_path_exists(manifest) || is_empty_directory(save->final))) {
        return MS_OK;
    }
    return ms_fail(MS_ERR_EXISTS,
                   "%s: exists and is not a checkpoint; move it away to save this step",
                   save->final);
}

static ms_status add_state(save_job *save) {
    ms_text text = {0};
    ms_status status = ms__state_emit(&save->request->state, &text);
    if (status == MS_OK) {
        status = ms__staging_add_file(&save->staging, MS_CHECKPOINT_STATE, text.bytes, text.length);
    }
    ms_text_release(&text);
    return status;
}

/* Rank 0 makes the directory and all files; the others only list the files. */
static ms_status prepare(save_job *save) {
    bool make = save->rank == 0;
    if (make) {
        MS_TRY(ms_directory_make(save->request->dir));
        MS_TRY(ms__step_dirs_recover(save->request->dir));
        MS_TRY(check_final(save));
        save->prepared = true;
        MS_TRY(ms__disk_make(save->partial));
    }
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        if (save->plan.layouts[group] != NULL) {
            MS_TRY(ms__staging_add_layout(&save->staging, (ms__tensor_group)group,
                                          save->plan.layouts[group], make));
        }
    }
    for (int i = 0; make && i < save->request->file_count; i++) {
        const ms_checkpoint_file *file = &save->request->files[i];
        MS_TRY(ms__staging_add_file(&save->staging, file->name, file->text, file->length));
    }
    return make ? add_state(save) : MS_OK;
}

typedef struct slice_writer {
    ms__staging *staging;
    const ms_checkpoint_slice *slice;
    size_t file;
    uint64_t offset; /* of the tensor in the file */
} slice_writer;

static ms_status write_run(const ms_shard_run *run, void *context) {
    const slice_writer *writer = context;
    const ms_checkpoint_slice *slice = writer->slice;
    const char *from = (const char *)slice->data + (size_t)(run->local_start - slice->local_start) *
                                                       ms_dtype_bytes(slice->memory_type);
    uint64_t offset =
        writer->offset + (uint64_t)run->global_start * ms_dtype_bytes(slice->file_type);
    return ms__staging_write(writer->staging, writer->file, offset, from, slice->memory_type,
                             slice->file_type, run->count);
}

static ms_status write_slice(save_job *save, const ms_checkpoint_slice *slice) {
    int64_t piece = ms__save_plan_find(&save->plan, slice);
    if (piece < 0) {
        return ms_fail(MS_ERR_BUG, "checkpoint: tensor \"%s\" is not in the plan",
                       slice->tensor->name);
    }
    ms__tensor_group group = (ms__tensor_group)save->plan.pieces[piece].group;
    ms_safetensors_place place = ms_safetensors_layout_place(save->plan.layouts[group],
                                                             piece - save->plan.group_first[group]);
    slice_writer writer = {
        .staging = &save->staging,
        .slice = slice,
        .file = save->staging.group_first[group] + (size_t)place.file,
        .offset = place.offset,
    };
    return ms_shard_visit(slice->shard, slice->local_start, slice->local_count, write_run, &writer);
}

static ms_status write_slices(save_job *save) {
    for (int64_t i = 0; i < save->request->slice_count; i++) {
        if (save->request->slices[i].writer) {
            MS_TRY(write_slice(save, &save->request->slices[i]));
        }
    }
    return ms__staging_sync(&save->staging);
}

/* Collective, so memory for it is taken and agreed upon before. */
static ms_status exchange_hashes(save_job *save) {
    int64_t first, last, total = 0;
    int64_t counts[MS_COMM_RANKS_MAX];
    for (int i = 0; i < save->size; i++) {
        ms__staging_deal(&save->staging, i, save->size, &first, &last);
        counts[i] = (last - first) * (int64_t)sizeof(uint64_t);
        total = last;
    }
    uint64_t *hashes = NULL;
    ms_status status = MS_NEW((size_t)total, MS_MEMORY_CALLER, &hashes);
    MS_TRY_GOTO(ms__agree(save->comm, status), free_hashes);
    ms__staging_deal(&save->staging, save->rank, save->size, &first, &last);
    ms__staging_copy_hashes(&save->staging, first, last, hashes + first, false);
    MS_TRY_GOTO(ms_comm_all_gather(save->comm, hashes + first, hashes, counts, MS_U8, NULL),
                free_hashes);
    ms__staging_copy_hashes(&save->staging, 0, total, hashes, true);
free_hashes:
    ms_free(hashes);
    return status;
}

/* Gives the finished directory its name. */
static ms_status publish(const save_job *save) {
    const char *dir = save->request->dir;
    bool replaces = ms_path_exists(save->final), exchanged = false;
    if (!replaces) {
        MS_TRY(ms__disk_rename(save->partial, save->final));
        return ms__disk_sync_directory(dir);
    }
    MS_TRY(ms__disk_exchange(save->partial, save->final, &exchanged));
    if (exchanged) {
        MS_TRY(ms__disk_sync_directory(dir));
        return ms__disk_remove(save->partial); /* the old one now */
    }
    /* ms_checkpoint_find knows this name, so a kill between the two leaves the old one loadable. */
    MS_TRY(ms__disk_rename(save->final, save->replaced));
    MS_TRY(ms__disk_rename(save->partial, save->final));
    MS_TRY(ms__disk_sync_directory(dir));
    return ms__disk_remove(save->replaced);
}

static ms_status commit(save_job *save) {
    if (save->rank != 0) {
        return MS_OK;
    }
    MS_TRY(ms__staging_write_manifest(&save->staging));
    return publish(save);
}

static ms_status run_phases(save_job *save) {
    ms_comm *comm = save->comm;
    MS_TRY(ms__agree(comm, make_paths(save)));
    MS_TRY(ms__save_plan_make(comm, save->request, &save->plan));
    MS_TRY(ms__agree(comm, prepare(save)));
    MS_TRY(ms__agree(comm, write_slices(save)));
    MS_TRY(ms__agree(comm, ms__staging_hash(&save->staging, save->rank, save->size)));
    MS_TRY(exchange_hashes(save));
    return ms__agree(comm, commit(save));
}

/* Removes the temporary without losing the sentence of what went wrong. */
static ms_status abandon(const save_job *save, ms_status status) {
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", ms_error_detail());
    if (ms__disk_remove(save->partial) != MS_OK) {
        ms_log_warn("unfinished checkpoint not removed: %s", ms_error_detail());
        return ms_fail(status, "%s", sentence);
    }
    return status;
}

ms_status ms_checkpoint_save(ms_comm *comm, const ms_checkpoint_request *request) {
    save_job *job = NULL; /* paths are too much for a stack */
    ms_status status = MS_NEW(1, MS_MEMORY_CALLER, &job);
    MS_TRY_GOTO(ms__agree(comm, status), free_job);
    job->comm = comm;
    job->rank = ms_comm_rank(comm);
    job->size = ms_comm_size(comm);
    job->request = request;
    job->staging.open_fd = -1;
    MS_TRY_GOTO(run_phases(job), end_staging);
end_staging:
    ms__staging_end(&job->staging);
    ms__save_plan_release(&job->plan);
    if (job->prepared && status != MS_OK) {
        status = abandon(job, status);
    }
    if (job->rank == 0 && status == MS_OK &&
        ms__step_dirs_purge(request->dir, request->state.step, request->keep) != MS_OK) {
        ms_log_warn("old checkpoints not removed: %s", ms_error_detail());
    }
free_job:
    ms_free(job);
    return status;
}
