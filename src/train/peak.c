/*
 * peak.c - the rate MFU is measured against: a large matmul of the run's type on this rank's threads, the best of
 * several. It says what this machine can do, not what a data sheet promises.
 */
#include "base/clock.h"
#include "train/session.h"

#define PEAK_SIZE ((int64_t)768)
#define PEAK_SECONDS 0.03
#define PEAK_RUNS_MAX 64

static ms_status run_matmul(ms_device *device, const ms_kernel_handle *kernel, ms_dtype dtype,
                            double *gflops) {
    size_t bytes = (size_t)(PEAK_SIZE * PEAK_SIZE) * ms_dtype_bytes(dtype);
    void *memory[4] = {NULL};
    ms_status status = MS_OK;
    for (int i = 0; i < 3 && status == MS_OK; i++) {
        status = ms_device_alloc(device, bytes, &memory[i]);
    }
    if (status == MS_OK) {
        status = ms_device_alloc(device, ms_kernel_get_needs(kernel).scratch_bytes, &memory[3]);
    }
    void *const arguments[4] = {memory[0], memory[1], NULL, memory[2]};
    ms_kernel_run_info run = {.arguments = arguments, .scratch = memory[3]};
    double flops = 2.0 * (double)PEAK_SIZE * (double)PEAK_SIZE * (double)PEAK_SIZE;
    double begin = ms_clock_s();
    for (int i = 0; i < PEAK_RUNS_MAX && status == MS_OK; i++) {
        double start = ms_clock_s();
        status = ms_kernel_run(kernel, &run, NULL);
        double rate = flops / (ms_clock_s() - start) / 1e9;
        *gflops = rate > *gflops ? rate : *gflops;
        if (ms_clock_s() - begin > PEAK_SECONDS && i >= 2) {
            break;
        }
    }
    for (int i = 0; i < 4; i++) {
        ms_device_free(device, memory[i]);
    }
    return status;
}

ms_status ms_measure_peak(ms_device *device, ms_dtype dtype, double *gflops) {
    const int64_t dims[2] = {PEAK_SIZE, PEAK_SIZE};
    ms_kernel_spec spec = {.slot = MS_SLOT_MATMUL, .argument_count = 4};
    spec.arguments[0] = spec.arguments[1] = spec.arguments[3] = ms_argument_of(dtype, 2, dims);
    spec.arguments[2] = ms_argument_absent();
    ms_kernel_handle *kernel;
    MS_TRY(ms_kernel_prepare(device, &spec, &kernel));
    *gflops = 0;
    ms_status status = run_matmul(device, kernel, dtype, gflops);
    ms_kernel_destroy(kernel);
    return status;
}
