/*
 * initialize.c - the first values of a logical tensor: element i of the stream (seed, "init:" + name),
 * whoever holds it. Normal numbers come in pairs (Box-Muller); a pair is computed once where both of its
 * elements are wanted.
 */
#include <stdio.h>

#include "base/random.h"
#include "tensor/tensor.h"

typedef struct fill_state {
    const ms_tensor *tensor;
    ms_random_key key;
    ms_dtype dtype;
    int64_t local_start;
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
    int64_t first_pair = run->global_start / 2;
    int64_t last_pair = (run->global_start + run->count - 1) / 2;
    double std = state->tensor->init_std;
    int64_t base = run->local_start - run->global_start;
    int64_t end = run->global_start + run->count;
#pragma omp parallel for schedule(static)
    for (int64_t pair = first_pair; pair <= last_pair; pair++) {
        double values[2];
        ms_random_normal_pair(ms_random_at(state->key, 0, (uint64_t)pair), &values[0], &values[1]);
        for (int64_t half = 0; half < 2; half++) {
            int64_t global = 2 * pair + half;
            if (global >= run->global_start && global < end) {
                store(state, base + global, values[half] * std);
            }
        }
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

ms_status ms_tensor_initialize(const ms_tensor *tensor, const ms_shard *shard, uint64_t seed,
                               int64_t local_start, int64_t local_count, ms_dtype dtype,
                               void *values) {
    if (dtype != MS_F64 && dtype != MS_F32) {
        return ms_fail(MS_ERR_UNSUPPORTED, "initial values are fp32 or fp64, not %s",
                       ms_dtype_name(dtype));
    }
    char stream[MS_TENSOR_NAME_BYTES + 8];
    snprintf(stream, sizeof stream, "init:%s", tensor->name);
    fill_state state = {.tensor = tensor, .key = ms_random_key_make(seed, stream),
                        .dtype = dtype, .local_start = local_start, .values = values};
    return ms_shard_visit(shard, local_start, local_count, fill_run, &state);
}
