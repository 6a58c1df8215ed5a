/*
 * op.h - the operators a model is written in: one builder function each, one file each.
 *
 * A builder appends the operator's node(s) to a graph and gives back the new value. `node` attributes
 * follow device/kernel.h. A parameter operand is a value made by ms_graph_parameter. Every operator whose
 * gradient exists is differentiated by ms_graph_differentiate.
 */
#ifndef MS_OP_OP_H
#define MS_OP_OP_H

#include "graph/graph.h"

/* y[N,O] = x w (+ bias). transposed: w is [O,I] (torch's Linear); else [I,O] (GPT-2's Conv1D). */
ms_status ms_op_linear(ms_graph *graph, int32_t x, int32_t w, int32_t bias, bool transposed,
                       int32_t *y);
/* out = table[ids - first] (+ addend). */
ms_status ms_op_embedding(ms_graph *graph, int32_t ids, int32_t table, int64_t first,
                          int32_t addend, int32_t *out);

typedef struct ms_op_norm_result {
    int32_t sum; /* x + delta, or x when there is no delta */
    int32_t y;
} ms_op_norm_result;
/* Residual addition and norm in one: delta may be MS_VALUE_NONE, bias too. */
ms_status ms_op_norm(ms_graph *graph, int32_t x, int32_t delta, int32_t weight, int32_t bias,
                     bool rms, double epsilon, ms_op_norm_result *result);
/* RMS norm of each head's D elements of x[N, heads * D] (Qwen3's q and k norm). */
ms_status ms_op_head_norm(ms_graph *graph, int32_t x, int32_t weight, int64_t head_size,
                          double epsilon, int32_t *y);

/* Attributes: attention member filled by the caller. k, v MS_VALUE_NONE when packed. samples may be
 * MS_VALUE_NONE without dropout. */
ms_status ms_op_attention(ms_graph *graph, int32_t q, int32_t k, int32_t v, int32_t samples,
                          const ms_attributes *attributes, int32_t *out);
/* For generation: with caches, forward only. */
ms_status ms_op_attention_cached(ms_graph *graph, int32_t q, int32_t k, int32_t v, int32_t cache_k,
                                 int32_t cache_v, const ms_attributes *attributes, int32_t *out);
ms_status ms_op_activation(ms_graph *graph, int32_t a, int32_t up, ms_activation_function function,
                           int32_t *y);
ms_status ms_op_rope(ms_graph *graph, int32_t x, int32_t positions,
                     const ms_attributes *attributes, int32_t *y);
ms_status ms_op_dropout(ms_graph *graph, int32_t x, int32_t samples,
                        const ms_attributes *attributes, int32_t *y);
/* c = a + b, where a residual stream ends at a pipeline border. */
ms_status ms_op_add(ms_graph *graph, int32_t a, int32_t b, int32_t *c);
ms_status ms_op_cast(ms_graph *graph, int32_t x, ms_dtype dtype, int32_t *y);

/* Collectives, each the other's gradient: all_gather <-> reduce_scatter, copy <-> all_reduce. On an axis
 * of one rank they are x itself and add no node. */
ms_status ms_op_all_gather(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y);
ms_status ms_op_reduce_scatter(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y);
ms_status ms_op_all_reduce(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y);
/* Identity whose gradient is summed over the axis. */
ms_status ms_op_copy(ms_graph *graph, int32_t x, ms_axis axis, int32_t *y);

typedef struct ms_op_head_loss_options {
    int32_t x;        /* [N,C] */
    int32_t w;        /* [V,C], this rank's rows of the vocabulary */
    int32_t targets, scale;
    int64_t first;    /* vocabulary entry of w's row 0 */
    int64_t chunk_rows;
    bool train;       /* with gradients of x and w, made at once; else the loss only */
} ms_op_head_loss_options;
/*
 * Output head and cross-entropy, fused over chunks of rows: a chunk's logits live once. In training the
 * nodes belong to the backward action (phase input_grad) and make the gradients of x and w as well, so
 * nothing is computed twice; ms_graph_differentiate starts from the seed left here. loss is s[N].
 */
ms_status ms_op_head_loss(ms_graph *graph, const ms_op_head_loss_options *options, int32_t *loss);

/* The table of all operators, NULL-terminated: for tests, docs and fuzzing. */
const ms_op *const *ms_op_table(void);

#endif
