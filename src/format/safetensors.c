/*
 * Reader of one safetensors file.
 *
 * Stands at the bottom of checkpoint loading: a map of the file, the header parsed and checked
 * once, then lookups that cannot fail.
 *
 *   offset 0     u64 N, little-endian
 *   offset 8     N bytes of JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end)}, ...}
 *   offset 8+N   bytes of the tensors, offsets counted from here, back to back
 *
 * Data: `tensors` in the order of their bytes; `by_name` their indices sorted by name, searched by
 * halving. Both, and the names, live in one arena.
 *
 * Invariants after open: names are unique, tensors follow one another without gap or overlap from
 * the first byte after the header to the end of the file, and bytes == product(dims) * size of
 * dtype.
 *
 * Rejected: files with gaps or trailing bytes (the format forbids them, and a bit flip in an offset
 * would pass); a hash table (a header has hundreds of names, looked up once each).
 */
#define _GNU_SOURCE /* qsort_r */
#include "format/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define LENGTH_BYTES 8

struct ms_safetensors {
    ms_arena *arena;
    ms_file_map map; /* data NULL when the bytes belong to the caller */
    char *path;
    const uint8_t *bytes;
    size_t length;
    uint64_t data_begin; /* 8 + header length */
    int64_t count;
    ms_safetensors_tensor *tensors;
    int64_t *by_name;
    int64_t pair_count;
    ms_safetensors_pair *pairs;
};

int64_t ms_safetensors_tensor_count(const ms_safetensors_tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        count *= tensor->dims[i]; /* checked at open against the bytes of the file */
    }
    return count;
}

static uint64_t read_u64(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static ms_status parse_shape(ms_safetensors *file, ms_safetensors_tensor *tensor,
                             const json_t *shape, uint64_t *bytes) {
    if (!json_is_array(shape)) {
        return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\" has no list \"shape\"", file->path,
                       tensor->name);
    }
    size_t rank = json_array_size(shape);
    if (rank > MS_SAFETENSORS_DIMS_MAX) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has %zu dims, at most %d are supported", file->path,
                       tensor->name, rank, MS_SAFETENSORS_DIMS_MAX);
    }
    size_t product = ms_dtype_bytes(tensor->dtype);
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\": dim %zu is not a whole number",
                           file->path, tensor->name, i);
        }
        tensor->dims[i] = (int64_t)json_integer_value(dim);
        if (!ms_size_mul(product, (size_t)tensor->dims[i], &product) ||
            product > (size_t)INT64_MAX) {
            return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\": product of its dims is over 2^63",
                           file->path, tensor->name);
        }
    }
    tensor->rank = (int)rank;
    *bytes = product;
    return MS_OK;
}

static ms_status parse_offsets(ms_safetensors *file, ms_safetensors_tensor *tensor,
                               const json_t *offsets, uint64_t expected_bytes) {
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1))) {
        return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\" has no \"data_offsets\" of two integers",
                       file->path, tensor->name);
    }
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    uint64_t data_bytes = file->length - file->data_begin;
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
        return ms_fail(
            MS_ERR_FORMAT,
            "%s: tensor \"%s\": data_offsets [%" PRId64 ", %" PRId64 ") do not lie in the %" PRIu64
            " bytes after offset %" PRIu64 "; the file is truncated or damaged",
            file->path, tensor->name, (int64_t)begin, (int64_t)end, data_bytes, file->data_begin);
    }
    tensor->file_offset = file->data_begin + (uint64_t)begin;
    tensor->bytes = (uint64_t)(end - begin);
    tensor->data = file->bytes + tensor->file_offset;
    if (tensor->bytes != expected_bytes) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: tensor \"%s\" at offset %" PRIu64 " has %" PRIu64
                       " bytes, but its shape and dtype %s need %" PRIu64,
                       file->path, tensor->name, tensor->file_offset, tensor->bytes,
                       ms_dtype_safetensors_name(tensor->dtype), expected_bytes);
    }
    return MS_OK;
}

static ms_status parse_tensor(ms_safetensors *file, const char *name, const json_t *entry,
                              ms_safetensors_tensor *tensor) {
    char *copy = NULL;
    MS_TRY(ms_arena_strdup(file->arena, name, &copy));
    tensor->name = copy;
    tensor->path = file->path;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: tensor \"%s\" has no \"dtype\"", file->path, name);
    }
    if (ms_dtype_parse_safetensors(dtype, &tensor->dtype) != MS_OK) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has dtype \"%.32s\", which is not known", file->path,
                       name, dtype);
    }
    uint64_t bytes = 0;
    MS_TRY(parse_shape(file, tensor, json_object_get(entry, "shape"), &bytes));
    return parse_offsets(file, tensor, json_object_get(entry, "data_offsets"), bytes);
}

static ms_status parse_metadata(ms_safetensors *file, json_t *metadata) {
    if (!json_is_object(metadata)) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"__metadata__\" is not an object", file->path);
    }
    MS_TRY(ms_arena_alloc(file->arena, json_object_size(metadata) * sizeof *file->pairs,
                          (void **)&file->pairs));
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) {
            return ms_fail(MS_ERR_FORMAT, "%s: \"__metadata__\": \"%s\" is not a string",
                           file->path, key);
        }
        char *key_copy = NULL, *value_copy = NULL;
        MS_TRY(ms_arena_strdup(file->arena, key, &key_copy));
        MS_TRY(ms_arena_strdup(file->arena, json_string_value(value), &value_copy));
        file->pairs[file->pair_count++] =
            (ms_safetensors_pair){.key = key_copy, .value = value_copy};
    }
    return MS_OK;
}

static int compare_offsets(const void *a, const void *b) {
    const ms_safetensors_tensor *left = a, *right = b;
    if (left->file_offset != right->file_offset) {
        return left->file_offset < right->file_offset ? -1 : 1;
    }
    if (left->bytes != right->bytes) {
        return left->bytes < right->bytes ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

/* Back to back from the end of the header to the end of the file. */
static ms_status check_contiguous(const ms_safetensors *file) {
    uint64_t expected = file->data_begin;
    for (int64_t i = 0; i < file->count; i++) {
        const ms_safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->file_offset != expected) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: tensor \"%s\" begins at offset %" PRIu64 " but the one before it, "
                           "\"%s\", ends at %" PRIu64 ": tensors must not %s",
                           file->path, tensor->name, tensor->file_offset,
                           i > 0 ? file->tensors[i - 1].name : "the header", expected,
                           tensor->file_offset < expected ? "overlap" : "leave gaps");
        }
        expected += tensor->bytes;
    }
    if (expected != file->length) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: %" PRIu64 " bytes after the last tensor, from offset %" PRIu64,
                       file->path, file->length - expected, expected);
    }
    return MS_OK;
}

static int compare_names(const void *a, const void *b, void *context) {
    const ms_safetensors_tensor *tensors = context;
    return strcmp(tensors[*(const int64_t *)a].name, tensors[*(const int64_t *)b].name);
}

static ms_status parse_entries(ms_safetensors *file, json_t *header) {
    size_t entries = json_object_size(header);
    MS_TRY(ms_arena_alloc(file->arena, entries * sizeof *file->tensors, (void **)&file->tensors));
    MS_TRY(ms_arena_alloc(file->arena, entries * sizeof *file->by_name, (void **)&file->by_name));
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            MS_TRY(parse_metadata(file, entry));
            continue;
        }
        MS_TRY(parse_tensor(file, name, entry, &file->tensors[file->count]));
        file->count++;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
    MS_TRY(check_contiguous(file));
    for (int64_t i = 0; i < file->count; i++) {
        file->by_name[i] = i;
    }
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names,
            file->tensors);
    return MS_OK;
}

static ms_status parse_header(ms_safetensors *file) {
    if (file->length < LENGTH_BYTES) {
        return ms_fail(MS_ERR_FORMAT, "%s: file has %zu bytes, a safetensors file has at least %d",
                       file->path, file->length, LENGTH_BYTES + 2);
    }
    uint64_t header_bytes = read_u64(file->bytes);
    uint64_t rest = file->length - LENGTH_BYTES;
    if (header_bytes > rest) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: header length at offset 0 is %" PRIu64 ", but only %" PRIu64
                       " bytes follow: truncated, or not a safetensors file",
                       file->path, header_bytes, rest);
    }
    if (header_bytes > MS_SAFETENSORS_HEADER_BYTES_MAX) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: header length at offset 0 is %" PRIu64 ", allowed are %" PRIu64,
                       file->path, header_bytes, MS_SAFETENSORS_HEADER_BYTES_MAX);
    }
    file->data_begin = LENGTH_BYTES + header_bytes;
    json_error_t error;
    json_t *header = json_loadb((const char *)file->bytes + LENGTH_BYTES, (size_t)header_bytes,
                                JSON_REJECT_DUPLICATES, &error);
    if (header == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: header is not valid JSON near offset %d: %s", file->path,
                       LENGTH_BYTES + error.position, error.text);
    }
    ms_status status = json_is_object(header)
                           ? parse_entries(file, header)
                           : ms_fail(MS_ERR_FORMAT, "%s: header at offset %d is not an object",
                                     file->path, LENGTH_BYTES);
    json_decref(header);
    return status;
}

static ms_status create(const char *name, const void *bytes, size_t length, ms_safetensors **file) {
    ms_arena *arena = NULL;
    MS_TRY(ms_arena_create(16384, MS_MEMORY_CALLER, &arena));
    ms_safetensors *made = NULL;
    ms_status status = ms_arena_alloc(arena, sizeof *made, (void **)&made);
    if (status == MS_OK) {
        made->arena = arena;
        made->bytes = bytes;
        made->length = length;
        status = ms_arena_strdup(arena, name, &made->path);
    }
    if (status == MS_OK) {
        status = parse_header(made);
    }
    if (status != MS_OK) {
        ms_arena_destroy(arena);
        return status;
    }
    *file = made;
    return MS_OK;
}

ms_status ms_safetensors_open_memory(const void *bytes, size_t length, const char *name,
                                     ms_safetensors **file) {
    return create(name, bytes, length, file);
}

ms_status ms_safetensors_open(const char *path, ms_safetensors **file) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_safetensors *made = NULL;
    ms_status status = create(path, map.data, map.bytes, &made);
    if (status != MS_OK) {
        ms_file_map_close(&map);
        return status;
    }
    made->map = map;
    *file = made;
    return MS_OK;
}

void ms_safetensors_close(ms_safetensors *file) {
    if (file == NULL) {
        return;
    }
    ms_file_map map = file->map;
    ms_arena_destroy(file->arena); /* holds the handle itself */
    if (map.data != NULL) {
        ms_file_map_close(&map);
    }
}

const char *ms_safetensors_path(const ms_safetensors *file) {
    return file->path;
}

int64_t ms_safetensors_count(const ms_safetensors *file) {
    return file->count;
}

const ms_safetensors_tensor *ms_safetensors_at(const ms_safetensors *file, int64_t index) {
    return index >= 0 && index < file->count ? &file->tensors[index] : NULL;
}

const ms_safetensors_tensor *ms_safetensors_find(const ms_safetensors *file, const char *name) {
    int64_t low = 0, high = file->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const ms_safetensors_tensor *tensor = &file->tensors[file->by_name[middle]];
        int order = strcmp(name, tensor->name);
        if (order == 0) {
            return tensor;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *ms_safetensors_metadata(const ms_safetensors *file, const char *key) {
    for (int64_t i = 0; i < file->pair_count; i++) {
        if (strcmp(file->pairs[i].key, key) == 0) {
            return file->pairs[i].value;
        }
    }
    return NULL;
}
