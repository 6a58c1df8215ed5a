/*
 * attention_forward.h - blocked attention forward, over all positions and over a cache.
 *
 * For each block of 64 queries, over the blocks of keys that they see: scores, running maximum and
 * sum of each query (lanes), weights, output turned and rescaled by 2^(old maximum - new). A
 * thread's scratch for one head (floats; `blocks` of keys):
 *
 *     k rows [blocks] | v [blocks] | q rows | q turned | room | scores | weights | mask | o' |
 * state
 *
 * v is [64][width] in fp32, whose turned form is a matter of strides, and zipped and turned in
 * pairs.
 */
#ifndef MS_DEVICE_CPU_ATTENTION_FORWARD_H
#define MS_DEVICE_CPU_ATTENTION_FORWARD_H

#include "device/cpu/attention_vector.h"

/* One head: where its rows are, and how its queries lie to its keys. */
typedef struct forward_head {
    const void *q, *k, *v;
    int64_t first_q, first_k, first_v; /* elements */
    int64_t row_q, row_kv, row_o;
    int64_t queries, keys;
    int64_t position; /* of query 0; key 0 has 0 */
    void *o;
    int64_t first_o;
    float *lse;    /* NULL: not wanted */
    uint64_t high; /* of dropout's counter */
} forward_head;

typedef struct forward_layout {
    int64_t k, v, rows, q_turned, zipped, scores, weights, mask, out, state, floats;
} forward_layout;

enum { STATE_MAXIMUM, STATE_SUM, STATE_ALPHA, STATE_COUNT };

static forward_layout lay_out_forward(const attention_engine *e, int64_t keys) {
    int64_t blocks = block_count(keys), used = 0;
    forward_layout l = {0};
    l.k = take(&used, blocks * e->panel);
    l.v = take(&used, blocks * e->panel);
    l.rows = take(&used, BLOCK * e->width); /* also the output's last room, in fp32 */
    l.q_turned = take(&used, e->panel);
    l.zipped = take(&used, e->pairs ? e->panel : 0);
    l.scores = take(&used, BLOCK_ELEMENTS);
    l.weights = take(&used, e->pairs ? BLOCK_ELEMENTS / 2 : 0);
    l.mask = take(&used, e->shape.drops ? 2 * BLOCK_ELEMENTS : 0);
    l.out = take(&used, e->width * BLOCK);
    l.state = take(&used, STATE_COUNT * BLOCK);
    l.floats = used;
    return l;
}

/* Weights of one block for V_LANES queries; scores become weights in place, or pairs in `pairs`. */
V_INLINE void weigh(const attention_engine *e, float *scores, float *pairs, const float *mask,
                    float *state, int64_t keys, bool first, bool with_pairs, bool with_mask) {
    v_f32 scale = v_set(e->log2_scale);
    v_f32 before = first ? v_set(-INFINITY) : v_load(state + STATE_MAXIMUM * BLOCK);
    v_f32 m[4] = {before, before, before, before}; /* four, as one would wait for itself */
    for (int64_t j = 0; j < keys; j += 4) {
        for (int i = 0; i < 4; i++) {
            m[i] = v_max(m[i], v_load(scores + (j + i) * BLOCK));
        }
    }
    v_f32 largest = v_max(v_max(m[0], m[1]), v_max(m[2], m[3]));
    v_f32 shift = v_sub(v_zero(), v_mul(largest, scale));
    v_f32 sum = v_zero();
    for (int64_t j = 0; j < keys; j += 2) {
        v_f32 p0 = v_exp2(v_fma(v_load(scores + j * BLOCK), scale, shift));
        v_f32 p1 = v_exp2(v_fma(v_load(scores + (j + 1) * BLOCK), scale, shift));
        sum = v_add(sum, v_add(p0, p1));
        if (with_mask) {
            p0 = v_mul(p0, v_load(mask + j * BLOCK));
            p1 = v_mul(p1, v_load(mask + (j + 1) * BLOCK));
        }
#ifdef V_PAIRS
        if (with_pairs) {
            v_store(pairs + j / 2 * BLOCK, v_pair_bf16(p0, p1));
            continue;
        }
#endif
        v_store(scores + j * BLOCK, p0);
        v_store(scores + (j + 1) * BLOCK, p1);
    }
    if (!first) {
        v_f32 alpha = v_exp2(v_fma(before, scale, shift));
        v_store(state + STATE_ALPHA * BLOCK, alpha);
        sum = v_fma(v_load(state + STATE_SUM * BLOCK), alpha, sum);
    }
    v_store(state + STATE_MAXIMUM * BLOCK, largest);
    v_store(state + STATE_SUM * BLOCK, sum);
    (void)pairs;
    (void)with_pairs;
}

static void weigh_block(const attention_engine *e, float *scores, float *pairs, const float *mask,
                        float *state, int64_t keys, int64_t queries, bool first) {
    for (int64_t i = 0; i < queries; i += V_LANES) {
#ifdef V_PAIRS
        if (e->pairs && mask == NULL) {
            weigh(e, scores + i, pairs + i, NULL, state + i, keys, first, true, false);
            continue;
        }
        if (e->pairs) {
            weigh(e, scores + i, pairs + i, mask + i, state + i, keys, first, true, true);
            continue;
        }
#endif
        if (mask == NULL) {
            weigh(e, scores + i, NULL, NULL, state + i, keys, first, false, false);
        } else {
            weigh(e, scores + i, NULL, mask + i, state + i, keys, first, false, true);
        }
    }
    (void)pairs;
}

static void rescale(float *out, const float *alpha, int64_t width, int64_t queries) {
    for (int64_t i = 0; i < queries; i += V_LANES) {
        v_f32 factor = v_load(alpha + i);
        for (int64_t d = 0; d < width; d++) {
            v_store(out + d * BLOCK + i, v_mul(v_load(out + d * BLOCK + i), factor));
        }
    }
}

/* o = o' / sum, turned back, and lse. `room` holds a block of rows in fp32. */
static void finish_block(const attention_engine *e, const forward_head *head, int64_t query,
                         int64_t queries, float *out, const float *state, float *room) {
    const float *sums = state + STATE_SUM * BLOCK;
    for (int64_t i = 0; i < BLOCK; i += V_LANES) {
        v_f32 inverse = i < queries ? v_div(v_set(1.0f), v_load(sums + i)) : v_zero();
        for (int64_t d = 0; d < e->width; d++) {
            float *at = out + d * BLOCK + i;
            v_store(at, i < queries ? v_mul(v_load(at), inverse) : v_zero());
        }
    }
    turn(out, e->width, BLOCK, room, e->width);
    int64_t rows = ms_min_i64(queries, head->queries - query);
    for (int64_t i = 0; i < rows; i++) {
        fetch_row(head->o, e->type, head->first_o + (query + i + ROWS_AHEAD) * head->row_o,
                  e->shape.head_size, true);
        narrow_row(room + i * e->width, head->o, e->type, head->first_o + (query + i) * head->row_o,
                   e->shape.head_size);
        if (head->lse != NULL) {
            head->lse[query + i] =
                state[STATE_MAXIMUM * BLOCK + i] * (float)e->shape.scale + logf(sums[i]);
        }
    }
}

/* Some queries of a block, from `column` on, against some keys of block b of the keys. */
static void forward_step(const attention_engine *e, const forward_head *head,
                         const forward_layout *l, float *room, int64_t query, int64_t column,
                         int64_t queries, int64_t b, int64_t keys) {
    int64_t key = b * BLOCK, depth = e->pairs ? keys / 2 : keys;
    float *scores = room + l->scores + column, *weights = room + l->weights + column;
    float *mask = e->shape.drops ? room + l->mask + column : NULL;
    float *state = room + l->state + column;
    e->multiply(&(ms_attention_product){.m = keys,
                                        .n = queries,
                                        .k = e->depth,
                                        .a = room + l->k + b * e->panel,
                                        .a_row = e->depth,
                                        .a_k = 1,
                                        .b = room + l->q_turned + column,
                                        .b_row = BLOCK,
                                        .c = scores,
                                        .c_row = BLOCK});
    int64_t ahead = key - (head->position + query + column);
    if ((e->shape.causal && ahead + keys - 1 > 0) || key + keys > head->keys) {
        hide_scores(e, scores, keys, queries, ahead, head->keys - key);
    }
    if (mask != NULL) {
        make_mask(e, head->high, query + column, queries, key, keys, mask,
                  room + l->mask + BLOCK_ELEMENTS);
    }
    weigh_block(e, scores, weights, mask, state, keys, queries, b == 0);
    if (b > 0) {
        rescale(room + l->out + column, state + STATE_ALPHA * BLOCK, e->width, queries);
    }
    e->multiply(&(ms_attention_product){.m = e->width,
                                        .n = queries,
                                        .k = depth,
                                        .a = room + l->v + b * e->panel,
                                        .a_row = e->pairs ? BLOCK / 2 : 1,
                                        .a_k = e->pairs ? 1 : e->width,
                                        .b = e->pairs ? weights : scores,
                                        .b_row = BLOCK,
                                        .c = room + l->out + column,
                                        .c_row = BLOCK,
                                        .add = b > 0});
}

/* The queries from `query` on against every block of keys that they see. */
static void forward_block(const attention_engine *e, const forward_head *head,
                          const forward_layout *l, float *room, int64_t query) {
    int64_t queries = block_rows(head->queries - query);
    int64_t last_query = ms_min_i64(query + BLOCK, head->queries) - 1;
    int64_t visible = e->shape.causal ? head->position + last_query + 1 : head->keys;
    int64_t blocks = block_count(visible);
    make_panels(e, head->q, head->first_q + query * head->row_q, head->row_q, head->queries - query,
                room + l->rows, room + l->q_turned, NULL, NULL);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t keys = block_rows(visible - b * BLOCK);
        if (e->shape.causal && b * BLOCK == head->position + query && queries == BLOCK) {
            /* The diagonal: its first half does not see the last half of the keys. */
            forward_step(e, head, l, room, query, 0, HALF_BLOCK, b, HALF_BLOCK);
            forward_step(e, head, l, room, query, HALF_BLOCK, HALF_BLOCK, b, keys);
        } else {
            forward_step(e, head, l, room, query, 0, queries, b, keys);
        }
    }
    finish_block(e, head, query, queries, room + l->out, room + l->state, room + l->rows);
}

static void forward_whole(const attention_engine *e, const forward_head *head,
                          const forward_layout *l, float *room) {
    engine_begin(e);
    for (int64_t b = 0; b < block_count(head->keys); b++) {
        int64_t key = b * BLOCK, left = head->keys - key;
        make_panels(e, head->k, head->first_k + key * head->row_kv, head->row_kv, left,
                    room + l->k + b * e->panel, NULL, NULL, NULL);
        float *v = room + l->v + b * e->panel;
        make_panels(e, head->v, head->first_v + key * head->row_kv, head->row_kv, left,
                    e->pairs ? room + l->rows : v, NULL, e->pairs ? room + l->zipped : NULL,
                    e->pairs ? v : NULL);
    }
    for (int64_t query = 0; query < head->queries; query += BLOCK) {
        forward_block(e, head, l, room, query);
    }
    engine_end(e);
}

static ms_status attention_prepare(ms_device *device, ms_kernel_handle *handle) {
    attention_engine e = make_engine(device, &handle->spec);
    MS_TRY(set_scratch(handle, e.shape.batch * e.shape.heads,
                       lay_out_forward(&e, e.shape.positions).floats));
    return MS_OK;
}

static ms_status attention_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    attention_engine e = make_engine(handle->device, &handle->spec);
    const ms_attention_shape *shape = &e.shape;
    forward_layout layout = lay_out_forward(&e, shape->positions);
    int64_t pieces = shape->batch * shape->heads;
    float *scratch = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t b = i / shape->heads, h = i % shape->heads, row = b * shape->positions;
        int64_t kv = row * shape->row_kv + h / shape->group * shape->head_size;
        forward_head head = {
            .q = run->arguments[0],
            .k = run->arguments[shape->packed ? 0 : 1],
            .v = run->arguments[shape->packed ? 0 : 2],
            .first_q = row * shape->row_q + h * shape->head_size,
            .first_k = kv + shape->first_k,
            .first_v = kv + shape->first_v,
            .row_q = shape->row_q,
            .row_kv = shape->row_kv,
            .row_o = shape->row_o,
            .queries = shape->positions,
            .keys = shape->positions,
            .o = run->arguments[4],
            .first_o = row * shape->row_o + h * shape->head_size,
            .lse = (float *)run->arguments[5] + i * shape->positions,
            .high = shape->drops ? ms__attention_mask_high(shape, run->arguments[3], b, h) : 0,
        };
        forward_whole(&e, &head, &layout, scratch + omp_get_thread_num() * layout.floats);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(attention) = {.name = V_NAME,
                                                .isa = V_ISA,
                                                .supports = attention_supports,
                                                .prepare = attention_prepare,
                                                .run = attention_run};

#endif
