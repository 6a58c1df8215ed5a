/*
 * attention_vector.h - blocked attention over the vector layer: what forward, gradient and cache
 * share.
 *
 * Blocks of 64 queries by 64 keys; no T x T matrix. Scores are kept turned, [key][query], so that
 * everything that belongs to a query (maximum, sum, log of the sum, do . o) is a lane of a vector,
 * and no sum runs across a vector:
 *
 *     S' = K Q'          O' += V' P'        dP' = V dO'
 *     dV += P' dO        dK += dS' Q        dQ' += K' dS'
 *
 * (FlashAttention-2, Dao 2023, algorithms 1 and 2, turned.) The second operand of each product is
 * either a panel made once per head, or P' and dS' as they come out of the softmax. For bf16 on
 * processors with AVX512_BF16 or AMX the products take pairs of bf16 (P and dS are rounded to
 * bf16), elsewhere bf16 is widened to fp32 first.
 *
 * One thread does a whole head, or in the gradient all heads of a group, so bits do not depend on
 * the number of threads. Padding is zeros, and hidden keys have a score of -infinity and weigh
 * exactly 0; a NaN or infinity among the keys and values spreads to all queries of its block, also
 * to those that do not see it: it is not hidden, which is what the contract asks.
 * Rejected: one query row at a time (no reuse of registers); blocks of S kept for the gradient
 * (memory); two passes over the keys (the same work as rescaling).
 */
#ifndef MS_DEVICE_CPU_ATTENTION_VECTOR_H
#define MS_DEVICE_CPU_ATTENTION_VECTOR_H

#include <math.h>

#include "base/memory.h"
#include "device/cpu/attention_shape.h"

#define HEAD_SIZE_MAX 256
#define BLOCK_ELEMENTS (BLOCK * BLOCK)

/* What a spec makes of the sizes above. */
typedef struct attention_engine {
    ms_attention_shape shape;
    ms_dtype type;
    bool pairs, amx;
    int64_t width;       /* head_size rounded up to 32 */
    int64_t depth;       /* 32-bit elements along a head's row: width, or half of it */
    int64_t block_depth; /* 32-bit elements along the rows of a block: 64 or 32 */
    int64_t panel;       /* elements of one panel of one block */
    float log2_scale;    /* scale * log2(e): scores enter 2^x */
    void (*multiply)(const ms_attention_product *);
} attention_engine;

static attention_engine make_engine(const ms_device *device, const ms_kernel_spec *spec) {
    attention_engine e = {.shape = ms__attention_shape(spec), .type = spec->arguments[0].dtype};
    (void)device;
#ifdef V_PAIRS
    e.pairs = e.type == MS_BF16 && ms_cpu_has_avx512_bf16();
    e.amx = e.pairs && ms_cpu_has_amx_bf16();
#endif
    e.width = (int64_t)ms_align_up((size_t)e.shape.head_size, 32);
    e.depth = e.pairs ? e.width / 2 : e.width;
    e.block_depth = e.pairs ? BLOCK / 2 : BLOCK;
    e.panel = BLOCK * e.depth;
    e.log2_scale = (float)(e.shape.scale * 1.4426950408889634);
    e.multiply = multiply_f32;
#ifdef V_PAIRS
    if (e.pairs) {
        e.multiply = e.amx ? ms__attention_multiply_amx : ms__attention_multiply_dot;
    }
#endif
    return e;
}

/* Negative scales would turn the largest score into the smallest. */
static bool attention_supports(const ms_device *device, const ms_kernel_spec *spec) {
    (void)device;
    return spec->arguments[0].dtype != MS_F64 && spec->attributes.attention.scale > 0.0 &&
           spec->attributes.attention.head_size <= HEAD_SIZE_MAX;
}

static void engine_begin(const attention_engine *e) {
#ifdef V_PAIRS
    if (e->amx) {
        ms__attention_amx_begin();
    }
#endif
    (void)e;
}

static void engine_end(const attention_engine *e) {
#ifdef V_PAIRS
    if (e->amx) {
        ms__attention_amx_end();
    }
#endif
    (void)e;
}

/* Offsets of panels in a thread's scratch, in floats, each a multiple of 16. */
static int64_t take(int64_t *used, int64_t floats) {
    int64_t at = *used;
    *used += (int64_t)ms_align_up((size_t)floats, 16);
    return at;
}

/* Sets the handle's scratch to `floats` for each thread of a team. */
static ms_status set_scratch(ms_kernel_handle *handle, int64_t pieces, int64_t floats) {
    size_t bytes;
    if (!ms_size_mul((size_t)floats, sizeof(float) * (size_t)ms__cpu_team(handle, pieces),
                     &bytes)) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: its scratch overflows",
                       ms_slot_name(handle->spec.slot));
    }
    handle->needs.scratch_bytes = bytes;
    return MS_OK;
}

static int64_t block_count(int64_t rows) {
    return ms_ceil_div(rows, BLOCK);
}

/* Rows that are worked on of a block with `left` rows left. */
static int64_t block_rows(int64_t left) {
    return left > HALF_BLOCK ? BLOCK : HALF_BLOCK;
}

/* Panels of a block of rows, whatever of them is wanted (NULL: not). `rows` serves as room. */
static void make_panels(const attention_engine *e, const void *from, int64_t first, int64_t stride,
                        int64_t count, float *rows, float *turned, float *zipped,
                        float *zipped_turned) {
    copy_rows(from, e->type, e->pairs, first, stride, ms_min_i64(count, BLOCK), e->shape.head_size,
              rows, e->depth);
    if (turned != NULL) {
        turn(rows, BLOCK, e->depth, turned, BLOCK);
    }
#ifdef V_PAIRS
    if (e->pairs && zipped != NULL) {
        zip_rows(rows, e->depth, zipped);
        if (zipped_turned != NULL) {
            turn(zipped, BLOCK / 2, e->width, zipped_turned, BLOCK / 2);
        }
    }
#endif
    (void)zipped;
    (void)zipped_turned;
}

/* Scores that a query must not see become -infinity: keys after it, and keys beyond the last.
 * `ahead` is the position of the block's first key less that of its first query. */
static void hide_scores(const attention_engine *e, float *scores, int64_t keys, int64_t queries,
                        int64_t ahead, int64_t keys_left) {
    for (int64_t j = 0; j < keys; j++) {
        int64_t hidden = e->shape.causal ? ms_max_i64(ahead + j, 0) : 0;
        hidden = j < keys_left ? ms_min_i64(hidden, queries) : queries;
        float *row = scores + j * BLOCK;
        for (int64_t i = 0; i < hidden; i += V_LANES) {
            v_store_part(row + i, (int)ms_min_i64(hidden - i, V_LANES), v_set(-INFINITY));
        }
    }
}

/* ---- dropout of probabilities ---- */

/* Words of V_LANES_U64 counters (high, low), (high, low + 1), ...: as ms_random_at. */
V_INLINE void random_words(ms_random_key key, uint64_t high, uint64_t low, uint32_t *words) {
    v_u64 c0 = v_count_u64(low);
    v_u64 c1 = v_high_word_u64(c0);
    v_u64 c2 = v_set_u64(high);
    v_u64 c3 = v_set_u64(high >> 32);
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        v_u64 product_0 = v_mul_words_u64(c0, v_set_u64(UINT64_C(0xd2511f53)));
        v_u64 product_1 = v_mul_words_u64(c2, v_set_u64(UINT64_C(0xcd9e8d57)));
        c0 = v_xor_u64(v_xor_u64(v_high_word_u64(product_1), c1), v_set_u64(k0));
        c2 = v_xor_u64(v_xor_u64(v_high_word_u64(product_0), c3), v_set_u64(k1));
        c1 = product_1;
        c3 = product_0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    v_store_words(words, c0, c1, c2, c3);
}

#define MASK_WORDS (BLOCK + 4 * V_LANES_U64)

/*
 * words[j] of keys key + j, j < keys, of one query: word (key + j) % 4 of counter (query T + key +
 * j) / 4. In order as they are made when query T is a multiple of 4; else sorted out one by one.
 */
V_INLINE void mask_row_words(const ms_attention_shape *shape, uint64_t high, int64_t query,
                             int64_t key, int64_t keys, uint32_t words[MASK_WORDS]) {
    uint64_t index = (uint64_t)query * (uint64_t)shape->positions + (uint64_t)key;
    uint64_t first = index / 4;
    for (int64_t made = 0; made < keys + 4; made += 4 * V_LANES_U64) {
        random_words(shape->key, high, first + (uint64_t)made / 4, words + made);
    }
    if (index % 4 != 0) {
        uint32_t sorted[BLOCK];
        for (int64_t j = 0; j < keys; j++) {
            uint64_t counter = (index + (uint64_t)j) / 4 - first;
            sorted[j] = words[4 * counter + (uint64_t)((key + j) % 4)];
        }
        memcpy(words, sorted, (size_t)keys * sizeof words[0]);
    }
}

/* mask[key][query] = kept ? 1 / (1 - dropout) : 0 for a block of queries and keys; `key` is a
 * multiple of 4. `room` holds as much as the mask. */
static void make_mask(const attention_engine *e, uint64_t high, int64_t query, int64_t queries,
                      int64_t key, int64_t keys, float *mask, float *room) {
    const ms_attention_shape *shape = &e->shape;
    v_f32 scale = v_set((float)shape->keep_scale);
    uint32_t words[MASK_WORDS];
    for (int64_t i = 0; i < queries; i++) {
        mask_row_words(shape, high, query + i, key, keys, words);
        for (int64_t j = 0; j < keys; j += V_LANES) {
            v_store(room + i * keys + j,
                    v_where_word_at_least(words + j, shape->drop_below, scale));
        }
    }
    turn(room, queries, keys, mask, BLOCK);
}

#endif
