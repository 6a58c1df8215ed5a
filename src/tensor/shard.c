/*
 * shard.c - the part of a logical tensor that a rank holds, as segments per dim.
 *
 * Where it stands: layout/ makes shards, engine/ fills them, checkpoint/ reads and writes them run
 * by run.
 *
 *   global dim    0 1 2 3 4 5 6 7 8 9 a b      GPT-2's c_attn on rank 1 of 2: q | k | v of 4
 * columns each segments          [2,4)   [6,8)   [a,c) local dim         0 1     2 3     4 5
 *
 * A local element's coordinates are positions in the segment lists; the global ones follow. A piece
 * is what is contiguous in both by the dims' shape: whole dims further in, and the rest of one
 * segment. Pieces that happen to meet in the global order (a row's end and the next row's start)
 * are joined, so runs are maximal.
 *
 * Invariant: the work is proportional to the number of pieces, never to that of elements.
 * Rejected: a list of runs per shard (a column of a 50,257-row table would store 50,257 of them).
 */
#include <inttypes.h>

#include "tensor/tensor.h"

/* The product of dims; too large for 64 bits counts as INT64_MAX, which no buffer can hold. */
static int64_t product(const int64_t *dims, int rank) {
    int64_t elements = 1;
    bool fits = true;
    for (int i = 0; i < rank; i++) {
        if (dims[i] == 0) {
            return 0;
        }
        fits = fits && ms_i64_mul(elements, dims[i], &elements);
    }
    return fits ? elements : INT64_MAX;
}

int64_t ms_tensor_elements(const ms_tensor *tensor) {
    return product(tensor->dims, tensor->rank);
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
    return product(shard->local_dims, shard->rank);
}

static ms_status check_dim(const ms_shard *shard, int i) {
    const ms_shard_dim *dim = &shard->dims[i];
    if (shard->global_dims[i] < 0 || dim->segment_count < 0 ||
        dim->segment_count > MS_SEGMENTS_MAX) {
        return ms_fail(MS_ERR_RANGE, "shard dim %d of %" PRId64 " has %d segments (at most %d)", i,
                       shard->global_dims[i], dim->segment_count, MS_SEGMENTS_MAX);
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
        local += segment.count; /* no overlap: at most the global dim */
    }
    if (local != shard->local_dims[i]) {
        return ms_fail(MS_ERR_RANGE, "shard dim %d: segments hold %" PRId64 ", not %" PRId64, i,
                       local, shard->local_dims[i]);
    }
    return MS_OK;
}

ms_status ms_shard_check(const ms_shard *shard) {
    if (shard->rank < 0 || shard->rank > MS_TENSOR_DIMS_MAX) {
        return ms_fail(MS_ERR_RANGE, "a shard has 0 to %d dims, not %d", MS_TENSOR_DIMS_MAX,
                       shard->rank);
    }
    for (int i = 0; i < shard->rank; i++) {
        MS_TRY(check_dim(shard, i));
    }
    if (product(shard->global_dims, shard->rank) == INT64_MAX) {
        return ms_fail(MS_ERR_RANGE, "a shard's tensor has more than 2^63 - 1 elements");
    }
    return MS_OK;
}

/* Global index of local position `at` in a dim, and how many positions go on from there in a row.
 */
static int64_t dim_global(const ms_shard_dim *dim, int64_t at, int64_t *follows) {
    int s = 0;
    while (at >= dim->segments[s].count) {
        at -= dim->segments[s++].count;
    }
    *follows = dim->segments[s].count - at;
    return dim->segments[s].start + at;
}

static bool is_whole(const ms_shard *shard, int i) {
    return shard->dims[i].segment_count == 1 && shard->local_dims[i] == shard->global_dims[i];
}

/* The global flat index of a local one, and the length of the piece that begins there. */
static int64_t find_piece(const ms_shard *shard, int64_t local_index, int64_t *count) {
    int64_t global = 0, stride = 1, piece = 1;
    int64_t rest = local_index;
    bool inner_whole = true; /* every dim further in */
    for (int i = shard->rank - 1; i >= 0; i--) {
        int64_t follows;
        global += dim_global(&shard->dims[i], rest % shard->local_dims[i], &follows) * stride;
        rest /= shard->local_dims[i];
        if (inner_whole) {
            /* This dim's next position is one whole inner block further on. */
            piece += (follows - 1) * stride;
            inner_whole = is_whole(shard, i);
        }
        stride *= shard->global_dims[i];
    }
    *count = piece;
    return global;
}

int64_t ms_shard_global_index(const ms_shard *shard, int64_t local_index) {
    if (local_index < 0 || local_index >= ms_shard_elements(shard)) {
        return -1;
    }
    int64_t count;
    return find_piece(shard, local_index, &count);
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
    ms_shard_run run = {.local_start = local_start};
    for (int64_t at = local_start; at < end; at = run.local_start + run.count) {
        int64_t count;
        int64_t global = find_piece(shard, at, &count);
        count = ms_min_i64(count, end - at);
        if (run.count > 0 && global != run.global_start + run.count) {
            MS_TRY(visitor(&run, context));
            run = (ms_shard_run){.local_start = at};
        }
        if (run.count == 0) {
            run.global_start = global;
        }
        run.count += count;
    }
    return run.count > 0 ? visitor(&run, context) : MS_OK;
}
