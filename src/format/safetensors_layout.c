/*
 * Layouts of safetensors files: what a save will write where, known before the first byte.
 *
 * Stands between checkpoint/ (which hands in the list of logical tensors) and the ranks, each of
 * which writes its slices at the offsets given here. Pure: the same list gives the same headers and
 * offsets on every rank, so nothing is sent around.
 *
 * Data: `files`, each with its ready header and the run [first, first + count) of tensors it holds;
 * `places`, one for each tensor, by its index in the caller's list.
 *
 * Invariants: a header's bytes (8 + padded JSON) are a multiple of 64, so pages and vector loads
 * start aligned; tensors of a file are back to back in the order given; a file holds at least one
 * tensor, and no more bytes than asked for unless a single tensor is larger.
 *
 * Rejected: sorting tensors by size of dtype as the Rust writer does (the order of the model's
 * graph is the order in which a loader wants them, and all our dtypes of one file are alike).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "format/json.h"
#include "format/safetensors.h"

#define HEADER_ALIGNMENT 64
#define FILE_COUNT_MAX 99999 /* five digits in a file's name */

typedef struct layout_file {
    char *name;
    uint8_t *header;
    size_t header_bytes;
    int64_t first, count;
    uint64_t data_bytes;
} layout_file;

struct ms_safetensors_layout {
    ms_arena *arena;
    int64_t tensor_count;
    ms_safetensors_spec *specs; /* with names of our own */
    ms_safetensors_place *places;
    int pair_count;
    ms_safetensors_pair *pairs;
    int file_count;
    layout_file *files;
    char *index_name;
    uint64_t total_bytes;
};

static int compare_name_pointers(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ms_status check_unique(const ms_safetensors_layout *layout) {
    const char **names = NULL;
    MS_TRY(MS_NEW((size_t)layout->tensor_count, MS_MEMORY_CALLER, &names));
    for (int64_t i = 0; i < layout->tensor_count; i++) {
        names[i] = layout->specs[i].name;
    }
    qsort(names, (size_t)layout->tensor_count, sizeof *names, compare_name_pointers);
    ms_status status = MS_OK;
    for (int64_t i = 1; i < layout->tensor_count && status == MS_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            status = ms_fail(MS_ERR_ARGUMENT, "safetensors layout: two tensors are called \"%s\"",
                             names[i]);
        }
    }
    ms_free(names);
    return status;
}

static ms_status spec_bytes(const ms_safetensors_spec *spec, uint64_t *bytes) {
    if (spec->rank < 0 || spec->rank > MS_SAFETENSORS_DIMS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "safetensors layout: tensor \"%s\" has %d dims, allowed are 0 "
                       "to %d",
                       spec->name, spec->rank, MS_SAFETENSORS_DIMS_MAX);
    }
    size_t product = ms_dtype_bytes(spec->dtype);
    for (int i = 0; i < spec->rank; i++) {
        if (spec->dims[i] < 0 || !ms_size_mul(product, (size_t)spec->dims[i], &product) ||
            product > (size_t)INT64_MAX) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "safetensors layout: tensor \"%s\": dim %d is %" PRId64
                           ", which is negative or makes it too large",
                           spec->name, i, spec->dims[i]);
        }
    }
    *bytes = product;
    return MS_OK;
}

static ms_status copy_specs(ms_safetensors_layout *layout, const ms_safetensors_spec *specs) {
    for (int64_t i = 0; i < layout->tensor_count; i++) {
        const char *name = specs[i].name;
        size_t length = strlen(name);
        if (length == 0 || strcmp(name, "__metadata__") == 0 ||
            ms_utf8_valid_prefix(name, length) != length) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "safetensors layout: tensor %" PRId64 " has the name \"%s\", "
                           "which is empty, reserved or not UTF-8",
                           i, name);
        }
        char *copy = NULL;
        MS_TRY(ms_arena_strdup(layout->arena, name, &copy));
        layout->specs[i] = specs[i];
        layout->specs[i].name = copy;
        MS_TRY(spec_bytes(&specs[i], &layout->places[i].bytes));
        if (__builtin_add_overflow(layout->total_bytes, layout->places[i].bytes,
                                   &layout->total_bytes) ||
            layout->total_bytes > (uint64_t)INT64_MAX) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "safetensors layout: tensors take more than 2^63 bytes");
        }
    }
    return check_unique(layout);
}

static ms_status copy_pairs(ms_safetensors_layout *layout, const ms_safetensors_pair *pairs,
                            int pair_count) {
    bool has_format = false;
    MS_TRY(ms_arena_alloc(layout->arena, ((size_t)pair_count + 1) * sizeof *layout->pairs,
                          (void **)&layout->pairs));
    for (int i = 0; i < pair_count; i++) {
        char *key = NULL, *value = NULL;
        MS_TRY(ms_arena_strdup(layout->arena, pairs[i].key, &key));
        MS_TRY(ms_arena_strdup(layout->arena, pairs[i].value, &value));
        layout->pairs[layout->pair_count++] = (ms_safetensors_pair){.key = key, .value = value};
        has_format = has_format || strcmp(key, "format") == 0;
    }
    if (!has_format) {
        layout->pairs[layout->pair_count++] = (ms_safetensors_pair){.key = "format", .value = "pt"};
    }
    return MS_OK;
}

/* Assigns tensors to files and offsets within the data of a file (the header's bytes come later).
 */
static ms_status assign(ms_safetensors_layout *layout, uint64_t file_bytes_max) {
    /* At most one file a tensor, and one file when there is none. */
    MS_TRY(ms_arena_alloc(layout->arena, ((size_t)layout->tensor_count + 1) * sizeof *layout->files,
                          (void **)&layout->files));
    layout->file_count = 1;
    layout_file *file = &layout->files[0];
    for (int64_t i = 0; i < layout->tensor_count; i++) {
        ms_safetensors_place *place = &layout->places[i];
        if (file_bytes_max != 0 && file->count > 0 && place->bytes > 0 &&
            file->data_bytes + place->bytes > file_bytes_max) { /* both below 2^63 */
            if (layout->file_count == FILE_COUNT_MAX) {
                return ms_fail(MS_ERR_ARGUMENT,
                               "safetensors layout: more than %d files of %" PRIu64
                               " bytes; allow larger files",
                               FILE_COUNT_MAX, file_bytes_max);
            }
            file = &layout->files[layout->file_count++];
            file->first = i;
        }
        place->file = layout->file_count - 1;
        place->offset = file->data_bytes;
        file->data_bytes += place->bytes;
        file->count++;
    }
    return MS_OK;
}

static ms_status emit_tensor(const ms_safetensors_layout *layout, int64_t tensor, ms_text *json) {
    const ms_safetensors_spec *spec = &layout->specs[tensor];
    const ms_safetensors_place *place = &layout->places[tensor];
    MS_TRY(ms_json_append_string(json, spec->name, strlen(spec->name)));
    MS_TRY(ms_text_printf(json, ":{\"dtype\":\"%s\",\"shape\":[",
                          ms_dtype_safetensors_name(spec->dtype)));
    for (int i = 0; i < spec->rank; i++) {
        MS_TRY(ms_text_printf(json, "%s%" PRId64, i > 0 ? "," : "", spec->dims[i]));
    }
    return ms_text_printf(json, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", place->offset,
                          place->offset + place->bytes);
}

static ms_status emit_header(const ms_safetensors_layout *layout, const layout_file *file,
                             ms_text *json) {
    MS_TRY(ms_text_append_z(json, "{\"__metadata__\":{"));
    for (int i = 0; i < layout->pair_count; i++) {
        const ms_safetensors_pair *pair = &layout->pairs[i];
        if (i > 0) {
            MS_TRY(ms_text_append(json, ",", 1));
        }
        MS_TRY(ms_json_append_string(json, pair->key, strlen(pair->key)));
        MS_TRY(ms_text_append(json, ":", 1));
        MS_TRY(ms_json_append_string(json, pair->value, strlen(pair->value)));
    }
    MS_TRY(ms_text_append(json, "}", 1));
    for (int64_t i = file->first; i < file->first + file->count; i++) {
        MS_TRY(ms_text_append(json, ",", 1));
        MS_TRY(emit_tensor(layout, i, json));
    }
    MS_TRY(ms_text_append(json, "}", 1));
    while ((json->length + sizeof(uint64_t)) % HEADER_ALIGNMENT != 0) {
        MS_TRY(ms_text_append(json, " ", 1));
    }
    if (json->length > MS_SAFETENSORS_HEADER_BYTES_MAX) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "safetensors layout: header takes %zu bytes, allowed are %" PRIu64,
                       json->length, MS_SAFETENSORS_HEADER_BYTES_MAX);
    }
    return MS_OK;
}

static ms_status finish_file(ms_safetensors_layout *layout, const char *base_name, int index) {
    layout_file *file = &layout->files[index];
    ms_text text = {0};
    ms_status status;
    if (layout->file_count == 1) {
        MS_TRY_GOTO(ms_text_printf(&text, "%s.safetensors", base_name), release_text);
    } else {
        MS_TRY_GOTO(ms_text_printf(&text, "%s-%05d-of-%05d.safetensors", base_name, index + 1,
                                   layout->file_count),
                    release_text);
    }
    MS_TRY_GOTO(ms_arena_strdup(layout->arena, text.bytes, &file->name), release_text);
    ms_text_clear(&text);
    MS_TRY_GOTO(emit_header(layout, file, &text), release_text);
    file->header_bytes = sizeof(uint64_t) + text.length;
    MS_TRY_GOTO(ms_arena_alloc(layout->arena, file->header_bytes, (void **)&file->header),
                release_text);
    for (size_t i = 0; i < sizeof(uint64_t); i++) {
        file->header[i] = (uint8_t)((uint64_t)text.length >> (8 * i));
    }
    memcpy(file->header + sizeof(uint64_t), text.bytes, text.length);
    for (int64_t i = file->first; i < file->first + file->count; i++) {
        layout->places[i].offset += file->header_bytes;
    }
release_text:
    ms_text_release(&text);
    return status;
}

static ms_status build(ms_safetensors_layout *layout, const ms_safetensors_spec *specs,
                       const ms_safetensors_pair *pairs, int pair_count, const char *base_name,
                       uint64_t file_bytes_max) {
    size_t count = (size_t)layout->tensor_count;
    MS_TRY(ms_arena_alloc(layout->arena, count * sizeof *layout->specs, (void **)&layout->specs));
    MS_TRY(ms_arena_alloc(layout->arena, count * sizeof *layout->places, (void **)&layout->places));
    MS_TRY(copy_specs(layout, specs));
    MS_TRY(copy_pairs(layout, pairs, pair_count));
    MS_TRY(assign(layout, file_bytes_max));
    for (int i = 0; i < layout->file_count; i++) {
        MS_TRY(finish_file(layout, base_name, i));
    }
    size_t name_bytes = strlen(base_name) + sizeof ".safetensors.index.json";
    MS_TRY(ms_arena_alloc(layout->arena, name_bytes, (void **)&layout->index_name));
    snprintf(layout->index_name, name_bytes, "%s.safetensors.index.json", base_name);
    return MS_OK;
}

ms_status ms_safetensors_layout_create(const ms_safetensors_spec *specs, int64_t spec_count,
                                       const ms_safetensors_pair *pairs, int pair_count,
                                       const char *base_name, uint64_t file_bytes_max,
                                       ms_safetensors_layout **layout) {
    if (spec_count < 0 || spec_count > INT32_MAX || pair_count < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "safetensors layout: %" PRId64 " tensors and %d pairs",
                       spec_count, pair_count);
    }
    ms_arena *arena = NULL;
    MS_TRY(ms_arena_create(16384, MS_MEMORY_CALLER, &arena));
    ms_safetensors_layout *made = NULL;
    ms_status status = ms_arena_alloc(arena, sizeof *made, (void **)&made);
    if (status == MS_OK) {
        made->arena = arena;
        made->tensor_count = spec_count;
        status = build(made, specs, pairs, pair_count, base_name, file_bytes_max);
    }
    if (status != MS_OK) {
        ms_arena_destroy(arena);
        return status;
    }
    *layout = made;
    return MS_OK;
}

void ms_safetensors_layout_destroy(ms_safetensors_layout *layout) {
    if (layout != NULL) {
        ms_arena_destroy(layout->arena); /* holds the layout itself */
    }
}

int ms_safetensors_layout_file_count(const ms_safetensors_layout *layout) {
    return layout->file_count;
}

const char *ms_safetensors_layout_file_name(const ms_safetensors_layout *layout, int file) {
    return layout->files[file].name;
}

const void *ms_safetensors_layout_header(const ms_safetensors_layout *layout, int file,
                                         size_t *bytes) {
    *bytes = layout->files[file].header_bytes;
    return layout->files[file].header;
}

uint64_t ms_safetensors_layout_file_bytes(const ms_safetensors_layout *layout, int file) {
    return layout->files[file].header_bytes + layout->files[file].data_bytes;
}

ms_safetensors_place ms_safetensors_layout_place(const ms_safetensors_layout *layout,
                                                 int64_t tensor) {
    return layout->places[tensor];
}

const char *ms_safetensors_layout_index_name(const ms_safetensors_layout *layout) {
    return layout->index_name;
}

ms_status ms_safetensors_layout_index(const ms_safetensors_layout *layout, ms_text *json) {
    MS_TRY(ms_text_printf(
        json, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {\n",
        layout->total_bytes));
    for (int64_t i = 0; i < layout->tensor_count; i++) {
        const char *name = layout->specs[i].name;
        MS_TRY(ms_text_append(json, "    ", 4));
        MS_TRY(ms_json_append_string(json, name, strlen(name)));
        MS_TRY(ms_text_append(json, ": ", 2));
        const char *file = layout->files[layout->places[i].file].name;
        MS_TRY(ms_json_append_string(json, file, strlen(file)));
        MS_TRY(ms_text_append_z(json, i + 1 < layout->tensor_count ? ",\n" : "\n"));
    }
    return ms_text_append_z(json, "  }\n}\n");
}

static ms_status write_contents(const ms_safetensors_layout *layout, const layout_file *file,
                                int fd, const char *path, const void *const *data) {
    MS_TRY(ms_file_write_at(fd, path, file->header, file->header_bytes, 0));
    for (int64_t i = file->first; i < file->first + file->count; i++) {
        const ms_safetensors_place *place = &layout->places[i];
        MS_TRY(ms_file_write_at(fd, path, data[i], (size_t)place->bytes, place->offset));
    }
    if (fsync(fd) != 0) {
        return ms_fail(MS_ERR_IO, "%s: fsync: %s", path, strerror(errno));
    }
    return MS_OK;
}

static ms_status write_file(const ms_safetensors_layout *layout, const layout_file *file,
                            const char *dir, const void *const *data) {
    char path[MS_PATH_BYTES], partial[MS_PATH_BYTES + 16];
    MS_TRY(ms_path_join(dir, file->name, path, sizeof path));
    snprintf(partial, sizeof partial, "%s.partial", path);
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot create: %s", partial, strerror(errno));
    }
    ms_status status = write_contents(layout, file, fd, partial, data);
    if (close(fd) != 0 && status == MS_OK) {
        status = ms_fail(MS_ERR_IO, "%s: close: %s", partial, strerror(errno));
    }
    if (status == MS_OK && rename(partial, path) != 0) {
        status = ms_fail(MS_ERR_IO, "%s: cannot rename to %s: %s", partial, path, strerror(errno));
    }
    if (status != MS_OK) {
        unlink(partial);
    }
    return status;
}

ms_status ms_safetensors_layout_write(const ms_safetensors_layout *layout, const char *dir,
                                      const void *const *data) {
    for (int i = 0; i < layout->file_count; i++) {
        MS_TRY(write_file(layout, &layout->files[i], dir, data));
    }
    MS_TRY(ms_directory_sync(dir));
    if (layout->file_count == 1) {
        return MS_OK;
    }
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, layout->index_name, path, sizeof path));
    ms_text json = {0};
    ms_status status = ms_safetensors_layout_index(layout, &json);
    if (status == MS_OK) {
        status = ms_file_write_atomic(path, json.bytes, json.length);
    }
    ms_text_release(&json);
    return status;
}
