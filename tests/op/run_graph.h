/*
 * run_graph.h - runs a graph's nodes one after the other on reference kernels, with memory of its
 * own for every value: no lowering, no packing, no plan. Several ranks are several graphs of the
 * same nodes, run in step in one thread; their collectives are plain loops here.
 */
#ifndef MS_TEST_RUN_GRAPH_H
#define MS_TEST_RUN_GRAPH_H

#include "device/device.h"
#include "op/op.h"
#include "support/test_support.h"

#define GRAPH_RANKS_MAX 4

typedef struct graph_rank {
    ms_graph *graph;
    void **buffers; /* of each value; an alias shares the other's */
    ms_kernel_handle **kernels;
    void *scratch;
} graph_rank;

MS_TEST_UNUSED static int64_t graph_elements(const ms_graph *graph, int32_t value) {
    return ms_operand_elements(graph, ms_whole(value));
}

MS_TEST_UNUSED static double graph_get(const graph_rank *rank, int32_t value, int64_t i) {
    const void *data = rank->buffers[value];
    switch (rank->graph->values[value].dtype) {
    case MS_F64:
        return ((const double *)data)[i];
    case MS_F32:
        return (double)((const float *)data)[i];
    case MS_BF16:
        return (double)ms_bf16_to_f32(((const uint16_t *)data)[i]);
    case MS_I32:
        return (double)((const int32_t *)data)[i];
    case MS_I64:
        return (double)((const int64_t *)data)[i];
    default:
        fail_msg("value %d has a type that is not read here", (int)value);
        return 0;
    }
}

MS_TEST_UNUSED static void graph_set(const graph_rank *rank, int32_t value, int64_t i,
                                     double number) {
    void *data = rank->buffers[value];
    switch (rank->graph->values[value].dtype) {
    case MS_F64:
        ((double *)data)[i] = number;
        break;
    case MS_F32:
        ((float *)data)[i] = (float)number;
        break;
    case MS_BF16:
        ((uint16_t *)data)[i] = ms_f32_to_bf16((float)number);
        break;
    case MS_I32:
        ((int32_t *)data)[i] = (int32_t)number;
        break;
    case MS_I64:
        ((int64_t *)data)[i] = (int64_t)number;
        break;
    default:
        fail_msg("value %d has a type that is not written here", (int)value);
    }
}

/* The graph must be complete; it is destroyed with the rank. */
MS_TEST_UNUSED static void graph_rank_open(graph_rank *rank, ms_graph *graph, ms_device *device) {
    *rank = (graph_rank){.graph = graph,
                         .buffers = calloc((size_t)graph->value_count, sizeof *rank->buffers),
                         .kernels = calloc((size_t)graph->node_count + 1, sizeof *rank->kernels)};
    for (int32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].alias < 0) {
            size_t bytes = (size_t)ms_operand_bytes(graph, ms_whole(v));
            assert_ok(ms_alloc(bytes, MS_MEMORY_CALLER, &rank->buffers[v]));
        } else {
            rank->buffers[v] = rank->buffers[graph->values[v].alias];
        }
        assert_non_null(rank->buffers[v]);
    }
    size_t scratch = 64;
    for (int32_t n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].op->slot == MS_SLOT_COUNT) {
            continue;
        }
        ms_kernel_spec spec = ms_node_spec(graph, &graph->nodes[n]);
        assert_ok(ms_kernel_prepare(device, &spec, &rank->kernels[n]));
        size_t needs = ms_kernel_get_needs(rank->kernels[n]).scratch_bytes;
        scratch = needs > scratch ? needs : scratch;
    }
    assert_ok(ms_alloc(scratch, MS_MEMORY_CALLER, &rank->scratch));
}

MS_TEST_UNUSED static void graph_rank_close(graph_rank *rank) {
    for (int32_t v = 0; v < rank->graph->value_count; v++) {
        if (rank->graph->values[v].alias < 0) {
            ms_free(rank->buffers[v]);
        }
    }
    for (int32_t n = 0; n < rank->graph->node_count; n++) {
        ms_kernel_destroy(rank->kernels[n]);
    }
    ms_free(rank->scratch);
    free(rank->buffers);
    free(rank->kernels);
    ms_graph_destroy(rank->graph);
}

MS_TEST_UNUSED static void *graph_address(const graph_rank *rank, ms_operand operand) {
    if (operand.value < 0) {
        return NULL;
    }
    const ms_value *value = &rank->graph->values[operand.value];
    int64_t row = (int64_t)ms_dtype_bytes(value->dtype);
    for (int i = 1; i < value->rank; i++) {
        row *= value->dims[i];
    }
    return (char *)rank->buffers[operand.value] + operand.row_start * row;
}

MS_TEST_UNUSED static void graph_run_kernel(const graph_rank *rank, int32_t n, bool later) {
    const ms_node *node = &rank->graph->nodes[n];
    void *arguments[MS_ARGS_MAX] = {NULL};
    int count = 0;
    for (int i = 0; i < node->op->input_count; i++) {
        arguments[count++] = graph_address(rank, node->inputs[i]);
    }
    for (int i = 0; i < node->op->output_count; i++) {
        arguments[count++] = graph_address(rank, node->outputs[i]);
    }
    ms_kernel_run_info run = {.arguments = arguments,
                              .scratch = rank->scratch,
                              .accumulate =
                                  node->accumulate == MS_ACCUMULATE_ALWAYS ||
                                  (node->accumulate == MS_ACCUMULATE_AFTER_FIRST && later)};
    assert_ok(ms_kernel_run(rank->kernels[n], &run, NULL));
}

MS_TEST_UNUSED static void graph_run_collective(const graph_rank *ranks, int count, int32_t n) {
    const ms_node *node = &ranks[0].graph->nodes[n];
    int32_t in = node->inputs[0].value, out = node->outputs[0].value;
    int64_t elements = graph_elements(ranks[0].graph, in);
    int64_t kept = graph_elements(ranks[0].graph, out);
    for (int r = 0; r < count; r++) {
        for (int64_t i = 0; i < kept; i++) {
            double value = 0;
            if (node->op->collective == MS_COLLECTIVE_ALL_GATHER) {
                value = graph_get(&ranks[i / elements], in, i % elements);
            } else {
                int64_t start = node->op->collective == MS_COLLECTIVE_REDUCE_SCATTER ? r * kept : 0;
                for (int q = 0; q < count; q++) {
                    value += graph_get(&ranks[q], in, start + i);
                }
            }
            graph_set(&ranks[r], out, i, value);
        }
    }
}

/* Runs every node on every rank. later: not the first micro-batch, so that gradients add up. */
MS_TEST_UNUSED static void graph_run(const graph_rank *ranks, int count, bool later) {
    for (int32_t n = 0; n < ranks[0].graph->node_count; n++) {
        const ms_op *op = ranks[0].graph->nodes[n].op;
        if (op->collective != MS_COLLECTIVE_NONE) {
            graph_run_collective(ranks, count, n);
        }
        for (int r = 0; r < count && op->slot != MS_SLOT_COUNT; r++) {
            graph_run_kernel(&ranks[r], n, later);
        }
    }
}

#endif
