/*
 * vector_avx2.h - the thin layer over AVX2, FMA and F16C; see vector_avx512.h for the names.
 */
#ifndef MS_DEVICE_CPU_VECTOR_AVX2_H
#define MS_DEVICE_CPU_VECTOR_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define V_LANES 8
#define V_LANES_U64 4
#define V_ISA MS_ISA_AVX2
#define V_NAME "avx2"
#define V_VARIANT(slot) ms__##slot##_avx2
#define V_INLINE static inline __attribute__((always_inline))

typedef __m256 v_f32;
typedef __m256d v_f64;
typedef __m256i v_u64;

/* All bits set in the first count lanes. */
V_INLINE __m256i v__part(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

V_INLINE v_f32 v_zero(void) {
    return _mm256_setzero_ps();
}
V_INLINE v_f32 v_set(float value) {
    return _mm256_set1_ps(value);
}
V_INLINE v_f32 v_load(const float *from) {
    return _mm256_loadu_ps(from);
}
V_INLINE v_f32 v_load_part(const float *from, int count) {
    return _mm256_maskload_ps(from, v__part(count));
}
V_INLINE void v_store(float *to, v_f32 value) {
    _mm256_storeu_ps(to, value);
}
V_INLINE void v_store_part(float *to, int count, v_f32 value) {
    _mm256_maskstore_ps(to, v__part(count), value);
}

V_INLINE v_f32 v__widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
V_INLINE v_f32 v_load_bf16(const uint16_t *from) {
    return v__widen(_mm_loadu_si128((const __m128i *)(const void *)from));
}
V_INLINE v_f32 v_load_bf16_part(const uint16_t *from, int count) {
    uint16_t all[V_LANES] = {0};
    memcpy(all, from, (size_t)count * sizeof all[0]);
    return v_load_bf16(all);
}
/* To nearest even, NaN stays NaN. */
V_INLINE __m128i v__narrow(v_f32 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m256i packed = _mm256_packus_epi32(rounded, rounded);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
V_INLINE void v_store_bf16(uint16_t *to, v_f32 value) {
    _mm_storeu_si128((__m128i *)(void *)to, v__narrow(value));
}
V_INLINE void v_store_bf16_part(uint16_t *to, int count, v_f32 value) {
    uint16_t all[V_LANES];
    v_store_bf16(all, value);
    memcpy(to, all, (size_t)count * sizeof all[0]);
}
V_INLINE v_f32 v_round_bf16(v_f32 value) {
    return v__widen(v__narrow(value));
}

V_INLINE v_f32 v_add(v_f32 a, v_f32 b) {
    return _mm256_add_ps(a, b);
}
V_INLINE v_f32 v_sub(v_f32 a, v_f32 b) {
    return _mm256_sub_ps(a, b);
}
V_INLINE v_f32 v_mul(v_f32 a, v_f32 b) {
    return _mm256_mul_ps(a, b);
}
V_INLINE v_f32 v_div(v_f32 a, v_f32 b) {
    return _mm256_div_ps(a, b);
}
V_INLINE v_f32 v_fma(v_f32 a, v_f32 b, v_f32 c) {
    return _mm256_fmadd_ps(a, b, c);
}
V_INLINE v_f32 v_fnma(v_f32 a, v_f32 b, v_f32 c) {
    return _mm256_fnmadd_ps(a, b, c);
}
V_INLINE v_f32 v_max(v_f32 a, v_f32 b) {
    return _mm256_max_ps(a, b);
}
V_INLINE v_f32 v_min(v_f32 a, v_f32 b) {
    return _mm256_min_ps(a, b);
}
V_INLINE v_f32 v_abs(v_f32 a) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff)));
}

V_INLINE v_f32 v_inverse(v_f32 a) {
    return _mm256_div_ps(_mm256_set1_ps(1.0f), a);
}
V_INLINE v_f32 v_sqrt(v_f32 a) {
    return _mm256_sqrt_ps(a);
}

V_INLINE v_f32 v_where_negative(v_f32 a, v_f32 value, v_f32 other) {
    return _mm256_blendv_ps(other, value, _mm256_cmp_ps(a, v_zero(), _CMP_LT_OQ));
}
V_INLINE v_f32 v_where_not_positive(v_f32 a, v_f32 value, v_f32 other) {
    return _mm256_blendv_ps(other, value, _mm256_cmp_ps(a, v_zero(), _CMP_LE_OQ));
}
V_INLINE v_f32 v_first(v_f32 value, int count, float fill) {
    if (count >= V_LANES) {
        return value;
    }
    return _mm256_blendv_ps(_mm256_set1_ps(fill), value, _mm256_castsi256_ps(v__part(count)));
}
/* In two steps, so that results may overflow and be denormal; n within +-250. */
V_INLINE v_f32 v_scale_by_power(v_f32 value, v_f32 n) {
    __m256i power = _mm256_cvtps_epi32(n);
    __m256i half = _mm256_srai_epi32(power, 1);
    __m256i rest = _mm256_sub_epi32(power, half);
    __m256i bias = _mm256_set1_epi32(127);
    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(value, first), second);
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
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
V_INLINE float v_largest(v_f32 a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

V_INLINE v_f64 v_zero_f64(void) {
    return _mm256_setzero_pd();
}
V_INLINE v_f64 v_low_f64(v_f32 a) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}
V_INLINE v_f64 v_high_f64(v_f32 a) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
V_INLINE v_f64 v_add_f64(v_f64 a, v_f64 b) {
    return _mm256_add_pd(a, b);
}
V_INLINE v_f64 v_fma_f64(v_f64 a, v_f64 b, v_f64 c) {
    return _mm256_fmadd_pd(a, b, c);
}
V_INLINE double v_sum_f64(v_f64 a) {
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

V_INLINE v_u64 v_set_u64(uint64_t value) {
    return _mm256_set1_epi64x((int64_t)value);
}
V_INLINE v_u64 v_count_u64(uint64_t first) {
    return _mm256_add_epi64(v_set_u64(first), _mm256_set_epi64x(3, 2, 1, 0));
}
V_INLINE v_u64 v_xor_u64(v_u64 a, v_u64 b) {
    return _mm256_xor_si256(a, b);
}
V_INLINE v_u64 v_high_word_u64(v_u64 a) {
    return _mm256_srli_epi64(a, 32);
}
V_INLINE v_u64 v_mul_words_u64(v_u64 a, v_u64 b) {
    return _mm256_mul_epu32(a, b);
}
V_INLINE void v_store_words(uint32_t *to, v_u64 a, v_u64 b, v_u64 c, v_u64 d) {
    __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
    __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(ab, cd); /* lanes 0 and 2 */
    __m256i odd = _mm256_unpackhi_epi64(ab, cd);  /* lanes 1 and 3 */
    __m256i *out = (__m256i *)(void *)to;
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}
V_INLINE v_f32 v_where_word_at_least(const uint32_t *words, uint32_t threshold, v_f32 value) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)words);
    __m256i top = _mm256_srli_epi32(bits, 8); /* 24 bits: a signed comparison is right */
    __m256i keep = _mm256_cmpgt_epi32(top, _mm256_set1_epi32((int32_t)threshold - 1));
    return _mm256_and_ps(value, _mm256_castsi256_ps(keep));
}

#endif
