/*
 * transpose_avx512.h - a 16 x 16 block of 32-bit elements transposed in registers, and rows of
 * 16-bit elements zipped into such elements. For the attention's panels and for
 * matmul_transpose_avx512.c.
 */
#ifndef MS_DEVICE_CPU_TRANSPOSE_AVX512_H
#define MS_DEVICE_CPU_TRANSPOSE_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define T_INLINE static inline __attribute__((always_inline))

/* rows[i] lane j becomes rows[j] lane i: pairs of rows, then of pairs, then of 128-bit quarters. */
T_INLINE void ms__transpose_16x16(__m512i rows[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* Now quarter q of rows[4 g + c] is column 4 q + c of rows 4 g .. 4 g + 3. */
    for (int c = 0; c < 4; c++) {
        __m512i even = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
        __m512i odd_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even, even_high, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(odd, odd_high, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even, even_high, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(odd, odd_high, 0xdd);
    }
    for (int i = 0; i < 16; i++) {
        rows[i] = t[i];
    }
}

/* Element j: low[j] in the low half, high[j] in the high half. */
T_INLINE __m512i ms__zip_16(__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

#undef T_INLINE

#endif
