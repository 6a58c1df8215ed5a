/*
 * vector_elementwise.h - flat additions, casts, and sums to one number, over the vector layer.
 *
 * All are bound by memory. Sums are taken in fp64 over blocks of MS_NORM_BLOCK elements, each block
 * in one fixed order and by one thread; SUM adds its blocks up in order afterwards.
 */
#ifndef MS_DEVICE_CPU_VECTOR_ELEMENTWISE_H
#define MS_DEVICE_CPU_VECTOR_ELEMENTWISE_H

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

V_INLINE void add_step(void *const *arguments, ms_dtype type, int64_t at, int count) {
    v_ahead(arguments[0], type, at);
    v_ahead(arguments[1], type, at);
    v_ahead(arguments[2], type, at);
    v_f32 a = v_get(arguments[0], type, at, count);
    v_f32 b = v_get(arguments[1], type, at, count);
    v_put(arguments[2], type, at, count, v_add(a, b));
}

V_INLINE void add_piece(void *const *arguments, ms_dtype type, int64_t first, int64_t last) {
    int64_t i = first;
    for (; i + V_LANES <= last; i += V_LANES) {
        add_step(arguments, type, i, V_LANES);
    }
    if (i < last) {
        add_step(arguments, type, i, (int)(last - i));
    }
}

static ms_status add_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    ms_dtype type = ms__dtype(handle, 0);
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
        int64_t last = ms_min_i64((piece + 1) * V_PIECE, elements);
        if (type == MS_F32) {
            add_piece(run->arguments, MS_F32, piece * V_PIECE, last);
        } else {
            add_piece(run->arguments, MS_BF16, piece * V_PIECE, last);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(add) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = add_run};

static bool cast_is_served(const ms_device *device, const ms_kernel_spec *spec) {
    (void)device;
    ms_dtype from = spec->arguments[0].dtype;
    ms_dtype to = spec->arguments[1].dtype;
    return from != to && v_type_is_served(from) && v_type_is_served(to);
}

V_INLINE void cast_piece(void *const *arguments, ms_dtype from, ms_dtype to, int64_t first,
                         int64_t last) {
    int64_t i = first;
    for (; i + V_LANES <= last; i += V_LANES) {
        v_ahead(arguments[0], from, i);
        v_ahead(arguments[1], to, i);
        v_put(arguments[1], to, i, V_LANES, v_get(arguments[0], from, i, V_LANES));
    }
    if (i < last) {
        int count = (int)(last - i);
        v_put(arguments[1], to, i, count, v_get(arguments[0], from, i, count));
    }
}

static ms_status cast_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    ms_dtype from = ms__dtype(handle, 0);
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
        int64_t last = ms_min_i64((piece + 1) * V_PIECE, elements);
        if (from == MS_F32) {
            cast_piece(run->arguments, MS_F32, MS_BF16, piece * V_PIECE, last);
        } else {
            cast_piece(run->arguments, MS_BF16, MS_F32, piece * V_PIECE, last);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(cast) = {
    .name = V_NAME, .isa = V_ISA, .supports = cast_is_served, .run = cast_run};

/* One vector's share of a block's sum, in two chains. */
V_INLINE void block_sum_step(const float *x, int64_t at, int count, bool squares, v_f64 *low,
                             v_f64 *high) {
    v_f32 value = v_get(x, MS_F32, at, count);
    v_f64 first = v_low_f64(value);
    v_f64 second = v_high_f64(value);
    *low = squares ? v_fma_f64(first, first, *low) : v_add_f64(first, *low);
    *high = squares ? v_fma_f64(second, second, *high) : v_add_f64(second, *high);
}

/* The sum of (squares of) the elements of one block. */
V_INLINE double block_sum(const float *x, int64_t count, bool squares) {
    v_f64 low[2] = {v_zero_f64(), v_zero_f64()};
    v_f64 high[2] = {v_zero_f64(), v_zero_f64()};
    int64_t i = 0;
    for (; i + 2 * V_LANES <= count; i += 2 * V_LANES) {
        v_ahead(x, MS_F32, i);
        v_ahead(x, MS_F32, i + V_LANES);
        block_sum_step(x, i, V_LANES, squares, &low[0], &high[0]);
        block_sum_step(x, i + V_LANES, V_LANES, squares, &low[1], &high[1]);
    }
    for (; i < count; i += V_LANES) {
        block_sum_step(x, i, (int)ms_min_i64(V_LANES, count - i), squares, &low[0], &high[0]);
    }
    return v_sum_f64(v_add_f64(v_add_f64(low[0], low[1]), v_add_f64(high[0], high[1])));
}

static ms_status sum_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    handle->needs.scratch_bytes = (size_t)ms_ceil_div(elements, MS_NORM_BLOCK) * sizeof(double);
    return MS_OK;
}

static ms_status sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    int64_t blocks = ms_ceil_div(elements, MS_NORM_BLOCK);
    const float *x = run->arguments[0];
    double *total = run->arguments[1];
    double *partial = run->scratch;
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * MS_NORM_BLOCK;
        partial[block] = block_sum(x + first, ms_min_i64(MS_NORM_BLOCK, elements - first), false);
    }
    double sum = 0.0;
    for (int64_t block = 0; block < blocks; block++) {
        sum += partial[block];
    }
    *total = run->accumulate ? *total + sum : sum;
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(sum) = {.name = V_NAME,
                                          .isa = V_ISA,
                                          .supports = v_first_is_served,
                                          .prepare = sum_prepare,
                                          .run = sum_run};

static ms_status square_sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    const float *x = run->arguments[0];
    double *partial = run->arguments[1];
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t block = 0; block < ms_ceil_div(elements, MS_NORM_BLOCK); block++) {
        int64_t first = block * MS_NORM_BLOCK;
        partial[block] = block_sum(x + first, ms_min_i64(MS_NORM_BLOCK, elements - first), true);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(square_sum) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = square_sum_run};

#endif
