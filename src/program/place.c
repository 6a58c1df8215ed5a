/*
 * place.c - an address for every value of a chunk.
 *
 * Inputs, what crosses from forward to backward, and what is sent to another part are saved: one slot per
 * micro-batch in flight. Everything else lives within one action and is packed by lifetime: largest
 * first, each at the lowest offset where nothing that lives at the same time stands. An alias lives in its
 * root's memory.
 */
#include <stdlib.h>

#include "program/program_internal.h"

typedef struct lifetime {
    int32_t value;
    int32_t first, last; /* node positions, inclusive */
    size_t bytes, offset;
} lifetime;

typedef struct value_placement {
    ms_program *program;
    ms_program_chunk *chunk;
    const ms_graph *graph;
    ms_buffer *buffers;
    int32_t *root;              /* per value: where its memory is */
    int32_t *first, *last;      /* per root value: nodes that touch it */
    bool *in_forward, *in_backward;
} value_placement;

static int32_t root_of(const ms_graph *graph, int32_t value) {
    while (graph->values[value].alias >= 0) {
        value = graph->values[value].alias;
    }
    return value;
}

static void touch(value_placement *placement, int32_t value, int32_t node, bool backward) {
    if (value < 0) {
        return;
    }
    int32_t root = placement->root[value];
    if (placement->first[root] < 0) {
        placement->first[root] = node;
    }
    placement->last[root] = node;
    placement->in_backward[root] = placement->in_backward[root] || backward;
    placement->in_forward[root] = placement->in_forward[root] || !backward;
}

static void find_lifetimes(value_placement *placement) {
    const ms_graph *graph = placement->graph;
    for (int32_t v = 0; v < graph->value_count; v++) {
        placement->root[v] = root_of(graph, v);
        placement->first[v] = -1;
    }
    for (int32_t n = 0; n < graph->node_count; n++) {
        const ms_node *node = &graph->nodes[n];
        bool backward = node->phase != MS_PHASE_FORWARD;
        for (int i = 0; i < node->op->input_count; i++) {
            touch(placement, node->inputs[i].value, n, backward);
        }
        for (int i = 0; i < node->op->output_count; i++) {
            touch(placement, node->outputs[i].value, n, backward);
        }
    }
}

static size_t value_bytes(const ms_graph *graph, int32_t value) {
    return ms_align_up((size_t)ms_operand_bytes(graph, ms_whole(value)), MS_ALIGNMENT);
}

/* Any value of an alias chain may be an output; its root is what must be kept. */
static bool is_output(const value_placement *placement, int32_t root) {
    for (int32_t v = 0; v < placement->graph->value_count; v++) {
        if (placement->root[v] == root && placement->graph->values[v].output != MS_OUTPUT_NONE) {
            return true;
        }
    }
    return false;
}

static int by_bytes(const void *a, const void *b) {
    const lifetime *left = a, *right = b;
    if (left->bytes != right->bytes) {
        return left->bytes < right->bytes ? 1 : -1;
    }
    return left->value < right->value ? -1 : left->value > right->value;
}

static int by_offset(const void *a, const void *b) {
    const lifetime *const *left = a, *const *right = b;
    return (*left)->offset < (*right)->offset ? -1 : (*left)->offset > (*right)->offset;
}

/* Lowest offset for lifetimes[index] among those already placed before it. */
static size_t lowest_offset(lifetime *lifetimes, int32_t index, lifetime **overlapping) {
    const lifetime *mine = &lifetimes[index];
    size_t count = 0;
    for (int32_t i = 0; i < index; i++) {
        if (lifetimes[i].first <= mine->last && mine->first <= lifetimes[i].last) {
            overlapping[count++] = &lifetimes[i];
        }
    }
    qsort(overlapping, count, sizeof *overlapping, by_offset);
    size_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        if (offset + mine->bytes <= overlapping[i]->offset) {
            break;
        }
        size_t end = overlapping[i]->offset + overlapping[i]->bytes;
        offset = end > offset ? end : offset;
    }
    return offset;
}

static ms_status pack_scratch(value_placement *placement, lifetime *lifetimes, int32_t count) {
    lifetime **overlapping = NULL;
    MS_TRY(MS_NEW((size_t)count + 1, MS_MEMORY_PROCESS, &overlapping));
    qsort(lifetimes, (size_t)count, sizeof *lifetimes, by_bytes);
    for (int32_t i = 0; i < count; i++) {
        lifetimes[i].offset = lowest_offset(lifetimes, i, overlapping);
        placement->buffers[lifetimes[i].value] =
            (ms_buffer){.region = MS_REGION_SCRATCH, .offset = lifetimes[i].offset};
        size_t end = lifetimes[i].offset + lifetimes[i].bytes;
        if (end > placement->chunk->scratch_bytes) {
            placement->chunk->scratch_bytes = end;
        }
    }
    ms_free(overlapping);
    return MS_OK;
}

static ms_buffer parameter_buffer(const ms_program *program, const ms_value *value) {
    const ms_program_parameter *parameter = ms_program_find(program, value->parameter);
    if (parameter == NULL) {
        return ms__no_buffer();
    }
    return value->kind == MS_VALUE_GRADIENT ? ms_program_gradient(program, parameter->flat_start)
                                            : ms_program_weight(program, parameter->flat_start);
}

static ms_status place_value(value_placement *placement, int32_t v, lifetime *lifetimes, int32_t *count) {
    const ms_value *value = &placement->graph->values[v];
    ms_buffer *buffer = &placement->buffers[v];
    size_t bytes = value_bytes(placement->graph, v);
    *buffer = ms__no_buffer();
    if (value->kind == MS_VALUE_PARAMETER || value->kind == MS_VALUE_GRADIENT) {
        *buffer = parameter_buffer(placement->program, value);
        return buffer->region != MS_REGION_NONE
                   ? MS_OK
                   : ms_fail(MS_ERR_BUG, "a graph reads parameter %d that its part does not hold",
                             value->parameter);
    }
    if (value->kind == MS_VALUE_STATE) {
        buffer->region = MS_REGION_PRIVATE;
        placement->program->memory.cache_bytes += bytes;
        return ms__program_reserve(placement->program, MS_REGION_PRIVATE, bytes, &buffer->offset);
    }
    if (placement->first[v] < 0 && value->kind != MS_VALUE_INPUT) {
        return MS_OK; /* nothing touches it */
    }
    bool crosses = placement->in_forward[v] && placement->in_backward[v];
    if (value->kind == MS_VALUE_INPUT || crosses || is_output(placement, v)) {
        *buffer = (ms_buffer){.region = MS_REGION_SAVED, .index = MS_INDEX_SLOT,
                              .offset = placement->chunk->saved_bytes};
        placement->chunk->saved_bytes += bytes;
        return MS_OK;
    }
    lifetimes[(*count)++] = (lifetime){.value = v, .first = placement->first[v],
                                       .last = placement->last[v], .bytes = bytes};
    return MS_OK;
}

static ms_status place_all(value_placement *placement) {
    const ms_graph *graph = placement->graph;
    lifetime *lifetimes = NULL;
    int32_t count = 0;
    MS_TRY(MS_NEW((size_t)graph->value_count + 1, MS_MEMORY_PROCESS, &lifetimes));
    ms_status status = MS_OK;
    for (int32_t v = 0; v < graph->value_count && status == MS_OK; v++) {
        if (placement->root[v] == v) {
            status = place_value(placement, v, lifetimes, &count);
        }
    }
    if (status == MS_OK) {
        status = pack_scratch(placement, lifetimes, count);
    }
    for (int32_t v = 0; v < graph->value_count; v++) {
        placement->buffers[v] = placement->buffers[placement->root[v]];
    }
    ms_free(lifetimes);
    return status;
}

ms_status ms__program_place(ms_program *program, ms_program_chunk *chunk, ms_buffer *buffers) {
    value_placement placement = {.program = program, .chunk = chunk, .graph = chunk->graph,
                           .buffers = buffers};
    size_t count = (size_t)chunk->graph->value_count;
    ms_status status;
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &placement.root), done);
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &placement.first), done);
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &placement.last), done);
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &placement.in_forward), done);
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_PROCESS, &placement.in_backward), done);
    find_lifetimes(&placement);
    status = place_all(&placement);
done:
    ms_free(placement.root);
    ms_free(placement.first);
    ms_free(placement.last);
    ms_free(placement.in_forward);
    ms_free(placement.in_backward);
    return status;
}
