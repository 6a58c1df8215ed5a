/*
 * recompute.c - recomputation as a graph transform.
 *
 * A forward value that a backward node reads is saved from one to the other. Here the policy drops some
 * of them; before a dropped value's first backward use, a copy of the node that made it is put (phase
 * recompute), with its inputs made again in turn where they are dropped too. The same kernels on the same
 * numbers: the same bits.
 *
 *   selective  drops outputs of cheap operators (norms, activations, dropout)
 *   full       drops everything but each layer's input (values marked `keep`)
 *
 * The fused loss reads its input at once, so values that only it reads are left alone.
 */
#include "graph/graph.h"

typedef struct redo_state {
    ms_graph *graph;
    bool *dropped;   /* per value */
    int32_t *again;  /* per value: its recomputed copy, or MS_VALUE_NONE */
    ms_node *nodes;  /* the new list */
    int32_t node_count;
    size_t node_capacity;
    int32_t old_values;
} redo_state;

static bool is_backward(const ms_node *node) { return node->phase != MS_PHASE_FORWARD; }

static void choose_dropped(redo_state *state, ms_redo policy) {
    ms_graph *graph = state->graph;
    for (int32_t n = 0; n < graph->node_count; n++) {
        const ms_node *node = &graph->nodes[n];
        if (is_backward(node) || node->layer < 0) {
            continue;
        }
        for (int i = 0; i < node->op->output_count; i++) {
            int32_t output = node->outputs[i].value;
            if (output < 0 || graph->values[output].kind != MS_VALUE_ACTIVATION ||
                graph->values[output].output != MS_OUTPUT_NONE) {
                continue;
            }
            bool chosen = policy == MS_REDO_FULL || (node->op->redo_outputs >> i & 1u) != 0;
            state->dropped[output] = chosen && !graph->values[output].keep;
        }
    }
}

static ms_status append(redo_state *state, const ms_node *node) {
    MS_TRY(ms_array_reserve((void **)&state->nodes, &state->node_capacity,
                            (size_t)state->node_count + 1, sizeof *state->nodes,
                            MS_MEMORY_PROCESS));
    state->nodes[state->node_count++] = *node;
    return MS_OK;
}

/* Makes sure that a dropped value's copy exists. Depth is bounded by the nodes of one layer. */
static ms_status make_again(redo_state *state, int32_t value) {
    ms_graph *graph = state->graph;
    if (value < 0 || value >= state->old_values || !state->dropped[value] ||
        state->again[value] != MS_VALUE_NONE) {
        return MS_OK;
    }
    ms_node clone = graph->nodes[graph->values[value].producer];
    clone.phase = MS_PHASE_RECOMPUTE;
    if (clone.op->redo_form != NULL) {
        clone.op->redo_form(graph, &clone, state->dropped);
    }
    for (int i = 0; i < clone.op->input_count; i++) {
        int32_t input = clone.inputs[i].value;
        MS_TRY(make_again(state, input));
        if (input >= 0 && input < state->old_values && state->again[input] != MS_VALUE_NONE) {
            clone.inputs[i].value = state->again[input];
        }
    }
    for (int i = 0; i < clone.op->output_count; i++) {
        int32_t output = clone.outputs[i].value;
        if (output < 0) {
            continue;
        }
        ms_value copy = graph->values[output];
        copy.keep = false;
        copy.producer = -1;
        if (copy.alias >= 0) {
            copy.alias = clone.inputs[0].value;
        }
        int32_t id;
        MS_TRY(ms_graph_add_value(graph, &copy, &id));
        clone.outputs[i].value = id;
        if (state->dropped[output]) {
            state->again[output] = id;
        }
    }
    return append(state, &clone);
}

static ms_status rewrite(redo_state *state) {
    ms_graph *graph = state->graph;
    for (int32_t n = 0; n < graph->node_count; n++) {
        ms_node node = graph->nodes[n];
        if (is_backward(&node)) {
            for (int i = 0; i < node.op->input_count; i++) {
                int32_t input = node.inputs[i].value;
                MS_TRY(make_again(state, input));
                if (input >= 0 && input < state->old_values &&
                    state->again[input] != MS_VALUE_NONE) {
                    node.inputs[i].value = state->again[input];
                }
            }
        }
        MS_TRY(append(state, &node));
    }
    return MS_OK;
}

/* Values were numbered by the old list of nodes; their producers move. */
static void renumber_producers(ms_graph *graph) {
    for (int32_t v = 0; v < graph->value_count; v++) {
        graph->values[v].producer = -1;
    }
    for (int32_t n = graph->node_count - 1; n >= 0; n--) {
        for (int i = 0; i < graph->nodes[n].op->output_count; i++) {
            int32_t output = graph->nodes[n].outputs[i].value;
            if (output >= 0) {
                graph->values[output].producer = n;
            }
        }
    }
}

ms_status ms_graph_recompute(ms_graph *graph, ms_redo policy) {
    if (policy == MS_REDO_NONE) {
        return MS_OK;
    }
    redo_state state = {.graph = graph, .old_values = graph->value_count};
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)graph->value_count, MS_MEMORY_PROCESS, &state.dropped), fail);
    MS_TRY_GOTO(MS_NEW((size_t)graph->value_count, MS_MEMORY_PROCESS, &state.again), fail);
    for (int32_t v = 0; v < state.old_values; v++) {
        state.again[v] = MS_VALUE_NONE;
    }
    choose_dropped(&state, policy);
    MS_TRY_GOTO(rewrite(&state), fail);
    ms_free(graph->nodes);
    graph->nodes = state.nodes;
    graph->node_count = state.node_count;
    graph->node_capacity = state.node_capacity;
    state.nodes = NULL;
    renumber_producers(graph);
fail:
    ms_free(state.nodes);
    ms_free(state.dropped);
    ms_free(state.again);
    return status;
}
