/*
 * ref_elementwise.c - references: flat sums of two tensors, casts, and sums to one number.
 */
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

static ms_status add_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_dtype type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        ms__store(run->arguments[2], type, i,
                  ms__load(run->arguments[0], type, i) + ms__load(run->arguments[1], type, i));
    }
    return MS_OK;
}

const ms_kernel_variant ms__add_ref = {.name = "ref", .run = add_run};

static ms_status cast_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_dtype from = ms__dtype(handle, 0);
    ms_dtype to = ms__dtype(handle, 1);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        ms__store(run->arguments[1], to, i, ms__load(run->arguments[0], from, i));
    }
    return MS_OK;
}

const ms_kernel_variant ms__cast_ref = {.name = "ref", .run = cast_run};

static ms_status sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_dtype type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    double *total = run->arguments[1];
    double sum = 0.0;
    for (int64_t i = 0; i < elements; i++) {
        sum += ms__load(run->arguments[0], type, i);
    }
    *total = run->accumulate ? *total + sum : sum;
    return MS_OK;
}

const ms_kernel_variant ms__sum_ref = {.name = "ref", .run = sum_run};

static ms_status square_sum_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_dtype type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    double *partial = run->arguments[1];
    for (int64_t first = 0; first < elements; first += MS_NORM_BLOCK) {
        double sum = 0.0;
        for (int64_t i = first; i < elements && i < first + MS_NORM_BLOCK; i++) {
            double value = ms__load(run->arguments[0], type, i);
            sum += value * value;
        }
        partial[first / MS_NORM_BLOCK] = sum;
    }
    return MS_OK;
}

const ms_kernel_variant ms__square_sum_ref = {.name = "ref", .run = square_sum_run};
