/*
 * attention_avx512.c - blocked attention for AVX-512, and its pairs of bf16 for processors with
 * AVX512_BF16 or AMX.
 *
 * What the attention headers want beyond the vector layer stands here: a square transposed in
 * registers, powers of two, and 16-bit elements packed into pairs. Rounding to pairs is to nearest
 * with ties away from zero, which is one addition; a NaN stays one, as all that comes here was
 * computed from bf16 values, whose NaN have no bits that the addition could carry.
 */
#include <omp.h>

#include "device/cpu/vector_avx512.h"

#include "device/cpu/vector_math.h"

#include "device/cpu/transpose_avx512.h"

#define V_PAIRS 1
#define V_PRODUCT_ROWS 8

V_INLINE v_f32 v_power_of_two(v_f32 n) {
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

static void transpose_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
    __m512i rows[16];
    for (int i = 0; i < 16; i++) {
        rows[i] = _mm512_loadu_si512(from + i * from_row);
    }
    ms__transpose_16x16(rows);
    for (int i = 0; i < 16; i++) {
        _mm512_storeu_si512(to + i * to_row, rows[i]);
    }
}

V_INLINE __m512i round_up_half(v_f32 value) {
    return _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
}

/* Lane by lane: low rounded to bf16 in the low half, high in the high half. */
V_INLINE v_f32 v_pair_bf16(v_f32 low, v_f32 high) {
    __m512i pairs = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(round_up_half(low), 16),
                                            round_up_half(high));
    return _mm512_castsi512_ps(pairs);
}

/* 32 lanes as 32 bf16 in 16 elements. */
V_INLINE void v_store_narrow(float *to, v_f32 first, v_f32 second) {
    /* Packed quarter by quarter: first's quarter, then second's; then put in order. */
    __m512i mixed = _mm512_packus_epi32(_mm512_srli_epi32(round_up_half(first), 16),
                                        _mm512_srli_epi32(round_up_half(second), 16));
    __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, mixed));
}

/* A row of bf16 as it is, zeros up to depth pairs. */
V_INLINE void copy_pairs(const uint16_t *from, int64_t size, float *to, int64_t depth) {
    for (int64_t d = 0; d < 2 * depth; d += 32) {
        int64_t left = size - d;
        __mmask32 mask = left >= 32 ? ~(__mmask32)0 : left > 0 ? ((__mmask32)1 << left) - 1 : 0;
        _mm512_storeu_si512(to + d / 2, _mm512_maskz_loadu_epi16(mask, from + d));
    }
}

/* [64][depth] pairs along a row become [32][2 depth] pairs of two rows. */
static inline void zip_rows(const float *rows, int64_t depth, float *zipped) {
    for (int64_t i = 0; i < 32; i++) {
        for (int64_t d = 0; d < depth; d += 8) {
            const float *low = rows + 2 * i * depth + d;
            __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)low);
            __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)(low + depth));
            _mm512_storeu_si512(zipped + 2 * (i * depth + d), ms__zip_16(first, second));
        }
    }
}

#include "device/cpu/attention_panels.h"

#include "device/cpu/attention_vector.h"

#include "device/cpu/attention_cached.h"
#include "device/cpu/attention_forward.h"
#include "device/cpu/attention_gradient.h"
