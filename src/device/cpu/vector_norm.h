/*
 * vector_norm.h - layer and RMS norm with their gradients, and sums over rows, over the vector
 * layer.
 *
 * A row is worked on while it lies in the first-level cache: sum and mean, variance, result. Sums
 * over rows (gradients of weights and biases) go down strips of columns: each strip's sums stay in
 * cache over blocks of rows, and a column's order of additions depends on the number of rows only,
 * never on the strip or the thread. Rejected: partial sums per thread, as their number would show
 * in the bits.
 */
#ifndef MS_DEVICE_CPU_VECTOR_NORM_H
#define MS_DEVICE_CPU_VECTOR_NORM_H

#include <math.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

#define NORM_CHAINS 4 /* independent sums, to hide the latency of additions */
#define STRIP_COLUMNS_MAX 1024
#define STRIP_ROWS 256 /* rows added up before they join the column's total */

/* x, or x + delta as stored in sum. */
V_INLINE v_f32 norm_sum_step(void *const *arguments, ms_dtype type, int64_t at, int count) {
    v_f32 x = v_get(arguments[0], type, at, count);
    if (arguments[4] == NULL) {
        return x;
    }
    x = v_round_to(type, v_add(x, v_get(arguments[1], type, at, count)));
    v_put(arguments[4], type, at, count, x);
    return x;
}

V_INLINE v_f32 norm_chains_total(const v_f32 *chains) {
    return v_add(v_add(chains[0], chains[1]), v_add(chains[2], chains[3]));
}

/* Writes the row of sum; returns the sum of its elements. */
V_INLINE float norm_sum_row(void *const *arguments, ms_dtype type, int64_t at, int64_t columns) {
    v_f32 chains[NORM_CHAINS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t c = 0;
    for (; c + NORM_CHAINS * V_LANES <= columns; c += NORM_CHAINS * V_LANES) {
        for (int j = 0; j < NORM_CHAINS; j++) {
            chains[j] =
                v_add(chains[j], norm_sum_step(arguments, type, at + c + j * V_LANES, V_LANES));
        }
    }
    for (; c + V_LANES <= columns; c += V_LANES) {
        chains[0] = v_add(chains[0], norm_sum_step(arguments, type, at + c, V_LANES));
    }
    if (c < columns) {
        chains[1] = v_add(chains[1], norm_sum_step(arguments, type, at + c, (int)(columns - c)));
    }
    return v_sum(norm_chains_total(chains));
}

V_INLINE v_f32 norm_square_step(const void *in, ms_dtype type, v_f32 mean, int64_t at, v_f32 sum) {
    v_f32 centred = v_sub(v_get(in, type, at, V_LANES), mean);
    return v_fma(centred, centred, sum);
}

/* Sum of (in - mean)^2 over a row. */
V_INLINE float norm_square_row(const void *in, ms_dtype type, float mean_value, int64_t at,
                               int64_t columns) {
    v_f32 mean = v_set(mean_value);
    v_f32 chains[NORM_CHAINS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t c = 0;
    for (; c + NORM_CHAINS * V_LANES <= columns; c += NORM_CHAINS * V_LANES) {
        for (int j = 0; j < NORM_CHAINS; j++) {
            chains[j] = norm_square_step(in, type, mean, at + c + j * V_LANES, chains[j]);
        }
    }
    for (; c + V_LANES <= columns; c += V_LANES) {
        chains[0] = norm_square_step(in, type, mean, at + c, chains[0]);
    }
    if (c < columns) {
        int count = (int)(columns - c);
        v_f32 centred = v_sub(v_get(in, type, at + c, count), mean);
        centred = v_first(centred, count, 0.0f);
        chains[1] = v_fma(centred, centred, chains[1]);
    }
    return v_sum(norm_chains_total(chains));
}

V_INLINE void norm_result_step(void *const *arguments, const void *in, ms_dtype type, v_f32 mean,
                               v_f32 inverse, int64_t at, int64_t c, int count) {
    v_f32 value = v_mul(v_sub(v_get(in, type, at + c, count), mean), inverse);
    v_f32 weight = v_get(arguments[2], MS_F32, c, count);
    v_f32 bias = arguments[3] != NULL ? v_get(arguments[3], MS_F32, c, count) : v_zero();
    v_put(arguments[5], type, at + c, count, v_fma(value, weight, bias));
}

V_INLINE void norm_row(void *const *arguments, ms_dtype type, int64_t n, int64_t columns, bool rms,
                       double epsilon) {
    int64_t at = n * columns;
    float sum = norm_sum_row(arguments, type, at, columns);
    float mean = rms ? 0.0f : (float)((double)sum / (double)columns);
    const void *in = arguments[4] != NULL ? arguments[4] : arguments[0];
    float square = norm_square_row(in, type, mean, at, columns);
    float inverse = (float)(1.0 / sqrt((double)square / (double)columns + epsilon));
    int64_t c = 0;
    for (; c + V_LANES <= columns; c += V_LANES) {
        norm_result_step(arguments, in, type, v_set(mean), v_set(inverse), at, c, V_LANES);
    }
    if (c < columns) {
        norm_result_step(arguments, in, type, v_set(mean), v_set(inverse), at, c,
                         (int)(columns - c));
    }
    float *stats = (float *)arguments[6] + 2 * n;
    stats[0] = mean;
    stats[1] = inverse;
}

static ms_status norm_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype type = ms__dtype(handle, 0);
    bool rms = handle->spec.attributes.norm.rms;
    double epsilon = handle->spec.attributes.norm.epsilon;
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        if (type == MS_F32) {
            norm_row(run->arguments, MS_F32, n, columns, rms, epsilon);
        } else {
            norm_row(run->arguments, MS_BF16, n, columns, rms, epsilon);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(norm) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = norm_run};

/* One row's constants in the gradient of its norm. */
typedef struct norm_moments {
    v_f32 mean, inverse;
    v_f32 mean_g, mean_gn; /* of g = dy w and of g n, see ref_norm.c */
} norm_moments;

V_INLINE void norm_moments_step(void *const *arguments, ms_dtype type, const norm_moments *row,
                                int64_t at, int64_t c, int count, v_f32 *sum_g, v_f32 *sum_gn) {
    v_f32 g =
        v_mul(v_get(arguments[0], type, at + c, count), v_get(arguments[2], MS_F32, c, count));
    v_f32 normal = v_mul(v_sub(v_get(arguments[1], type, at + c, count), row->mean), row->inverse);
    *sum_g = v_add(*sum_g, g);
    *sum_gn = v_fma(g, normal, *sum_gn);
}

V_INLINE void norm_input_grad_step(void *const *arguments, ms_dtype type, const norm_moments *row,
                                   int64_t at, int64_t c, int count) {
    v_f32 g =
        v_mul(v_get(arguments[0], type, at + c, count), v_get(arguments[2], MS_F32, c, count));
    v_f32 normal = v_mul(v_sub(v_get(arguments[1], type, at + c, count), row->mean), row->inverse);
    v_f32 value = v_fnma(normal, row->mean_gn, v_sub(g, row->mean_g));
    v_f32 residual = arguments[4] != NULL ? v_get(arguments[4], type, at + c, count) : v_zero();
    v_put(arguments[5], type, at + c, count, v_fma(value, row->inverse, residual));
}

V_INLINE void norm_input_grad_row(void *const *arguments, ms_dtype type, int64_t n, int64_t columns,
                                  bool rms) {
    int64_t at = n * columns;
    const float *stats = (const float *)arguments[3] + 2 * n;
    norm_moments row = {.mean = v_set(rms ? 0.0f : stats[0]), .inverse = v_set(stats[1])};
    v_f32 sum_g[2] = {v_zero(), v_zero()};
    v_f32 sum_gn[2] = {v_zero(), v_zero()};
    int64_t c = 0;
    for (; c + 2 * V_LANES <= columns; c += 2 * V_LANES) {
        norm_moments_step(arguments, type, &row, at, c, V_LANES, &sum_g[0], &sum_gn[0]);
        norm_moments_step(arguments, type, &row, at, c + V_LANES, V_LANES, &sum_g[1], &sum_gn[1]);
    }
    if (c + V_LANES <= columns) {
        norm_moments_step(arguments, type, &row, at, c, V_LANES, &sum_g[0], &sum_gn[0]);
        c += V_LANES;
    }
    if (c < columns) {
        norm_moments_step(arguments, type, &row, at, c, (int)(columns - c), &sum_g[1], &sum_gn[1]);
    }
    float scale = 1.0f / (float)columns;
    row.mean_g = v_set(rms ? 0.0f : v_sum(v_add(sum_g[0], sum_g[1])) * scale);
    row.mean_gn = v_set(v_sum(v_add(sum_gn[0], sum_gn[1])) * scale);
    for (c = 0; c + V_LANES <= columns; c += V_LANES) {
        norm_input_grad_step(arguments, type, &row, at, c, V_LANES);
    }
    if (c < columns) {
        norm_input_grad_step(arguments, type, &row, at, c, (int)(columns - c));
    }
}

static ms_status norm_input_grad_run(const ms_kernel_handle *handle,
                                     const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype type = ms__dtype(handle, 0);
    bool rms = handle->spec.attributes.norm.rms;
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        if (type == MS_F32) {
            norm_input_grad_row(run->arguments, MS_F32, n, columns, rms);
        } else {
            norm_input_grad_row(run->arguments, MS_BF16, n, columns, rms);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(norm_input_grad) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = norm_input_grad_run};

/* A strip of columns [first, first + width) of [rows, columns] tensors. */
typedef struct column_strip {
    int64_t rows, columns, first, width;
    bool accumulate;
} column_strip;

/* Width of the strips for a team: any, as it does not show in the bits. */
static int64_t strip_width(int64_t columns, int team) {
    int64_t width = (ms_ceil_div(columns, team) + V_LANES - 1) / V_LANES * V_LANES;
    return width < STRIP_COLUMNS_MAX ? width : STRIP_COLUMNS_MAX;
}

static column_strip strip_at(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                             int64_t index, int64_t width) {
    int64_t columns = ms__dim(handle, 0, 1);
    int64_t first = index * width;
    return (column_strip){.rows = ms__dim(handle, 0, 0),
                          .columns = columns,
                          .first = first,
                          .width = ms_min_i64(width, columns - first),
                          .accumulate = run->accumulate};
}

/* total (+)= sums over a strip; `fresh` when the total holds nothing yet. */
static void strip_flush(const column_strip *strip, float *total, const float *sums, bool fresh) {
    for (int64_t c = 0; c < strip->width; c++) {
        total[strip->first + c] = fresh ? sums[c] : total[strip->first + c] + sums[c];
    }
}

/* sums[c] += eight rows from `at` on, in pairs. */
V_INLINE void column_eight_step(const void *in, ms_dtype type, const column_strip *strip,
                                int64_t at, int64_t c, int count, float *sums) {
    v_f32 row[8];
    for (int j = 0; j < 8; j++) {
        row[j] = v_get(in, type, at + j * strip->columns + c, count);
    }
    v_f32 low = v_add(v_add(row[0], row[1]), v_add(row[2], row[3]));
    v_f32 high = v_add(v_add(row[4], row[5]), v_add(row[6], row[7]));
    v_store(sums + c, v_add(v_load(sums + c), v_add(low, high)));
}

V_INLINE void column_one_step(const void *in, ms_dtype type, int64_t at, int64_t c, int count,
                              float *sums) {
    v_store(sums + c, v_add(v_load(sums + c), v_get(in, type, at + c, count)));
}

V_INLINE void column_block(const void *in, ms_dtype type, const column_strip *strip, int64_t first,
                           int64_t last, float *sums) {
    int64_t width = strip->width;
    int64_t n = first;
    for (; n + 8 <= last; n += 8) {
        int64_t at = n * strip->columns + strip->first;
        int64_t c = 0;
        for (; c + V_LANES <= width; c += V_LANES) {
            column_eight_step(in, type, strip, at, c, V_LANES, sums);
        }
        if (c < width) {
            column_eight_step(in, type, strip, at, c, (int)(width - c), sums);
        }
    }
    for (; n < last; n++) {
        int64_t at = n * strip->columns + strip->first;
        int64_t c = 0;
        for (; c + V_LANES <= width; c += V_LANES) {
            column_one_step(in, type, at, c, V_LANES, sums);
        }
        if (c < width) {
            column_one_step(in, type, at, c, (int)(width - c), sums);
        }
    }
}

static void column_sum_strip(const void *in, ms_dtype type, const column_strip *strip, float *out) {
    for (int64_t first = 0; first < strip->rows; first += STRIP_ROWS) {
        float sums[STRIP_COLUMNS_MAX] = {0};
        int64_t last = ms_min_i64(first + STRIP_ROWS, strip->rows);
        if (type == MS_F32) {
            column_block(in, MS_F32, strip, first, last, sums);
        } else {
            column_block(in, MS_BF16, strip, first, last, sums);
        }
        strip_flush(strip, out, sums, first == 0 && !strip->accumulate);
    }
}

static ms_status column_sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t columns = ms__dim(handle, 0, 1);
    int team = v_team(handle, ms__dim(handle, 0, 0) * columns);
    int64_t width = strip_width(columns, team);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < ms_ceil_div(columns, width); i++) {
        column_strip strip = strip_at(handle, run, i, width);
        column_sum_strip(run->arguments[0], ms__dtype(handle, 0), &strip, run->arguments[1]);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(column_sum) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = column_sum_run};

/* Some rows' share of a norm's gradients of weight and bias, added up before it joins the sums. */
V_INLINE void weight_grad_step(void *const *arguments, ms_dtype type, const column_strip *strip,
                               int64_t n, int rows, int64_t c, int count, float *weight_sums,
                               float *bias_sums, bool rms) {
    v_f32 weight = v_zero();
    v_f32 bias = v_zero();
    const float *stats = (const float *)arguments[2] + 2 * n;
    for (int j = 0; j < rows; j++) {
        int64_t at = (n + j) * strip->columns + strip->first + c;
        v_f32 dy = v_get(arguments[0], type, at, count);
        v_f32 x = v_get(arguments[1], type, at, count);
        v_f32 normal = v_mul(v_sub(x, v_set(rms ? 0.0f : stats[2 * j])), v_set(stats[2 * j + 1]));
        weight = v_fma(dy, normal, weight);
        bias = v_add(bias, dy);
    }
    v_store(weight_sums + c, v_add(v_load(weight_sums + c), weight));
    v_store(bias_sums + c, v_add(v_load(bias_sums + c), bias));
}

V_INLINE void weight_grad_rows(void *const *arguments, ms_dtype type, const column_strip *strip,
                               int64_t n, int rows, float *weight_sums, float *bias_sums,
                               bool rms) {
    int64_t c = 0;
    for (; c + V_LANES <= strip->width; c += V_LANES) {
        weight_grad_step(arguments, type, strip, n, rows, c, V_LANES, weight_sums, bias_sums, rms);
    }
    if (c < strip->width) {
        weight_grad_step(arguments, type, strip, n, rows, c, (int)(strip->width - c), weight_sums,
                         bias_sums, rms);
    }
}

V_INLINE void weight_grad_strip(void *const *arguments, ms_dtype type, const column_strip *strip,
                                bool rms) {
    for (int64_t first = 0; first < strip->rows; first += STRIP_ROWS) {
        float weight_sums[STRIP_COLUMNS_MAX] = {0};
        float bias_sums[STRIP_COLUMNS_MAX] = {0};
        int64_t last = ms_min_i64(first + STRIP_ROWS, strip->rows);
        int64_t n = first;
        for (; n + 4 <= last; n += 4) {
            weight_grad_rows(arguments, type, strip, n, 4, weight_sums, bias_sums, rms);
        }
        for (; n < last; n++) {
            weight_grad_rows(arguments, type, strip, n, 1, weight_sums, bias_sums, rms);
        }
        bool fresh = first == 0 && !strip->accumulate;
        strip_flush(strip, arguments[3], weight_sums, fresh);
        if (arguments[4] != NULL) {
            strip_flush(strip, arguments[4], bias_sums, fresh);
        }
    }
}

static ms_status norm_weight_grad_run(const ms_kernel_handle *handle,
                                      const ms_kernel_run_info *run) {
    int64_t columns = ms__dim(handle, 0, 1);
    int team = v_team(handle, ms__dim(handle, 0, 0) * columns);
    int64_t width = strip_width(columns, team);
    bool rms = handle->spec.attributes.norm.rms;
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < ms_ceil_div(columns, width); i++) {
        column_strip strip = strip_at(handle, run, i, width);
        if (ms__dtype(handle, 0) == MS_F32) {
            weight_grad_strip(run->arguments, MS_F32, &strip, rms);
        } else {
            weight_grad_strip(run->arguments, MS_BF16, &strip, rms);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(norm_weight_grad) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = norm_weight_grad_run};

#endif
