/*
 * comm_sum_avx2.c - the loops of comm_sum_kernels.inl for AVX2 with F16C.
 *
 * Where it stands: chosen by CPUID in comm_sum.c. The half-precision conversions are the
 * processor's; they round like base/types.c's. copy_stream writes whole cache lines without reading
 * them first.
 */
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/types.h"

#define HAVE_F16C 1
#define KERNELS_NAME ms__sum_kernels_avx2

static void f16_to_f32(float *result, const uint16_t *values, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(values + i));
        _mm256_storeu_ps(result + i, _mm256_cvtph_ps(halves));
    }
    for (; i < count; i++) {
        result[i] = ms_f16_to_f32(values[i]);
    }
}

static void f32_to_f16(uint16_t *result, const float *values, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(result + i), halves);
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
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(in + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(in + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(out + at), low);
        _mm256_stream_si256((__m256i *)(void *)(out + at + 32), high);
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
    memcpy(out + at, in + at, bytes - at);
}

#include "comm/comm_sum_kernels.inl"
#endif
