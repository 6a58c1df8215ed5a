/*
 * lower.c - kernels and arguments of a chunk's nodes, packed weights, and where each bucket is complete.
 *
 * One handle serves every node of one spec: a model of many layers readies the kernels of one layer.
 */
#include <string.h>

#include "base/hash.h"
#include "program/program_internal.h"

static bool same_spec(const ms_kernel_spec *a, const ms_kernel_spec *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* Specs are compared byte by byte: copied field by field into zeroed memory, so padding is equal. */
static void clean_spec(const ms_kernel_spec *from, ms_kernel_spec *to) {
    memset(to, 0, sizeof *to);
    to->slot = from->slot;
    to->argument_count = from->argument_count;
    for (int i = 0; i < from->argument_count; i++) {
        to->arguments[i].dtype = from->arguments[i].rank < 0 ? MS_F64 : from->arguments[i].dtype;
        to->arguments[i].rank = from->arguments[i].rank;
        for (int d = 0; d < from->arguments[i].rank; d++) {
            to->arguments[i].dims[d] = from->arguments[i].dims[d];
        }
    }
    memcpy(&to->attributes, &from->attributes, sizeof to->attributes);
}

ms_status ms__program_kernel(ms_program *program, const ms_kernel_spec *spec,
                             ms_kernel_handle **kernel) {
    ms_kernel_spec wanted;
    clean_spec(spec, &wanted);
    for (int32_t i = program->kernel_count - 1; i >= 0; i--) {
        if (same_spec(&program->kernel_specs[i], &wanted)) {
            *kernel = program->kernels[i];
            return MS_OK;
        }
    }
    size_t handles = program->kernel_capacity, specs = program->kernel_capacity;
    size_t needed = (size_t)program->kernel_count + 1;
    MS_TRY(ms_array_reserve((void **)&program->kernels, &handles, needed,
                            sizeof *program->kernels, MS_MEMORY_PROCESS));
    MS_TRY(ms_array_reserve((void **)&program->kernel_specs, &specs, needed,
                            sizeof *program->kernel_specs, MS_MEMORY_PROCESS));
    program->kernel_capacity = handles < specs ? handles : specs;
    ms_kernel_handle *made;
    MS_TRY(ms_kernel_prepare(program->request.device, &wanted, &made));
    program->kernels[program->kernel_count] = made;
    program->kernel_specs[program->kernel_count++] = wanted;
    ms_kernel_needs needs = ms_kernel_get_needs(made);
    program->memory.constant_bytes += needs.constant_bytes;
    size_t scratch = ms_align_up(needs.scratch_bytes, MS_ALIGNMENT);
    if (scratch > program->kernel_scratch.stride) {
        program->kernel_scratch.stride = scratch; /* the largest; its place follows all values */
    }
    *kernel = made;
    return MS_OK;
}

static ms_status append(ms_node_list *list, const ms_program_node *node) {
    MS_TRY(ms_array_reserve((void **)&list->nodes, &list->capacity, (size_t)list->count + 1,
                            sizeof *list->nodes, MS_MEMORY_PROCESS));
    list->nodes[list->count++] = *node;
    return MS_OK;
}

static ms_buffer operand_buffer(const ms_graph *graph, const ms_buffer *buffers,
                                ms_operand operand) {
    if (operand.value < 0) {
        return ms__no_buffer();
    }
    ms_buffer buffer = buffers[operand.value];
    if (operand.row_start > 0) {
        const ms_value *value = &graph->values[operand.value];
        int64_t row = 1;
        for (int i = 1; i < value->rank; i++) {
            row *= value->dims[i];
        }
        buffer.offset += (size_t)(operand.row_start * row) * ms_dtype_bytes(value->dtype);
    }
    return buffer;
}

static ms_status find_pack(ms_program *program, const ms_kernel_spec *spec, ms_buffer from,
                           ms_buffer *packed, size_t *bytes) {
    *bytes = 0;
    ms_kernel_spec pack = {.slot = MS_SLOT_PACK, .argument_count = 2,
                           .attributes = spec->attributes};
    pack.arguments[0] = spec->arguments[1];
    pack.arguments[1] = ms_argument_absent(); /* its size is what is asked */
    bool transposed = spec->attributes.matmul.transpose_a;
    pack.attributes.matmul.m = spec->arguments[0].dims[transposed ? 1 : 0];
    pack.attributes.matmul.k = spec->arguments[0].dims[transposed ? 0 : 1];
    pack.attributes.matmul.n = spec->arguments[3].dims[1];
    ms_kernel_handle *kernel;
    MS_TRY(ms__program_kernel(program, &pack, &kernel));
    size_t packed_bytes = ms_kernel_get_needs(kernel).packed_bytes;
    if (packed_bytes == 0) {
        return MS_OK;
    }
    *bytes = packed_bytes;
    for (int32_t i = 0; i < program->pack_count; i++) {
        const ms_pack *made = &program->packs[i];
        if (made->kernel == kernel && made->from.offset == from.offset &&
            made->from.region == from.region) {
            *packed = made->to;
            return MS_OK;
        }
    }
    size_t capacity = (size_t)program->pack_count;
    MS_TRY(ms_realloc((void **)&program->packs, (capacity + 1) * sizeof *program->packs,
                      MS_MEMORY_PROCESS));
    ms_pack *made = &program->packs[program->pack_count];
    *made = (ms_pack){.kernel = kernel, .from = from, .bytes = packed_bytes,
                      .to = {.region = MS_REGION_PRIVATE}};
    MS_TRY(ms__program_reserve(program, MS_REGION_PRIVATE, packed_bytes, &made->to.offset));
    program->memory.packed_bytes += packed_bytes;
    program->pack_count++;
    *packed = made->to;
    return MS_OK;
}

/* A matmul whose second operand is a weight may like it in a layout of its own. */
static ms_status try_pack(ms_program *program, const ms_graph *graph, const ms_node *node,
                          ms_kernel_spec *spec, ms_buffer *arguments) {
    if (node->op->slot != MS_SLOT_MATMUL || node->inputs[1].row_count > 0 ||
        graph->values[node->inputs[1].value].kind != MS_VALUE_PARAMETER) {
        return MS_OK;
    }
    size_t bytes;
    ms_buffer packed;
    MS_TRY(find_pack(program, spec, arguments[1], &packed, &bytes));
    if (bytes > 0) {
        bool transposed = spec->attributes.matmul.transpose_a;
        spec->attributes.matmul.packed = true;
        spec->attributes.matmul.m = spec->arguments[0].dims[transposed ? 1 : 0];
        spec->attributes.matmul.k = spec->arguments[0].dims[transposed ? 0 : 1];
        spec->attributes.matmul.n = spec->arguments[3].dims[1];
        int64_t elements = (int64_t)bytes;
        spec->arguments[1] = ms_argument_of(MS_U8, 1, &elements);
        arguments[1] = packed;
    }
    return MS_OK;
}

static ms_status lower_kernel(ms_program *program, ms_program_chunk *chunk,
                              const ms_buffer *buffers, const ms_node *node,
                              ms_program_node *lowered) {
    const ms_graph *graph = chunk->graph;
    int count = 0;
    for (int i = 0; i < node->op->input_count; i++) {
        lowered->arguments[count++] = operand_buffer(graph, buffers, node->inputs[i]);
    }
    for (int i = 0; i < node->op->output_count; i++) {
        lowered->arguments[count++] = operand_buffer(graph, buffers, node->outputs[i]);
    }
    lowered->accumulate = node->accumulate;
    if (node->op->collective != MS_COLLECTIVE_NONE) {
        lowered->kind = MS_STEP_COLLECTIVE;
        lowered->collective = node->op->collective;
        lowered->axis = node->axis;
        lowered->count = ms_operand_elements(graph, node->inputs[0]);
        lowered->dtype = graph->values[node->inputs[0].value].dtype;
        return MS_OK;
    }
    ms_kernel_spec spec = ms_node_spec(graph, node);
    if (program->request.mode == MS_MODE_GENERATE && node->op->slot == MS_SLOT_MATMUL) {
        spec.attributes.matmul.runtime_rows = true;
    }
    MS_TRY(try_pack(program, graph, node, &spec, lowered->arguments));
    return ms__program_kernel(program, &spec, &lowered->kernel);
}

/* Position in graph->nodes after which all of a bucket's gradients of a micro-batch are there. */
static int32_t bucket_ready_after(const ms_program *program, const ms_graph *graph,
                                  const ms_bucket *bucket) {
    int32_t last = -1;
    for (int32_t n = 0; n < graph->node_count; n++) {
        for (int i = 0; i < graph->nodes[n].op->output_count; i++) {
            int32_t output = graph->nodes[n].outputs[i].value;
            if (output < 0 || graph->values[output].kind != MS_VALUE_GRADIENT) {
                continue;
            }
            const ms_program_parameter *parameter =
                ms_program_find(program, graph->values[output].parameter);
            if (&program->buckets[parameter->bucket] == bucket) {
                last = n;
            }
        }
    }
    return last;
}

static ms_status append_ready_buckets(ms_program *program, ms_program_chunk *chunk,
                                      const int32_t *ready, int32_t position) {
    for (int32_t b = 0; b < program->bucket_count; b++) {
        if (ready[b] == position) {
            ms_program_node node = {.kind = MS_STEP_BUCKET_READY, .graph_node = -1, .bucket = b};
            MS_TRY(append(&chunk->backward, &node));
        }
    }
    return MS_OK;
}

static ms_status lower_nodes(ms_program *program, ms_program_chunk *chunk,
                             const ms_buffer *buffers, const int32_t *ready) {
    const ms_graph *graph = chunk->graph;
    bool train = chunk == &program->train;
    for (int32_t n = 0; n < graph->node_count; n++) {
        const ms_node *node = &graph->nodes[n];
        ms_node_list *list =
            node->phase == MS_PHASE_FORWARD ? &chunk->forward : &chunk->backward;
        if (node->op->slot != MS_SLOT_COUNT || node->op->collective != MS_COLLECTIVE_NONE) {
            ms_program_node lowered = {.graph_node = n};
            MS_TRY(lower_kernel(program, chunk, buffers, node, &lowered));
            MS_TRY(append(list, &lowered));
            program->flops += train ? ms_node_flops(graph, node) : 0;
        }
        if (train) {
            MS_TRY(append_ready_buckets(program, chunk, ready, n));
        }
    }
    /* Buckets that nothing here writes (biases that another rank adds) are ready from the start. */
    return train ? append_ready_buckets(program, chunk, ready, -1) : MS_OK;
}

static void find_ends(ms_program_chunk *chunk, const ms_buffer *buffers) {
    const ms_graph *graph = chunk->graph;
    chunk->output_forward = chunk->output_backward = chunk->loss = chunk->logits =
        ms__no_buffer();
    for (int32_t v = 0; v < graph->value_count; v++) {
        int64_t elements = ms_operand_elements(graph, ms_whole(v));
        switch (graph->values[v].output) {
        case MS_OUTPUT_FORWARD:
            chunk->output_forward = buffers[v];
            chunk->border_elements = elements;
            break;
        case MS_OUTPUT_BACKWARD:
            chunk->output_backward = buffers[v];
            chunk->border_elements = elements;
            break;
        case MS_OUTPUT_LOSS:
            chunk->loss = buffers[v];
            chunk->loss_elements = elements;
            break;
        case MS_OUTPUT_LOGITS:
            chunk->logits = buffers[v];
            chunk->logits_elements = elements;
            break;
        default:
            break;
        }
    }
}

static ms_status list_inputs(ms_program_chunk *chunk, const ms_buffer *buffers) {
    const ms_graph *graph = chunk->graph;
    MS_TRY(MS_NEW((size_t)graph->value_count, MS_MEMORY_PROCESS, &chunk->inputs));
    for (int32_t v = 0; v < graph->value_count; v++) {
        const ms_value *value = &graph->values[v];
        if (value->kind == MS_VALUE_INPUT) {
            chunk->inputs[chunk->input_count++] =
                (ms_program_input){.role = value->input,
                                   .buffer = buffers[v],
                                   .dtype = value->dtype,
                                   .elements = ms_operand_elements(graph, ms_whole(v)),
                                   .row_first = value->row_first};
        }
    }
    return MS_OK;
}

/* A slot's stride is known once all of its values are placed. */
static void set_slot_strides(ms_program_chunk *chunk, ms_buffer *buffers) {
    for (int32_t v = 0; v < chunk->graph->value_count; v++) {
        if (buffers[v].index == MS_INDEX_SLOT) {
            buffers[v].stride = chunk->saved_bytes;
        }
    }
}

ms_status ms__program_lower_chunk(ms_program *program, ms_program_chunk *chunk) {
    ms_buffer *buffers = NULL;
    int32_t *ready = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)chunk->graph->value_count, MS_MEMORY_PROCESS, &buffers), done);
    MS_TRY_GOTO(MS_NEW((size_t)program->bucket_count, MS_MEMORY_PROCESS, &ready), done);
    MS_TRY_GOTO(ms__program_place(program, chunk, buffers), done);
    set_slot_strides(chunk, buffers);
    for (int32_t b = 0; b < program->bucket_count; b++) {
        ready[b] = bucket_ready_after(program, chunk->graph, &program->buckets[b]);
    }
    MS_TRY_GOTO(list_inputs(chunk, buffers), done);
    find_ends(chunk, buffers);
    status = lower_nodes(program, chunk, buffers, ready);
done:
    ms_free(buffers);
    ms_free(ready);
    return status;
}
