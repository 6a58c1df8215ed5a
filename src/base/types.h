/* types.h - element types of tensors, with conversions of single values. */
#ifndef MS_BASE_TYPES_H
#define MS_BASE_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <mindspeed/dtype.h>

#include "base/error.h"

size_t ms_dtype_bytes(ms_dtype dtype);
const char *ms_dtype_name(ms_dtype dtype);             /* "fp32" */
const char *ms_dtype_safetensors_name(ms_dtype dtype); /* "F32" */
/* MS_ERR_NOT_FOUND without a sentence when there is no such name. */
ms_status ms_dtype_parse(const char *name, ms_dtype *dtype);
ms_status ms_dtype_parse_safetensors(const char *name, ms_dtype *dtype);

static inline float ms_bf16_to_f32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t ms_f32_to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((wide >> 16) | 0x40u);
    }
    wide += 0x7fffu + ((wide >> 16) & 1u);
    return (uint16_t)(wide >> 16);
}
float ms_f16_to_f32(uint16_t bits);
uint16_t ms_f32_to_f16(float value); /* round to nearest, ties to even */

/* Converts count elements between floating types (fp64, fp32, bf16, fp16), via fp32 unless both are
 * fp64 or fp32. The two must not overlap unless they are equal and of one size. */
ms_status ms_convert(const void *from, ms_dtype from_type, void *to, ms_dtype to_type,
                     int64_t count);

#endif
