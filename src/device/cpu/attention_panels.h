/*
 * attention_panels.h - over the vector layer: blocks of a head copied into the layouts that the
 * products of attention_product.h read, the fp32 product itself, and 2^x.
 *
 * Include after the vector layer, vector_math.h and the layer's transpose_square; V_PAIRS is
 * defined where the layer has the 16-bit operations for pairs of bf16. All panels are made of
 * 32-bit elements in float arrays. Of a block of 64 rows x D elements, padded with zeros to
 * `width`:
 *
 *               fp32                                    pairs of bf16
 *     rows      [64][width]                             [64][width / 2]    pairs along D
 *     turned    [width][64]                             [width / 2][64]    pairs along D
 *     zipped    the same as rows                        [32][width]        pairs along rows
 *     zipped, turned   rows with strides exchanged      [width][32]        pairs along rows
 */
#ifndef MS_DEVICE_CPU_ATTENTION_PANELS_H
#define MS_DEVICE_CPU_ATTENTION_PANELS_H

#include <string.h>

#include "base/memory.h"
#include "device/cpu/attention_product.h"

#define BLOCK 64      /* rows of a block of queries, and of keys */
#define HALF_BLOCK 32 /* what its last one is rounded up to */
#define STRIP (2 * V_LANES)

/* ---- the fp32 product ---- */

V_INLINE void multiply_tile(int rows, const float *a, int64_t a_row, int64_t a_k, const float *b,
                            int64_t b_row, int64_t depth, float *c, int64_t c_row, bool add) {
    v_f32 sum[8][2];
    MS_UNROLL_8
    for (int i = 0; i < rows; i++) {
        sum[i][0] = add ? v_load(c + i * c_row) : v_zero();
        sum[i][1] = add ? v_load(c + i * c_row + V_LANES) : v_zero();
    }
    for (int64_t k = 0; k < depth; k++) {
        v_f32 b0 = v_load(b);
        v_f32 b1 = v_load(b + V_LANES);
        MS_UNROLL_8
        for (int i = 0; i < rows; i++) {
            v_f32 element = v_set(a[i * a_row]);
            sum[i][0] = v_fma(element, b0, sum[i][0]);
            sum[i][1] = v_fma(element, b1, sum[i][1]);
        }
        a += a_k;
        b += b_row;
    }
    MS_UNROLL_8
    for (int i = 0; i < rows; i++) {
        v_store(c + i * c_row, sum[i][0]);
        v_store(c + i * c_row + V_LANES, sum[i][1]);
    }
}

V_INLINE void multiply_strips(ms_attention_product p, int64_t a_row, int64_t a_k, bool add) {
    for (int64_t column = 0; column < p.n; column += STRIP) {
        int64_t row = 0;
        for (; row + V_PRODUCT_ROWS <= p.m; row += V_PRODUCT_ROWS) {
            multiply_tile(V_PRODUCT_ROWS, p.a + row * a_row, a_row, a_k, p.b + column, p.b_row, p.k,
                          p.c + row * p.c_row + column, p.c_row, add);
        }
        for (; row + 2 <= p.m; row += 2) {
            multiply_tile(2, p.a + row * a_row, a_row, a_k, p.b + column, p.b_row, p.k,
                          p.c + row * p.c_row + column, p.c_row, add);
        }
    }
}

/* Several times, so that the stride that is 1, and whether to add, are known at compile time. */
static void multiply_f32(const ms_attention_product *p) {
    if (p->a_row == 1 && p->add) {
        multiply_strips(*p, 1, p->a_k, true);
    } else if (p->a_row == 1) {
        multiply_strips(*p, 1, p->a_k, false);
    } else if (p->add) {
        multiply_strips(*p, p->a_row, 1, true);
    } else {
        multiply_strips(*p, p->a_row, 1, false);
    }
}

/* ---- 2^x ---- */

/*
 * 2^x to 1 unit in the last place; exactly 0 below 2^-126.5 (no denormals, which are slow), 2^127
 * at most. x = n + r; a minimax polynomial for 2^r on +-1/2, error 2e-9 relative. NaN stays NaN.
 */
V_INLINE v_f32 v_exp2(v_f32 x) {
    const v_f32 shift = v_set(0x1.8p23f); /* adding it rounds to an integer */
    x = v_clamp(x, -127.0f, 127.0f);
    v_f32 n = v_sub(v_add(x, shift), shift);
    v_f32 r = v_sub(x, n);
    v_f32 p = v_fma(v_set(0x1.41d334p-13f), r, v_set(0x1.5f456ap-10f));
    p = v_fma(p, r, v_set(0x1.3b2dbcp-7f));
    p = v_fma(p, r, v_set(0x1.c6aed4p-5f));
    p = v_fma(p, r, v_set(0x1.ebfbdap-3f));
    p = v_fma(p, r, v_set(0x1.62e430p-1f));
    p = v_fma(p, r, v_set(1.0f));
    return v_mul(p, v_power_of_two(n));
}

/* ---- panels ---- */

/* One row of `size` elements as floats, zeros up to width. */
V_INLINE void widen_row(const void *from, ms_dtype type, int64_t at, int64_t size, float *to,
                        int64_t width) {
    for (int64_t d = 0; d < width; d += V_LANES) {
        int64_t left = size - d;
        v_store(to + d,
                left > 0 ? v_get(from, type, at + d, (int)ms_min_i64(left, V_LANES)) : v_zero());
    }
}

V_INLINE void narrow_row(const float *from, void *to, ms_dtype type, int64_t at, int64_t size) {
    for (int64_t d = 0; d < size; d += V_LANES) {
        v_put(to, type, at + d, (int)ms_min_i64(size - d, V_LANES), v_load(from + d));
    }
}

/*
 * Asks for a head's row before its turn: rows are a token apart, often more than a page, which the
 * processor does not foresee. The address may lie beyond the tensor.
 */
#define ROWS_AHEAD 12
V_INLINE void fetch_row(const void *base, ms_dtype type, int64_t at, int64_t size, bool to_write) {
    size_t bytes = type == MS_F32 ? sizeof(float) : sizeof(uint16_t);
    uintptr_t first = (uintptr_t)base + (uintptr_t)at * bytes;
    for (size_t i = 0; i < (size_t)size * bytes; i += 64) {
        if (to_write) {
            __builtin_prefetch((const void *)(first + i), 1, 3);
        } else {
            __builtin_prefetch((const void *)(first + i), 0, 3);
        }
    }
}

/* `rows` (at most 64) rows of a head, and zeros: [64][depth]. */
static void copy_rows(const void *from, ms_dtype type, bool pairs, int64_t first, int64_t stride,
                      int64_t rows, int64_t size, float *to, int64_t depth) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = first + i * stride;
        float *row = to + i * depth;
        fetch_row(from, type, at + ROWS_AHEAD * stride, size, false);
#ifdef V_PAIRS
        if (pairs) {
            copy_pairs((const uint16_t *)from + at, size, row, depth);
            continue;
        }
#endif
        if (type == MS_F32) {
            widen_row(from, MS_F32, at, size, row, depth);
        } else {
            widen_row(from, MS_BF16, at, size, row, depth);
        }
    }
    (void)pairs;
    if (rows < BLOCK) {
        memset(to + rows * depth, 0, (size_t)((BLOCK - rows) * depth) * sizeof *to);
    }
}

/* to[j][i] = from[i][j]; rows and columns are multiples of 16; a row of `to` is to_row elements. */
static void turn(const float *from, int64_t rows, int64_t columns, float *to, int64_t to_row) {
    for (int64_t i = 0; i < rows; i += V_LANES) {
        for (int64_t j = 0; j < columns; j += V_LANES) {
            transpose_square(from + i * columns + j, columns, to + j * to_row + i, to_row);
        }
    }
}

#endif
