/*
 * attention_shape.h - inside the room: sizes, strides and dropout's mask of an attention spec, the
 * same for every variant.
 *
 * A head's rows are D elements, one token's row apart. With attention.packed, a token's row is
 * q|k|v:
 *
 *     | H * D: q of heads 0 .. H-1 | G * D: k | G * D: v |      row_q = row_kv = (H + 2 G) D
 *
 * and k and v lie in the argument that holds q.
 */
#ifndef MS_DEVICE_CPU_ATTENTION_SHAPE_H
#define MS_DEVICE_CPU_ATTENTION_SHAPE_H

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "device/cpu/cpu_kernels.h"

typedef struct ms_attention_shape {
    int64_t batch, positions, heads, kv_heads, head_size;
    int64_t group;            /* query heads of one key/value head */
    int64_t row_q, row_kv;    /* elements from one token's row to the next */
    int64_t first_k, first_v; /* of head 0's k and v within their row */
    int64_t row_o;
    double scale;
    bool causal, packed;
    bool drops;
    double keep_scale;   /* 1 / (1 - dropout) */
    uint32_t drop_below; /* dropped when a word's upper 24 bits are below this */
    ms_random_key key;
    int64_t heads_global, head_first;
} ms_attention_shape;

static inline ms_attention_shape ms__attention_shape(const ms_kernel_spec *spec) {
    bool packed = spec->attributes.attention.packed;
    int64_t heads = spec->attributes.attention.heads;
    int64_t kv_heads = spec->attributes.attention.kv_heads;
    int64_t size = spec->attributes.attention.head_size;
    double dropout = spec->attributes.attention.dropout;
    int64_t row_packed = (heads + 2 * kv_heads) * size;
    return (ms_attention_shape){
        .batch = spec->attributes.attention.batch,
        .positions = spec->attributes.attention.positions,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_size = size,
        .group = heads / kv_heads,
        .row_q = packed ? row_packed : heads * size,
        .row_kv = packed ? row_packed : kv_heads * size,
        .first_k = packed ? heads * size : 0,
        .first_v = packed ? (heads + kv_heads) * size : 0,
        .row_o = heads * size,
        .scale = spec->attributes.attention.scale,
        .causal = spec->attributes.attention.causal,
        .packed = packed,
        .drops = dropout > 0.0,
        .keep_scale = 1.0 / (1.0 - dropout),
        .drop_below = (uint32_t)ceil(dropout * 0x1p24),
        .key = spec->attributes.attention.key,
        .heads_global = spec->attributes.attention.heads_global,
        .head_first = spec->attributes.attention.head_first,
    };
}

/* The counter's high word of one sequence and head. */
static inline uint64_t ms__attention_mask_high(const ms_attention_shape *shape,
                                               const int64_t *sample, int64_t b, int64_t h) {
    return (uint64_t)sample[b] * (uint64_t)shape->heads_global + (uint64_t)(shape->head_first + h);
}

static inline bool ms__attention_keeps(const ms_attention_shape *shape, uint64_t high,
                                       int64_t query, int64_t key) {
    uint64_t low = ((uint64_t)query * (uint64_t)shape->positions + (uint64_t)key) / 4;
    return ms_random_at(shape->key, high, low).word[key % 4] >> 8 >= shape->drop_below;
}

/* Attention over a cache: the new rows' keys and values go to cache rows extent[1] and on. */
static inline void ms__attention_cache_write(const ms_kernel_handle *handle,
                                             const ms_attention_shape *shape,
                                             const ms_kernel_run_info *run) {
    size_t element = ms_dtype_bytes(ms__dtype(handle, 0));
    size_t row_bytes = (size_t)(shape->kv_heads * shape->head_size) * element;
    for (int64_t i = 0; i < run->extent[0]; i++) {
        size_t from = (size_t)(i * shape->row_kv);
        size_t to = (size_t)(run->extent[1] + i) * row_bytes;
        const char *k = run->arguments[shape->packed ? 0 : 1];
        const char *v = run->arguments[shape->packed ? 0 : 2];
        memcpy((char *)run->arguments[3] + to, k + (from + (size_t)shape->first_k) * element,
               row_bytes);
        memcpy((char *)run->arguments[4] + to, v + (from + (size_t)shape->first_v) * element,
               row_bytes);
    }
}

#endif
