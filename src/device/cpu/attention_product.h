/*
 * attention_product.h - inside the room: the small products that blocked attention is made of.
 *
 *     c[m, n] (+)= a[m, k] b[k, n]       c fp32, one row of n after another
 *
 * An element of a and b is 32 bits: one fp32, or a pair of bf16 that lie next to each other in the
 * direction of k (then k counts pairs). b's rows are n elements; element (i, k) of a is at
 * a[i * a_row + k * a_k], where one of the strides is 1. n is a multiple of 32, m of 32, and k of
 * 16 when elements are pairs.
 */
#ifndef MS_DEVICE_CPU_ATTENTION_PRODUCT_H
#define MS_DEVICE_CPU_ATTENTION_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ms_attention_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;
} ms_attention_product;

/* Pairs, by vdpbf16ps (AVX512_BF16); a_k is 1. */
void ms__attention_multiply_dot(const ms_attention_product *product);
/* Pairs, by the tiles of AMX, between begin and end on the same thread; a_k is 1. */
void ms__attention_multiply_amx(const ms_attention_product *product);
void ms__attention_amx_begin(void);
void ms__attention_amx_end(void);

#if defined(__clang__)
#define MS_UNROLL_8 _Pragma("unroll 8")
#else
#define MS_UNROLL_8 _Pragma("GCC unroll 8")
#endif

#endif
