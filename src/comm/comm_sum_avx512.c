/*
 * comm_sum_avx512.c - the loops of comm_sum_kernels.inl for AVX-512.
 *
 * Where it stands: chosen by CPUID in comm_sum.c. The half-precision conversions are the
 * processor's; they round like base/types.c's. copy_stream writes whole cache lines without reading
 * them first.
 */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__F16C__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/types.h"

#define HAVE_F16C 1
#define KERNELS_NAME ms__sum_kernels_avx512

static void f16_to_f32(float *result, const uint16_t *values, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(values + i));
        _mm512_storeu_ps(result + i, _mm512_cvtph_ps(halves));
    }
    for (; i < count; i++) {
        result[i] = ms_f16_to_f32(values[i]);
    }
}

static void f32_to_f16(uint16_t *result, const float *values, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i halves = _mm512_cvtps_ph(_mm512_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(void *)(result + i), halves);
    }
    for (; i < count; i++) {
        result[i] = ms_f32_to_f16(values[i]);
    }
}

static void copy_stream(void *result, const void *source, size_t bytes) {
    uint8_t *out = result;
    const uint8_t *in = source;
    size_t head = (size_t)(-(uintptr_t)out) & 63;
    head = head < bytes ? head : bytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
        __m512i line = _mm512_loadu_si512((const void *)(in + at));
        _mm512_stream_si512((__m512i *)(void *)(out + at), line);
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
    memcpy(out + at, in + at, bytes - at);
}

#include "comm/comm_sum_kernels.inl"
#endif
