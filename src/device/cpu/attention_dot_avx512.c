/*
 * attention_dot_avx512.c - products of bf16 pairs for blocked attention: by dot-product
 * instructions, and by AMX.
 *
 * Both take the same layouts: a's rows hold pairs along k as bf16 lie in memory, b's rows hold, for
 * one pair of k, the pairs of n columns. Sums are in fp32; the instructions take denormal bf16 for
 * 0. AMX does 16 times the work of a dot product per instruction, so its rate is bound by what
 * feeds it: four accumulators of 16 x 16 share two tiles of a and two of b.
 *
 * CPUID must have allowed the instruction set before a function here is called (attention_avx512.c
 * asks). Functions carry their own target, as the file's flags are those of plain AVX-512.
 */
#include "device/cpu/attention_product.h"

#include <immintrin.h>
#include <string.h>

#define LANES 16
#define DOT_ROWS 8
#define DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define AMX_TARGET __attribute__((target("avx512f,amx-tile,amx-bf16")))

/* 8 rows of c by 32 columns: 16 accumulators. */
DOT_TARGET static inline __attribute__((always_inline)) void dot_tile(const float *a, int64_t a_row,
                                                                      const float *b, int64_t b_row,
                                                                      int64_t depth, float *c,
                                                                      int64_t c_row, bool add) {
    __m512 sum[DOT_ROWS][2];
    MS_UNROLL_8
    for (int i = 0; i < DOT_ROWS; i++) {
        sum[i][0] = add ? _mm512_loadu_ps(c + i * c_row) : _mm512_setzero_ps();
        sum[i][1] = add ? _mm512_loadu_ps(c + i * c_row + LANES) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < depth; k++) {
        __m512bh b0 = (__m512bh)_mm512_loadu_ps(b);
        __m512bh b1 = (__m512bh)_mm512_loadu_ps(b + LANES);
        MS_UNROLL_8
        for (int i = 0; i < DOT_ROWS; i++) {
            __m512bh pair = (__m512bh)_mm512_set1_ps(a[i * a_row]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
        }
        a++;
        b += b_row;
    }
    MS_UNROLL_8
    for (int i = 0; i < DOT_ROWS; i++) {
        _mm512_storeu_ps(c + i * c_row, sum[i][0]);
        _mm512_storeu_ps(c + i * c_row + LANES, sum[i][1]);
    }
}

DOT_TARGET static inline __attribute__((always_inline)) void dot_strips(ms_attention_product p,
                                                                        bool add) {
    for (int64_t column = 0; column < p.n; column += 2 * LANES) {
        for (int64_t row = 0; row < p.m; row += DOT_ROWS) {
            dot_tile(p.a + row * p.a_row, p.a_row, p.b + column, p.b_row, p.k,
                     p.c + row * p.c_row + column, p.c_row, add);
        }
    }
}

DOT_TARGET void ms__attention_multiply_dot(const ms_attention_product *p) {
    if (p->add) {
        dot_strips(*p, true);
    } else {
        dot_strips(*p, false);
    }
}

/* The processor's format: palette 1, then for each tile bytes of a row, and rows. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "the tile configuration is 64 bytes");

/* Constant, as gcc's intrinsic says of only the first bytes that it reads them, so that stores to
 * the others of a local might be dropped. */
static const tile_config whole_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

AMX_TARGET void ms__attention_amx_begin(void) {
    _tile_loadconfig(&whole_tiles);
}

AMX_TARGET void ms__attention_amx_end(void) {
    _tile_release();
}

/* Tiles 0 to 3 are c, 4 and 5 two blocks of rows of a, 6 and 7 two blocks of columns of b. */
AMX_TARGET void ms__attention_multiply_amx(const ms_attention_product *p) {
    size_t a_bytes = (size_t)p->a_row * 4, b_bytes = (size_t)p->b_row * 4;
    size_t c_bytes = (size_t)p->c_row * 4;
    for (int64_t column = 0; column < p->n; column += 2 * LANES) {
        for (int64_t row = 0; row < p->m; row += 2 * LANES) {
            float *c = p->c + row * p->c_row + column;
            float *c_low = c + LANES * p->c_row;
            if (p->add) {
                _tile_loadd(0, c, c_bytes);
                _tile_loadd(1, c + LANES, c_bytes);
                _tile_loadd(2, c_low, c_bytes);
                _tile_loadd(3, c_low + LANES, c_bytes);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            const float *a = p->a + row * p->a_row;
            const float *b = p->b + column;
            for (int64_t k = 0; k < p->k; k += LANES) {
                _tile_loadd(6, b + k * p->b_row, b_bytes);
                _tile_loadd(4, a + k, a_bytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, b + k * p->b_row + LANES, b_bytes);
                _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, a + LANES * p->a_row + k, a_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, c, c_bytes);
            _tile_stored(1, c + LANES, c_bytes);
            _tile_stored(2, c_low, c_bytes);
            _tile_stored(3, c_low + LANES, c_bytes);
        }
    }
}
