/*
 * attention_ref.c - references: scaled dot-product attention, its gradient, and attention over a
 * cache.
 *
 * Row by row and in double. One thread does a whole head (forward) or a whole group of heads that
 * share keys and values (gradient), from copies in double of that head's q, k, v, so every sum has
 * one order whatever the number of threads. With s = scale q k, p = exp(s - lse), m the mask / (1 -
 * dropout):
 *
 *     o = (p m) v;  dv = (p m)' do;  dp = m (do v');  ds = p (dp - do . o);
 *     dq = scale ds k;  dk = scale ds' q
 *
 * do . o = sum over keys of p dp, as FlashAttention-2 (Dao 2023, algorithm 2) uses it too.
 */
#include <string.h>

#include "base/memory.h"
#include "device/cpu/attention_shape.h"
#include "device/cpu/ref_value.h"

#include <omp.h>

/* One head of a tensor, as doubles and back. */
static void copy_head(const void *from, ms_dtype type, int64_t first, int64_t row, int64_t rows,
                      int64_t columns, double *to) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            to[i * columns + j] = ms__load(from, type, first + i * row + j);
        }
    }
}

static void store_head(void *to, ms_dtype type, int64_t first, int64_t row, int64_t rows,
                       int64_t columns, const double *from) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            ms__store(to, type, first + i * row + j, from[i * columns + j]);
        }
    }
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add_scaled(double *restrict to, double factor, const double *restrict from,
                       int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to[i] += factor * from[i];
    }
}

/* scores[j] becomes exp(scale q k_j - maximum); returns the log of their sum plus the maximum. */
static double score_row(const double *q, const double *k, int64_t keys, int64_t size, double scale,
                        double *scores, double *sum) {
    double largest = -INFINITY;
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = scale * dot(q, k + j * size, size);
        largest = scores[j] > largest || scores[j] != scores[j] ? scores[j] : largest;
    }
    double total = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = exp(scores[j] - largest);
        total += scores[j];
    }
    *sum = total;
    return largest + log(total);
}

/* ---- forward ---- */

static void forward_head(const ms_kernel_handle *handle, const ms_attention_shape *shape,
                         void *const *arguments, int64_t b, int64_t h, double *room) {
    int64_t positions = shape->positions, size = shape->head_size;
    ms_dtype type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 5);
    double *q = room, *k = q + positions * size, *v = k + positions * size;
    double *o = v + positions * size, *scores = o + positions * size;
    const void *from_k = shape->packed ? arguments[0] : arguments[1];
    const void *from_v = shape->packed ? arguments[0] : arguments[2];
    int64_t kv = b * positions * shape->row_kv + h / shape->group * size;
    copy_head(arguments[0], type, b * positions * shape->row_q + h * size, shape->row_q, positions,
              size, q);
    copy_head(from_k, type, kv + shape->first_k, shape->row_kv, positions, size, k);
    copy_head(from_v, type, kv + shape->first_v, shape->row_kv, positions, size, v);
    memset(o, 0, (size_t)(positions * size) * sizeof *o);
    uint64_t high = shape->drops ? ms__attention_mask_high(shape, arguments[3], b, h) : 0;
    for (int64_t t = 0; t < positions; t++) {
        int64_t keys = shape->causal ? t + 1 : positions;
        double sum;
        double lse = score_row(q + t * size, k, keys, size, shape->scale, scores, &sum);
        for (int64_t j = 0; j < keys; j++) {
            if (!shape->drops || ms__attention_keeps(shape, high, t, j)) {
                add_scaled(o + t * size, scores[j] / sum * shape->keep_scale, v + j * size, size);
            }
        }
        ms__store(arguments[5], s_type, (b * shape->heads + h) * positions + t, lse);
    }
    store_head(arguments[4], type, b * positions * shape->row_o + h * size, shape->row_o, positions,
               size, o);
}

/* Doubles of one thread: copies of `tensors` heads and `rows` rows of scores. */
static ms_status set_scratch(ms_kernel_handle *handle, int64_t pieces, int64_t rows,
                             int64_t tensors, int64_t score_rows) {
    size_t count, bytes;
    if (!ms_size_mul((size_t)rows,
                     (size_t)(tensors * handle->spec.attributes.attention.head_size + score_rows),
                     &count) ||
        !ms_size_mul(ms_align_up(count, 8), sizeof(double), &bytes) ||
        !ms_size_mul(bytes, (size_t)ms__cpu_team(handle, pieces), &handle->needs.scratch_bytes)) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: scratch for %lld positions overflows",
                       ms_slot_name(handle->spec.slot), (long long)rows);
    }
    return MS_OK;
}

static int64_t thread_doubles(int64_t rows, int64_t size, int64_t tensors, int64_t score_rows) {
    return (int64_t)ms_align_up((size_t)(rows * (tensors * size + score_rows)), 8);
}

#define FORWARD_TENSORS 4 /* q, k, v, o */

static ms_status attention_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    MS_TRY(set_scratch(
        handle, handle->spec.attributes.attention.batch * handle->spec.attributes.attention.heads,
        handle->spec.attributes.attention.positions, FORWARD_TENSORS, 1));
    return MS_OK;
}

static ms_status attention_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_attention_shape shape = ms__attention_shape(&handle->spec);
    int64_t pieces = shape.batch * shape.heads;
    int64_t room = thread_doubles(shape.positions, shape.head_size, FORWARD_TENSORS, 1);
    double *scratch = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        forward_head(handle, &shape, run->arguments, i / shape.heads, i % shape.heads,
                     scratch + omp_get_thread_num() * room);
    }
    return MS_OK;
}

const ms_kernel_variant ms__attention_ref = {
    .name = "ref", .prepare = attention_prepare, .run = attention_run};

/* ---- gradient ---- */

#define GRAD_TENSORS 8 /* q, k, v, o, do, dq, dk, dv */

typedef struct grad_room {
    double *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
} grad_room;

static void grad_head(const ms_kernel_handle *handle, const ms_attention_shape *shape,
                      void *const *arguments, int64_t b, int64_t h, const grad_room *room) {
    int64_t positions = shape->positions, size = shape->head_size;
    ms_dtype type = ms__dtype(handle, 0);
    ms_dtype s_type = ms__dtype(handle, 5);
    int64_t at_q = b * positions * shape->row_q + h * size;
    int64_t at_o = b * positions * shape->row_o + h * size;
    copy_head(arguments[0], type, at_q, shape->row_q, positions, size, room->q);
    copy_head(arguments[4], type, at_o, shape->row_o, positions, size, room->o);
    copy_head(arguments[6], type, at_o, shape->row_o, positions, size, room->d_o);
    memset(room->dq, 0, (size_t)(positions * size) * sizeof(double));
    uint64_t high = shape->drops ? ms__attention_mask_high(shape, arguments[3], b, h) : 0;
    for (int64_t t = 0; t < positions; t++) {
        const double *q = room->q + t * size, *d_o = room->d_o + t * size;
        double lse = ms__load(arguments[5], s_type, (b * shape->heads + h) * positions + t);
        double row_dot = dot(d_o, room->o + t * size, size);
        int64_t keys = shape->causal ? t + 1 : positions;
        for (int64_t j = 0; j < keys; j++) {
            double p = exp(shape->scale * dot(q, room->k + j * size, size) - lse);
            bool kept = !shape->drops || ms__attention_keeps(shape, high, t, j);
            double mask = kept ? shape->keep_scale : 0.0;
            double dp = mask * dot(d_o, room->v + j * size, size);
            double ds = shape->scale * p * (dp - row_dot);
            add_scaled(room->dv + j * size, p * mask, d_o, size);
            add_scaled(room->dq + t * size, ds, room->k + j * size, size);
            add_scaled(room->dk + j * size, ds, q, size);
        }
    }
    store_head(arguments[7], type, at_q, shape->row_q, positions, size, room->dq);
}

/* All query heads of one key/value head, in order. */
static void grad_group(const ms_kernel_handle *handle, const ms_attention_shape *shape,
                       void *const *arguments, int64_t b, int64_t g, double *doubles) {
    int64_t positions = shape->positions, size = shape->head_size, head = positions * size;
    ms_dtype type = ms__dtype(handle, 0);
    grad_room room = {doubles,
                      doubles + head,
                      doubles + 2 * head,
                      doubles + 3 * head,
                      doubles + 4 * head,
                      doubles + 5 * head,
                      doubles + 6 * head,
                      doubles + 7 * head};
    int64_t at_k = b * positions * shape->row_kv + shape->first_k + g * size;
    int64_t at_v = b * positions * shape->row_kv + shape->first_v + g * size;
    copy_head(shape->packed ? arguments[0] : arguments[1], type, at_k, shape->row_kv, positions,
              size, room.k);
    copy_head(shape->packed ? arguments[0] : arguments[2], type, at_v, shape->row_kv, positions,
              size, room.v);
    memset(room.dk, 0, (size_t)head * sizeof(double));
    memset(room.dv, 0, (size_t)head * sizeof(double));
    for (int64_t h = g * shape->group; h < (g + 1) * shape->group; h++) {
        grad_head(handle, shape, arguments, b, h, &room);
    }
    store_head(shape->packed ? arguments[7] : arguments[8], type, at_k, shape->row_kv, positions,
               size, room.dk);
    store_head(shape->packed ? arguments[7] : arguments[9], type, at_v, shape->row_kv, positions,
               size, room.dv);
}

static ms_status attention_grad_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    MS_TRY(set_scratch(handle,
                       handle->spec.attributes.attention.batch *
                           handle->spec.attributes.attention.kv_heads,
                       handle->spec.attributes.attention.positions, GRAD_TENSORS, 0));
    return MS_OK;
}

static ms_status attention_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    ms_attention_shape shape = ms__attention_shape(&handle->spec);
    int64_t pieces = shape.batch * shape.kv_heads;
    int64_t room = thread_doubles(shape.positions, shape.head_size, GRAD_TENSORS, 0);
    double *scratch = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        grad_group(handle, &shape, run->arguments, i / shape.kv_heads, i % shape.kv_heads,
                   scratch + omp_get_thread_num() * room);
    }
    return MS_OK;
}

const ms_kernel_variant ms__attention_grad_ref = {
    .name = "ref", .prepare = attention_grad_prepare, .run = attention_grad_run};

/* ---- over a cache ---- */

/* Row `row` of one head over the first `keys` rows of the cache. */
static void cached_row(const ms_kernel_handle *handle, const ms_attention_shape *shape,
                       void *const *arguments, int64_t row, int64_t h, int64_t keys, double *room) {
    int64_t size = shape->head_size;
    int64_t row_cache = shape->kv_heads * size;
    int64_t at_cache = h / shape->group * size;
    ms_dtype type = ms__dtype(handle, 0);
    double *q = room, *o = q + size, *kv = o + size, *scores = kv + size;
    copy_head(arguments[0], type, row * shape->row_q + h * size, shape->row_q, 1, size, q);
    double largest = -INFINITY;
    for (int64_t j = 0; j < keys; j++) {
        copy_head(arguments[3], type, j * row_cache + at_cache, row_cache, 1, size, kv);
        scores[j] = shape->scale * dot(q, kv, size);
        largest = scores[j] > largest || scores[j] != scores[j] ? scores[j] : largest;
    }
    double sum = 0.0;
    memset(o, 0, (size_t)size * sizeof *o);
    for (int64_t j = 0; j < keys; j++) {
        double weight = exp(scores[j] - largest);
        sum += weight;
        copy_head(arguments[4], type, j * row_cache + at_cache, row_cache, 1, size, kv);
        add_scaled(o, weight, kv, size);
    }
    for (int64_t i = 0; i < size; i++) {
        o[i] /= sum;
    }
    store_head(arguments[5], type, row * shape->row_o + h * size, shape->row_o, 1, size, o);
}

static ms_status attention_cached_prepare(ms_device *device, ms_kernel_handle *handle) {
    (void)device;
    int64_t rows = ms__dim(handle, 0, 0) * handle->spec.attributes.attention.heads;
    int64_t doubles = 3 * handle->spec.attributes.attention.head_size + ms__dim(handle, 3, 0);
    handle->needs.scratch_bytes =
        (size_t)ms__cpu_team(handle, rows) * ms_align_up((size_t)doubles, 8) * sizeof(double);
    return MS_OK;
}

static ms_status attention_cached_run(const ms_kernel_handle *handle,
                                      const ms_kernel_run_info *run) {
    ms_attention_shape shape = ms__attention_shape(&handle->spec);
    ms__attention_cache_write(handle, &shape, run);
    int64_t rows = run->extent[0], pieces = rows * shape.heads;
    int64_t room = (int64_t)ms_align_up((size_t)(3 * shape.head_size + ms__dim(handle, 3, 0)), 8);
    double *scratch = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, pieces)) schedule(dynamic)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t row = i / shape.heads;
        cached_row(handle, &shape, run->arguments, row, i % shape.heads, run->extent[1] + row + 1,
                   scratch + omp_get_thread_num() * room);
    }
    return MS_OK;
}

const ms_kernel_variant ms__attention_cached_ref = {
    .name = "ref", .prepare = attention_cached_prepare, .run = attention_cached_run};
