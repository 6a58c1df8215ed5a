/*
 * shape.c - shape helpers of the operators, and the table of them all.
 *
 * Each operator stands in a file of its own: builder, shape rule, cost, gradient. What they have in common
 * is here.
 */
#include "op/op_internal.h"

int64_t ms__columns(const ms_graph *graph, ms_operand operand) {
    const ms_value *value = &graph->values[operand.value];
    return value->rank == 0 ? 1 : value->dims[value->rank - 1];
}

int64_t ms__rows(const ms_graph *graph, ms_operand operand) {
    ms_argument argument = ms_operand_argument(graph, operand);
    int64_t rows = 1;
    for (int i = 0; i + 1 < argument.rank; i++) {
        rows *= argument.dims[i];
    }
    return rows;
}

void ms__set_shape(ms_value *value, ms_dtype dtype, int rank, int64_t d0, int64_t d1) {
    value->dtype = dtype;
    value->rank = rank;
    value->dims[0] = d0;
    value->dims[1] = d1;
}

void ms__set_like(ms_value *output, const ms_graph *graph, ms_operand like) {
    ms_argument argument = ms_operand_argument(graph, like);
    output->dtype = argument.dtype;
    output->rank = argument.rank;
    for (int i = 0; i < argument.rank; i++) {
        output->dims[i] = argument.dims[i];
    }
}

ms_status ms__shape_error(const ms_node *node, const char *what) {
    return ms_fail(MS_ERR_BUG, "operator %s: %s", node->op->name, what);
}

double ms__flops_elements(const ms_graph *graph, const ms_node *node) {
    return 8.0 * (double)ms_operand_elements(graph, node->inputs[0]);
}

void ms__lower_flat(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec) {
    (void)graph;
    (void)node;
    for (int i = 0; i < spec->argument_count; i++) {
        int64_t elements = ms_argument_elements(&spec->arguments[i]);
        spec->arguments[i] = ms_argument_of(spec->arguments[i].dtype, 1, &elements);
    }
}

static const ms_op *const operators[] = {
    &ms__op_matmul,         &ms__op_column_sum,       &ms__op_embedding,
    &ms__op_embedding_grad, &ms__op_norm,             &ms__op_norm_input_grad,
    &ms__op_norm_weight_grad, &ms__op_attention,      &ms__op_attention_grad,
    &ms__op_attention_cached, &ms__op_activation,     &ms__op_activation_grad,
    &ms__op_rope,           &ms__op_dropout,          &ms__op_cast,
    &ms__op_all_gather,     &ms__op_reduce_scatter,   &ms__op_all_reduce,
    &ms__op_copy,           &ms__op_xent_stats,       &ms__op_xent_grad,
    &ms__op_add,
    NULL,
};

const ms_op *const *ms_op_table(void) { return operators; }
