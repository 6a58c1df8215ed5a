/*
 * shard.c - the part of a logical tensor that a rank holds, as segments per dim.
 *
 * A local element's coordinates are positions in the segment lists; the global ones follow. Runs contiguous in
 * both are found from the innermost dims outwards: whole trailing dims, then one dim's segments.
 */
#include <inttypes.h>

#include "tensor/tensor.h"

int64_t ms_tensor_elements(const ms_tensor *tensor) {
    int64_t elements = 1;
    for (int i = 0; i < tensor->rank; i++) {
        elements *= tensor->dims[i];
    }
    return elements;
}

ms_shard ms_shard_whole(const ms_tensor *tensor) {
    ms_shard shard = {.rank = tensor->rank};
    for (int i = 0; i < tensor->rank; i++) {
        shard.global_dims[i] = shard.local_dims[i] = tensor->dims[i];
        shard.dims[i].segment_count = 1;
        shard.dims[i].segments[0] = (ms_segment){0, tensor->dims[i]};
    }
    return shard;
}

int64_t ms_shard_elements(const ms_shard *shard) {
    int64_t elements = 1;
    for (int i = 0; i < shard->rank; i++) {
        elements *= shard->local_dims[i];
    }
    return elements;
}

static ms_status check_dim(const ms_shard *shard, int i) {
    const ms_shard_dim *dim = &shard->dims[i];
    if (dim->segment_count < 0 || dim->segment_count > MS_SEGMENTS_MAX) {
        return ms_fail(MS_ERR_RANGE, "shard dim %d has %d segments (at most %d)", i,
                       dim->segment_count, MS_SEGMENTS_MAX);
    }
    int64_t local = 0;
    for (int s = 0; s < dim->segment_count; s++) {
        ms_segment segment = dim->segments[s];
        if (segment.start < 0 || segment.count < 0 ||
            segment.start > shard->global_dims[i] - segment.count) {
            return ms_fail(MS_ERR_RANGE,
                           "shard dim %d: segment %" PRId64 "+%" PRId64 " lies outside %" PRId64, i,
                           segment.start, segment.count, shard->global_dims[i]);
        }
        for (int t = 0; t < s; t++) {
            ms_segment other = dim->segments[t];
            if (segment.start < other.start + other.count &&
                other.start < segment.start + segment.count) {
                return ms_fail(MS_ERR_RANGE, "shard dim %d: segments %d and %d overlap", i, t, s);
            }
        }
        local += segment.count;
    }
    if (local != shard->local_dims[i]) {
        return ms_fail(MS_ERR_RANGE, "shard dim %d: segments hold %" PRId64 ", not %" PRId64, i,
                       local, shard->local_dims[i]);
    }
    return MS_OK;
}

ms_status ms_shard_check(const ms_shard *shard) {
    if (shard->rank < 0 || shard->rank > MS_TENSOR_DIMS_MAX) {
        return ms_fail(MS_ERR_RANGE, "shard of rank %d", shard->rank);
    }
    for (int i = 0; i < shard->rank; i++) {
        MS_TRY(check_dim(shard, i));
    }
    return MS_OK;
}

/* Global index of local position `at` in a dim, and how many positions go on from there in a row. */
static int64_t dim_global(const ms_shard_dim *dim, int64_t at, int64_t *follows) {
    for (int s = 0; s < dim->segment_count; s++) {
        if (at < dim->segments[s].count) {
            *follows = dim->segments[s].count - at;
            return dim->segments[s].start + at;
        }
        at -= dim->segments[s].count;
    }
    *follows = 0;
    return -1;
}

/* The global flat index of a local one, and how many elements go on contiguously from there. */
static int64_t global_run(const ms_shard *shard, int64_t local_index, int64_t *count) {
    int64_t coordinates[MS_TENSOR_DIMS_MAX] = {0};
    int64_t rest = local_index;
    for (int i = shard->rank - 1; i >= 0; i--) {
        coordinates[i] = rest % shard->local_dims[i];
        rest /= shard->local_dims[i];
    }
    int64_t global = 0;
    int64_t run = 1;
    bool open = true; /* every dim further in is whole and at its start, or is the run's own */
    int64_t stride = 1;
    for (int i = shard->rank - 1; i >= 0; i--) {
        int64_t follows;
        global += dim_global(&shard->dims[i], coordinates[i], &follows) * stride;
        stride *= shard->global_dims[i];
        if (open) {
            /* A run spans this dim's segment; it goes further out only through a whole dim. */
            run = i == shard->rank - 1 ? follows : run + (follows - 1) * (stride / shard->global_dims[i]);
            bool whole = shard->local_dims[i] == shard->global_dims[i] &&
                         shard->dims[i].segment_count == 1;
            open = whole;
        }
    }
    *count = run;
    return global;
}

int64_t ms_shard_global_index(const ms_shard *shard, int64_t local_index) {
    int64_t count;
    return global_run(shard, local_index, &count);
}

ms_status ms_shard_visit(const ms_shard *shard, int64_t local_start, int64_t local_count,
                         ms_shard_visitor visitor, void *context) {
    int64_t elements = ms_shard_elements(shard);
    if (local_start < 0 || local_count < 0 || local_start > elements - local_count) {
        return ms_fail(MS_ERR_RANGE,
                       "elements %" PRId64 "+%" PRId64 " lie outside a shard of %" PRId64,
                       local_start, local_count, elements);
    }
    int64_t end = local_start + local_count;
    for (int64_t at = local_start; at < end;) {
        ms_shard_run run = {.local_start = at};
        run.global_start = global_run(shard, at, &run.count);
        run.count = ms_min_i64(run.count, end - at);
        MS_TRY(visitor(&run, context));
        at += run.count;
    }
    return MS_OK;
}
