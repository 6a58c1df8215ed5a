/*
 * comm_sum_kernels.inl - the loops of comm_sum.h, compiled once per instruction set.
 *
 * The including file defines KERNELS_NAME (the table) and, where it has them, the conversions
 * HAVE_F16C / copy_stream. Plain loops: the compiler vectorises them for the file's flags.
 */
#include <string.h>

#include "comm/comm_sum.h"

/* max and min give the second operand unless the first one wins or is a NaN: NaN stays NaN. */
#define SUM_OF(a, b) ((a) + (b))
#define MAX_OF_REAL(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN_OF_REAL(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define WRAP_OF(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define MAX_OF(a, b) ((a) > (b) ? (a) : (b))
#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))

/* No iteration reads what another one writes. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define COMBINE(name, type, expression)                                                            \
    static void name(void *result, const void *a, const void *b, size_t count) {                   \
        type *out = result;                                                                        \
        const type *left = a;                                                                      \
        const type *right = b;                                                                     \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                           \
            out[i] = expression(left[i], right[i]);                                                \
        }                                                                                          \
    }

COMBINE(sum_f64, double, SUM_OF)
COMBINE(max_f64, double, MAX_OF_REAL)
COMBINE(min_f64, double, MIN_OF_REAL)
COMBINE(sum_f32, float, SUM_OF)
COMBINE(max_f32, float, MAX_OF_REAL)
COMBINE(min_f32, float, MIN_OF_REAL)
COMBINE(sum_i64, int64_t, WRAP_OF)
COMBINE(max_i64, int64_t, MAX_OF)
COMBINE(min_i64, int64_t, MIN_OF)

#define DIVIDE(name, type)                                                                         \
    static void name(void *result, const void *values, int members, size_t count) {                \
        type *out = result;                                                                        \
        const type *in = values;                                                                   \
        const type divisor = (type)members;                                                        \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                           \
            out[i] = in[i] / divisor;                                                              \
        }                                                                                          \
    }

DIVIDE(divide_f64, double)
DIVIDE(divide_f32, float)
DIVIDE(divide_i64, int64_t)

static void bf16_to_f32(float *result, const uint16_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        result[i] = ms_bf16_to_f32(values[i]);
    }
}

static void f32_to_bf16(uint16_t *result, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t wide;
        memcpy(&wide, &values[i], sizeof wide);
        uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
        uint32_t quiet = (wide >> 16) | 0x40u;
        result[i] = (uint16_t)((wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

#ifndef HAVE_F16C
static void f16_to_f32(float *result, const uint16_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        result[i] = ms_f16_to_f32(values[i]);
    }
}

static void f32_to_f16(uint16_t *result, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        result[i] = ms_f32_to_f16(values[i]);
    }
}

static void copy_stream(void *result, const void *source, size_t bytes) {
    memcpy(result, source, bytes);
}
#endif

const ms__sum_kernels KERNELS_NAME = {
    .combine = {[MS__SUM_F64] = {sum_f64, max_f64, min_f64},
                [MS__SUM_F32] = {sum_f32, max_f32, min_f32},
                [MS__SUM_I64] = {sum_i64, max_i64, min_i64}},
    .divide = {[MS__SUM_F64] = divide_f64, [MS__SUM_F32] = divide_f32, [MS__SUM_I64] = divide_i64},
    .bf16_to_f32 = bf16_to_f32,
    .f16_to_f32 = f16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .f32_to_f16 = f32_to_f16,
    .copy_stream = copy_stream,
};
