/*
 * npy.h - NumPy's .npy (versions 1 to 3, C and Fortran order, little-endian numbers) and .npz
 * files.
 *
 * Object arrays are refused: reading one would mean running what it contains. Errors name the file
 * and the byte offset. Handles are immutable, except that one .npz may be used by one thread at a
 * time.
 */
#ifndef MS_FORMAT_NPY_H
#define MS_FORMAT_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"

#define MS_NPY_DIMS_MAX 8

typedef struct ms_npy_array {
    ms_dtype dtype;
    int rank;
    int64_t dims[MS_NPY_DIMS_MAX];
    bool fortran_order; /* the first index runs fastest */
    int64_t count;      /* of elements */
    uint64_t data_offset;
    uint64_t bytes;
    const void *data;
} ms_npy_array;

/* Checks a file in memory; array->data points into bytes. name is for messages. */
ms_status ms_npy_parse(const void *bytes, size_t length, const char *name, ms_npy_array *array);
/* Copies array->bytes to `out`, in C order whatever the file's. */
ms_status ms_npy_copy(const ms_npy_array *array, void *out);

typedef struct ms_npy ms_npy;
ms_status ms_npy_open(const char *path, ms_npy **npy);
/* Takes over memory from ms_alloc that holds a whole .npy file; on failure it stays the caller's.
 */
ms_status ms_npy_adopt(void *memory, size_t length, const char *name, ms_npy **npy);
void ms_npy_close(ms_npy *npy);
const ms_npy_array *ms_npy_get(const ms_npy *npy);

typedef struct ms_npz ms_npz;
ms_status ms_npz_open(const char *path, ms_npz **npz);
/* The bytes belong to the caller and must outlive the handle. */
ms_status ms_npz_open_memory(const void *bytes, size_t length, const char *name, ms_npz **npz);
void ms_npz_close(ms_npz *npz);
int64_t ms_npz_count(const ms_npz *npz);
/* Member's name without ".npy". */
const char *ms_npz_name(const ms_npz *npz, int64_t index);
/* Unpacks a member of at most bytes_max (else MS_ERR_RANGE); close the result with ms_npy_close. */
ms_status ms_npz_read(ms_npz *npz, const char *member, uint64_t bytes_max, ms_npy **npy);

#endif
