/*
 * vector_avx512.h - the thin layer over AVX-512 (F, BW, DQ, VL) that the vector kernels are written
 * in.
 *
 * The same names as vector_avx2.h, so that each kernel's logic stands once, in vector_<family>.h. A
 * v_f32 holds V_LANES floats; "part" forms touch the first `count` elements only, the other lanes
 * read as 0. v_max and v_min return their second operand when one is NaN.
 */
#ifndef MS_DEVICE_CPU_VECTOR_AVX512_H
#define MS_DEVICE_CPU_VECTOR_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V_LANES 16
#define V_LANES_U64 8
#define V_ISA MS_ISA_AVX512
#define V_NAME "avx512"
#define V_VARIANT(slot) ms__##slot##_avx512
#define V_INLINE static inline __attribute__((always_inline))

typedef __m512 v_f32;
typedef __m512d v_f64;
typedef __m512i v_u64;

V_INLINE __mmask16 v__part(int count) {
    return (__mmask16)((1u << count) - 1u);
}

V_INLINE v_f32 v_zero(void) {
    return _mm512_setzero_ps();
}
V_INLINE v_f32 v_set(float value) {
    return _mm512_set1_ps(value);
}
V_INLINE v_f32 v_load(const float *from) {
    return _mm512_loadu_ps(from);
}
V_INLINE v_f32 v_load_part(const float *from, int count) {
    return _mm512_maskz_loadu_ps(v__part(count), from);
}
V_INLINE void v_store(float *to, v_f32 value) {
    _mm512_storeu_ps(to, value);
}
V_INLINE void v_store_part(float *to, int count, v_f32 value) {
    _mm512_mask_storeu_ps(to, v__part(count), value);
}

V_INLINE v_f32 v__widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
V_INLINE v_f32 v_load_bf16(const uint16_t *from) {
    return v__widen(_mm256_loadu_si256((const __m256i *)(const void *)from));
}
V_INLINE v_f32 v_load_bf16_part(const uint16_t *from, int count) {
    return v__widen(_mm256_maskz_loadu_epi16(v__part(count), from));
}
/* For a permutation that gathers the high half of each 32-bit lane. */
V_INLINE __m512i v__high_halves(void) {
    return _mm512_set_epi64(0, 0, 0, 0, 0x001f001d001b0019, 0x0017001500130011, 0x000f000d000b0009,
                            0x0007000500030001);
}
/* To nearest even, NaN stays NaN. Not vcvtneps2bf16: that takes denormals for 0. */
V_INLINE __m256i v__narrow(v_f32 value) {
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(v__high_halves(), rounded));
}
V_INLINE void v_store_bf16(uint16_t *to, v_f32 value) {
    _mm256_storeu_si256((__m256i *)(void *)to, v__narrow(value));
}
V_INLINE void v_store_bf16_part(uint16_t *to, int count, v_f32 value) {
    _mm256_mask_storeu_epi16(to, v__part(count), v__narrow(value));
}
/* As a store to bf16 and a load from there would leave it. */
V_INLINE v_f32 v_round_bf16(v_f32 value) {
    return v__widen(v__narrow(value));
}

V_INLINE v_f32 v_add(v_f32 a, v_f32 b) {
    return _mm512_add_ps(a, b);
}
V_INLINE v_f32 v_sub(v_f32 a, v_f32 b) {
    return _mm512_sub_ps(a, b);
}
V_INLINE v_f32 v_mul(v_f32 a, v_f32 b) {
    return _mm512_mul_ps(a, b);
}
V_INLINE v_f32 v_div(v_f32 a, v_f32 b) {
    return _mm512_div_ps(a, b);
}
V_INLINE v_f32 v_fma(v_f32 a, v_f32 b, v_f32 c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a b */
V_INLINE v_f32 v_fnma(v_f32 a, v_f32 b, v_f32 c) {
    return _mm512_fnmadd_ps(a, b, c);
}
V_INLINE v_f32 v_max(v_f32 a, v_f32 b) {
    return _mm512_max_ps(a, b);
}
V_INLINE v_f32 v_min(v_f32 a, v_f32 b) {
    return _mm512_min_ps(a, b);
}
V_INLINE v_f32 v_abs(v_f32 a) {
    return _mm512_abs_ps(a);
}

/* 1 / a to a last bit, for finite a with a normal inverse; NaN stays. By the estimate and one step
 * of Newton's, as a division of 16 lanes keeps the divider busy for 16 cycles. */
V_INLINE v_f32 v_inverse(v_f32 a) {
    __m512 estimate = _mm512_rcp14_ps(a);
    __m512 error = _mm512_fnmadd_ps(a, estimate, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(estimate, error, estimate);
}

/* sqrt(a) to a last bit or two. By the estimate of 1 / sqrt and one step of Newton's, as the
 * divider, which the real square root would keep busy for 20 cycles, is wanted by AdamW's
 * division. */
V_INLINE v_f32 v_sqrt(v_f32 a) {
    __m512 estimate = _mm512_rsqrt14_ps(a);
    __m512 root = _mm512_mul_ps(a, estimate);
    __m512 half = _mm512_mul_ps(_mm512_set1_ps(0.5f), estimate);
    __m512 error = _mm512_fnmadd_ps(root, root, a);
    root = _mm512_fmadd_ps(error, half, root);
    __mmask16 special = _mm512_fpclass_ps_mask(a, 0x02 | 0x04 | 0x08); /* +0, -0, +infinity */
    return _mm512_mask_mov_ps(root, special, a);
}

/* value where a < 0, else other (also for NaN) */
V_INLINE v_f32 v_where_negative(v_f32 a, v_f32 value, v_f32 other) {
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(a, v_zero(), _CMP_LT_OQ), value);
}
/* value where a <= 0, else other */
V_INLINE v_f32 v_where_not_positive(v_f32 a, v_f32 value, v_f32 other) {
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(a, v_zero(), _CMP_LE_OQ), value);
}
/* The first count lanes of value, `fill` in the others. */
V_INLINE v_f32 v_first(v_f32 value, int count, float fill) {
    if (count >= V_LANES) {
        return value;
    }
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), v__part(count), value);
}
/* value 2^n for integral n in float; overflows to infinity, underflows by way of denormals to 0. */
V_INLINE v_f32 v_scale_by_power(v_f32 value, v_f32 n) {
    return _mm512_scalef_ps(value, n);
}

/*
 * Until v_denormals_restore, operands and results below the normal range count as 0 on this thread.
 * Call both around a function that is not inlined, so that no arithmetic can move past them.
 */
V_INLINE uint32_t v_denormals_off(void) {
    uint32_t control = _mm_getcsr();
    _mm_setcsr(control | 0x8040u); /* flush to zero, denormals are zero */
    return control;
}
V_INLINE void v_denormals_restore(uint32_t control) {
    _mm_setcsr(control);
}

/* Asks for the cache line at an address, which may lie outside any object. */
V_INLINE void v_prefetch(const void *address) {
    _mm_prefetch((const char *)address, _MM_HINT_T0);
}

V_INLINE float v_sum(v_f32 a) {
    return _mm512_reduce_add_ps(a);
}
/* The largest lane, or a NaN or not when there are NaN. */
V_INLINE float v_largest(v_f32 a) {
    return _mm512_reduce_max_ps(a);
}

V_INLINE v_f64 v_zero_f64(void) {
    return _mm512_setzero_pd();
}
V_INLINE v_f64 v_low_f64(v_f32 a) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}
V_INLINE v_f64 v_high_f64(v_f32 a) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
V_INLINE v_f64 v_add_f64(v_f64 a, v_f64 b) {
    return _mm512_add_pd(a, b);
}
V_INLINE v_f64 v_fma_f64(v_f64 a, v_f64 b, v_f64 c) {
    return _mm512_fmadd_pd(a, b, c);
}
V_INLINE double v_sum_f64(v_f64 a) {
    return _mm512_reduce_add_pd(a);
}

V_INLINE v_u64 v_set_u64(uint64_t value) {
    return _mm512_set1_epi64((int64_t)value);
}
/* first, first + 1, ... */
V_INLINE v_u64 v_count_u64(uint64_t first) {
    return _mm512_add_epi64(v_set_u64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
}
V_INLINE v_u64 v_xor_u64(v_u64 a, v_u64 b) {
    return _mm512_xor_si512(a, b);
}
V_INLINE v_u64 v_high_word_u64(v_u64 a) {
    return _mm512_srli_epi64(a, 32);
}
/* Product of the low words. */
V_INLINE v_u64 v_mul_words_u64(v_u64 a, v_u64 b) {
    return _mm512_mul_epu32(a, b);
}
/* Stores lane by lane the low words of a, b, c, d: a0 b0 c0 d0 a1 b1 ... (4 * V_LANES_U64
 * words). */
V_INLINE void v_store_words(uint32_t *to, v_u64 a, v_u64 b, v_u64 c, v_u64 d) {
    __m512i ab = _mm512_mask_blend_epi32(0xaaaa, a, _mm512_slli_epi64(b, 32));
    __m512i cd = _mm512_mask_blend_epi32(0xaaaa, c, _mm512_slli_epi64(d, 32));
    __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    __m512i second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(ab, first, cd));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(ab, second, cd));
}
/* value where word >> 8 >= threshold, else 0. */
V_INLINE v_f32 v_where_word_at_least(const uint32_t *words, uint32_t threshold, v_f32 value) {
    __m512i top = _mm512_srli_epi32(_mm512_loadu_si512(words), 8);
    __mmask16 keep = _mm512_cmpge_epu32_mask(top, _mm512_set1_epi32((int32_t)threshold));
    return _mm512_maskz_mov_ps(keep, value);
}

#endif
