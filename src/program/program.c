/*
 * program.c - from a request to a program: graph, gradient, recomputation, flat order, addresses, kernels.
 *
 * Main path: cli/ -> plan/ -> [ms_program_create] -> engine/. Every byte the engine will allocate is summed
 * here.
 */
#include "program/program.h"

#include <inttypes.h>

#include "program/program_internal.h"

ms_status ms__program_reserve(ms_program *program, ms_region region, size_t bytes,
                              size_t *offset) {
    size_t *total = &program->memory.region_bytes[region];
    size_t aligned = ms_align_up(bytes, MS_ALIGNMENT);
    *offset = *total;
    if (!ms_size_add(*total, aligned, total)) {
        return ms_fail(MS_ERR_RANGE, "a region of memory would pass 2^64 bytes");
    }
    return MS_OK;
}

ms_buffer ms_program_weight(const ms_program *program, int64_t flat) {
    ms_buffer buffer = program->matrix_weights;
    if (flat >= program->matrix_elements) {
        buffer = program->vector_weights;
        flat -= program->matrix_elements;
        buffer.offset += (size_t)flat * ms_dtype_bytes(program->wide);
    } else {
        buffer.offset += (size_t)flat * ms_dtype_bytes(program->request.compute);
    }
    return buffer;
}

size_t ms_program_weight_element_bytes(const ms_program *program, int64_t flat) {
    return ms_dtype_bytes(flat >= program->matrix_elements ? program->wide
                                                           : program->request.compute);
}

ms_buffer ms_program_gradient(const ms_program *program, int64_t flat) {
    ms_buffer buffer = program->gradients;
    buffer.offset += (size_t)flat * ms_dtype_bytes(program->wide);
    return buffer;
}

const ms_program_parameter *ms_program_find(const ms_program *program, int32_t model_index) {
    for (int32_t i = 0; i < program->parameter_count; i++) {
        if (program->parameters[i].index == model_index) {
            return &program->parameters[i];
        }
    }
    return NULL;
}

static ms_model_request part_request(const ms_program *program, ms_model_mode mode) {
    const ms_program_request *request = &program->request;
    const ms_layout *layout = &program->layout;
    return (ms_model_request){.part = program->part,
                              .mode = mode,
                              .batch = request->micro_batch_size,
                              .sequence = request->sequence,
                              .cache_positions = request->cache_positions,
                              .compute = request->compute,
                              .tensor_size = layout->mesh.size[MS_AXIS_TENSOR],
                              .tensor_index = layout->at.at[MS_AXIS_TENSOR],
                              .sequence_parallel = layout->sequence_parallel &&
                                                   layout->mesh.size[MS_AXIS_TENSOR] > 1,
                              .seed = request->seed};
}

static ms_status build_graphs(ms_program *program) {
    ms_model_mode mode = program->request.mode;
    if (mode == MS_MODE_TRAIN) {
        ms_model_request train = part_request(program, MS_MODE_TRAIN);
        MS_TRY(ms_model_build(program->request.model, &train, &program->train.graph));
        MS_TRY(ms_graph_differentiate(program->train.graph));
        MS_TRY(ms_graph_recompute(program->train.graph, (ms_redo)program->layout.recompute));
        mode = MS_MODE_EVALUATE;
    }
    ms_model_request other = part_request(program, mode);
    return ms_model_build(program->request.model, &other, &program->evaluate.graph);
}

static ms_status make_schedules(ms_program *program) {
    const ms_program_request *request = &program->request;
    int64_t stages = program->layout.mesh.size[MS_AXIS_PIPELINE];
    program->memory.saved_slots = 1;
    if (request->mode == MS_MODE_GENERATE) {
        return MS_OK;
    }
    MS_TRY(ms_schedule_create_forward(stages, 1, 1, &program->forward_schedule));
    if (request->mode != MS_MODE_TRAIN) {
        return MS_OK;
    }
    MS_TRY(ms_schedule_create(request->schedule, stages, 1, request->micro_batches,
                              &program->schedule));
    ms_schedule_facts *facts = NULL;
    MS_TRY(MS_NEW((size_t)stages, MS_MEMORY_PROCESS, &facts));
    ms_status status = ms_schedule_check(program->schedule, facts);
    int64_t stage = program->layout.at.at[MS_AXIS_PIPELINE];
    program->memory.saved_slots = facts[stage].in_flight_max;
    ms_free(facts);
    MS_TRY(status);
    MS_TRY(MS_NEW((size_t)request->micro_batches, MS_MEMORY_PROCESS, &program->slots));
    return ms_schedule_slots(program->schedule, stage, 0, program->slots);
}

static ms_status add_loss_sum(ms_program *program) {
    const ms_program_chunk *chunk = program->request.mode == MS_MODE_TRAIN ? &program->train
                                                                           : &program->evaluate;
    size_t bytes = (size_t)ms_max_i64(program->request.micro_batches, 1) * sizeof(double);
    program->loss_sums = (ms_buffer){.region = MS_REGION_PRIVATE, .index = MS_INDEX_MICRO_BATCH,
                                     .stride = sizeof(double)};
    program->memory.other_bytes += bytes;
    MS_TRY(ms__program_reserve(program, MS_REGION_PRIVATE, bytes, &program->loss_sums.offset));
    if (chunk->loss.region == MS_REGION_NONE) {
        return MS_OK;
    }
    const int64_t one = 1;
    ms_kernel_spec spec = {.slot = MS_SLOT_SUM, .argument_count = 2};
    spec.arguments[0] = ms_argument_of(program->wide, 1, &chunk->loss_elements);
    spec.arguments[1] = ms_argument_of(MS_F64, 1, &one);
    return ms__program_kernel(program, &spec, &program->loss_sum);
}

/* The regions whose size is known last, and the total. */
static void finish_memory(ms_program *program) {
    ms_memory_plan *memory = &program->memory;
    memory->saved_slot_bytes = program->train.saved_bytes;
    size_t saved = memory->saved_slot_bytes * (size_t)memory->saved_slots;
    if (program->evaluate.saved_bytes > saved) {
        saved = program->evaluate.saved_bytes; /* an evaluation uses the same memory */
    }
    memory->region_bytes[MS_REGION_SAVED] = saved;
    size_t values = program->train.scratch_bytes > program->evaluate.scratch_bytes
                        ? program->train.scratch_bytes
                        : program->evaluate.scratch_bytes;
    program->kernel_scratch.region = MS_REGION_SCRATCH;
    program->kernel_scratch.offset = values;
    memory->region_bytes[MS_REGION_SCRATCH] = values + program->kernel_scratch.stride;
    memory->total_bytes = memory->constant_bytes;
    for (int region = 0; region < MS_REGION_COUNT; region++) {
        memory->total_bytes += memory->region_bytes[region];
    }
}

static ms_status lower(ms_program *program) {
    MS_TRY(build_graphs(program));
    MS_TRY(make_schedules(program));
    MS_TRY(ms__program_flatten(program));
    if (program->request.mode == MS_MODE_TRAIN) {
        MS_TRY(ms__program_lower_chunk(program, &program->train));
    }
    MS_TRY(ms__program_lower_chunk(program, &program->evaluate));
    if (program->request.mode == MS_MODE_TRAIN) {
        MS_TRY(ms__program_finish_buckets(program));
    }
    if (program->request.mode != MS_MODE_GENERATE) {
        MS_TRY(add_loss_sum(program));
    }
    finish_memory(program);
    return MS_OK;
}

ms_status ms_program_create(const ms_program_request *request, ms_program **program) {
    ms_program *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->request = *request;
    made->layout = *request->layout;
    made->wide = request->compute == MS_F64 ? MS_F64 : MS_F32;
    const ms_mesh *mesh = &made->layout.mesh;
    int64_t stage = made->layout.at.at[MS_AXIS_PIPELINE];
    made->part = (ms_model_part){.first_layer = made->layout.stage_layers[stage].start,
                                 .layer_count = made->layout.stage_layers[stage].count,
                                 .embedding = stage == 0,
                                 .head = stage == mesh->size[MS_AXIS_PIPELINE] - 1};
    made->replicas = mesh->size[MS_AXIS_DATA] * mesh->size[MS_AXIS_CONTEXT];
    made->replica = made->layout.at.at[MS_AXIS_DATA] * mesh->size[MS_AXIS_CONTEXT] +
                    made->layout.at.at[MS_AXIS_CONTEXT];
    made->gradient_levels = request->mode == MS_MODE_TRAIN ? request->reduction.buffer_count : 0;
    made->optimizer_states =
        request->mode == MS_MODE_TRAIN ? ms_optimizer_state_count(request->optimizer) : 0;
    ms_status status = lower(made);
    if (status != MS_OK) {
        ms_program_destroy(made);
        return status;
    }
    *program = made;
    return MS_OK;
}

static void destroy_chunk(ms_program_chunk *chunk) {
    ms_graph_destroy(chunk->graph);
    ms_free(chunk->forward.nodes);
    ms_free(chunk->backward.nodes);
    ms_free(chunk->inputs);
}

void ms_program_destroy(ms_program *program) {
    if (program == NULL) {
        return;
    }
    for (int32_t i = 0; i < program->kernel_count; i++) {
        ms_kernel_destroy(program->kernels[i]);
    }
    for (int32_t b = 0; b < program->bucket_count; b++) {
        ms_free(program->buckets[b].borders);
    }
    destroy_chunk(&program->train);
    destroy_chunk(&program->evaluate);
    ms_schedule_destroy(program->schedule);
    ms_schedule_destroy(program->forward_schedule);
    ms_free(program->slots);
    ms_free(program->parameters);
    ms_free(program->buckets);
    ms_free(program->norm_parts);
    ms_free(program->norm_block_counts);
    ms_free(program->norm_order);
    ms_free(program->packs);
    ms_free(program->kernels);
    ms_free(program->kernel_specs);
    ms_free(program);
}

static ms_status print_line(ms_text *text, const char *what, size_t bytes, double parameters) {
    char pretty[32];
    if (bytes == 0) {
        return MS_OK;
    }
    MS_TRY(ms_text_printf(text, "  %-28s %12s", what, ms_format_bytes(bytes, pretty, sizeof pretty)));
    if (parameters > 0) {
        MS_TRY(ms_text_printf(text, "  %6.2f bytes/parameter", (double)bytes / parameters));
    }
    return ms_text_append_z(text, "\n");
}

ms_status ms_program_print_memory(const ms_program *program, ms_text *text) {
    const ms_memory_plan *memory = &program->memory;
    double parameters = 0;
    for (int32_t i = 0; i < program->parameter_count; i++) {
        parameters += (double)program->parameters[i].count;
    }
    MS_TRY(print_line(text, "weights", memory->weight_bytes, parameters));
    MS_TRY(print_line(text, "master weights", memory->master_bytes, parameters));
    MS_TRY(print_line(text, "gradients", memory->gradient_bytes, parameters));
    MS_TRY(print_line(text, "optimiser", memory->optimizer_bytes, parameters));
    MS_TRY(print_line(text, "packed weights", memory->packed_bytes, parameters));
    MS_TRY(print_line(text, "key/value caches", memory->cache_bytes, 0));
    MS_TRY(print_line(text, "norms, losses, settings", memory->other_bytes, 0));
    MS_TRY(print_line(text, "saved for the backward", memory->region_bytes[MS_REGION_SAVED], 0));
    MS_TRY(print_line(text, "scratch", memory->region_bytes[MS_REGION_SCRATCH], 0));
    MS_TRY(print_line(text, "kernels' tables", memory->constant_bytes, 0));
    return print_line(text, "total", memory->total_bytes, 0);
}
