/*
 * vector_dropout.h - dropout over the vector layer.
 *
 * Random words are those of ms_random_at (Philox 4x32-10), V_LANES_U64 counters at a time, each in
 * the low half of a 64-bit lane, whose high halves hold what the multiplication leaves there. A
 * piece of a row's words is made first and then applied, as a row need not begin at a multiple of
 * four words.
 */
#ifndef MS_DEVICE_CPU_VECTOR_DROPOUT_H
#define MS_DEVICE_CPU_VECTOR_DROPOUT_H

#include <math.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"

#define DROPOUT_PIECE 1024              /* columns */
#define DROPOUT_BATCH (4 * V_LANES_U64) /* words made at once */
#define DROPOUT_WORDS (DROPOUT_PIECE + 2 * DROPOUT_BATCH)
#define DROPOUT_ROUNDS 10

typedef struct dropout_stream {
    ms_random_key key;
    uint64_t sample;
    uint32_t threshold; /* kept when a word's upper 24 bits reach it */
    float scale;
} dropout_stream;

/* The words of V_LANES_U64 counters from (sample, counter) on. */
V_INLINE void dropout_batch(const dropout_stream *stream, uint64_t counter, uint32_t *words) {
    v_u64 c0 = v_count_u64(counter);
    v_u64 c1 = v_high_word_u64(c0);
    v_u64 c2 = v_set_u64(stream->sample);
    v_u64 c3 = v_set_u64(stream->sample >> 32);
    uint32_t k0 = stream->key.word[0];
    uint32_t k1 = stream->key.word[1];
    for (int round = 0; round < DROPOUT_ROUNDS; round++) {
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

/* y = x * (kept ? scale : 0), so that NaN and infinity pass. */
V_INLINE void dropout_step(void *const *arguments, ms_dtype type, const dropout_stream *stream,
                           const uint32_t *words, int64_t at, int count) {
    v_f32 factor = v_where_word_at_least(words, stream->threshold, v_set(stream->scale));
    v_put(arguments[2], type, at, count, v_mul(v_get(arguments[0], type, at, count), factor));
}

/* `count` elements at `at`, the first of which is element `index` of its sample. */
V_INLINE void dropout_piece(void *const *arguments, ms_dtype type, const dropout_stream *stream,
                            uint64_t index, int64_t at, int64_t count) {
    uint32_t words[DROPOUT_WORDS];
    const uint32_t *first = words + index % 4;
    for (int64_t made = 0; made < count + 4; made += DROPOUT_BATCH) {
        dropout_batch(stream, index / 4 + (uint64_t)made / 4, words + made);
    }
    int64_t i = 0;
    for (; i + V_LANES <= count; i += V_LANES) {
        dropout_step(arguments, type, stream, first + i, at + i, V_LANES);
    }
    if (i < count) {
        dropout_step(arguments, type, stream, first + i, at + i, (int)(count - i));
    }
}

static void dropout_row(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                        const dropout_stream *stream, int64_t n, int64_t position) {
    int64_t columns = ms__dim(handle, 0, 1);
    uint64_t index = (uint64_t)position * (uint64_t)handle->spec.attributes.dropout.columns_global +
                     (uint64_t)handle->spec.attributes.dropout.column_first;
    for (int64_t c = 0; c < columns; c += DROPOUT_PIECE) {
        int64_t count = ms_min_i64(DROPOUT_PIECE, columns - c);
        int64_t at = n * columns + c;
        if (ms__dtype(handle, 0) == MS_F32) {
            dropout_piece(run->arguments, MS_F32, stream, index + (uint64_t)c, at, count);
        } else {
            dropout_piece(run->arguments, MS_BF16, stream, index + (uint64_t)c, at, count);
        }
    }
}

static ms_status dropout_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    const int64_t *samples = run->arguments[1];
    double probability = handle->spec.attributes.dropout.probability;
    dropout_stream common = {.key = handle->spec.attributes.dropout.key,
                             .threshold = (uint32_t)ceil(probability * 0x1p24),
                             .scale = (float)(1.0 / (1.0 - probability))};
#pragma omp parallel for schedule(static) num_threads(v_team(handle, rows *columns))
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = handle->spec.attributes.dropout.row_first + n;
        int64_t positions = handle->spec.attributes.dropout.positions;
        dropout_stream stream = common;
        stream.sample = (uint64_t)samples[row / positions];
        dropout_row(handle, run, &stream, n, row % positions);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(dropout) = {
    .name = V_NAME, .isa = V_ISA, .supports = v_first_is_served, .run = dropout_run};

#endif
