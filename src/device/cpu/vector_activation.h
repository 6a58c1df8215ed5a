/*
 * vector_activation.h - activation functions, plain and gated, with their gradients, over the
 * vector layer.
 *
 * Value and slope come from one evaluation, as they share the exponential; what a caller does not
 * use is removed by the compiler. Arguments of the exponential are clamped to where value and slope
 * have reached their limits, so that no infinity times zero arises from a finite argument.
 */
#ifndef MS_DEVICE_CPU_VECTOR_ACTIVATION_H
#define MS_DEVICE_CPU_VECTOR_ACTIVATION_H

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

/* s = 1 / (1 + exp(minus_u)), and 1 - s without cancellation; |u| <= 88. */
V_INLINE void sigmoid_parts(v_f32 minus_u, v_f32 *s, v_f32 *rest) {
    v_f32 e = v_exp_finite(minus_u);
    *s = v_inverse(v_add(e, v_set(1.0f)));
    *rest = v_mul(e, *s);
}

V_INLINE void gelu_tanh_parts(v_f32 a, v_f32 *value, v_f32 *slope) {
    /* 0.5 (1 + tanh(u / 2)) = sigmoid(u), u = 2 sqrt(2 / pi) (a + 0.044715 a^3) */
    v_f32 near = v_clamp(a, -10.0f, 10.0f);
    v_f32 square = v_mul(near, near);
    v_f32 minus_factor = v_fma(square, v_set(-0.071354814f), v_set(-1.5957691f));
    v_f32 s;
    v_f32 rest;
    sigmoid_parts(v_mul(near, minus_factor), &s, &rest);
    v_f32 du = v_fma(square, v_set(3.0f * 0.071354814f), v_set(1.5957691f));
    *value = v_mul(a, s);
    *slope = v_mul(s, v_fma(v_mul(near, du), rest, v_set(1.0f)));
}

V_INLINE void gelu_erf_parts(v_f32 a, v_f32 *value, v_f32 *slope) {
    v_f32 near = v_clamp(a, -13.0f, 13.0f);
    v_f32 density = v_exp_finite(v_mul(v_mul(near, near), v_set(-0.5f)));
    v_f32 tail = v_normal_tail(v_abs(near), density);
    v_f32 share = v_where_negative(near, tail, v_sub(v_set(1.0f), tail));
    *value = v_mul(a, share);
    *slope = v_fma(v_mul(near, v_set(0.3989422804f)), density, share);
}

V_INLINE void silu_parts(v_f32 a, v_f32 *value, v_f32 *slope) {
    v_f32 near = v_clamp(a, -60.0f, 60.0f);
    v_f32 s;
    v_f32 rest;
    sigmoid_parts(v_sub(v_zero(), near), &s, &rest);
    *value = v_mul(a, s);
    *slope = v_mul(s, v_fma(near, rest, v_set(1.0f)));
}

V_INLINE void relu_parts(v_f32 a, v_f32 *value, v_f32 *slope) {
    *value = v_max(v_zero(), a);
    *slope = v_where_not_positive(a, v_zero(), v_clamp(a, 1.0f, 1.0f)); /* 0, 1 or NaN */
}

V_INLINE void activation_parts(ms_activation_function function, v_f32 a, v_f32 *value,
                               v_f32 *slope) {
    switch (function) {
    case MS_GELU_TANH:
        gelu_tanh_parts(a, value, slope);
        break;
    case MS_GELU_ERF:
        gelu_erf_parts(a, value, slope);
        break;
    case MS_SILU:
        silu_parts(a, value, slope);
        break;
    default:
        relu_parts(a, value, slope);
        break;
    }
}

V_INLINE void activation_step(void *const *arguments, ms_dtype type,
                              ms_activation_function function, int64_t at, int count) {
    v_f32 value;
    v_f32 slope;
    v_ahead(arguments[0], type, at);
    v_ahead(arguments[2], type, at);
    activation_parts(function, v_get(arguments[0], type, at, count), &value, &slope);
    if (arguments[1] != NULL) {
        value = v_mul(value, v_get(arguments[1], type, at, count));
    }
    v_put(arguments[2], type, at, count, value);
}

V_INLINE void activation_grad_step(void *const *arguments, ms_dtype type,
                                   ms_activation_function function, int64_t at, int count) {
    v_f32 value;
    v_f32 slope;
    v_f32 dy = v_get(arguments[0], type, at, count);
    v_ahead(arguments[0], type, at);
    v_ahead(arguments[1], type, at);
    v_ahead(arguments[3], type, at);
    activation_parts(function, v_get(arguments[1], type, at, count), &value, &slope);
    if (arguments[2] != NULL) {
        slope = v_mul(slope, v_get(arguments[2], type, at, count));
        v_put(arguments[4], type, at, count, v_mul(dy, value));
    }
    v_put(arguments[3], type, at, count, v_mul(dy, slope));
}

typedef struct activation_range {
    void *const *arguments;
    ms_activation_function function;
    bool gradient;
    int64_t first, last;
} activation_range;

V_INLINE void activation_either_step(const activation_range *range, ms_dtype type,
                                     ms_activation_function function, bool gradient, int64_t at,
                                     int count) {
    if (gradient) {
        activation_grad_step(range->arguments, type, function, at, count);
    } else {
        activation_step(range->arguments, type, function, at, count);
    }
}

V_INLINE void activation_loop(const activation_range *range, ms_dtype type,
                              ms_activation_function function, bool gradient) {
    int64_t i = range->first;
    for (; i + V_LANES <= range->last; i += V_LANES) {
        activation_either_step(range, type, function, gradient, i, V_LANES);
    }
    if (i < range->last) {
        activation_either_step(range, type, function, gradient, i, (int)(range->last - i));
    }
}

V_INLINE void activation_for_function(const activation_range *range, ms_dtype type,
                                      ms_activation_function function) {
    if (range->gradient) {
        activation_loop(range, type, function, true);
    } else {
        activation_loop(range, type, function, false);
    }
}

V_INLINE void activation_for_type(const activation_range *range, ms_dtype type) {
    switch (range->function) {
    case MS_GELU_TANH:
        activation_for_function(range, type, MS_GELU_TANH);
        break;
    case MS_GELU_ERF:
        activation_for_function(range, type, MS_GELU_ERF);
        break;
    case MS_SILU:
        activation_for_function(range, type, MS_SILU);
        break;
    default:
        activation_for_function(range, type, MS_RELU);
        break;
    }
}

static void activation_all(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                           bool gradient) {
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    ms_dtype type = ms__dtype(handle, 0);
#pragma omp parallel for schedule(static) num_threads(v_team(handle, elements))
    for (int64_t piece = 0; piece < ms_ceil_div(elements, V_PIECE); piece++) {
        activation_range range = {.arguments = run->arguments,
                                  .function = handle->spec.attributes.activation.function,
                                  .gradient = gradient,
                                  .first = piece * V_PIECE,
                                  .last = ms_min_i64((piece + 1) * V_PIECE, elements)};
        if (type == MS_F32) {
            activation_for_type(&range, MS_F32);
        } else {
            activation_for_type(&range, MS_BF16);
        }
    }
}

static ms_status activation_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    activation_all(handle, run, false);
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(activation) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = activation_run};

static ms_status activation_grad_run(const ms_kernel_handle *handle,
                                     const ms_kernel_run_info *run) {
    activation_all(handle, run, true);
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(activation_grad) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = activation_grad_run};

#endif
