/*
 * attention_avx2.c - blocked attention for AVX2 with FMA; bf16 is widened to fp32.
 */
#include <omp.h>

#include "device/cpu/vector_avx2.h"

#include "device/cpu/vector_math.h"

#define V_PRODUCT_ROWS 6

V_INLINE v_f32 v_power_of_two(v_f32 n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

/* Pairs of rows, then of pairs, then halves exchanged. */
static void transpose_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) {
        r[i] = _mm256_loadu_ps(from + i * from_row);
    }
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#include "device/cpu/attention_panels.h"

#include "device/cpu/attention_vector.h"

#include "device/cpu/attention_cached.h"
#include "device/cpu/attention_forward.h"
#include "device/cpu/attention_gradient.h"
