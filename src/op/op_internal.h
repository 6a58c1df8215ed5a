/* op_internal.h - what the files of op/ share: shape checks and the gradient operators' entries. */
#ifndef MS_OP_OP_INTERNAL_H
#define MS_OP_OP_INTERNAL_H

#include "op/op.h"

/* dtype of statistics, 1-D weights and weight gradients that go with a compute type. */
static inline ms_dtype ms__wide_type(ms_dtype dtype) { return dtype == MS_F64 ? MS_F64 : MS_F32; }

static inline const ms_value *ms__input(const ms_graph *graph, const ms_node *node, int i) {
    return node->inputs[i].value < 0 ? NULL : &graph->values[node->inputs[i].value];
}
/* Rows of an operand: all dims but the last, multiplied. */
int64_t ms__rows(const ms_graph *graph, ms_operand operand);
int64_t ms__columns(const ms_graph *graph, ms_operand operand);
void ms__set_shape(ms_value *value, ms_dtype dtype, int rank, int64_t d0, int64_t d1);
void ms__set_like(ms_value *output, const ms_graph *graph, ms_operand like);
/* MS_ERR_BUG with the operator's name: a model was built wrongly. */
ms_status ms__shape_error(const ms_node *node, const char *what);
/* Shows the kernel every argument as a flat array. */
void ms__lower_flat(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec);
double ms__flops_elements(const ms_graph *graph, const ms_node *node); /* a few per element */

extern const ms_op ms__op_matmul, ms__op_column_sum, ms__op_embedding, ms__op_embedding_grad,
    ms__op_norm, ms__op_norm_input_grad, ms__op_norm_weight_grad, ms__op_attention,
    ms__op_attention_grad, ms__op_attention_cached, ms__op_activation, ms__op_activation_grad,
    ms__op_rope, ms__op_dropout, ms__op_cast, ms__op_all_gather, ms__op_reduce_scatter,
    ms__op_all_reduce, ms__op_copy, ms__op_xent_stats, ms__op_xent_grad, ms__op_add;

#endif
