/*
 * vector_embedding.h - rows of a table by id, its gradient, and rotary embedding, over the vector
 * layer.
 *
 * The gradient of the table is shared out by columns, not by rows: each thread goes through all ids
 * in order over its own columns, so equal ids are added in row order and no two threads meet.
 */
#ifndef MS_DEVICE_CPU_VECTOR_EMBEDDING_H
#define MS_DEVICE_CPU_VECTOR_EMBEDDING_H

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/rope_table.h"

/* entry < 0: zeros in place of a row of the table */
V_INLINE void embedding_step(void *const *arguments, ms_dtype type, int64_t from, int64_t at,
                             int count) {
    v_f32 value = from >= 0 ? v_get(arguments[1], type, from, count) : v_zero();
    if (arguments[2] != NULL) {
        value = v_add(value, v_get(arguments[2], type, at, count));
    }
    v_put(arguments[3], type, at, count, value);
}

V_INLINE void embedding_row(void *const *arguments, ms_dtype type, int64_t entry, int64_t n,
                            int64_t columns) {
    int64_t c = 0;
    for (; c + V_LANES <= columns; c += V_LANES) {
        int64_t from = entry >= 0 ? entry * columns + c : -1;
        embedding_step(arguments, type, from, n * columns + c, V_LANES);
    }
    if (c < columns) {
        int64_t from = entry >= 0 ? entry * columns + c : -1;
        embedding_step(arguments, type, from, n * columns + c, (int)(columns - c));
    }
}

/* The table's row of an id, or -1 when another shard has it. */
V_INLINE int64_t embedding_entry(int32_t id, int64_t first, int64_t entries) {
    int64_t entry = (int64_t)id - first;
    return entry >= 0 && entry < entries ? entry : -1;
}

static ms_status embedding_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t entries = ms__dim(handle, 1, 0);
    int64_t columns = ms__dim(handle, 1, 1);
    ms_dtype type = ms__dtype(handle, 1);
    const int32_t *ids = run->arguments[0];
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        int64_t entry = embedding_entry(ids[n], handle->spec.attributes.embedding.first, entries);
        if (type == MS_F32) {
            embedding_row(run->arguments, MS_F32, entry, n, columns);
        } else {
            embedding_row(run->arguments, MS_BF16, entry, n, columns);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(embedding) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_second_is_served, .run = embedding_run};

V_INLINE void embedding_grad_row(const void *dy, ms_dtype type, int64_t at, float *row,
                                 int64_t width) {
    int64_t c = 0;
    for (; c + V_LANES <= width; c += V_LANES) {
        v_store(row + c, v_add(v_load(row + c), v_get(dy, type, at + c, V_LANES)));
    }
    if (c < width) {
        int count = (int)(width - c);
        v_f32 value = v_add(v_load_part(row + c, count), v_get(dy, type, at + c, count));
        v_store_part(row + c, count, value);
    }
}

static void embedding_grad_columns(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                                   int64_t first, int64_t width) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t entries = ms__dim(handle, 2, 0);
    int64_t columns = ms__dim(handle, 2, 1);
    const int32_t *ids = run->arguments[0];
    float *table = run->arguments[2];
    for (int64_t n = 0; n < rows; n++) {
        int64_t entry = embedding_entry(ids[n], handle->spec.attributes.embedding.first, entries);
        int64_t at = n * columns + first;
        if (entry < 0) {
            continue;
        }
        if (ms__dtype(handle, 1) == MS_F32) {
            embedding_grad_row(run->arguments[1], MS_F32, at, table + entry * columns + first,
                               width);
        } else {
            embedding_grad_row(run->arguments[1], MS_BF16, at, table + entry * columns + first,
                               width);
        }
    }
}

static ms_status embedding_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t columns = ms__dim(handle, 2, 1);
    int64_t elements = ms__dim(handle, 2, 0) * columns;
    int team = v_team(handle, ms__dim(handle, 0, 0) * columns);
    float *table = run->arguments[2];
    if (!run->accumulate) {
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
        for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
            int64_t count = ms_min_i64(V_PIECE, elements - piece * V_PIECE);
            memset(table + piece * V_PIECE, 0, (size_t)count * sizeof *table);
        }
    }
    int64_t width = (ms_ceil_div(columns, team) + V_LANES - 1) / V_LANES * V_LANES;
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < ms_ceil_div(columns, width); i++) {
        embedding_grad_columns(handle, run, i * width, ms_min_i64(width, columns - i * width));
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(embedding_grad) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_second_is_served, .run = embedding_grad_run};

static ms_status rope_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    MS_TRY(ms__rope_prepare(handle, MS_F32));
    return MS_OK;
}

V_INLINE void rope_step(void *const *arguments, ms_dtype type, const float *cosines, int64_t half,
                        int64_t at, int64_t i, int count) {
    v_f32 low = v_get(arguments[0], type, at + i, count);
    v_f32 high = v_get(arguments[0], type, at + half + i, count);
    v_f32 cosine = v_get(cosines, MS_F32, i, count);
    v_f32 sine = v_get(cosines, MS_F32, half + i, count);
    v_put(arguments[2], type, at + i, count, v_fnma(high, sine, v_mul(low, cosine)));
    v_put(arguments[2], type, at + half + i, count, v_fma(low, sine, v_mul(high, cosine)));
}

V_INLINE void rope_row(void *const *arguments, ms_dtype type, const float *cosines, int64_t heads,
                       int64_t size, int64_t n) {
    int64_t half = size / 2;
    for (int64_t h = 0; h < heads; h++) {
        int64_t at = (n * heads + h) * size;
        int64_t i = 0;
        for (; i + V_LANES <= half; i += V_LANES) {
            rope_step(arguments, type, cosines, half, at, i, V_LANES);
        }
        if (i < half) {
            rope_step(arguments, type, cosines, half, at, i, (int)(half - i));
        }
    }
}

static ms_status rope_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const int32_t *positions = run->arguments[1];
    MS_TRY(ms__rope_check_positions(handle, positions));
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t heads = handle->spec.attributes.rope.heads;
    int64_t size = handle->spec.attributes.rope.head_size;
    ms_dtype type = ms__dtype(handle, 0);
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *heads *size))
    for (int64_t n = 0; n < rows; n++) {
        const float *cosines = (const float *)handle->state + positions[n] * size;
        if (type == MS_F32) {
            rope_row(run->arguments, MS_F32, cosines, heads, size, n);
        } else {
            rope_row(run->arguments, MS_BF16, cosines, heads, size, n);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(rope) = {.name = V_NAME,
                                           .isa = V_ISA,
                                           .supports = v_first_is_served,
                                           .prepare = rope_prepare,
                                           .run = rope_run};

#endif
