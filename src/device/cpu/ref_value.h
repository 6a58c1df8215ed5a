/*
 * ref_value.h - elements of any floating type as doubles, for the reference kernels.
 *
 * References compute in double and round once at the store, so they are the truth that the vector
 * kernels are measured against. bf16 is rounded via fp32 (to nearest even), as everywhere.
 */
#ifndef MS_DEVICE_CPU_REF_VALUE_H
#define MS_DEVICE_CPU_REF_VALUE_H

#include <stdbool.h>

#include "base/types.h"

static inline double ms__load(const void *base, ms_dtype dtype, int64_t index) {
    switch (dtype) {
    case MS_F64:
        return ((const double *)base)[index];
    case MS_F32:
        return (double)((const float *)base)[index];
    case MS_F16:
        return (double)ms_f16_to_f32(((const uint16_t *)base)[index]);
    default:
        return (double)ms_bf16_to_f32(((const uint16_t *)base)[index]);
    }
}

static inline void ms__store(void *base, ms_dtype dtype, int64_t index, double value) {
    switch (dtype) {
    case MS_F64:
        ((double *)base)[index] = value;
        break;
    case MS_F32:
        ((float *)base)[index] = (float)value;
        break;
    case MS_F16:
        ((uint16_t *)base)[index] = ms_f32_to_f16((float)value);
        break;
    default:
        ((uint16_t *)base)[index] = ms_f32_to_bf16((float)value);
        break;
    }
}

/* An output marked (acc): added to the old value, or in its place. */
static inline void ms__store_acc(void *base, ms_dtype dtype, int64_t index, double value,
                                 bool accumulate) {
    ms__store(base, dtype, index, accumulate ? ms__load(base, dtype, index) + value : value);
}

#endif
