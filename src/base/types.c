/*
 * types.c - names and sizes of element types, and conversions of floating values.
 *
 * Where it stands: file readers and writers and the reference kernels use it; the fast conversions
 * are kernels of device/ and are tested against these.
 *
 * Invariants: every conversion to a narrower type rounds to nearest, ties to even; infinities stay;
 * NaN stays NaN. fp64 to a 16-bit type goes by fp32 and so rounds twice: fp64 is the checking type,
 * whose values are compared, never stored in 16 bits.
 */
#include "base/types.h"

#include <stdbool.h>

static const struct dtype_info {
    size_t bytes;
    const char *name;
    const char *safetensors_name;
} dtype_table[MS_DTYPE_COUNT] = {
#define MS_DTYPE_INFO(name, value, bytes, text, safetensors) [value] = {bytes, text, safetensors},
    MS_DTYPE_LIST(MS_DTYPE_INFO)
#undef MS_DTYPE_INFO
};

size_t ms_dtype_bytes(ms_dtype dtype) {
    return (unsigned)dtype < MS_DTYPE_COUNT ? dtype_table[dtype].bytes : 0;
}

const char *ms_dtype_name(ms_dtype dtype) {
    return (unsigned)dtype < MS_DTYPE_COUNT ? dtype_table[dtype].name : "unknown";
}

const char *ms_dtype_safetensors_name(ms_dtype dtype) {
    return (unsigned)dtype < MS_DTYPE_COUNT ? dtype_table[dtype].safetensors_name : "unknown";
}

ms_status ms_dtype_parse(const char *name, ms_dtype *dtype) {
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        if (strcmp(name, dtype_table[i].name) == 0) {
            *dtype = (ms_dtype)i;
            return MS_OK;
        }
    }
    return MS_ERR_NOT_FOUND;
}

ms_status ms_dtype_parse_safetensors(const char *name, ms_dtype *dtype) {
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        if (strcmp(name, dtype_table[i].safetensors_name) == 0) {
            *dtype = (ms_dtype)i;
            return MS_OK;
        }
    }
    return MS_ERR_NOT_FOUND;
}

float ms_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    uint32_t wide;
    if (exponent == 0x1f) {
        wide = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
        wide = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
        /* Zero or subnormal: mantissa times 2^-24, exact in fp32. */
        float magnitude = (float)mantissa * 0x1p-24f;
        memcpy(&wide, &magnitude, sizeof wide);
        wide |= sign;
    }
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* value >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_rounded(uint32_t value, uint32_t shift) {
    uint32_t half = UINT32_C(1) << (shift - 1);
    uint32_t rest = value & ((half << 1) - 1);
    uint32_t kept = value >> shift;
    return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

uint16_t ms_f32_to_f16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t sign = (wide >> 16) & 0x8000u;
    uint32_t magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        /* NaN: the upper payload bits stay, and it stays a NaN when they are zero. */
        uint32_t payload = (magnitude >> 13) & 0x3ffu;
        return (uint16_t)(sign | 0x7c00u | (payload != 0 ? payload : 0x200u));
    }
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    }
    if (magnitude >= 0x38800000u) {
        /* Normal: the carry of the rounding moves into the exponent by itself. */
        return (uint16_t)(sign | shift_rounded(magnitude - (UINT32_C(112) << 23), 13));
    }
    if (magnitude <= 0x33000000u) {
        return (uint16_t)sign; /* at most half of the smallest subnormal */
    }
    uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | shift_rounded(mantissa, 126 - exponent));
}

static double load_real(const void *from, ms_dtype type, int64_t index) {
    switch (type) {
    case MS_F64:
        return ((const double *)from)[index];
    case MS_F32:
        return (double)((const float *)from)[index];
    case MS_BF16:
        return (double)ms_bf16_to_f32(((const uint16_t *)from)[index]);
    default:
        return (double)ms_f16_to_f32(((const uint16_t *)from)[index]);
    }
}

static void store_real(void *to, ms_dtype type, int64_t index, double value) {
    switch (type) {
    case MS_F64:
        ((double *)to)[index] = value;
        break;
    case MS_F32:
        ((float *)to)[index] = (float)value;
        break;
    case MS_BF16:
        ((uint16_t *)to)[index] = ms_f32_to_bf16((float)value);
        break;
    default:
        ((uint16_t *)to)[index] = ms_f32_to_f16((float)value);
        break;
    }
}

static bool is_real(ms_dtype type) {
    return type == MS_F64 || type == MS_F32 || type == MS_BF16 || type == MS_F16;
}

ms_status ms_convert(const void *from, ms_dtype from_type, void *to, ms_dtype to_type,
                     int64_t count) {
    if (!is_real(from_type) || !is_real(to_type)) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "no conversion from %s to %s; fp64, fp32, bf16 and fp16 convert",
                       ms_dtype_name(from_type), ms_dtype_name(to_type));
    }
    if (count < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "conversion of %lld elements", (long long)count);
    }
    if (from_type == to_type) {
        if (count > 0) {
            memmove(to, from, (size_t)count * ms_dtype_bytes(from_type));
        }
        return MS_OK;
    }
    /* The pairs of checkpoints and mixed precision as plain loops, which the compiler vectorises.
     */
    if (from_type == MS_BF16 && to_type == MS_F32) {
        for (int64_t i = 0; i < count; i++) {
            ((float *)to)[i] = ms_bf16_to_f32(((const uint16_t *)from)[i]);
        }
        return MS_OK;
    }
    if (from_type == MS_F32 && to_type == MS_BF16) {
        for (int64_t i = 0; i < count; i++) {
            ((uint16_t *)to)[i] = ms_f32_to_bf16(((const float *)from)[i]);
        }
        return MS_OK;
    }
    for (int64_t i = 0; i < count; i++) {
        store_real(to, to_type, i, load_real(from, from_type, i));
    }
    return MS_OK;
}
