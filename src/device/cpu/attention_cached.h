/*
 * attention_cached.h - attention of a sequence's new rows over its cache.
 *
 * Many new rows (a prompt) go through the blocks of attention_forward.h with the cache as keys and
 * values; few rows (generation) would leave most of a block empty, and are done one row and head at
 * a time: scores of all keys, their softmax, and the weighted sum of values, each bound by reading
 * the cache.
 */
#ifndef MS_DEVICE_CPU_ATTENTION_CACHED_H
#define MS_DEVICE_CPU_ATTENTION_CACHED_H

#include "device/cpu/attention_forward.h"

#define ROWS_ONE_BY_ONE 4
#define SUMS 8 /* vectors of the output kept in registers */

/* Floats for one row: q, o, and a score for each row of the cache. */
static int64_t row_floats(const attention_engine *e, int64_t cache_rows) {
    return 2 * e->width + (int64_t)ms_align_up((size_t)cache_rows, 16);
}

/* q . k for one row of the cache. */
V_INLINE float score_key(const float *q, const void *keys, ms_dtype type, int64_t at,
                         int64_t size) {
    v_f32 sum = v_zero();
    for (int64_t d = 0; d < size; d += V_LANES) {
        int count = (int)ms_min_i64(size - d, V_LANES);
        sum = v_fma(v_load(q + d), v_get(keys, type, at + d, count), sum);
    }
    return v_sum(sum);
}

/* o[0 .. width) of SUMS vectors from `from` on: the sum over keys of weight * v. */
V_INLINE void sum_values(const float *weights, const void *values, ms_dtype type, int64_t at,
                         int64_t stride, int64_t keys, int64_t size, int64_t from, float *o) {
    v_f32 sum[SUMS];
    int64_t vectors = ms_min_i64(ms_ceil_div(size - from, V_LANES), SUMS);
    for (int64_t i = 0; i < vectors; i++) {
        sum[i] = v_zero();
    }
    for (int64_t j = 0; j < keys; j++) {
        v_f32 weight = v_set(weights[j]);
        for (int64_t i = 0; i < vectors; i++) {
            int64_t d = from + i * V_LANES;
            int count = (int)ms_min_i64(size - d, V_LANES);
            sum[i] = v_fma(weight, v_get(values, type, at + j * stride + d, count), sum[i]);
        }
    }
    for (int64_t i = 0; i < vectors; i++) {
        v_store(o + from + i * V_LANES, sum[i]);
    }
}

V_INLINE void cached_row(const attention_engine *e, const forward_head *head, int64_t row,
                         ms_dtype type, float *room) {
    int64_t size = e->shape.head_size, keys = head->position + row + 1;
    float *q = room, *o = room + e->width, *scores = room + 2 * e->width;
    widen_row(head->q, type, head->first_q + row * head->row_q, size, q, e->width);
    v_f32 largest = v_set(-INFINITY);
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = score_key(q, head->k, type, head->first_k + j * head->row_kv, size);
    }
    for (int64_t j = 0; j < keys; j += V_LANES) {
        int count = (int)ms_min_i64(keys - j, V_LANES);
        largest = v_max(largest, v_first(v_load_part(scores + j, count), count, -INFINITY));
    }
    float shift = v_largest(largest) * e->log2_scale;
    v_f32 sum = v_zero();
    for (int64_t j = 0; j < keys; j += V_LANES) {
        int count = (int)ms_min_i64(keys - j, V_LANES);
        v_f32 score = v_first(v_load_part(scores + j, count), count, -INFINITY);
        v_f32 p = v_exp2(v_fma(score, v_set(e->log2_scale), v_set(-shift)));
        sum = v_add(sum, p);
        v_store_part(scores + j, count, p);
    }
    float inverse = 1.0f / v_sum(sum);
    for (int64_t from = 0; from < size; from += SUMS * V_LANES) {
        sum_values(scores, head->v, type, head->first_v, head->row_kv, keys, size, from, o);
    }
    for (int64_t d = 0; d < e->width; d += V_LANES) {
        v_store(o + d, v_mul(v_load(o + d), v_set(inverse)));
    }
    narrow_row(o, head->o, type, head->first_o + row * head->row_o, size);
}

static ms_status attention_cached_prepare(ms_device *device, ms_kernel_handle *handle) {
    attention_engine e = make_engine(device, &handle->spec);
    int64_t cache_rows = ms__dim(handle, 3, 0);
    int64_t floats = row_floats(&e, cache_rows);
    if (ms__dim(handle, 0, 0) > ROWS_ONE_BY_ONE) {
        floats = ms_max_i64(floats, lay_out_forward(&e, cache_rows).floats);
    }
    MS_TRY(set_scratch(handle, e.shape.heads * ms_min_i64(ms__dim(handle, 0, 0), ROWS_ONE_BY_ONE),
                       floats));
    return MS_OK;
}

/* Head h of all new rows. */
static forward_head cached_head(const ms_attention_shape *shape, const ms_kernel_run_info *run,
                                int64_t h) {
    int64_t kv = h / shape->group * shape->head_size;
    return (forward_head){
        .q = run->arguments[0],
        .k = run->arguments[3],
        .v = run->arguments[4],
        .first_q = h * shape->head_size,
        .first_k = kv,
        .first_v = kv,
        .row_q = shape->row_q,
        .row_kv = shape->kv_heads * shape->head_size,
        .row_o = shape->row_o,
        .queries = run->extent[0],
        .keys = run->extent[0] + run->extent[1],
        .position = run->extent[1],
        .o = run->arguments[5],
        .first_o = h * shape->head_size,
    };
}

static ms_status attention_cached_run(const ms_kernel_handle *handle,
                                      const ms_kernel_run_info *run) {
    attention_engine e = make_engine(handle->device, &handle->spec);
    e.shape.causal = true; /* as the slot says, whatever the attribute */
    e.shape.drops = false;
    int64_t rows = run->extent[0], heads = e.shape.heads;
    bool one_by_one = rows <= ROWS_ONE_BY_ONE;
    int64_t pieces = one_by_one ? heads * rows : heads;
    float *scratch = run->scratch;
    forward_layout layout = lay_out_forward(&e, rows + run->extent[1]);
    int64_t floats = one_by_one ? row_floats(&e, ms__dim(handle, 3, 0)) : layout.floats;
    ms__attention_cache_write(handle, &e.shape, run);
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        float *room = scratch + omp_get_thread_num() * floats;
        forward_head head = cached_head(&e.shape, run, one_by_one ? i / rows : i);
        if (!one_by_one) {
            forward_whole(&e, &head, &layout, room);
        } else if (e.type == MS_F32) {
            cached_row(&e, &head, i % rows, MS_F32, room);
        } else {
            cached_row(&e, &head, i % rows, MS_BF16, room);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(attention_cached) = {.name = V_NAME,
                                                       .isa = V_ISA,
                                                       .supports = attention_supports,
                                                       .prepare = attention_cached_prepare,
                                                       .run = attention_cached_run};

#endif
