/*
 * kernel.h - the contract of every kernel slot, whatever the device.
 *
 * A slot is used in two phases. ms_kernel_prepare(spec) is told shapes, types and attributes, and
 * returns a handle with the bytes a run needs: scratch (handed in at each run), packed (the size of an
 * operand in the kernel's own layout), constant (tables the handle itself holds). ms_kernel_run then
 * takes the handle and plain pointers. Whatever is slow (creating oneDNN primitives, tables) is done in
 * prepare; run allocates nothing of ours.
 *
 * Tensors are contiguous and row-major, 64-byte aligned. An argument that is absent has rank -1 in
 * the spec and a NULL pointer in the run. A spec with a dim of 0 is legal and does nothing.
 * Arguments do not overlap unless a slot says so.
 *
 * Types: "x" below is the compute type: fp64, fp32 or bf16. "s" (statistics, 1-D weights, gradients of
 * weights, optimiser state) is fp64 when x is fp64, else fp32. Sums are taken in s or wider.
 *
 * accumulate: an output marked (acc) is added to when run->accumulate is set, else overwritten.
 *
 * Determinism: our own kernels give the same bits for any number of threads, so every sum over rows is
 * taken over fixed blocks. oneDNN's matmuls do so only for the same number of threads.
 * NaN and infinity pass through: they are found in the gradient norm, not hidden.
 *
 * Letters: N rows (tokens), C columns (hidden), V vocabulary rows, B sequences, T positions,
 * H query heads, G key/value heads, D head size, M K matrix sizes.
 */
#ifndef MS_DEVICE_KERNEL_H
#define MS_DEVICE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/types.h"

#define MS_DIMS_MAX 4
#define MS_ARGS_MAX 10
#define MS_NORM_BLOCK 4096 /* elements of one partial sum of a squared norm */
#define MS_IGNORED_TARGET (-1)

typedef enum ms_slot {
    /*
     * c[M,N] = op(a) op(b) (+ bias[N]), op = transpose where the attribute says so: a is [M,K] or
     * [K,M], b is [K,N] or [N,K].
     * args: a x, b x (or packed bytes, attribute packed), bias s?, c x|s (acc)
     * Sums in fp32 for bf16. The types of c: x, or s when x is bf16. bias and accumulate exclude each
     * other. Run-time extent: extent[0] rows of a and c, when attribute matmul.runtime_rows.
     */
    MS_SLOT_MATMUL,
    /*
     * Reorders b of a matmul into the layout its kernel likes best.
     * args: b x, packed u8[packed_bytes]. The spec's attribute is the matmul's, with the matmul's
     * M, N, K in matmul.m/n/k. packed_bytes 0: packing does not pay, use b as it is.
     */
    MS_SLOT_PACK,
    /* out[j] (acc) = sum over rows of in[N,C]. args: in x, out s[C] (acc) */
    MS_SLOT_COLUMN_SUM,
    /*
     * out[n] = table[ids[n] - first] (+ addend[n]); a row of zeros (+ addend) when the id is outside
     * [first, first + V). args: ids i32[N], table x[V,C], addend x[N,C]?, out x[N,C]
     * addend may be out.
     */
    MS_SLOT_EMBEDDING,
    /* table_grad[id] += dy[n], in row order. args: ids i32[N], dy x[N,C], table_grad s[V,C] (acc) */
    MS_SLOT_EMBEDDING_GRAD,
    /*
     * sum = x + delta; y = (sum - mean) * rstd * weight + bias over the last dim C (layer norm), or
     * y = sum * rstd * weight (RMS norm, attribute norm.rms; Zhang & Sennrich 2019, eq. 4).
     * args: x x[N,C], delta x[N,C]?, weight s[C], bias s[C]?, sum x[N,C]?, y x[N,C], stats s[N,2]
     * (mean, 1/std). sum is present exactly when delta is. y is computed from sum as stored (rounded
     * for bf16), so that a recomputation gives the same bits.
     */
    MS_SLOT_NORM,
    /*
     * dx = dsum + gradient of the norm. dsum, the gradient that reaches the sum on the residual path,
     * is optional. args: dy x[N,C], sum x[N,C], weight s[C], stats s[N,2], dsum x[N,C]?, dx x[N,C].
     * dx may be dsum.
     */
    MS_SLOT_NORM_INPUT_GRAD,
    /* args: dy x[N,C], sum x[N,C], stats s[N,2], dweight s[C] (acc), dbias s[C]? (acc) */
    MS_SLOT_NORM_WEIGHT_GRAD,
    /*
     * y = f(a) or, with `up`, y = f(a) * up. attribute activation.function.
     * args: a x[N,C], up x[N,C]?, y x[N,C]
     */
    MS_SLOT_ACTIVATION,
    /* args: dy x, a x, up x?, da x, dup x?. da may be dy. */
    MS_SLOT_ACTIVATION_GRAD,
    /*
     * Scaled dot-product attention over B sequences of T positions, blocked: no T x T matrix. With
     * G < H, query head h uses key/value head h / (H / G). attention.causal: position t sees 0..t.
     * Dropout of probabilities when attention.dropout > 0 (see MS_SLOT_DROPOUT; the mask's counter is
     * (high = sample[b] * H_global + head_first + h, low = (query * T + key) / 4), word key % 4).
     * args: q x[B*T,H*D], k x[B*T,G*D], v x[B*T,G*D], sample i64[B]?, o x[B*T,H*D], lse s[B,H,T]
     * (log of the sum of exponentials of the scaled scores).
     * With attention.packed, q is qkv x[B*T,(H+2G)*D] holding q|k|v and k, v are absent.
     */
    MS_SLOT_ATTENTION,
    /*
     * args: q, k, v, sample (as above), o, lse, do x[B*T,H*D], dq, dk, dv (packed: dq is dqkv, dk and
     * dv absent).
     */
    MS_SLOT_ATTENTION_GRAD,
    /*
     * Attention of new rows of ONE sequence over a cache. Writes the new keys and values into the
     * caches at row extent[1] on, then attends: new row i sees cache rows 0 .. extent[1] + i.
     * args: q, k, v (or packed qkv), cache_k x[S,G*D], cache_v x[S,G*D], o x[R,H*D].
     * extent[0] new rows (<= R), extent[1] rows already cached.
     */
    MS_SLOT_ATTENTION_CACHED,
    /*
     * Rotary embedding, halves rotated (Hugging Face's order: element i pairs with i + D/2), angle =
     * position * frequency_i; rope.inverse rotates back (the gradient).
     * args: x x[N,H*D], positions i32[N], y x[N,H*D]. y may be x. Positions < rope.position_max.
     */
    MS_SLOT_ROPE,
    /*
     * y = x * keep / (1 - p). Row n here is row r = dropout.row_first + n of the micro-batch (x may be
     * a range of its rows), so of sequence b = r / T, position t = r % T, with T = dropout.positions.
     * Element (n, c) is kept when word (i % 4) of ms_random_at(key, sample[b], i / 4) with
     * i = t * C_global + dropout.column_first + c, as a unit float, is >= p.
     * args: x x[N,C], sample i64[B], y x[N,C]. y may be x. Its own gradient.
     */
    MS_SLOT_DROPOUT,
    /*
     * Per row: maximum, sum of exp(logit - maximum), logit of the target (0 when the target is
     * elsewhere or ignored), over the first xent.valid columns. Column j is vocabulary entry
     * xent.first + j. args: logits s[N,V], targets i32[N], stats s[N,3]
     */
    MS_SLOT_XENT_STATS,
    /*
     * With the stats of P shards of the vocabulary, combined in shard order: loss[n] = log(sum) +
     * max - target logit, 0 for MS_IGNORED_TARGET; dlogits = (softmax - onehot) * scale[0], zero rows for
     * ignored targets, zero columns from xent.valid on.
     * args: logits s[N,V], targets i32[N], stats s[P,N,3], scale f64[1], dlogits x[N,V]?, loss s[N].
     * dlogits may be logits when of one type.
     */
    MS_SLOT_XENT_GRAD,
    /* c = a + b. args: a x, b x, c x. c may be a or b. Flat. Also for s types. */
    MS_SLOT_ADD,
    /* y = x in another floating type (round to nearest even). args: x, y. Flat. */
    MS_SLOT_CAST,
    /* total f64[1] (acc) = sum of x in fp64, in order by fixed blocks. args: x s[n], total f64[1] */
    MS_SLOT_SUM,
    /*
     * partial[i] = sum of squares in fp64 of elements 4096 i .. 4096 i + 4095.
     * args: x s[n], partial f64[ceil(n/4096)]
     */
    MS_SLOT_SQUARE_SUM,
    /*
     * AdamW (Loshchilov & Hutter 2019, algorithm 2), flat: g = grad * hyper.grad_scale;
     * m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w = w (1 - lr decay) - lr (m / (1-b1^t)) /
     * (sqrt(v / (1-b2^t)) + eps). copy, when present, is w rounded to bf16.
     * args: w s[n], grad s[n], m s[n], v s[n], hyper f64[MS_HYPER_COUNT], copy bf16[n]?
     */
    MS_SLOT_ADAMW,
    /*
     * SGD with momentum as PyTorch's: g = grad * scale + decay w; m = mu m + g (m = g at step 1);
     * w -= lr (nesterov: g + mu m; else m). args: w, grad, m s[n]? (absent: mu = 0), hyper, copy?
     */
    MS_SLOT_SGD,
    MS_SLOT_COUNT
} ms_slot;

/* Elements of the hyper-parameters' array, filled by optim/ for each step. */
typedef enum ms_hyper {
    MS_HYPER_LEARNING_RATE,
    MS_HYPER_WEIGHT_DECAY,
    MS_HYPER_BETA1, /* or momentum */
    MS_HYPER_BETA2,
    MS_HYPER_EPSILON,
    MS_HYPER_STEP, /* 1 for the first update */
    MS_HYPER_GRADIENT_SCALE,
    MS_HYPER_COUNT
} ms_hyper;

typedef enum ms_activation_function {
    MS_GELU_TANH, /* Hendrycks & Gimpel 2016, the tanh form ("gelu_new") */
    MS_GELU_ERF,  /* exact */
    MS_SILU,
    MS_RELU,
} ms_activation_function;

/* Llama 3's scaling of rotary frequencies; factor 1 means none (Llama 3 herd 2024, and HF's
 * rope_scaling type "llama3"). `linear` divides every frequency by factor. */
typedef struct ms_rope_scaling {
    double factor, low_frequency_factor, high_frequency_factor;
    int64_t original_positions;
    bool linear;
} ms_rope_scaling;

/* The attributes of a slot; only the member of the slot's name is read. */
typedef struct ms_attributes {
    struct {
        bool transpose_a, transpose_b, packed, runtime_rows;
        int64_t m, n, k; /* filled by ms_kernel_prepare from the shapes when b is not packed */
    } matmul;
    struct {
        int64_t first; /* vocabulary entry of row 0 */
    } embedding;
    struct {
        bool rms;
        double epsilon;
    } norm;
    struct {
        ms_activation_function function;
    } activation;
    struct {
        bool packed, causal;
        int64_t batch, positions, heads, kv_heads, head_size;
        int64_t heads_global, head_first; /* of the whole model, for dropout's counter */
        double scale; /* 0: 1 / sqrt(head_size) */
        double dropout;
        ms_random_key key;
    } attention;
    struct {
        int64_t heads, head_size, position_max;
        double theta;
        ms_rope_scaling scaling;
        bool inverse;
    } rope;
    struct {
        double probability;
        ms_random_key key;
        int64_t positions; /* T */
        int64_t row_first; /* of this shard of the micro-batch's rows */
        int64_t columns_global, column_first;
    } dropout;
    struct {
        int64_t first, valid;
    } xent;
    struct {
        bool nesterov;
    } sgd;
} ms_attributes;

typedef struct ms_argument {
    ms_dtype dtype;
    int rank; /* -1: absent */
    int64_t dims[MS_DIMS_MAX];
} ms_argument;

typedef struct ms_kernel_spec {
    ms_slot slot;
    int argument_count;
    ms_argument arguments[MS_ARGS_MAX];
    ms_attributes attributes;
} ms_kernel_spec;

typedef struct ms_kernel_run_info {
    void *const *arguments; /* in the slot's order, NULL where absent */
    void *scratch;          /* scratch_bytes, 64-byte aligned */
    bool accumulate;
    int64_t extent[2];
} ms_kernel_run_info;

typedef struct ms_kernel_handle ms_kernel_handle;

/* What is public of a handle. */
typedef struct ms_kernel_needs {
    size_t scratch_bytes;
    size_t packed_bytes;   /* MS_SLOT_PACK: bytes of the packed operand */
    size_t constant_bytes; /* held by the handle itself */
    const char *variant;   /* "ref", "avx512", "onednn": for tables and tests */
} ms_kernel_needs;

const char *ms_slot_name(ms_slot slot); /* "matmul" */
/* An absent argument, and one with dims. */
ms_argument ms_argument_absent(void);
ms_argument ms_argument_of(ms_dtype dtype, int rank, const int64_t *dims);
int64_t ms_argument_elements(const ms_argument *argument); /* 0 when absent */

#endif
