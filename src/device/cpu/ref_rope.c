/*
 * ref_rope.c - the table of a rotary embedding, and the reference that applies it.
 *
 * Angles are position * frequency_i with frequency_i = theta^(-2i/D), computed in double; only the
 * cosines and sines are rounded. Tables, as sin and cos at every step would cost more than the
 * rotation.
 */
#include <inttypes.h>
#include <math.h>

#include "base/memory.h"
#include "device/cpu/ref_value.h"
#include "device/cpu/rope_table.h"

#define PI 3.14159265358979323846

/* Llama 3's rule: keep high frequencies, divide low ones, blend between. */
static double scaled_frequency(double frequency, const ms_rope_scaling *scaling) {
    if (scaling->factor == 1.0) {
        return frequency;
    }
    if (scaling->linear) {
        return frequency / scaling->factor;
    }
    double turns = (double)scaling->original_positions * frequency / (2.0 * PI);
    if (turns > scaling->high_frequency_factor) {
        return frequency;
    }
    if (turns < scaling->low_frequency_factor) {
        return frequency / scaling->factor;
    }
    double share = (turns - scaling->low_frequency_factor) /
                   (scaling->high_frequency_factor - scaling->low_frequency_factor);
    return (1.0 - share) * frequency / scaling->factor + share * frequency;
}

ms_status ms__rope_prepare(ms_kernel_handle *handle, ms_dtype type) {
    int64_t positions = handle->spec.attributes.rope.position_max;
    int64_t size = handle->spec.attributes.rope.head_size;
    size_t count = 0;
    size_t bytes = 0;
    if (!ms_size_mul((size_t)positions, (size_t)size, &count) ||
        !ms_size_mul(count, ms_dtype_bytes(type), &bytes)) {
        return ms_fail(MS_ERR_RANGE,
                       "kernel rope: a table of %" PRId64 " positions x %" PRId64
                       " does not fit in memory",
                       positions, size);
    }
    void *table = NULL;
    MS_TRY(ms_alloc(bytes, MS_MEMORY_PLAN, &table));
    double sign = handle->spec.attributes.rope.inverse ? -1.0 : 1.0;
    for (int64_t i = 0; i < size / 2; i++) {
        double frequency = scaled_frequency(
            pow(handle->spec.attributes.rope.theta, -2.0 * (double)i / (double)size),
            &handle->spec.attributes.rope.scaling);
        for (int64_t position = 0; position < positions; position++) {
            double angle = (double)position * frequency;
            ms__store(table, type, position * size + i, cos(angle));
            ms__store(table, type, position * size + size / 2 + i, sign * sin(angle));
        }
    }
    handle->state = table;
    handle->needs.constant_bytes = bytes;
    return MS_OK;
}

ms_status ms__rope_check_positions(const ms_kernel_handle *handle, const int32_t *positions) {
    int64_t rows = ms__dim(handle, 0, 0);
    for (int64_t n = 0; n < rows; n++) {
        if (positions[n] < 0 || positions[n] >= handle->spec.attributes.rope.position_max) {
            return ms_fail(MS_ERR_RANGE,
                           "kernel rope: position %d of row %" PRId64 " is outside 0 .. %" PRId64,
                           positions[n], n, handle->spec.attributes.rope.position_max - 1);
        }
    }
    return MS_OK;
}

static ms_status rope_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    MS_TRY(ms__rope_prepare(handle, MS_F64));
    return MS_OK;
}

static ms_status rope_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const int32_t *positions = run->arguments[1];
    MS_TRY(ms__rope_check_positions(handle, positions));
    int64_t heads = handle->spec.attributes.rope.heads;
    int64_t size = handle->spec.attributes.rope.head_size;
    int64_t half = size / 2;
    ms_dtype x_type = ms__dtype(handle, 0);
    for (int64_t n = 0; n < ms__dim(handle, 0, 0); n++) {
        const double *cosine = (const double *)handle->state + positions[n] * size;
        const double *sine = cosine + half;
        for (int64_t h = 0; h < heads; h++) {
            int64_t first = (n * heads + h) * size;
            for (int64_t i = 0; i < half; i++) {
                double low = ms__load(run->arguments[0], x_type, first + i);
                double high = ms__load(run->arguments[0], x_type, first + half + i);
                ms__store(run->arguments[2], x_type, first + i, low * cosine[i] - high * sine[i]);
                ms__store(run->arguments[2], x_type, first + half + i,
                          high * cosine[i] + low * sine[i]);
            }
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__rope_ref = {.name = "ref", .prepare = rope_prepare, .run = rope_run};
