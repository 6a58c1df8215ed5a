/*
 * reference.h - values of every member by formula, and the serial reductions that the library's
 * results are held to, written as plainly as possible and apart from the library's own loops.
 */
#ifndef TESTS_COMM_REFERENCE_H
#define TESTS_COMM_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

/* Sanitizers make everything tens of times slower: they get fewer cases of each kind. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REFERENCE_FEWER 1
#else
#define REFERENCE_FEWER 0
#endif

static const ms_dtype reference_dtypes[] = {MS_F32, MS_F64, MS_BF16, MS_F16, MS_I64, MS_I32, MS_U8};
#define REFERENCE_DTYPES ((int)(sizeof reference_dtypes / sizeof *reference_dtypes))

static inline uint64_t reference_hash(uint64_t seed, int member, int64_t index) {
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) +
                 (uint64_t)member * UINT64_C(0xd1342543de82ef95) +
                 (uint64_t)index * UINT64_C(0x2545f4914f6cdd1d);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 29;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

/* Values whose sum depends on the order, with a few infinities and NaNs. */
static inline float reference_real(uint64_t hash) {
    if (hash % 4099 == 0) {
        return (hash >> 20) % 3 == 0 ? NAN : (hash >> 20) % 3 == 1 ? INFINITY : -0.0f;
    }
    return ldexpf((float)((int64_t)(hash % 4001) - 2000), (int)((hash >> 40) % 12) - 14);
}

static inline void reference_fill(void *out, ms_dtype dtype, int64_t count, uint64_t seed,
                                  int member) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = reference_hash(seed, member, i);
        float real = reference_real(hash);
        switch (dtype) {
        case MS_F64:
            ((double *)out)[i] = (double)real * (1.0 + (double)(hash % 1000003) * 0x1p-40);
            break;
        case MS_F32:
            ((float *)out)[i] = real;
            break;
        case MS_BF16:
            ((uint16_t *)out)[i] = ms_f32_to_bf16(real);
            break;
        case MS_F16:
            ((uint16_t *)out)[i] = ms_f32_to_f16(real);
            break;
        case MS_I64:
            ((int64_t *)out)[i] = (int64_t)hash;
            break;
        case MS_I32:
            ((int32_t *)out)[i] = (int32_t)(uint32_t)hash;
            break;
        default:
            ((uint8_t *)out)[i] = (uint8_t)hash;
            break;
        }
    }
}

static inline double reference_combine_real(ms_reduce_op op, double a, double b, bool in_double) {
    if (op == MS_REDUCE_MAX) {
        return a > b || isnan(a) ? a : b;
    }
    if (op == MS_REDUCE_MIN) {
        return a < b || isnan(a) ? a : b;
    }
    if (in_double) {
        return a + b;
    }
    volatile float sum = (float)a + (float)b;
    return (double)sum;
}

static inline double reference_tree_real(ms_reduce_op op, const double *values, int members,
                                         bool in_double) {
    if (members == 1) {
        return values[0];
    }
    int half = 1;
    while (half * 2 < members) {
        half *= 2;
    }
    return reference_combine_real(op, reference_tree_real(op, values, half, in_double),
                                  reference_tree_real(op, values + half, members - half, in_double),
                                  in_double);
}

static inline int64_t reference_whole(ms_reduce_op op, const int64_t *values, int members) {
    uint64_t sum = 0;
    int64_t best = values[0];
    for (int i = 0; i < members; i++) {
        sum += (uint64_t)values[i];
        if (op == MS_REDUCE_MAX ? values[i] > best : values[i] < best) {
            best = values[i];
        }
    }
    if (op == MS_REDUCE_MAX || op == MS_REDUCE_MIN) {
        return best;
    }
    return op == MS_REDUCE_AVG ? (int64_t)sum / members : (int64_t)sum;
}

/* Element i of the reduction of inputs[0 .. members) into result[i]. */
static inline void reference_reduce_one(const void *const *inputs, int members, ms_dtype dtype,
                                        ms_reduce_op op, int64_t i, void *result) {
    double real[MS_COMM_RANKS_MAX];
    int64_t whole[MS_COMM_RANKS_MAX];
    for (int m = 0; m < members; m++) {
        real[m] = 0;
        whole[m] = 0;
        switch (dtype) {
        case MS_F64:
            real[m] = ((const double *)inputs[m])[i];
            break;
        case MS_F32:
            real[m] = (double)((const float *)inputs[m])[i];
            break;
        case MS_BF16:
            real[m] = (double)ms_bf16_to_f32(((const uint16_t *)inputs[m])[i]);
            break;
        case MS_F16:
            real[m] = (double)ms_f16_to_f32(((const uint16_t *)inputs[m])[i]);
            break;
        case MS_I64:
            whole[m] = ((const int64_t *)inputs[m])[i];
            break;
        case MS_I32:
            whole[m] = ((const int32_t *)inputs[m])[i];
            break;
        default:
            whole[m] = ((const uint8_t *)inputs[m])[i];
            break;
        }
    }
    bool is_real = dtype == MS_F64 || dtype == MS_F32 || dtype == MS_BF16 || dtype == MS_F16;
    int64_t integer = is_real ? 0 : reference_whole(op, whole, members);
    double value = is_real ? reference_tree_real(op, real, members, dtype == MS_F64) : 0;
    float narrow = (float)value;
    if (op == MS_REDUCE_AVG) {
        value /= members;
        narrow /= (float)members;
    }
    switch (dtype) {
    case MS_F64:
        ((double *)result)[i] = value;
        break;
    case MS_F32:
        ((float *)result)[i] = narrow;
        break;
    case MS_BF16:
        ((uint16_t *)result)[i] = ms_f32_to_bf16(narrow);
        break;
    case MS_F16:
        ((uint16_t *)result)[i] = ms_f32_to_f16(narrow);
        break;
    case MS_I64:
        ((int64_t *)result)[i] = integer;
        break;
    case MS_I32:
        ((int32_t *)result)[i] = (int32_t)(uint32_t)(uint64_t)integer;
        break;
    default:
        ((uint8_t *)result)[i] = (uint8_t)(uint64_t)integer;
        break;
    }
}

static inline void reference_reduce(const void *const *inputs, int members, ms_dtype dtype,
                                    ms_reduce_op op, int64_t count, void *result) {
    for (int64_t i = 0; i < count; i++) {
        reference_reduce_one(inputs, members, dtype, op, i, result);
    }
}

/* Is element i a NaN? Two NaNs are equal here whatever their payload. */
static inline bool reference_is_nan(const void *values, ms_dtype dtype, int64_t i) {
    switch (dtype) {
    case MS_F64:
        return isnan(((const double *)values)[i]);
    case MS_F32:
        return isnan(((const float *)values)[i]);
    case MS_BF16:
        return isnan(ms_bf16_to_f32(((const uint16_t *)values)[i]));
    case MS_F16:
        return isnan(ms_f16_to_f32(((const uint16_t *)values)[i]));
    default:
        return false;
    }
}

/* Index of the first element that differs in its bits, or -1. */
static inline int64_t reference_differ(const void *a, const void *b, ms_dtype dtype,
                                       int64_t count) {
    size_t bytes = ms_dtype_bytes(dtype);
    if (count == 0 || memcmp(a, b, (size_t)count * bytes) == 0) {
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        if (memcmp((const char *)a + (size_t)i * bytes, (const char *)b + (size_t)i * bytes,
                   bytes) != 0 &&
            !(reference_is_nan(a, dtype, i) && reference_is_nan(b, dtype, i))) {
            return i;
        }
    }
    return -1;
}

#endif
