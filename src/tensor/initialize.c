/*
 * initialize.c - the first values of a logical tensor: element i of the stream (seed, "init:" +
 * name), whoever holds it.
 *
 * Where it stands: engine/ calls it once per piece of a parameter, before the first step.
 *
 * Normal numbers come in pairs (Box-Muller), elements 2p and 2p + 1 of the tensor; a pair is
 * computed once where both are wanted. The wanted range is cut into chunks that threads take,
 * whatever the runs are, so a whole table and one of its columns are both filled by all threads. A
 * pair that a chunk's border cuts is computed on both sides.
 *
 * Invariant: a value depends on (seed, name, global element) alone: not on shard, chunk or thread.
 * Rejected: the compiler's vectorised logarithm and sines, whose last bits differ from those of
 * ms_random_normal_at.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/random.h"
#include "tensor/tensor.h"

#define CHUNK_ELEMENTS ((int64_t)1 << 15)

typedef struct fill_state {
    const ms_tensor *tensor;
    ms_random_key key;
    ms_dtype dtype;
    int64_t local_start; /* of values[0] */
    void *values;
} fill_state;

static inline void store(const fill_state *state, int64_t local_index, double value) {
    int64_t at = local_index - state->local_start;
    if (state->dtype == MS_F64) {
        ((double *)state->values)[at] = value;
    } else {
        ((float *)state->values)[at] = (float)value;
    }
}

static void fill_normal(const fill_state *state, const ms_shard_run *run) {
    double std = state->tensor->init_std;
    int64_t to_local = run->local_start - run->global_start;
    int64_t end = run->global_start + run->count;
    int64_t global = run->global_start;
    double pair[2];
    if (global % 2 != 0) { /* the second half of a pair */
        store(state, to_local + global, ms_random_normal_at(state->key, (uint64_t)global) * std);
        global++;
    }
    for (; global + 1 < end; global += 2) {
        ms_random_normal_pair(ms_random_at(state->key, 0, (uint64_t)global / 2), &pair[0],
                              &pair[1]);
        store(state, to_local + global, pair[0] * std);
        store(state, to_local + global + 1, pair[1] * std);
    }
    if (global < end) {
        store(state, to_local + global, ms_random_normal_at(state->key, (uint64_t)global) * std);
    }
}

static ms_status fill_run(const ms_shard_run *run, void *context) {
    const fill_state *state = context;
    if (state->tensor->initializer == MS_INIT_NORMAL) {
        fill_normal(state, run);
        return MS_OK;
    }
    double value = state->tensor->initializer == MS_INIT_ONE ? 1 : 0;
    for (int64_t i = 0; i < run->count; i++) {
        store(state, run->local_start + i, value);
    }
    return MS_OK;
}

static ms_status check_request(const ms_tensor *tensor, const ms_shard *shard, int64_t local_start,
                               int64_t local_count, ms_dtype dtype) {
    if (dtype != MS_F64 && dtype != MS_F32) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: initial values are fp32 or fp64, not %s",
                       tensor->name, ms_dtype_name(dtype));
    }
    bool same = tensor->rank == shard->rank;
    for (int i = 0; i < tensor->rank && same; i++) {
        same = tensor->dims[i] == shard->global_dims[i];
    }
    if (!same) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: the shard is of a tensor of other dims", tensor->name);
    }
    int64_t elements = ms_shard_elements(shard);
    if (local_start < 0 || local_count < 0 || local_start > elements - local_count) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: elements %" PRId64 "+%" PRId64 " lie outside a shard of %" PRId64,
                       tensor->name, local_start, local_count, elements);
    }
    return MS_OK;
}

ms_status ms_tensor_initialize(const ms_tensor *tensor, const ms_shard *shard, uint64_t seed,
                               int64_t local_start, int64_t local_count, ms_dtype dtype,
                               void *values) {
    MS_TRY(check_request(tensor, shard, local_start, local_count, dtype));
    char stream[MS_TENSOR_NAME_BYTES + 8];
    snprintf(stream, sizeof stream, "init:%s", tensor->name);
    fill_state state = {.tensor = tensor,
                        .key = ms_random_key_make(seed, stream),
                        .dtype = dtype,
                        .local_start = local_start,
                        .values = values};
    int64_t chunks = local_count / CHUNK_ELEMENTS + (local_count % CHUNK_ELEMENTS != 0);
#pragma omp parallel for schedule(dynamic) if (chunks > 1)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t first = chunk * CHUNK_ELEMENTS;
        /* Cannot fail: the range was checked above, and fill_run never does. */
        (void)ms_shard_visit(shard, local_start + first,
                             ms_min_i64(CHUNK_ELEMENTS, local_count - first), fill_run, &state);
    }
    return MS_OK;
}
