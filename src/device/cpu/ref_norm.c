/*
 * ref_norm.c - references: layer and RMS norm with the residual sum before it, both gradients, and
 * sums over rows.
 *
 * Layer norm: y = (s - mean) r w + b with r = 1 / sqrt(var + epsilon), over the last dim. With n =
 * (s - mean) r and g = dy w its input gradient is r (g - mean(g) - n mean(g n)); an RMS norm has
 * mean = 0 and no mean(g) term.
 */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

static ms_status column_sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype x_type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 1);
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0.0;
        for (int64_t n = 0; n < rows; n++) {
            sum += ms__load(run->arguments[0], x_type, n * columns + c);
        }
        ms__store_acc(run->arguments[1], s_type, c, sum, run->accumulate);
    }
    return MS_OK;
}

const ms_kernel_variant ms__column_sum_ref = {.name = "ref", .run = column_sum_run};

/* The sum as stored: x + delta, rounded to x's type, or x itself. */
static void norm_row_sum(const ms_kernel_handle *handle, void *const *arguments, int64_t row,
                         int64_t columns) {
    ms_dtype x_type = ms__dtype(handle, 0);
    for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
        ms__store(arguments[4], x_type, i,
                  ms__load(arguments[0], x_type, i) + ms__load(arguments[1], x_type, i));
    }
}

static ms_status norm_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype x_type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 2);
    bool rms = handle->spec.attributes.norm.rms;
    const void *in = arguments[4] != NULL ? arguments[4] : arguments[0];
    for (int64_t n = 0; n < rows; n++) {
        if (arguments[4] != NULL) {
            norm_row_sum(handle, arguments, n, columns);
        }
        double mean = 0.0;
        for (int64_t c = 0; c < columns && !rms; c++) {
            mean += ms__load(in, x_type, n * columns + c) / (double)columns;
        }
        double variance = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            double centred = ms__load(in, x_type, n * columns + c) - mean;
            variance += centred * centred / (double)columns;
        }
        double inverse = 1.0 / sqrt(variance + handle->spec.attributes.norm.epsilon);
        for (int64_t c = 0; c < columns; c++) {
            double bias = arguments[3] != NULL ? ms__load(arguments[3], s_type, c) : 0.0;
            double value = (ms__load(in, x_type, n * columns + c) - mean) * inverse;
            ms__store(arguments[5], x_type, n * columns + c,
                      value * ms__load(arguments[2], s_type, c) + bias);
        }
        ms__store(arguments[6], s_type, 2 * n, mean);
        ms__store(arguments[6], s_type, 2 * n + 1, inverse);
    }
    return MS_OK;
}

const ms_kernel_variant ms__norm_ref = {.name = "ref", .run = norm_run};

static ms_status norm_input_grad_run(const ms_kernel_handle *handle,
                                     const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype x_type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 2);
    bool rms = handle->spec.attributes.norm.rms;
    for (int64_t n = 0; n < rows; n++) {
        double mean = rms ? 0.0 : ms__load(arguments[3], s_type, 2 * n);
        double inverse = ms__load(arguments[3], s_type, 2 * n + 1);
        double mean_g = 0.0;
        double mean_gn = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            int64_t i = n * columns + c;
            double g = ms__load(arguments[0], x_type, i) * ms__load(arguments[2], s_type, c);
            double normal = (ms__load(arguments[1], x_type, i) - mean) * inverse;
            mean_g += rms ? 0.0 : g / (double)columns;
            mean_gn += g * normal / (double)columns;
        }
        for (int64_t c = 0; c < columns; c++) {
            int64_t i = n * columns + c;
            double g = ms__load(arguments[0], x_type, i) * ms__load(arguments[2], s_type, c);
            double normal = (ms__load(arguments[1], x_type, i) - mean) * inverse;
            double residual = arguments[4] != NULL ? ms__load(arguments[4], x_type, i) : 0.0;
            ms__store(arguments[5], x_type, i,
                      residual + inverse * (g - mean_g - normal * mean_gn));
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__norm_input_grad_ref = {.name = "ref", .run = norm_input_grad_run};

static ms_status norm_weight_grad_run(const ms_kernel_handle *handle,
                                      const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype x_type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 2);
    bool rms = handle->spec.attributes.norm.rms;
    for (int64_t c = 0; c < columns; c++) {
        double weight_sum = 0.0;
        double bias_sum = 0.0;
        for (int64_t n = 0; n < rows; n++) {
            double mean = rms ? 0.0 : ms__load(arguments[2], s_type, 2 * n);
            double inverse = ms__load(arguments[2], s_type, 2 * n + 1);
            double dy = ms__load(arguments[0], x_type, n * columns + c);
            weight_sum += dy * (ms__load(arguments[1], x_type, n * columns + c) - mean) * inverse;
            bias_sum += dy;
        }
        ms__store_acc(arguments[3], s_type, c, weight_sum, run->accumulate);
        if (arguments[4] != NULL) {
            ms__store_acc(arguments[4], s_type, c, bias_sum, run->accumulate);
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__norm_weight_grad_ref = {.name = "ref", .run = norm_weight_grad_run};
