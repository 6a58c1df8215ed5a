/*
 * attention_gradient.h - the gradient of blocked attention: weights made again from lse, block by
 * block.
 *
 * One thread does the query heads of one key/value head in order; dk and dv are summed over them in
 * fp32. Blocks of keys are the outer loop, so a block's k, v, dk, dv stay in the cache:
 *
 *     group:  k rows, v rows, (pairs: k zipped and turned), dk, dv           per block of keys
 *     head:   q turned, do turned, q zipped, do zipped, dq'                  per block of queries
 *             lse * log2(e), do . o                                          per query
 *     block:  scores, d scores, (pairs: weights, d scores rows; d scores zipped), mask
 *
 * A query beyond the last has lse = infinity, so its weights are 0.
 */
#ifndef MS_DEVICE_CPU_ATTENTION_GRADIENT_H
#define MS_DEVICE_CPU_ATTENTION_GRADIENT_H

#include "device/cpu/attention_vector.h"

typedef struct gradient_layout {
    int64_t k, v, k_turned, dk, dv;
    int64_t q_turned, d_out_turned, q_zipped, d_out_zipped, dq;
    int64_t lse, row_dot;
    int64_t rows, scores, d_scores, weights, d_rows, d_zipped, mask, floats;
} gradient_layout;

static gradient_layout lay_out_gradient(const attention_engine *e, int64_t positions) {
    int64_t blocks = block_count(positions), used = 0;
    int64_t panels = blocks * e->panel, sums = blocks * BLOCK * e->width;
    int64_t pairs = e->pairs ? BLOCK_ELEMENTS / 2 : 0;
    gradient_layout l = {0};
    l.k = take(&used, panels);
    l.v = take(&used, panels);
    l.k_turned = take(&used, e->pairs ? panels : 0);
    l.dk = take(&used, sums);
    l.dv = take(&used, sums);
    l.q_turned = take(&used, panels);
    l.d_out_turned = take(&used, panels);
    l.q_zipped = take(&used, panels);
    l.d_out_zipped = take(&used, panels);
    l.dq = take(&used, sums);
    l.lse = take(&used, blocks * BLOCK);
    l.row_dot = take(&used, blocks * BLOCK);
    l.rows = take(&used, BLOCK * e->width);
    l.scores = take(&used, BLOCK_ELEMENTS);
    l.d_scores = take(&used, BLOCK_ELEMENTS);
    l.weights = take(&used, pairs);
    l.d_rows = take(&used, pairs);
    l.d_zipped = take(&used, pairs);
    l.mask = take(&used, e->shape.drops ? 2 * BLOCK_ELEMENTS : 0);
    l.floats = used;
    return l;
}

/*
 * Of V_LANES queries and two rows of keys: weights p = 2^(scale s - lse), times the mask in *w; and
 * p (mask dp - do . o) in *d, without the scale, which dq and dk get at the end.
 */
V_INLINE void gradient_step(const float *scores, const float *d_scores, const float *mask,
                            v_f32 scale, v_f32 lse, v_f32 row_dot, bool with_mask, v_f32 *w,
                            v_f32 *d) {
    v_f32 p = v_exp2(v_fma(v_load(scores), scale, v_sub(v_zero(), lse)));
    v_f32 dp = v_load(d_scores);
    *w = p;
    if (with_mask) {
        v_f32 factor = v_load(mask);
        *w = v_mul(p, factor);
        dp = v_mul(dp, factor);
    }
    *d = v_mul(p, v_sub(dp, row_dot));
}

typedef struct gradient_block {
    float *scores, *d_scores, *weights, *d_rows, *d_zipped, *mask;
    const float *lse, *row_dot;
} gradient_block;

/* V_LANES queries from i on, and keys j and j + 1: weights w[0], w[1] and gradients d[0], d[1]. */
V_INLINE void gradient_pair(const gradient_block *x, v_f32 scale, int64_t j, int64_t i,
                            bool with_mask, v_f32 w[2], v_f32 d[2]) {
    v_f32 lse = v_load(x->lse + i), row_dot = v_load(x->row_dot + i);
    for (int row = 0; row < 2; row++) {
        int64_t at = (j + row) * BLOCK + i;
        gradient_step(x->scores + at, x->d_scores + at, with_mask ? x->mask + at : NULL, scale, lse,
                      row_dot, with_mask, &w[row], &d[row]);
    }
}

V_INLINE void gradient_weigh(const attention_engine *e, const gradient_block *x, int64_t keys,
                             int64_t queries, bool with_mask) {
    v_f32 scale = v_set(e->log2_scale);
    for (int64_t j = 0; j < keys; j += 2) {
        for (int64_t i = 0; i < queries; i += V_LANES) {
            v_f32 w[2], d[2];
            gradient_pair(x, scale, j, i, with_mask, w, d);
            for (int row = 0; row < 2; row++) {
                v_store(x->scores + (j + row) * BLOCK + i, w[row]);
                v_store(x->d_scores + (j + row) * BLOCK + i, d[row]);
            }
        }
    }
}

#ifdef V_PAIRS
V_INLINE void gradient_weigh_pairs(const attention_engine *e, const gradient_block *x, int64_t keys,
                                   int64_t queries, bool with_mask) {
    v_f32 scale = v_set(e->log2_scale);
    for (int64_t j = 0; j < keys; j += 2) {
        for (int64_t i = 0; i < queries; i += STRIP) {
            v_f32 w[2], d[2], w_next[2], d_next[2];
            gradient_pair(x, scale, j, i, with_mask, w, d);
            gradient_pair(x, scale, j, i + V_LANES, with_mask, w_next, d_next);
            for (int row = 0; row < 2; row++) {
                int64_t at = (j + row) * (BLOCK / 2) + i / 2;
                v_store_narrow(x->weights + at, w[row], w_next[row]);
                v_store_narrow(x->d_rows + at, d[row], d_next[row]);
            }
            float *zipped = x->d_zipped + j / 2 * BLOCK + i;
            v_store(zipped, v_pair_bf16(d[0], d[1]));
            v_store(zipped + V_LANES, v_pair_bf16(d_next[0], d_next[1]));
        }
    }
}
#endif

static void gradient_weigh_block(const attention_engine *e, const gradient_block *x, int64_t keys,
                                 int64_t queries) {
#ifdef V_PAIRS
    if (e->pairs && x->mask == NULL) {
        gradient_weigh_pairs(e, x, keys, queries, false);
        return;
    }
    if (e->pairs) {
        gradient_weigh_pairs(e, x, keys, queries, true);
        return;
    }
#endif
    if (x->mask == NULL) {
        gradient_weigh(e, x, keys, queries, false);
    } else {
        gradient_weigh(e, x, keys, queries, true);
    }
}

/* One head's arguments. */
typedef struct gradient_head {
    const void *q, *k, *v, *o, *d_o;
    void *dq, *dk, *dv;
    int64_t first_q, first_k, first_v, first_o;
    const float *lse;
    uint64_t high;
} gradient_head;

/* Some queries of a block, from `column` on, and some keys of a block: where their panels are. */
typedef struct gradient_place {
    int64_t key_block, keys;
    int64_t query_block, column, queries;
    bool add_to_keys; /* dk and dv of this block hold something already */
} gradient_place;

static gradient_block locate_block(const attention_engine *e, const gradient_layout *l, float *room,
                                   const gradient_place *at) {
    int64_t row = e->pairs ? at->column / 2 : at->column;
    int64_t query = at->query_block * BLOCK + at->column;
    return (gradient_block){.scores = room + l->scores + at->column,
                            .d_scores = room + l->d_scores + at->column,
                            .weights = room + l->weights + row,
                            .d_rows = room + l->d_rows + row,
                            .d_zipped = room + l->d_zipped + at->column,
                            .mask = e->shape.drops ? room + l->mask + at->column : NULL,
                            .lse = room + l->lse + query,
                            .row_dot = room + l->row_dot + query};
}

/* Weights and their gradients, from scores made again. */
static void gradient_scores(const attention_engine *e, const gradient_head *head,
                            const gradient_layout *l, float *room, const gradient_place *at,
                            const gradient_block *x) {
    const ms_attention_shape *shape = &e->shape;
    int64_t query = at->query_block * BLOCK + at->column, key = at->key_block * BLOCK;
    int64_t q_panel = at->query_block * e->panel + at->column;
    ms_attention_product p = {.m = at->keys,
                              .n = at->queries,
                              .k = e->depth,
                              .a_row = e->depth,
                              .a_k = 1,
                              .b_row = BLOCK,
                              .c_row = BLOCK};
    p.a = room + l->k + at->key_block * e->panel;
    p.b = room + l->q_turned + q_panel;
    p.c = x->scores;
    e->multiply(&p);
    p.a = room + l->v + at->key_block * e->panel;
    p.b = room + l->d_out_turned + q_panel;
    p.c = x->d_scores;
    e->multiply(&p);
    if ((shape->causal && key + at->keys - 1 > query) || key + at->keys > shape->positions) {
        hide_scores(e, x->scores, at->keys, at->queries, key - query, shape->positions - key);
    }
    if (x->mask != NULL) {
        make_mask(e, head->high, query, at->queries, key, at->keys, x->mask,
                  room + l->mask + BLOCK_ELEMENTS);
    }
    gradient_weigh_block(e, x, at->keys, at->queries);
}

static void gradient_step_block(const attention_engine *e, const gradient_head *head,
                                const gradient_layout *l, float *room, gradient_place at) {
    gradient_block x = locate_block(e, l, room, &at);
    int64_t half = e->pairs ? 2 : 1, sums = BLOCK * e->width;
    gradient_scores(e, head, l, room, &at, &x);
    int64_t q_rows = at.query_block * e->panel + at.column / half * e->width;
    ms_attention_product p = {.m = at.keys,
                              .n = e->width,
                              .k = at.queries / half,
                              .a_row = BLOCK / half,
                              .a_k = 1,
                              .b_row = e->width,
                              .c_row = e->width,
                              .add = at.add_to_keys};
    p.a = e->pairs ? x.weights : x.scores;
    p.b = room + l->d_out_zipped + q_rows;
    p.c = room + l->dv + at.key_block * sums;
    e->multiply(&p);
    p.a = e->pairs ? x.d_rows : x.d_scores;
    p.b = room + l->q_zipped + q_rows;
    p.c = room + l->dk + at.key_block * sums;
    e->multiply(&p);
    e->multiply(&(ms_attention_product){.m = e->width,
                                        .n = at.queries,
                                        .k = at.keys / half,
                                        .a = room + (e->pairs ? l->k_turned : l->k) +
                                             at.key_block * e->panel,
                                        .a_row = e->pairs ? BLOCK / 2 : 1,
                                        .a_k = e->pairs ? 1 : e->width,
                                        .b = e->pairs ? x.d_zipped : x.d_scores,
                                        .b_row = BLOCK,
                                        .c = room + l->dq + at.query_block * sums + at.column,
                                        .c_row = BLOCK,
                                        .add = at.key_block > 0});
}

/* One block of keys with one block of queries of head h of the group. */
static void gradient_products(const attention_engine *e, const gradient_head *head,
                              const gradient_layout *l, float *room, int64_t h, int64_t key_block,
                              int64_t query_block) {
    const ms_attention_shape *shape = &e->shape;
    bool diagonal = shape->causal && key_block == query_block;
    gradient_place at = {.key_block = key_block,
                         .keys = block_rows(shape->positions - key_block * BLOCK),
                         .query_block = query_block,
                         .queries = block_rows(shape->positions - query_block * BLOCK),
                         .add_to_keys = h > 0 || query_block > (shape->causal ? key_block : 0)};
    if (!diagonal || at.queries < BLOCK) {
        gradient_step_block(e, head, l, room, at);
        return;
    }
    /* The last half of the queries first: it sees all keys of the diagonal, the first only half. */
    at.queries = HALF_BLOCK;
    at.column = HALF_BLOCK;
    gradient_step_block(e, head, l, room, at);
    at.column = 0;
    at.keys = HALF_BLOCK;
    at.add_to_keys = true;
    gradient_step_block(e, head, l, room, at);
}

/* do . o of one row. */
V_INLINE float dot_row(const void *a, const void *b, ms_dtype type, int64_t at, int64_t size) {
    v_f32 sum = v_zero();
    for (int64_t d = 0; d < size; d += V_LANES) {
        int count = (int)ms_min_i64(size - d, V_LANES);
        sum = v_fma(v_get(a, type, at + d, count), v_get(b, type, at + d, count), sum);
    }
    return v_sum(sum);
}

/* Panels and per-query numbers of one head. */
static void gradient_begin_head(const attention_engine *e, const gradient_head *head,
                                const gradient_layout *l, float *room) {
    const ms_attention_shape *shape = &e->shape;
    int64_t blocks = block_count(shape->positions);
    float *lse = room + l->lse, *row_dot = room + l->row_dot;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t query = b * BLOCK, left = shape->positions - query;
        float *q_zipped = room + l->q_zipped + b * e->panel;
        float *d_zipped = room + l->d_out_zipped + b * e->panel;
        float *rows = room + l->rows;
        make_panels(e, head->q, head->first_q + query * shape->row_q, shape->row_q, left,
                    e->pairs ? rows : q_zipped, room + l->q_turned + b * e->panel, q_zipped, NULL);
        make_panels(e, head->d_o, head->first_o + query * shape->row_o, shape->row_o, left,
                    e->pairs ? rows : d_zipped, room + l->d_out_turned + b * e->panel, d_zipped,
                    NULL);
    }
    for (int64_t t = 0; t < blocks * BLOCK; t++) {
        bool valid = t < shape->positions;
        int64_t at = head->first_o + t * shape->row_o;
        fetch_row(head->o, e->type, at + ROWS_AHEAD * shape->row_o, shape->head_size, false);
        fetch_row(head->d_o, e->type, at + ROWS_AHEAD * shape->row_o, shape->head_size, false);
        lse[t] = valid ? head->lse[t] * 1.44269504f : INFINITY;
        row_dot[t] = !valid ? 0.0f
                     : e->type == MS_F32
                         ? dot_row(head->o, head->d_o, MS_F32, at, shape->head_size)
                         : dot_row(head->o, head->d_o, MS_BF16, at, shape->head_size);
    }
}

/* Rows of sums, times the factor, to a gradient. */
static void store_rows(const attention_engine *e, float *rows, int64_t count, float factor,
                       void *to, int64_t first, int64_t stride) {
    for (int64_t i = 0; i < count; i++) {
        float *row = rows + i * e->width;
        fetch_row(to, e->type, first + (i + ROWS_AHEAD) * stride, e->shape.head_size, true);
        for (int64_t d = 0; d < e->width; d += V_LANES) {
            v_store(row + d, v_mul(v_load(row + d), v_set(factor)));
        }
        narrow_row(row, to, e->type, first + i * stride, e->shape.head_size);
    }
}

static void gradient_end_head(const attention_engine *e, const gradient_head *head,
                              const gradient_layout *l, float *room) {
    const ms_attention_shape *shape = &e->shape;
    for (int64_t query = 0; query < shape->positions; query += BLOCK) {
        int64_t left = shape->positions - query;
        float *dq = room + l->dq + query * e->width;
        if (block_rows(left) < BLOCK) { /* columns that no product wrote */
            for (int64_t d = 0; d < e->width; d++) {
                memset(dq + d * BLOCK + HALF_BLOCK, 0, HALF_BLOCK * sizeof *dq);
            }
        }
        turn(dq, e->width, BLOCK, room + l->rows, e->width);
        store_rows(e, room + l->rows, ms_min_i64(left, BLOCK), (float)shape->scale, head->dq,
                   head->first_q + query * shape->row_q, shape->row_q);
    }
}

static void gradient_keys(const attention_engine *e, const gradient_head *head,
                          const gradient_layout *l, float *room) {
    const ms_attention_shape *shape = &e->shape;
    for (int64_t b = 0; b < block_count(shape->positions); b++) {
        int64_t key = b * BLOCK, left = shape->positions - key;
        float *k_turned = e->pairs ? room + l->k_turned + b * e->panel : NULL;
        make_panels(e, head->v, head->first_v + key * shape->row_kv, shape->row_kv, left,
                    room + l->v + b * e->panel, NULL, NULL, NULL);
        make_panels(e, head->k, head->first_k + key * shape->row_kv, shape->row_kv, left,
                    room + l->k + b * e->panel, NULL, e->pairs ? room + l->rows : NULL, k_turned);
    }
}

static gradient_head describe_head(const ms_attention_shape *shape, void *const *arguments,
                                   int64_t b, int64_t h) {
    int64_t row = b * shape->positions;
    int64_t kv = row * shape->row_kv + h / shape->group * shape->head_size;
    bool packed = shape->packed;
    return (gradient_head){
        .q = arguments[0],
        .k = arguments[packed ? 0 : 1],
        .v = arguments[packed ? 0 : 2],
        .o = arguments[4],
        .d_o = arguments[6],
        .dq = arguments[7],
        .dk = arguments[packed ? 7 : 8],
        .dv = arguments[packed ? 7 : 9],
        .first_q = row * shape->row_q + h * shape->head_size,
        .first_k = kv + shape->first_k,
        .first_v = kv + shape->first_v,
        .first_o = row * shape->row_o + h * shape->head_size,
        .lse = (const float *)arguments[5] + (b * shape->heads + h) * shape->positions,
        .high = shape->drops ? ms__attention_mask_high(shape, arguments[3], b, h) : 0,
    };
}

/* All query heads of key/value head g of sequence b. */
static void gradient_group(const attention_engine *e, const gradient_layout *l,
                           void *const *arguments, int64_t b, int64_t g, float *room) {
    const ms_attention_shape *shape = &e->shape;
    int64_t blocks = block_count(shape->positions);
    gradient_head head = describe_head(shape, arguments, b, g * shape->group);
    engine_begin(e);
    gradient_keys(e, &head, l, room);
    for (int64_t h = 0; h < shape->group; h++) {
        head = describe_head(shape, arguments, b, g * shape->group + h);
        gradient_begin_head(e, &head, l, room);
        for (int64_t key = 0; key < blocks; key++) {
            int64_t first = shape->causal ? key : 0;
            for (int64_t query = first; query < blocks; query++) {
                gradient_products(e, &head, l, room, h, key, query);
            }
        }
        gradient_end_head(e, &head, l, room);
    }
    for (int64_t key = 0; key < shape->positions; key += BLOCK) {
        int64_t rows = ms_min_i64(shape->positions - key, BLOCK);
        store_rows(e, room + l->dk + key * e->width, rows, (float)shape->scale, head.dk,
                   head.first_k + key * shape->row_kv, shape->row_kv);
        store_rows(e, room + l->dv + key * e->width, rows, 1.0f, head.dv,
                   head.first_v + key * shape->row_kv, shape->row_kv);
    }
    engine_end(e);
}

static ms_status attention_grad_prepare(ms_device *device, ms_kernel_handle *handle) {
    attention_engine e = make_engine(device, &handle->spec);
    MS_TRY(set_scratch(handle, e.shape.batch * e.shape.kv_heads,
                       lay_out_gradient(&e, e.shape.positions).floats));
    return MS_OK;
}

static ms_status attention_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    attention_engine e = make_engine(handle->device, &handle->spec);
    gradient_layout layout = lay_out_gradient(&e, e.shape.positions);
    int64_t pieces = e.shape.batch * e.shape.kv_heads;
    float *scratch = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        gradient_group(&e, &layout, run->arguments, i / e.shape.kv_heads, i % e.shape.kv_heads,
                       scratch + omp_get_thread_num() * layout.floats);
    }
    return MS_OK;
}

const ms_kernel_variant V_VARIANT(attention_grad) = {.name = V_NAME,
                                                     .isa = V_ISA,
                                                     .supports = attention_supports,
                                                     .prepare = attention_grad_prepare,
                                                     .run = attention_grad_run};

#endif
