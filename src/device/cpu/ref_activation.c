/*
 * ref_activation.c - references: activation functions, plain and gated, and their gradients.
 *
 * Slopes are taken at arguments clamped to +-1000, where every one of them is 0, 1 or a to the last
 * bit: so an infinite argument gives the limit and not infinity times zero.
 */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_HALF 0.70710678118654752440
#define INVERSE_SQRT_2PI 0.39894228040143267794
#define GELU_CUBIC 0.044715
#define SLOPE_LIMIT 1000.0

static double activation_value(ms_activation_function function, double a) {
    switch (function) {
    case MS_GELU_TANH: {
        /* 0.5 (1 + tanh(u)) without the cancellation of large negative u */
        double u = SQRT_2_OVER_PI * (a + GELU_CUBIC * a * a * a);
        return a / (1.0 + exp(-2.0 * u));
    }
    case MS_GELU_ERF:
        return 0.5 * a * erfc(-a * SQRT_HALF);
    case MS_SILU:
        return a / (1.0 + exp(-a));
    default:
        return a < 0.0 ? 0.0 : a;
    }
}

static double activation_slope(ms_activation_function function, double argument) {
    double a = argument > SLOPE_LIMIT ? SLOPE_LIMIT : argument;
    a = a < -SLOPE_LIMIT ? -SLOPE_LIMIT : a;
    switch (function) {
    case MS_GELU_TANH: {
        double u = SQRT_2_OVER_PI * (a + GELU_CUBIC * a * a * a);
        double du = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * a * a);
        double s = 1.0 / (1.0 + exp(-2.0 * u));
        double rest = 1.0 / (1.0 + exp(2.0 * u)); /* 1 - s */
        return s + 2.0 * a * s * rest * du;
    }
    case MS_GELU_ERF:
        return 0.5 * erfc(-a * SQRT_HALF) + a * INVERSE_SQRT_2PI * exp(-0.5 * a * a);
    case MS_SILU: {
        double s = 1.0 / (1.0 + exp(-a));
        return s + a * s * (1.0 / (1.0 + exp(a)));
    }
    default:
        return a > 0.0 ? 1.0 : (a <= 0.0 ? 0.0 : a);
    }
}

static ms_status activation_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_activation_function function = handle->spec.attributes.activation.function;
    ms_dtype x_type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        double value = activation_value(function, ms__load(run->arguments[0], x_type, i));
        if (run->arguments[1] != NULL) {
            value *= ms__load(run->arguments[1], x_type, i);
        }
        ms__store(run->arguments[2], x_type, i, value);
    }
    return MS_OK;
}

const ms_kernel_variant ms__activation_ref = {.name = "ref", .run = activation_run};

static ms_status activation_grad_run(const ms_kernel_handle *handle,
                                     const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    ms_activation_function function = handle->spec.attributes.activation.function;
    ms_dtype x_type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        double dy = ms__load(arguments[0], x_type, i);
        double a = ms__load(arguments[1], x_type, i);
        double slope = activation_slope(function, a);
        if (arguments[2] != NULL) {
            slope *= ms__load(arguments[2], x_type, i);
            ms__store(arguments[4], x_type, i, dy * activation_value(function, a));
        }
        ms__store(arguments[3], x_type, i, dy * slope);
    }
    return MS_OK;
}

const ms_kernel_variant ms__activation_grad_ref = {.name = "ref", .run = activation_grad_run};
