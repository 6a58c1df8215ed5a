/*
 * tensor_source.c - tensors of a checkpoint, or of any model directory, under one lookup.
 *
 * Where it stands: loading, verifying and converting read through it.
 *
 *   with manifest.json      the files model*.safetensors and optimizer*.safetensors that it lists,
 * each mapped here; a block is hashed when it is first touched without                 what format/
 * finds: model.safetensors, or the files of the index
 *
 * Data: for each group the tensors sorted by name with the file of each; for each file one byte a
 * block, 1 once it was found good. Invariants: the blocks of a file's header are checked before the
 * header is parsed; sizes are checked before the first access, so a truncated file is an error and
 * not a signal. Not thread-safe: a source belongs to one load. Rejected: hashing whole files at
 * open (a rank that needs an eighth of a model would read all of it).
 */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

typedef struct source_file {
    ms_file_map map;
    ms_safetensors *handle;
    const ms__manifest_file *listed;
    char path[MS_PATH_BYTES];
    uint8_t *good; /* per block */
    ms__tensor_group group;
} source_file;

typedef struct source_entry {
    const ms_safetensors_tensor *tensor;
    int64_t file; /* -1: one of `weights` */
} source_entry;

struct ms__source {
    bool has_manifest;
    ms__manifest manifest;
    int64_t file_count;
    source_file *files;
    ms_weights *weights;
    source_entry *entries[MS__GROUP_COUNT];
    int64_t counts[MS__GROUP_COUNT];
};

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* The group of a file of tensors by its name; COUNT for other files. */
static ms__tensor_group group_of(const char *name) {
    if (!ends_with(name, ".safetensors")) {
        return MS__GROUP_COUNT;
    }
    if (strncmp(name, "model", 5) == 0) {
        return MS__GROUP_MODEL;
    }
    return strncmp(name, "optimizer", 9) == 0 ? MS__GROUP_OPTIMIZER : MS__GROUP_COUNT;
}

/* Checks the blocks of bytes [start, start + length) that were not checked yet. */
static ms_status check_range(const ms__source *source, source_file *file, uint64_t start,
                             uint64_t length) {
    if (length == 0) {
        return MS_OK;
    }
    uint64_t block_bytes = source->manifest.block_bytes;
    for (uint64_t i = start / block_bytes; i <= (start + length - 1) / block_bytes; i++) {
        if (file->good[i] == 0) {
            MS_TRY(ms__manifest_check_block(&source->manifest, file->listed, file->path, (int64_t)i,
                                            file->map.data + i * block_bytes));
            file->good[i] = 1;
        }
    }
    return MS_OK;
}

static uint64_t header_length(const ms_file_map *map) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | map->data[i];
    }
    return length;
}

static ms_status open_listed(ms__source *source, const char *dir, const ms__manifest_file *listed,
                             source_file *file) {
    MS_TRY(ms_path_join(dir, listed->name, file->path, sizeof file->path));
    file->listed = listed;
    file->group = group_of(listed->name);
    MS_TRY(MS_NEW((size_t)listed->block_count, MS_MEMORY_CALLER, &file->good));
    MS_TRY(ms_file_map_open(file->path, &file->map));
    if (file->map.bytes != listed->bytes) {
        return ms_fail(MS_ERR_FORMAT, "%s: is %zu bytes, the manifest says %" PRIu64, file->path,
                       file->map.bytes, listed->bytes);
    }
    if (listed->bytes >= sizeof(uint64_t)) {
        MS_TRY(check_range(source, file, 0, sizeof(uint64_t)));
        uint64_t header = header_length(&file->map), rest = listed->bytes - sizeof(uint64_t);
        MS_TRY(check_range(source, file, sizeof(uint64_t), header < rest ? header : rest));
    }
    return ms_safetensors_open_memory(file->map.data, file->map.bytes, file->path, &file->handle);
}

static int compare_entries(const void *a, const void *b) {
    const source_entry *left = a, *right = b;
    return strcmp(left->tensor->name, right->tensor->name);
}

static ms_status add_entries(ms__source *source, ms__tensor_group group) {
    int64_t total = 0;
    for (int64_t i = 0; i < source->file_count; i++) {
        total +=
            source->files[i].group == group ? ms_safetensors_count(source->files[i].handle) : 0;
    }
    MS_TRY(MS_NEW((size_t)total, MS_MEMORY_CALLER, &source->entries[group]));
    source_entry *entries = source->entries[group];
    int64_t count = 0;
    for (int64_t i = 0; i < source->file_count; i++) {
        const source_file *file = &source->files[i];
        for (int64_t j = 0; file->group == group && j < ms_safetensors_count(file->handle); j++) {
            entries[count++] = (source_entry){ms_safetensors_at(file->handle, j), i};
        }
    }
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int64_t i = 1; i < count; i++) {
        if (compare_entries(&entries[i - 1], &entries[i]) == 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\" is in %s too", entries[i].tensor->path,
                           entries[i].tensor->name, entries[i - 1].tensor->path);
        }
    }
    source->counts[group] = count;
    return MS_OK;
}

static ms_status open_checkpoint(ms__source *source, const char *path, bool with_optimizer) {
    const ms__manifest *manifest = &source->manifest;
    MS_TRY(MS_NEW((size_t)manifest->file_count, MS_MEMORY_CALLER, &source->files));
    for (int64_t i = 0; i < manifest->file_count; i++) {
        ms__tensor_group group = group_of(manifest->files[i].name);
        if (group == MS__GROUP_MODEL || (group == MS__GROUP_OPTIMIZER && with_optimizer)) {
            source_file *file = &source->files[source->file_count++];
            MS_TRY(open_listed(source, path, &manifest->files[i], file));
        }
    }
    if (source->file_count == 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: the manifest lists no file of weights", path);
    }
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        MS_TRY(add_entries(source, (ms__tensor_group)group));
    }
    return MS_OK;
}

static ms_status open_weights(ms__source *source, const char *path) {
    MS_TRY(ms_weights_open(path, &source->weights));
    int64_t count = ms_weights_count(source->weights);
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &source->entries[MS__GROUP_MODEL]));
    for (int64_t i = 0; i < count; i++) { /* sorted by name already */
        source->entries[MS__GROUP_MODEL][i] = (source_entry){ms_weights_at(source->weights, i), -1};
    }
    source->counts[MS__GROUP_MODEL] = count;
    return MS_OK;
}

static ms_status open_path(ms__source *source, const char *path, bool with_optimizer) {
    if (!ms_path_exists(path)) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: no such file or directory", path);
    }
    char manifest[MS_PATH_BYTES];
    MS_TRY(ms_path_join(path, MS_CHECKPOINT_MANIFEST, manifest, sizeof manifest));
    if (!ms_path_is_directory(path) || !ms_path_exists(manifest)) {
        return open_weights(source, path);
    }
    MS_TRY(ms__manifest_read(path, &source->manifest));
    source->has_manifest = true;
    return open_checkpoint(source, path, with_optimizer);
}

ms_status ms__source_open(const char *path, bool with_optimizer, ms__source **source) {
    ms__source *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = open_path(made, path, with_optimizer);
    if (status != MS_OK) {
        ms__source_close(made);
        return status;
    }
    *source = made;
    return MS_OK;
}

void ms__source_close(ms__source *source) {
    if (source == NULL) {
        return;
    }
    for (int64_t i = 0; i < source->file_count; i++) {
        ms_safetensors_close(source->files[i].handle);
        ms_file_map_close(&source->files[i].map);
        ms_free(source->files[i].good);
    }
    ms_free(source->files);
    ms_weights_close(source->weights);
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        ms_free(source->entries[group]);
    }
    ms__manifest_release(&source->manifest);
    ms_free(source);
}

const ms__manifest *ms__source_manifest(const ms__source *source) {
    return source->has_manifest ? &source->manifest : NULL;
}

int64_t ms__source_count(const ms__source *source, ms__tensor_group group) {
    return source->counts[group];
}

const ms_safetensors_tensor *ms__source_at(const ms__source *source, ms__tensor_group group,
                                           int64_t index) {
    return source->entries[group][index].tensor;
}

static int64_t find_exactly(const ms__source *source, ms__tensor_group group, const char *name) {
    int64_t low = 0, high = source->counts[group];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, source->entries[group][middle].tensor->name);
        if (order == 0) {
            return middle;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}

int64_t ms__source_find(const ms__source *source, ms__tensor_group group, const char *name) {
    int64_t index = find_exactly(source, group, name);
    if (index >= 0 || group != MS__GROUP_MODEL) {
        return index; /* states are ours alone: their names do not vary */
    }
    ms__name_variants variants;
    ms__name_variants_make(name, &variants);
    for (int i = 1; i < variants.count && index < 0; i++) {
        index = find_exactly(source, group, variants.names[i]);
    }
    return index;
}

ms_status ms__source_check(ms__source *source, ms__tensor_group group, int64_t index,
                           uint64_t start, uint64_t length) {
    const source_entry *entry = &source->entries[group][index];
    if (entry->file < 0) {
        return MS_OK;
    }
    return check_range(source, &source->files[entry->file], entry->tensor->file_offset + start,
                       length);
}
