/*
 * vector_optimizer.h - AdamW and SGD over flat ranges, over the vector layer.
 *
 * One pass, bound by memory: w, grad, m, v in and w, m, v (and the bf16 copy) out. The new weight
 * is w - (lr decay w + step) and not w (1 - lr decay) - step, as 1 - lr decay would be rounded to
 * fp32.
 *
 * The moments of a weight without gradients (a rare token's row of an embedding) decay until they
 * stick at the smallest denormals, where every operation takes the processor 50 times as long. So
 * states below the normal range, 1.2e-38, count as 0 here.
 */
#ifndef MS_DEVICE_CPU_VECTOR_OPTIMIZER_H
#define MS_DEVICE_CPU_VECTOR_OPTIMIZER_H

#include <math.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

typedef struct adamw_constants {
    v_f32 grad_scale, beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    v_f32 rate;                                   /* lr / (1 - beta1^t) */
    v_f32 correction2;                            /* 1 / (1 - beta2^t) */
    v_f32 epsilon, decay;                         /* decay = lr * weight decay */
} adamw_constants;

static adamw_constants adamw_constants_of(const double *hyper) {
    double beta1 = hyper[MS_HYPER_BETA1];
    double beta2 = hyper[MS_HYPER_BETA2];
    double rate = hyper[MS_HYPER_LEARNING_RATE];
    double step = hyper[MS_HYPER_STEP];
    return (adamw_constants){
        .grad_scale = v_set((float)hyper[MS_HYPER_GRADIENT_SCALE]),
        .beta1 = v_set((float)beta1),
        .beta2 = v_set((float)beta2),
        .rest1 = v_set((float)(1.0 - beta1)),
        .rest2 = v_set((float)(1.0 - beta2)),
        .rate = v_set((float)(rate / (1.0 - pow(beta1, step)))),
        .correction2 = v_set((float)(1.0 / (1.0 - pow(beta2, step)))),
        .epsilon = v_set((float)hyper[MS_HYPER_EPSILON]),
        .decay = v_set((float)(rate * hyper[MS_HYPER_WEIGHT_DECAY])),
    };
}

V_INLINE void adamw_step(void *const *arguments, const adamw_constants *constants, int64_t at,
                         int count) {
    v_f32 w = v_get(arguments[0], MS_F32, at, count);
    v_f32 g = v_mul(v_get(arguments[1], MS_F32, at, count), constants->grad_scale);
    v_f32 m = v_get(arguments[2], MS_F32, at, count);
    v_f32 v = v_get(arguments[3], MS_F32, at, count);
    m = v_fma(m, constants->beta1, v_mul(g, constants->rest1));
    v = v_fma(v, constants->beta2, v_mul(v_mul(g, constants->rest2), g));
    v_put(arguments[2], MS_F32, at, count, m);
    v_put(arguments[3], MS_F32, at, count, v);
    v_f32 root = v_add(v_sqrt(v_mul(v, constants->correction2)), constants->epsilon);
    v_f32 change = v_fma(w, constants->decay, v_div(v_mul(m, constants->rate), root));
    w = v_sub(w, change);
    v_put(arguments[0], MS_F32, at, count, w);
    if (arguments[5] != NULL) {
        v_put(arguments[5], MS_BF16, at, count, w);
    }
}

__attribute__((noinline)) static void
adamw_piece(void *const *arguments, const adamw_constants *constants, int64_t first, int64_t last) {
    int64_t i = first;
    for (; i + V_LANES <= last; i += V_LANES) {
        adamw_step(arguments, constants, i, V_LANES);
        for (int stream = 0; stream < 4; stream++) {
            v_ahead(arguments[stream], MS_F32, i);
        }
    }
    if (i < last) {
        adamw_step(arguments, constants, i, (int)(last - i));
    }
}

static ms_status adamw_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    adamw_constants constants = adamw_constants_of(run->arguments[4]);
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
        uint32_t control = v_denormals_off();
        adamw_piece(run->arguments, &constants, piece * V_PIECE,
                    ms_min_i64((piece + 1) * V_PIECE, elements));
        v_denormals_restore(control);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(adamw) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = adamw_run};

typedef struct sgd_constants {
    v_f32 grad_scale, decay, rate, momentum;
    bool nesterov, first; /* first: step 1, m is not read */
} sgd_constants;

V_INLINE void sgd_step(void *const *arguments, const sgd_constants *constants, int64_t at,
                       int count) {
    v_f32 w = v_get(arguments[0], MS_F32, at, count);
    v_f32 g = v_mul(v_get(arguments[1], MS_F32, at, count), constants->grad_scale);
    g = v_fma(w, constants->decay, g);
    if (arguments[2] != NULL) {
        v_f32 old = constants->first ? v_zero() : v_get(arguments[2], MS_F32, at, count);
        v_f32 m = v_fma(old, constants->momentum, g);
        v_put(arguments[2], MS_F32, at, count, m);
        g = constants->nesterov ? v_fma(m, constants->momentum, g) : m;
    }
    w = v_fnma(g, constants->rate, w);
    v_put(arguments[0], MS_F32, at, count, w);
    if (arguments[4] != NULL) {
        v_put(arguments[4], MS_BF16, at, count, w);
    }
}

__attribute__((noinline)) static void
sgd_piece(void *const *arguments, const sgd_constants *constants, int64_t first, int64_t last) {
    int64_t i = first;
    for (; i + V_LANES <= last; i += V_LANES) {
        sgd_step(arguments, constants, i, V_LANES);
    }
    if (i < last) {
        sgd_step(arguments, constants, i, (int)(last - i));
    }
}

static ms_status sgd_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    const double *hyper = run->arguments[3];
    sgd_constants constants = {.grad_scale = v_set((float)hyper[MS_HYPER_GRADIENT_SCALE]),
                               .decay = v_set((float)hyper[MS_HYPER_WEIGHT_DECAY]),
                               .rate = v_set((float)hyper[MS_HYPER_LEARNING_RATE]),
                               .momentum = v_set((float)hyper[MS_HYPER_BETA1]),
                               .nesterov = handle->spec.attributes.sgd.nesterov,
                               .first = hyper[MS_HYPER_STEP] <= 1.0};
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
        uint32_t control = v_denormals_off();
        sgd_piece(run->arguments, &constants, piece * V_PIECE,
                  ms_min_i64((piece + 1) * V_PIECE, elements));
        v_denormals_restore(control);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(sgd) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = sgd_run};

#endif
