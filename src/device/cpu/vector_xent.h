/*
 * vector_xent.h - softmax cross-entropy over the vector layer.
 *
 * The head's logits are the largest tensor of a step, so each kernel goes through a row once.
 * Stats: blocks of columns that fit the first-level cache are read for their maximum and then for
 * the sum of exponentials; when a block raises the row's maximum the sum so far is scaled down
 * (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"). Gradient: one
 * exponential and one product per logit, the target's element put right afterwards.
 */
#ifndef MS_DEVICE_CPU_VECTOR_XENT_H
#define MS_DEVICE_CPU_VECTOR_XENT_H

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

#define XENT_BLOCK 2048 /* columns */
#define XENT_CHAINS 4

/* A row's statistics while its blocks go by. */
typedef struct xent_row {
    float maximum;
    v_f32 sums[XENT_CHAINS];
} xent_row;

static float xent_block_maximum(const float *logits, int64_t count) {
    v_f32 lowest = v_set(-INFINITY);
    v_f32 chains[XENT_CHAINS] = {lowest, lowest, lowest, lowest};
    int64_t c = 0;
    for (; c + XENT_CHAINS * V_LANES <= count; c += XENT_CHAINS * V_LANES) {
        for (int j = 0; j < XENT_CHAINS; j++) {
            chains[j] = v_max(v_load(logits + c + j * V_LANES), chains[j]);
        }
    }
    for (; c + V_LANES <= count; c += V_LANES) {
        chains[0] = v_max(v_load(logits + c), chains[0]);
    }
    if (c < count) {
        int part = (int)(count - c);
        chains[0] = v_max(v_first(v_load_part(logits + c, part), part, -INFINITY), chains[0]);
    }
    return v_largest(v_max(v_max(chains[0], chains[1]), v_max(chains[2], chains[3])));
}

/* Also asks for the next block, which would else be waited for by the search of its maximum. */
static void xent_block_sums(xent_row *row, const float *logits, int64_t count) {
    /* Before any finite logit the maximum is -infinity: then every exponential is 0 or NaN. */
    v_f32 shift = v_set(row->maximum == -INFINITY ? 0.0f : row->maximum);
    int64_t c = 0;
    for (; c + XENT_CHAINS * V_LANES <= count; c += XENT_CHAINS * V_LANES) {
        for (int j = 0; j < XENT_CHAINS; j++) {
            v_f32 exponential = v_exp_below(v_sub(v_load(logits + c + j * V_LANES), shift));
            row->sums[j] = v_add(row->sums[j], exponential);
            v_prefetch((const char *)(logits + c + j * V_LANES) + sizeof(float[XENT_BLOCK]));
        }
    }
    for (; c + V_LANES <= count; c += V_LANES) {
        row->sums[0] = v_add(row->sums[0], v_exp_below(v_sub(v_load(logits + c), shift)));
    }
    if (c < count) {
        int part = (int)(count - c);
        v_f32 exponential = v_exp_below(v_sub(v_load_part(logits + c, part), shift));
        row->sums[1] = v_add(row->sums[1], v_first(exponential, part, 0.0f));
    }
}

static void xent_block(xent_row *row, const float *logits, int64_t count) {
    float maximum = xent_block_maximum(logits, count);
    if (maximum > row->maximum) {
        v_f32 factor = v_set(expf(row->maximum - maximum));
        for (int j = 0; j < XENT_CHAINS; j++) {
            row->sums[j] = v_mul(row->sums[j], factor);
        }
        row->maximum = maximum;
    }
    xent_block_sums(row, logits, count);
}

/* The column of a row's target, or -1 when it is ignored or belongs to another shard. */
static int64_t xent_target_column(const ms_kernel_handle *handle, int32_t target) {
    int64_t column = (int64_t)target - handle->spec.attributes.xent.first;
    bool here =
        target != MS_IGNORED_TARGET && column >= 0 && column < handle->spec.attributes.xent.valid;
    return here ? column : -1;
}

static void xent_stats_row(const float *logits, int64_t valid, int64_t target, float *stats) {
    xent_row row = {.maximum = -INFINITY, .sums = {v_zero(), v_zero(), v_zero(), v_zero()}};
    for (int64_t c = 0; c < valid; c += XENT_BLOCK) {
        xent_block(&row, logits + c, ms_min_i64(XENT_BLOCK, valid - c));
    }
    float sum = v_sum(v_add(v_add(row.sums[0], row.sums[1]), v_add(row.sums[2], row.sums[3])));
    stats[0] = row.maximum;
    stats[1] = row.maximum == -INFINITY && valid > 0 ? NAN : sum;
    stats[2] = target >= 0 ? logits[target] : 0.0f;
}

static ms_status xent_stats_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    const float *logits = run->arguments[0];
    const int32_t *targets = run->arguments[1];
    float *stats = run->arguments[2];
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        xent_stats_row(logits + n * columns, handle->spec.attributes.xent.valid,
                       xent_target_column(handle, targets[n]), stats + 3 * n);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(xent_stats) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = xent_stats_run};

/* The stats of all shards of one row, combined in shard order. */
typedef struct xent_total {
    double maximum, sum, target_logit;
} xent_total;

static xent_total xent_combine(const float *stats, int64_t shards, int64_t rows, int64_t n) {
    xent_total total = {.maximum = -(double)INFINITY, .sum = 0.0, .target_logit = 0.0};
    for (int64_t p = 0; p < shards; p++) {
        double maximum = (double)stats[3 * (p * rows + n)];
        total.maximum = maximum > total.maximum ? maximum : total.maximum;
    }
    for (int64_t p = 0; p < shards; p++) {
        const float *shard = stats + 3 * (p * rows + n);
        total.sum += (double)shard[1] * exp((double)shard[0] - total.maximum);
        total.target_logit += (double)shard[2];
    }
    return total;
}

/* exp(logit - maximum) * factor; the sum is in the factor. */
V_INLINE void xent_grad_columns(const float *logits, void *out, ms_dtype type, int64_t at,
                                int64_t valid, float maximum, float factor) {
    int64_t c = 0;
    for (; c + V_LANES <= valid; c += V_LANES) {
        v_f32 exponential = v_exp_below(v_sub(v_load(logits + c), v_set(maximum)));
        v_put(out, type, at + c, V_LANES, v_mul(exponential, v_set(factor)));
        v_ahead(logits, MS_F32, c);
        if (type != MS_F32) { /* else mostly logits themselves */
            v_ahead(out, type, at + c);
        }
    }
    if (c < valid) {
        int part = (int)(valid - c);
        v_f32 exponential = v_exp_below(v_sub(v_load_part(logits + c, part), v_set(maximum)));
        v_put(out, type, at + c, part, v_mul(exponential, v_set(factor)));
    }
}

static void xent_store(void *out, ms_dtype type, int64_t at, float value) {
    if (type == MS_F32) {
        ((float *)out)[at] = value;
    } else {
        ((uint16_t *)out)[at] = ms_f32_to_bf16(value);
    }
}

static void xent_grad_row(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                          const xent_total *total, int64_t n, double scale) {
    int64_t columns = ms__dim(handle, 0, 1);
    int64_t valid = handle->spec.attributes.xent.valid;
    int64_t at = n * columns;
    const float *logits = (const float *)run->arguments[0] + at;
    int32_t target = ((const int32_t *)run->arguments[1])[n];
    ms_dtype type = ms__dtype(handle, 4);
    void *out = run->arguments[4];
    uint8_t *bytes = out;
    size_t element = type == MS_F32 ? sizeof(float) : sizeof(uint16_t);
    if (target == MS_IGNORED_TARGET) {
        memset(bytes + (size_t)at * element, 0, (size_t)columns * element);
        return;
    }
    int64_t column = xent_target_column(handle, target);
    /* Before the loop, as out may be logits. */
    double logit = column >= 0 ? (double)logits[column] : 0.0;
    float factor = (float)(scale / total->sum);
    if (type == MS_F32) {
        xent_grad_columns(logits, out, MS_F32, at, valid, (float)total->maximum, factor);
    } else {
        xent_grad_columns(logits, out, MS_BF16, at, valid, (float)total->maximum, factor);
    }
    if (column >= 0) {
        double share = exp(logit - total->maximum) / total->sum;
        xent_store(out, type, at + column, (float)((share - 1.0) * scale));
    }
    memset(bytes + (size_t)(at + valid) * element, 0, (size_t)(columns - valid) * element);
}

static ms_status xent_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    const int32_t *targets = run->arguments[1];
    double scale = *(const double *)run->arguments[3];
    float *loss = run->arguments[5];
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        xent_total total = xent_combine(run->arguments[2], ms__dim(handle, 2, 0), rows, n);
        double value = log(total.sum) + total.maximum - total.target_logit;
        loss[n] = targets[n] == MS_IGNORED_TARGET ? 0.0f : (float)value;
        if (run->arguments[4] != NULL) {
            xent_grad_row(handle, run, &total, n, scale);
        }
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(xent_grad) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = xent_grad_run};

#endif
