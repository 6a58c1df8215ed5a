/*
 * The weights of a Hugging Face model directory as one lookup table.
 *
 * Stands between checkpoint/ (which asks for tensors by name) and single files (safetensors.c).
 *
 *   dir/model.safetensors                      one file, or
 *   dir/model.safetensors.index.json           {"weight_map": {tensor: file, ...}}
 *
 * Data: `files`, each open once; `entries`, pointers to their tensors sorted by name. With an
 * index, its weight_map decides: a tensor it does not name is not there, one it names must be in
 * that file.
 *
 * Invariant: a file name of the index is a plain name inside the directory (no slash, not "." or
 * ".."), so an index from outside cannot make us read another place. When both are there the single
 * file is taken, as Hugging Face's loader does.
 *
 * Rejected: taking every *.safetensors of a directory (adapters and duplicates lie beside models).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "format/safetensors.h"

#define INDEX_BYTES_MAX ((size_t)64 << 20)

struct ms_weights {
    ms_safetensors **files;
    size_t file_count, file_capacity;
    const ms_safetensors_tensor **entries;
    size_t entry_count;
};

static int compare_entries(const void *a, const void *b) {
    const ms_safetensors_tensor *left = *(const ms_safetensors_tensor *const *)a;
    const ms_safetensors_tensor *right = *(const ms_safetensors_tensor *const *)b;
    return strcmp(left->name, right->name);
}

static ms_status add_file(ms_weights *weights, const char *path) {
    MS_TRY(ms_array_reserve((void **)&weights->files, &weights->file_capacity,
                            weights->file_count + 1, sizeof *weights->files, MS_MEMORY_CALLER));
    MS_TRY(ms_safetensors_open(path, &weights->files[weights->file_count]));
    weights->file_count++;
    return MS_OK;
}

static ms_status open_single(ms_weights *weights, const char *path) {
    MS_TRY(add_file(weights, path));
    const ms_safetensors *file = weights->files[0];
    int64_t count = ms_safetensors_count(file);
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &weights->entries));
    for (int64_t i = 0; i < count; i++) {
        weights->entries[weights->entry_count++] = ms_safetensors_at(file, i);
    }
    return MS_OK;
}

static ms_status check_file_name(const char *index_path, const char *tensor, const json_t *value) {
    const char *name = json_string_value(value);
    if (name == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: weight_map: \"%s\" is not a file name", index_path,
                       tensor);
    }
    if (name[0] == '\0' || name[0] == '.' || strpbrk(name, "/\\") != NULL) {
        return ms_fail(
            MS_ERR_FORMAT,
            "%s: weight_map: \"%s\" names file \"%.200s\"; it must be a plain name in the "
            "same directory",
            index_path, tensor, name);
    }
    return MS_OK;
}

/* The file of that name, opened if it was not. */
static ms_status need_file(ms_weights *weights, const char *dir, const char *name,
                           const ms_safetensors **file) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, name, path, sizeof path));
    for (size_t i = weights->file_count; i-- > 0;) { /* the last one is the likeliest */
        if (strcmp(ms_safetensors_path(weights->files[i]), path) == 0) {
            *file = weights->files[i];
            return MS_OK;
        }
    }
    MS_TRY(add_file(weights, path));
    *file = weights->files[weights->file_count - 1];
    return MS_OK;
}

static ms_status read_map(ms_weights *weights, const char *dir, const ms_json *index) {
    const json_t *map = ms_json_find(index, "weight_map");
    if (!json_is_object(map)) {
        return ms_fail(MS_ERR_FORMAT, "%s: no object \"weight_map\"", index->name);
    }
    MS_TRY(MS_NEW(json_object_size(map), MS_MEMORY_CALLER, &weights->entries));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        MS_TRY(check_file_name(index->name, name, value));
        const ms_safetensors *file = NULL;
        MS_TRY(need_file(weights, dir, json_string_value(value), &file));
        const ms_safetensors_tensor *tensor = ms_safetensors_find(file, name);
        if (tensor == NULL) {
            return ms_fail(MS_ERR_MISMATCH,
                           "%s: says that tensor \"%s\" is in %s, which has none of "
                           "that name",
                           index->name, name, ms_safetensors_path(file));
        }
        weights->entries[weights->entry_count++] = tensor;
    }
    return MS_OK;
}

static ms_status open_index(ms_weights *weights, const char *dir, const char *index_path) {
    ms_json index = {0};
    MS_TRY(ms_json_open(index_path, INDEX_BYTES_MAX, &index));
    ms_status status = read_map(weights, dir, &index);
    ms_json_close(&index);
    return status;
}

static ms_status open_path(ms_weights *weights, const char *path) {
    if (!ms_path_is_directory(path)) {
        return open_single(weights, path);
    }
    char candidate[MS_PATH_BYTES];
    MS_TRY(ms_path_join(path, "model.safetensors", candidate, sizeof candidate));
    if (ms_path_exists(candidate)) {
        return open_single(weights, candidate);
    }
    MS_TRY(ms_path_join(path, "model.safetensors.index.json", candidate, sizeof candidate));
    if (ms_path_exists(candidate)) {
        return open_index(weights, path, candidate);
    }
    return ms_fail(MS_ERR_NOT_FOUND,
                   "%s: neither model.safetensors nor model.safetensors.index.json is here", path);
}

ms_status ms_weights_open(const char *path, ms_weights **weights) {
    ms_weights *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = open_path(made, path);
    if (status != MS_OK) {
        ms_weights_close(made);
        return status;
    }
    qsort(made->entries, made->entry_count, sizeof *made->entries, compare_entries);
    *weights = made;
    return MS_OK;
}

void ms_weights_close(ms_weights *weights) {
    if (weights == NULL) {
        return;
    }
    for (size_t i = 0; i < weights->file_count; i++) {
        ms_safetensors_close(weights->files[i]);
    }
    ms_free(weights->files);
    ms_free(weights->entries);
    ms_free(weights);
}

int64_t ms_weights_count(const ms_weights *weights) {
    return (int64_t)weights->entry_count;
}

const ms_safetensors_tensor *ms_weights_at(const ms_weights *weights, int64_t index) {
    return index >= 0 && index < (int64_t)weights->entry_count ? weights->entries[index] : NULL;
}

const ms_safetensors_tensor *ms_weights_find(const ms_weights *weights, const char *name) {
    ms_safetensors_tensor wanted = {.name = name};
    const ms_safetensors_tensor *key = &wanted;
    const ms_safetensors_tensor **found = bsearch(&key, weights->entries, weights->entry_count,
                                                  sizeof *weights->entries, compare_entries);
    return found != NULL ? *found : NULL;
}
