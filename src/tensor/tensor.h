/*
 * tensor.h - logical tensors, and the part of one that a rank holds.
 *
 * A logical tensor knows nothing of ranks: its name is Hugging Face's, its dims are global. A shard is
 * the part one rank holds: for each dim an ordered list of [start, count) segments of the global dim.
 * The local tensor is the dense row-major product of those lists, so GPT-2's fused c_attn on two ranks
 * is three segments of its last dim. Pure data; thread-safe.
 */
#ifndef MS_TENSOR_TENSOR_H
#define MS_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/types.h"

#define MS_TENSOR_DIMS_MAX 4
#define MS_TENSOR_NAME_BYTES 160
#define MS_SEGMENTS_MAX 16

typedef enum ms_initializer {
    MS_INIT_ZERO,
    MS_INIT_ONE,
    MS_INIT_NORMAL, /* mean 0, standard deviation `init_std` */
} ms_initializer;

typedef struct ms_tensor {
    char name[MS_TENSOR_NAME_BYTES];
    int rank;
    int64_t dims[MS_TENSOR_DIMS_MAX];
    ms_initializer initializer;
    double init_std;
    bool decay; /* weight decay applies: matrices, not vectors */
} ms_tensor;

typedef struct ms_segment {
    int64_t start, count;
} ms_segment;

typedef struct ms_shard_dim {
    int segment_count;
    ms_segment segments[MS_SEGMENTS_MAX];
} ms_shard_dim;

typedef struct ms_shard {
    int rank;
    int64_t global_dims[MS_TENSOR_DIMS_MAX];
    int64_t local_dims[MS_TENSOR_DIMS_MAX];
    ms_shard_dim dims[MS_TENSOR_DIMS_MAX];
} ms_shard;

int64_t ms_tensor_elements(const ms_tensor *tensor);
/* The whole tensor as one shard. */
ms_shard ms_shard_whole(const ms_tensor *tensor);
int64_t ms_shard_elements(const ms_shard *shard);
/* Checks that segments lie inside, in order of the local layout, and do not overlap. */
ms_status ms_shard_check(const ms_shard *shard);

/* One run of elements contiguous both in the local and in the global tensor (flat indices). */
typedef struct ms_shard_run {
    int64_t local_start, global_start, count;
} ms_shard_run;
typedef ms_status (*ms_shard_visitor)(const ms_shard_run *run, void *context);
/* Visits local elements [local_start, local_start + local_count) in local order, as maximal runs. */
ms_status ms_shard_visit(const ms_shard *shard, int64_t local_start, int64_t local_count,
                         ms_shard_visitor visitor, void *context);
/* Flat global index of a flat local index. */
int64_t ms_shard_global_index(const ms_shard *shard, int64_t local_index);

/*
 * Fills local elements [local_start, +count) with the tensor's initial values, from (seed, name, global
 * element index) alone: the same logical tensor whatever the layout. dtype fp64 or fp32.
 */
ms_status ms_tensor_initialize(const ms_tensor *tensor, const ms_shard *shard, uint64_t seed,
                               int64_t local_start, int64_t local_count, ms_dtype dtype,
                               void *values);

#endif
