/*
 * graph.c - building a graph: values, nodes, operands, and what they amount to.
 *
 * Main path: model/ adds values and nodes -> autodiff.c appends the gradient -> recompute.c trades saved
 * values for nodes -> program/ lowers. Two growing arrays, indices instead of pointers, so that adding
 * never invalidates what a caller holds.
 */
#include "graph/graph.h"

#include <inttypes.h>

#define GRAPH_VALUES_MAX ((int32_t)1 << 24)

ms_status ms_graph_create(int32_t parameter_count, ms_graph **graph) {
    ms_graph *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    ms_status status = MS_NEW((size_t)parameter_count, MS_MEMORY_PROCESS, &made->gradient_started);
    if (status != MS_OK) {
        ms_free(made);
        return status;
    }
    made->parameter_count = parameter_count;
    made->layer = -1;
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        made->axis_size[axis] = 1;
    }
    *graph = made;
    return MS_OK;
}

void ms_graph_destroy(ms_graph *graph) {
    if (graph != NULL) {
        ms_free(graph->gradient_started);
        ms_free(graph->values);
        ms_free(graph->nodes);
        ms_free(graph);
    }
}

ms_status ms_graph_add_value(ms_graph *graph, const ms_value *value, int32_t *id) {
    if (graph->value_count >= GRAPH_VALUES_MAX) {
        return ms_fail(MS_ERR_RANGE, "a graph holds at most %d values", GRAPH_VALUES_MAX);
    }
    MS_TRY(ms_array_reserve((void **)&graph->values, &graph->value_capacity,
                            (size_t)graph->value_count + 1, sizeof *graph->values,
                            MS_MEMORY_PROCESS));
    graph->values[graph->value_count] = *value;
    *id = graph->value_count++;
    return MS_OK;
}

static ms_value value_blank(ms_value_kind kind, ms_dtype dtype, int rank, const int64_t *dims) {
    ms_value value = {.kind = kind, .dtype = dtype, .rank = rank, .parameter = -1, .layer = -1,
                      .producer = -1, .alias = -1};
    for (int i = 0; i < rank; i++) {
        value.dims[i] = dims[i];
    }
    return value;
}

ms_status ms_graph_input(ms_graph *graph, ms_input_role role, ms_dtype dtype, int rank,
                         const int64_t *dims, int32_t *id) {
    ms_value value = value_blank(MS_VALUE_INPUT, dtype, rank, dims);
    value.input = role;
    return ms_graph_add_value(graph, &value, id);
}

static int32_t find_parameter(const ms_graph *graph, ms_value_kind kind, int32_t parameter,
                              ms_dtype dtype) {
    for (int32_t i = 0; i < graph->value_count; i++) {
        const ms_value *value = &graph->values[i];
        if (value->kind == kind && value->parameter == parameter && value->dtype == dtype) {
            return i;
        }
    }
    return MS_VALUE_NONE;
}

ms_status ms_graph_parameter(ms_graph *graph, int32_t parameter, ms_dtype dtype, int rank,
                             const int64_t *dims, int32_t *id) {
    MS_CHECK(parameter >= 0 && parameter < graph->parameter_count);
    int32_t found = find_parameter(graph, MS_VALUE_PARAMETER, parameter, dtype);
    if (found != MS_VALUE_NONE) {
        *id = found;
        return MS_OK;
    }
    ms_value value = value_blank(MS_VALUE_PARAMETER, dtype, rank, dims);
    value.parameter = parameter;
    return ms_graph_add_value(graph, &value, id);
}

ms_status ms_graph_parameter_gradient(ms_graph *graph, int32_t parameter_value,
                                      ms_operand *gradient, ms_accumulate *accumulate) {
    ms_value value = graph->values[parameter_value];
    MS_CHECK(value.kind == MS_VALUE_PARAMETER);
    ms_dtype dtype = value.dtype == MS_F64 ? MS_F64 : MS_F32;
    int32_t id = find_parameter(graph, MS_VALUE_GRADIENT, value.parameter, dtype);
    if (id == MS_VALUE_NONE) {
        value.kind = MS_VALUE_GRADIENT;
        value.dtype = dtype;
        MS_TRY(ms_graph_add_value(graph, &value, &id));
    }
    *gradient = ms_whole(id);
    *accumulate = graph->gradient_started[value.parameter] ? MS_ACCUMULATE_ALWAYS
                                                           : MS_ACCUMULATE_AFTER_FIRST;
    graph->gradient_started[value.parameter] = true;
    return MS_OK;
}

ms_node ms_node_of(const ms_op *op) {
    ms_node node = {.op = op, .axis = MS_AXIS_NONE, .layer = -1};
    for (int i = 0; i < MS_NODE_INPUTS_MAX; i++) {
        node.inputs[i].value = MS_VALUE_NONE;
    }
    for (int i = 0; i < MS_NODE_OUTPUTS_MAX; i++) {
        node.outputs[i].value = MS_VALUE_NONE;
    }
    return node;
}

ms_status ms_graph_add_node(ms_graph *graph, const ms_node *node) {
    ms_node added = *node;
    ms_value outputs[MS_NODE_OUTPUTS_MAX];
    const int64_t none[1] = {0};
    for (int i = 0; i < MS_NODE_OUTPUTS_MAX; i++) {
        outputs[i] = value_blank(MS_VALUE_ACTIVATION, MS_F32, 0, none);
        outputs[i].layer = graph->layer;
    }
    for (int i = 0; i < added.op->input_count; i++) {
        MS_CHECK(added.inputs[i].value < graph->value_count);
    }
    MS_TRY(added.op->infer(graph, &added, outputs));
    MS_TRY(ms_array_reserve((void **)&graph->nodes, &graph->node_capacity,
                            (size_t)graph->node_count + 1, sizeof *graph->nodes,
                            MS_MEMORY_PROCESS));
    for (int i = 0; i < added.op->output_count; i++) {
        if (added.outputs[i].value == MS_VALUE_NEW) {
            outputs[i].producer = graph->node_count;
            int32_t id;
            MS_TRY(ms_graph_add_value(graph, &outputs[i], &id));
            added.outputs[i] = ms_whole(id);
        } else if (added.outputs[i].value >= 0 &&
                   graph->values[added.outputs[i].value].producer < 0) {
            graph->values[added.outputs[i].value].producer = graph->node_count;
        }
    }
    added.layer = graph->layer;
    added.phase = graph->phase;
    graph->nodes[graph->node_count++] = added;
    return MS_OK;
}

int32_t ms_graph_output(const ms_graph *graph, int i) {
    return graph->nodes[graph->node_count - 1].outputs[i].value;
}

ms_argument ms_operand_argument(const ms_graph *graph, ms_operand operand) {
    if (operand.value < 0) {
        return ms_argument_absent();
    }
    const ms_value *value = &graph->values[operand.value];
    ms_argument argument = ms_argument_of(value->dtype, value->rank, value->dims);
    if (operand.row_count > 0) {
        MS_CHECK(value->rank > 0 && operand.row_start + operand.row_count <= value->dims[0]);
        argument.dims[0] = operand.row_count;
    }
    return argument;
}

int64_t ms_operand_elements(const ms_graph *graph, ms_operand operand) {
    ms_argument argument = ms_operand_argument(graph, operand);
    return ms_argument_elements(&argument);
}

int64_t ms_operand_bytes(const ms_graph *graph, ms_operand operand) {
    if (operand.value < 0) {
        return 0;
    }
    return ms_operand_elements(graph, operand) *
           (int64_t)ms_dtype_bytes(graph->values[operand.value].dtype);
}

ms_kernel_spec ms_node_spec(const ms_graph *graph, const ms_node *node) {
    ms_kernel_spec spec = {.slot = node->op->slot, .attributes = node->attributes};
    for (int i = 0; i < node->op->input_count; i++) {
        spec.arguments[spec.argument_count++] = ms_operand_argument(graph, node->inputs[i]);
    }
    for (int i = 0; i < node->op->output_count; i++) {
        spec.arguments[spec.argument_count++] = ms_operand_argument(graph, node->outputs[i]);
    }
    if (node->op->lower != NULL) {
        node->op->lower(graph, node, &spec);
    }
    return spec;
}

double ms_node_flops(const ms_graph *graph, const ms_node *node) {
    return node->op->flops == NULL ? 0 : node->op->flops(graph, node);
}

int64_t ms_node_bytes_read(const ms_graph *graph, const ms_node *node) {
    int64_t bytes = 0;
    for (int i = 0; i < node->op->input_count; i++) {
        bytes += ms_operand_bytes(graph, node->inputs[i]);
    }
    if (node->accumulate != MS_ACCUMULATE_NEVER) {
        bytes += ms_node_bytes_written(graph, node);
    }
    return bytes;
}

int64_t ms_node_bytes_written(const ms_graph *graph, const ms_node *node) {
    int64_t bytes = 0;
    for (int i = 0; i < node->op->output_count; i++) {
        bytes += ms_operand_bytes(graph, node->outputs[i]);
    }
    return bytes;
}

int64_t ms_node_bytes_sent(const ms_graph *graph, const ms_node *node) {
    if (node->op->collective == MS_COLLECTIVE_NONE) {
        return 0;
    }
    int64_t ranks = graph->axis_size[node->axis];
    int64_t in = ms_operand_bytes(graph, node->inputs[0]);
    switch (node->op->collective) {
    case MS_COLLECTIVE_ALL_GATHER:
        return in * (ranks - 1);
    case MS_COLLECTIVE_REDUCE_SCATTER:
        return in / ranks * (ranks - 1);
    default:
        return 2 * (in / ranks) * (ranks - 1);
    }
}

static ms_status print_operand(const ms_graph *graph, ms_operand operand, ms_text *text) {
    if (operand.value < 0) {
        return ms_text_append_z(text, " -");
    }
    const ms_value *value = &graph->values[operand.value];
    static const char *const marks[] = {"in", "w", "g", "v", "state"};
    MS_TRY(ms_text_printf(text, " %s%" PRId32 ":%s[", marks[value->kind],
                          value->parameter >= 0 ? value->parameter : operand.value,
                          ms_dtype_name(value->dtype)));
    for (int i = 0; i < value->rank; i++) {
        MS_TRY(ms_text_printf(text, "%s%" PRId64, i > 0 ? "," : "", value->dims[i]));
    }
    MS_TRY(ms_text_append_z(text, "]"));
    if (operand.row_count > 0) {
        MS_TRY(ms_text_printf(text, "@%" PRId64 "+%" PRId64, operand.row_start, operand.row_count));
    }
    return MS_OK;
}

ms_status ms_graph_print(const ms_graph *graph, ms_text *text) {
    static const char *const phases[] = {"forward", "recompute", "input_grad", "weight_grad"};
    for (int32_t n = 0; n < graph->node_count; n++) {
        const ms_node *node = &graph->nodes[n];
        MS_TRY(ms_text_printf(text, "%4" PRId32 " %-11s layer %2" PRId32 " %-22s", n,
                              phases[node->phase], node->layer, node->op->name));
        for (int i = 0; i < node->op->input_count; i++) {
            MS_TRY(print_operand(graph, node->inputs[i], text));
        }
        MS_TRY(ms_text_append_z(text, " ->"));
        for (int i = 0; i < node->op->output_count; i++) {
            MS_TRY(print_operand(graph, node->outputs[i], text));
        }
        MS_TRY(ms_text_append_z(text, "\n"));
    }
    return MS_OK;
}
