/*
 * step_dirs.c - the names of a run's directory: finding the newest checkpoint, clearing what dead
 * saves left, removing old ones.
 *
 *   step-00000500         a checkpoint (a good one if its manifest says so)
 *   .step-00000500.tmp    a save that is not finished, or a removal that is not
 *   .step-00000500.old    set aside while its replacement takes its name, on disks without exchange
 *
 * Where it stands: checkpoint_save.c calls recover before and purge after a save; the train loop
 * calls ms_checkpoint_find at start.
 *
 * Invariants: only names of exactly these forms are looked at (a step printed with eight or more
 * digits), everything else in the directory is foreign and stays, and so do foreign files inside a
 * checkpoint that is removed. Links are foreign. A checkpoint loses its name before it loses its
 * first file, so a removal cut short is never mistaken for a checkpoint.
 *
 * Rejected: a file "latest" that names the newest (a second truth that can disagree with the
 * first).
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/internal.h"

typedef enum entry_kind { KIND_FINAL, KIND_REPLACED, KIND_PARTIAL } entry_kind;

typedef struct entry {
    int64_t step;
    entry_kind kind;
} entry;

typedef struct entry_list {
    entry *entries;
    size_t count, capacity;
} entry_list;

void ms__step_name(int64_t step, char name[MS__STEP_NAME_BYTES]) {
    snprintf(name, MS__STEP_NAME_BYTES, "step-%08" PRId64, step);
}

void ms__step_name_partial(int64_t step, char name[MS__STEP_NAME_BYTES]) {
    snprintf(name, MS__STEP_NAME_BYTES, ".step-%08" PRId64 ".tmp", step);
}

void ms__step_name_replaced(int64_t step, char name[MS__STEP_NAME_BYTES]) {
    snprintf(name, MS__STEP_NAME_BYTES, ".step-%08" PRId64 ".old", step);
}

static void entry_name(const entry *item, char name[MS__STEP_NAME_BYTES]) {
    switch (item->kind) {
    case KIND_FINAL:
        ms__step_name(item->step, name);
        break;
    case KIND_REPLACED:
        ms__step_name_replaced(item->step, name);
        break;
    case KIND_PARTIAL:
        ms__step_name_partial(item->step, name);
        break;
    }
}

/* True when the name is one that we would write ourselves. */
static bool parse_name(const char *name, entry *item) {
    const char *visible = name[0] == '.' ? name + 1 : name;
    if (strncmp(visible, "step-", 5) != 0) {
        return false;
    }
    const char *digits = visible + 5;
    int64_t step = 0;
    int length = 0;
    for (; digits[length] >= '0' && digits[length] <= '9'; length++) {
        if (!ms_i64_mul(step, 10, &step) || !ms_i64_add(step, digits[length] - '0', &step)) {
            return false;
        }
    }
    for (entry_kind kind = KIND_FINAL; kind <= KIND_PARTIAL; kind++) {
        char canonical[MS__STEP_NAME_BYTES];
        entry candidate = {.step = step, .kind = kind};
        entry_name(&candidate, canonical);
        if (strcmp(canonical, name) == 0) {
            *item = candidate;
            return true;
        }
    }
    return false;
}

static int compare_entries(const void *a, const void *b) {
    const entry *left = a, *right = b;
    if (left->step != right->step) {
        return left->step < right->step ? -1 : 1;
    }
    return (int)left->kind - (int)right->kind;
}

static ms_status list_append(entry_list *list, entry item) {
    MS_TRY(ms_array_reserve((void **)&list->entries, &list->capacity, list->count + 1,
                            sizeof *list->entries, MS_MEMORY_CALLER));
    list->entries[list->count++] = item;
    return MS_OK;
}

/* Our names in dir, by step. Release with ms_free(list->entries), in case of failure too. */
static ms_status scan(const char *dir, entry_list *list) {
    DIR *folder = opendir(dir);
    if (folder == NULL) {
        return ms_fail(errno == ENOENT ? MS_ERR_NOT_FOUND : MS_ERR_IO, "%s: cannot list: %m", dir);
    }
    ms_status status = MS_OK;
    while (status == MS_OK) {
        errno = 0;
        const struct dirent *found = readdir(folder);
        if (found == NULL) {
            status = errno != 0 ? ms_fail(MS_ERR_IO, "%s: cannot list: %m", dir) : MS_OK;
            break;
        }
        entry item;
        if (parse_name(found->d_name, &item)) {
            status = list_append(list, item);
        }
    }
    closedir(folder);
    if (list->count > 0) {
        qsort(list->entries, list->count, sizeof *list->entries, compare_entries);
    }
    return status;
}

static ms_status entry_path(const char *dir, const entry *item, char path[MS_PATH_BYTES]) {
    char name[MS__STEP_NAME_BYTES];
    entry_name(item, name);
    return ms_path_join(dir, name, path, MS_PATH_BYTES);
}

/* A directory itself, not a link to one. */
static bool is_own_directory(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool has_manifest(const char *path) {
    char file[MS_PATH_BYTES];
    return ms_path_join(path, MS_CHECKPOINT_MANIFEST, file, sizeof file) == MS_OK &&
           ms_path_exists(file);
}

/* A good manifest, all files there with the right sizes, and a good state.json: what is needed to
 * build a run before its tensors are read. */
static ms_status check_quickly(const char *path) {
    ms__manifest manifest = {0};
    ms_text state = {0};
    ms_status status;
    MS_TRY(ms__manifest_read(path, &manifest));
    MS_TRY_GOTO(ms__manifest_check_sizes(&manifest, path), release_manifest);
    if (ms__manifest_find(&manifest, MS_CHECKPOINT_STATE) != NULL) {
        MS_TRY_GOTO(ms__manifest_read_file(&manifest, path, MS_CHECKPOINT_STATE,
                                           MS_CHECKPOINT_STATE_BYTES_MAX, &state),
                    release_manifest);
    }
release_manifest:
    ms_text_release(&state);
    ms__manifest_release(&manifest);
    return status;
}

ms_status ms_checkpoint_step_path(const char *dir, int64_t step, char *path, size_t path_bytes) {
    char name[MS__STEP_NAME_BYTES];
    ms__step_name(step, name);
    return ms_path_join(dir, name, path, path_bytes);
}

ms_status ms_checkpoint_list(const char *dir, int64_t **steps, int64_t *count) {
    entry_list list = {0};
    int64_t *made = NULL;
    ms_status status;
    MS_TRY_GOTO(scan(dir, &list), free_list);
    MS_TRY_GOTO(MS_NEW(list.count, MS_MEMORY_CALLER, &made), free_list);
    int64_t found = 0;
    for (size_t i = 0; i < list.count; i++) {
        char path[MS_PATH_BYTES];
        MS_TRY_GOTO(entry_path(dir, &list.entries[i], path), free_steps);
        if (list.entries[i].kind == KIND_FINAL && ms_path_is_directory(path)) {
            made[found++] = list.entries[i].step;
        }
    }
    *steps = made;
    *count = found;
    made = NULL;
free_steps:
    ms_free(made);
free_list:
    ms_free(list.entries);
    return status;
}

ms_status ms_checkpoint_find_before(const char *dir, int64_t step_limit, char *path,
                                    size_t path_bytes) {
    entry_list list = {0};
    ms_status status;
    bool found = false;
    MS_TRY_GOTO(scan(dir, &list), free_list);
    for (size_t i = list.count; i-- > 0 && !found;) {
        const entry *item = &list.entries[i];
        char candidate[MS_PATH_BYTES];
        if (item->kind == KIND_PARTIAL || item->step >= step_limit) {
            continue;
        }
        MS_TRY_GOTO(entry_path(dir, item, candidate), free_list);
        if (!ms_path_is_directory(candidate)) {
            continue; /* somebody's file */
        }
        if (check_quickly(candidate) != MS_OK) {
            ms_log_warn("checkpoint skipped: %s", ms_error_detail());
            continue;
        }
        if (strlen(candidate) >= path_bytes) {
            status =
                ms_fail(MS_ERR_RANGE, "%s: path does not fit %zu bytes", candidate, path_bytes);
            goto free_list;
        }
        memcpy(path, candidate, strlen(candidate) + 1);
        found = true;
    }
    if (!found) {
        status = ms_fail(MS_ERR_NOT_FOUND, "%s: no good checkpoint here", dir);
    }
free_list:
    ms_free(list.entries);
    return status;
}

ms_status ms_checkpoint_find(const char *dir, char *path, size_t path_bytes) {
    return ms_checkpoint_find_before(dir, INT64_MAX, path, path_bytes);
}

static ms_status recover_entry(const char *dir, const entry *item) {
    char path[MS_PATH_BYTES], final[MS_PATH_BYTES];
    MS_TRY(entry_path(dir, item, path));
    if (item->kind == KIND_PARTIAL) {
        return ms__disk_remove(path);
    }
    MS_TRY(entry_path(dir, &(entry){.step = item->step, .kind = KIND_FINAL}, final));
    return ms_path_exists(final) ? ms__disk_remove(path) : ms__disk_rename(path, final);
}

ms_status ms__step_dirs_recover(const char *dir) {
    entry_list list = {0};
    ms_status status = scan(dir, &list);
    for (size_t i = 0; i < list.count && status == MS_OK; i++) {
        if (list.entries[i].kind != KIND_FINAL) {
            status = recover_entry(dir, &list.entries[i]);
        }
    }
    ms_free(list.entries);
    return status;
}

/* True when the manifest accounts for every name in the directory. */
static ms_status has_only_listed(const char *path, const ms__manifest *manifest, bool *only) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return ms_fail(MS_ERR_IO, "%s: cannot list: %m", path);
    }
    const struct dirent *found;
    bool all = true;
    errno = 0;
    while (all && (found = readdir(folder)) != NULL) {
        const char *name = found->d_name;
        all = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
              strcmp(name, MS_CHECKPOINT_MANIFEST) == 0 ||
              ms__manifest_find(manifest, name) != NULL;
    }
    ms_status status = errno != 0 ? ms_fail(MS_ERR_IO, "%s: cannot list: %m", path) : MS_OK;
    closedir(folder);
    if (status == MS_OK) {
        *only = all;
    }
    return status;
}

/* Removes our files from among foreign ones; the manifest last, so that it can be done again. */
static ms_status remove_listed(const char *path, const ms__manifest *manifest) {
    char file[MS_PATH_BYTES];
    for (int64_t i = 0; i < manifest->file_count; i++) {
        MS_TRY(ms_path_join(path, manifest->files[i].name, file, sizeof file));
        struct stat info;
        if (lstat(file, &info) == 0 && !S_ISDIR(info.st_mode)) {
            MS_TRY(ms__disk_remove(file));
        }
    }
    MS_TRY(ms_path_join(path, MS_CHECKPOINT_MANIFEST, file, sizeof file));
    return ms__disk_remove(file);
}

static ms_status remove_checkpoint(const char *dir, int64_t step) {
    char path[MS_PATH_BYTES], partial[MS_PATH_BYTES];
    ms__manifest manifest = {0};
    bool only_listed = false;
    MS_TRY(entry_path(dir, &(entry){.step = step, .kind = KIND_FINAL}, path));
    MS_TRY(entry_path(dir, &(entry){.step = step, .kind = KIND_PARTIAL}, partial));
    MS_TRY(ms__manifest_read(path, &manifest));
    ms_status status;
    MS_TRY_GOTO(has_only_listed(path, &manifest, &only_listed), release_manifest);
    if (!only_listed) {
        MS_TRY_GOTO(remove_listed(path, &manifest), release_manifest);
        goto release_manifest;
    }
    MS_TRY_GOTO(ms__disk_rename(path, partial), release_manifest);
    MS_TRY_GOTO(ms__disk_sync_directory(dir), release_manifest);
    MS_TRY_GOTO(ms__disk_remove(partial), release_manifest);
release_manifest:
    ms__manifest_release(&manifest);
    return status;
}

ms_status ms__step_dirs_purge(const char *dir, int64_t step, int64_t keep) {
    entry_list list = {0};
    ms_status status = scan(dir, &list);
    int64_t kept = 1; /* the one just written */
    for (size_t i = list.count; i-- > 0 && status == MS_OK;) {
        const entry *item = &list.entries[i];
        char path[MS_PATH_BYTES];
        if (item->kind != KIND_FINAL || item->step >= step) {
            continue;
        }
        MS_TRY_GOTO(entry_path(dir, item, path), free_list);
        if (!is_own_directory(path) || !has_manifest(path)) {
            continue;
        }
        if (kept < keep) {
            /* A bad one does not count; it stays for its owner to look at while it is among the
             * newest. */
            kept += check_quickly(path) == MS_OK ? 1 : 0;
            continue;
        }
        if (remove_checkpoint(dir, item->step) != MS_OK) {
            ms_log_warn("old checkpoint not removed: %s", ms_error_detail());
        }
    }
free_list:
    ms_free(list.entries);
    return status;
}
