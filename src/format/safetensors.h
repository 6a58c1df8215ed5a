/*
 * safetensors.h - tensors in files: reader over a map, Hugging Face model directories, and layouts
 * of files that several ranks write together.
 *
 * A file is: u64 header length N (little-endian), N bytes of JSON, then the tensors' bytes without
 * a gap. Everything is checked at open; after that every pointer is inside the map. Errors name the
 * file, the tensor and the byte offset. Handles are immutable: any number of threads may read.
 */
#ifndef MS_FORMAT_SAFETENSORS_H
#define MS_FORMAT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "base/types.h"

#define MS_SAFETENSORS_DIMS_MAX 8
#define MS_SAFETENSORS_HEADER_BYTES_MAX ((uint64_t)100000000)

typedef struct ms_safetensors_tensor {
    const char *name; /* owned by the handle, like all pointers here */
    const char *path; /* the file it lies in */
    ms_dtype dtype;
    int rank; /* 0: a scalar */
    int64_t dims[MS_SAFETENSORS_DIMS_MAX];
    uint64_t file_offset; /* of its first byte, from the start of the file */
    uint64_t bytes;
    const void *data; /* in the map; not aligned in files whose header is not: read with memcpy */
} ms_safetensors_tensor;

/* Elements of a tensor: the product of its dims. */
int64_t ms_safetensors_tensor_count(const ms_safetensors_tensor *tensor);

/* One file. */
typedef struct ms_safetensors ms_safetensors;
ms_status ms_safetensors_open(const char *path, ms_safetensors **file);
/* The bytes belong to the caller and must outlive the handle; name is for messages. */
ms_status ms_safetensors_open_memory(const void *bytes, size_t length, const char *name,
                                     ms_safetensors **file);
void ms_safetensors_close(ms_safetensors *file);
const char *ms_safetensors_path(const ms_safetensors *file);
int64_t ms_safetensors_count(const ms_safetensors *file);
/* In the order of their bytes in the file. index in [0, count). */
const ms_safetensors_tensor *ms_safetensors_at(const ms_safetensors *file, int64_t index);
/* NULL when there is none of that name. */
const ms_safetensors_tensor *ms_safetensors_find(const ms_safetensors *file, const char *name);
/* A string of __metadata__, NULL when there is none. */
const char *ms_safetensors_metadata(const ms_safetensors *file, const char *key);

/*
 * The weights of a model: a directory with model.safetensors, or with model.safetensors.index.json
 * and the files it names (which must lie in the directory), or the path of one such file.
 */
typedef struct ms_weights ms_weights;
ms_status ms_weights_open(const char *path, ms_weights **weights);
void ms_weights_close(ms_weights *weights);
int64_t ms_weights_count(const ms_weights *weights);
const ms_safetensors_tensor *ms_weights_at(const ms_weights *weights, int64_t index);
const ms_safetensors_tensor *ms_weights_find(const ms_weights *weights, const char *name);

/*
 * Writing. A layout says, before any byte is written, which files there will be, their headers and
 * where each tensor goes; it depends on the list alone, so every rank computes the same one and
 * writes its slices with ms_file_write_at.
 */
typedef struct ms_safetensors_spec {
    const char *name;
    ms_dtype dtype;
    int rank;
    int64_t dims[MS_SAFETENSORS_DIMS_MAX];
} ms_safetensors_spec;

typedef struct ms_safetensors_pair {
    const char *key, *value;
} ms_safetensors_pair;

typedef struct ms_safetensors_place {
    int file;        /* index of the file */
    uint64_t offset; /* of the tensor's first byte, from the start of that file */
    uint64_t bytes;
} ms_safetensors_place;

typedef struct ms_safetensors_layout ms_safetensors_layout;
/*
 * Tensors stay in the order given. base_name "model" gives "model.safetensors", or, when the
 * tensors take more than file_bytes_max (0: no limit), "model-00001-of-00002.safetensors" and so
 * on, each holding at least one tensor. Strings of pairs go into __metadata__ of every file;
 * "format": "pt", which Hugging Face's loader asks for, is added unless given. Everything is
 * copied.
 */
ms_status ms_safetensors_layout_create(const ms_safetensors_spec *specs, int64_t spec_count,
                                       const ms_safetensors_pair *pairs, int pair_count,
                                       const char *base_name, uint64_t file_bytes_max,
                                       ms_safetensors_layout **layout);
void ms_safetensors_layout_destroy(ms_safetensors_layout *layout);
int ms_safetensors_layout_file_count(const ms_safetensors_layout *layout);
const char *ms_safetensors_layout_file_name(const ms_safetensors_layout *layout, int file);
/* The header as it stands at offset 0 of the file: length, JSON and padding; a multiple of 64
 * bytes. */
const void *ms_safetensors_layout_header(const ms_safetensors_layout *layout, int file,
                                         size_t *bytes);
uint64_t ms_safetensors_layout_file_bytes(const ms_safetensors_layout *layout, int file);
ms_safetensors_place ms_safetensors_layout_place(const ms_safetensors_layout *layout,
                                                 int64_t tensor);
/* The text of base_name.safetensors.index.json; written only when there are several files. */
ms_status ms_safetensors_layout_index(const ms_safetensors_layout *layout, ms_text *json);
/* Its name: "model.safetensors.index.json". */
const char *ms_safetensors_layout_index_name(const ms_safetensors_layout *layout);
/* Writes all files of a layout into a directory from one process: data[i] is tensor i's bytes. Each
 * file is replaced in one step; the index comes last. */
ms_status ms_safetensors_layout_write(const ms_safetensors_layout *layout, const char *dir,
                                      const void *const *data);

#endif
