/*
 * engine.c - an engine's memory and groups, and running a list of nodes.
 *
 * Main path: train/loop.c -> ms_engine_step (step.c) -> ms__engine_run (here) -> device/ and comm/.
 */
#include "engine/engine.h"

#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

#define GROUP_RANKS_MAX 4096

static ms_status make_group(ms_engine *engine, unsigned axis_mask, ms_comm **group) {
    int ranks[GROUP_RANKS_MAX];
    const ms_layout *layout = &engine->program->layout;
    int64_t count = ms_mesh_group(&layout->mesh, layout->rank, axis_mask, ranks, GROUP_RANKS_MAX);
    if (count > GROUP_RANKS_MAX) {
        return ms_fail(MS_ERR_UNSUPPORTED, "a group of %lld ranks is larger than %d",
                       (long long)count, GROUP_RANKS_MAX);
    }
    *group = NULL;
    return count <= 1 ? MS_OK : ms_comm_group(engine->world, ranks, (int)count, group);
}

/* The first and the last stage, which hold copies of a tied embedding. */
static ms_status make_tied_group(ms_engine *engine) {
    const ms_layout *layout = &engine->program->layout;
    int64_t stages = layout->mesh.size[MS_AXIS_PIPELINE];
    int64_t stage = layout->at.at[MS_AXIS_PIPELINE];
    if (stages == 1 || !engine->program->request.model->spec.tied ||
        (stage != 0 && stage != stages - 1)) {
        return MS_OK;
    }
    ms_coordinates at = layout->at;
    int ranks[2];
    at.at[MS_AXIS_PIPELINE] = 0;
    ranks[0] = (int)ms_mesh_rank(&layout->mesh, &at);
    at.at[MS_AXIS_PIPELINE] = stages - 1;
    ranks[1] = (int)ms_mesh_rank(&layout->mesh, &at);
    return ms_comm_group(engine->world, ranks, 2, &engine->tied);
}

static ms_status make_groups(ms_engine *engine) {
    if (engine->world == NULL || ms_comm_size(engine->world) == 1) {
        return MS_OK;
    }
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        MS_TRY(make_group(engine, 1u << axis, &engine->axis[axis]));
    }
    MS_TRY(make_group(engine, 1u << MS_AXIS_DATA | 1u << MS_AXIS_CONTEXT, &engine->replicas));
    MS_TRY(make_group(engine, 1u << MS_AXIS_TENSOR | 1u << MS_AXIS_PIPELINE, &engine->parts));
    return make_tied_group(engine);
}

/* Peers read weights and gradients always, activations when an axis inside the model is divided. */
static bool wants_comm_memory(const ms_engine *engine, int region) {
    if (engine->world == NULL || ms_comm_size(engine->world) == 1) {
        return false;
    }
    return region == MS_REGION_SHARED ||
           (engine->parts != NULL && (region == MS_REGION_SAVED || region == MS_REGION_SCRATCH));
}

static ms_status allocate_regions(ms_engine *engine) {
    for (int region = 0; region < MS_REGION_COUNT; region++) {
        size_t bytes = engine->program->memory.region_bytes[region];
        engine->regions_from_comm[region] = wants_comm_memory(engine, region);
        if (engine->regions_from_comm[region]) {
            MS_TRY(ms_comm_alloc(engine->world, bytes, &engine->regions[region]));
        } else {
            MS_TRY(ms_device_alloc(engine->device, bytes, &engine->regions[region]));
        }
        engine->region_bytes[region] = bytes;
    }
    return MS_OK;
}

static ms_status allocate_step_state(ms_engine *engine) {
    const ms_program *program = engine->program;
    size_t buckets = (size_t)program->bucket_count;
    MS_TRY(MS_NEW(buckets, MS_MEMORY_PROCESS, &engine->bucket_requests));
    MS_TRY(MS_NEW(buckets, MS_MEMORY_PROCESS, &engine->bucket_started));
    MS_TRY(MS_NEW((size_t)program->memory.saved_slots * 2, MS_MEMORY_PROCESS,
                  &engine->send_requests));
    MS_TRY(MS_NEW((size_t)(program->request.micro_batches * program->replicas + 1),
                  MS_MEMORY_PROCESS, &engine->losses));
    return MS_NEW((size_t)program->replicas, MS_MEMORY_PROCESS, &engine->gather_counts);
}

ms_status ms_engine_create(const ms_engine_options *options, ms_engine **engine) {
    ms_engine *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->program = options->program;
    made->device = options->program->request.device;
    made->overlap = options->overlap;
    made->world = options->comm;
    made->weights_changed = true;
    ms_status status = make_groups(made);
    if (status == MS_OK) {
        status = allocate_regions(made);
    }
    if (status == MS_OK) {
        status = allocate_step_state(made);
    }
    if (status != MS_OK) {
        ms_engine_destroy(made);
        return status;
    }
    *engine = made;
    return MS_OK;
}

static void destroy_groups(ms_engine *engine) {
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        ms_comm_destroy(engine->axis[axis]);
    }
    ms_comm_destroy(engine->replicas);
    ms_comm_destroy(engine->parts);
    ms_comm_destroy(engine->tied);
}

void ms_engine_destroy(ms_engine *engine) {
    if (engine == NULL) {
        return;
    }
    destroy_groups(engine);
    for (int region = 0; region < MS_REGION_COUNT; region++) {
        if (engine->regions_from_comm[region]) {
            ms_comm_free(engine->world, engine->regions[region]);
        } else {
            ms_device_free(engine->device, engine->regions[region]);
        }
    }
    ms_free(engine->bucket_requests);
    ms_free(engine->bucket_started);
    ms_free(engine->send_requests);
    ms_free(engine->losses);
    ms_free(engine->gather_counts);
    ms_free(engine->profile);
    ms_free(engine);
}

size_t ms_engine_memory_bytes(const ms_engine *engine) {
    size_t bytes = engine->program->memory.constant_bytes;
    for (int region = 0; region < MS_REGION_COUNT; region++) {
        bytes += engine->region_bytes[region];
    }
    return bytes;
}

void ms_engine_weights_changed(ms_engine *engine) { engine->weights_changed = true; }

void *ms__engine_address(const ms_engine *engine, ms_buffer buffer, ms_place place) {
    if (buffer.region == MS_REGION_NONE) {
        return NULL;
    }
    int64_t index = buffer.index == MS_INDEX_SLOT          ? place.slot
                    : buffer.index == MS_INDEX_LEVEL       ? place.level
                    : buffer.index == MS_INDEX_MICRO_BATCH ? place.micro_batch
                                                           : 0;
    size_t offset = buffer.offset + (size_t)index * buffer.stride;
    MS_ASSERT(offset <= engine->region_bytes[buffer.region]);
    return (char *)engine->regions[buffer.region] + offset;
}

ms_status ms__engine_wait(ms_engine *engine, ms_request **request) {
    double start = ms_clock_s();
    ms_status status = ms_request_wait(request, -1);
    engine->waited_s += ms_clock_s() - start;
    return status;
}

/* Every kernel runs through here. */
static ms_status run_kernel(ms_engine *engine, const ms_kernel_handle *kernel,
                                       const ms_kernel_run_info *run) {
    if (engine->profile == NULL) {
        return ms_kernel_run(kernel, run, NULL);
    }
    double start = ms_clock_s();
    ms_status status = ms_kernel_run(kernel, run, NULL);
    ms__profile_add(engine->profile, kernel, ms_clock_s() - start);
    return status;
}

ms_status ms__engine_kernel(ms_engine *engine, const ms_kernel_handle *kernel,
                            void *const *arguments, bool accumulate) {
    ms_kernel_run_info run = {
        .arguments = arguments,
        .scratch = ms__engine_address(engine, engine->program->kernel_scratch, (ms_place){0}),
        .accumulate = accumulate,
    };
    return run_kernel(engine, kernel, &run);
}

static ms_status run_collective(ms_engine *engine, const ms_program_node *node, ms_place place) {
    ms_comm *group = engine->axis[node->axis];
    MS_CHECK(group != NULL);
    const void *input = ms__engine_address(engine, node->arguments[0], place);
    void *output = ms__engine_address(engine, node->arguments[1], place);
    int64_t counts[MS_COMM_RANKS_MAX];
    int64_t ranks = ms_comm_size(group);
    int64_t each = node->collective == MS_COLLECTIVE_REDUCE_SCATTER ? node->count / ranks
                                                                    : node->count;
    for (int64_t rank = 0; rank < ranks; rank++) {
        counts[rank] = each;
    }
    double start = ms_clock_s();
    ms_status status;
    switch (node->collective) {
    case MS_COLLECTIVE_ALL_GATHER:
        status = ms_comm_all_gather(group, input, output, counts, node->dtype, NULL);
        break;
    case MS_COLLECTIVE_REDUCE_SCATTER:
        status = ms_comm_reduce_scatter(group, input, output, counts, node->dtype, MS_REDUCE_SUM,
                                        NULL);
        break;
    default:
        status = ms_comm_all_reduce(group, input, output, node->count, node->dtype, MS_REDUCE_SUM,
                                    NULL);
        break;
    }
    engine->waited_s += ms_clock_s() - start;
    return status;
}

static ms_status run_kernel_node(ms_engine *engine, const ms_program_node *node,
                                 const ms_run_context *context) {
    void *arguments[MS_ARGS_MAX];
    for (int i = 0; i < MS_ARGS_MAX; i++) {
        arguments[i] = ms__engine_address(engine, node->arguments[i], context->place);
    }
    ms_kernel_run_info run = {
        .arguments = arguments,
        .scratch = ms__engine_address(engine, engine->program->kernel_scratch, context->place),
        .accumulate = node->accumulate == MS_ACCUMULATE_ALWAYS ||
                      (node->accumulate == MS_ACCUMULATE_AFTER_FIRST && context->accumulate),
        .extent = {context->extent[0], context->extent[1]},
    };
    return run_kernel(engine, node->kernel, &run);
}

ms_status ms__engine_run(ms_engine *engine, const ms_node_list *list,
                         const ms_run_context *context) {
    for (int32_t i = 0; i < list->count; i++) {
        const ms_program_node *node = &list->nodes[i];
        switch (node->kind) {
        case MS_STEP_KERNEL:
            MS_TRY(run_kernel_node(engine, node, context));
            break;
        case MS_STEP_COLLECTIVE:
            MS_TRY(run_collective(engine, node, context->place));
            break;
        case MS_STEP_BUCKET_READY:
            MS_TRY(ms__engine_bucket_ready(engine, node->bucket, context));
            break;
        }
    }
    return MS_OK;
}

/* Packed layouts follow the weights: made again after each change, before their first use. */
ms_status ms__engine_pack_weights(ms_engine *engine) {
    if (!engine->weights_changed) {
        return MS_OK;
    }
    for (int32_t i = 0; i < engine->program->pack_count; i++) {
        const ms_pack *pack = &engine->program->packs[i];
        void *const arguments[2] = {ms__engine_address(engine, pack->from, (ms_place){0}),
                                    ms__engine_address(engine, pack->to, (ms_place){0})};
        MS_TRY(ms__engine_kernel(engine, pack->kernel, arguments, false));
    }
    engine->weights_changed = false;
    return MS_OK;
}

static void fill_positions(int32_t *positions, const ms_program_input *input, int64_t sequence,
                           int64_t first_position) {
    for (int64_t i = 0; i < input->elements; i++) {
        positions[i] = (int32_t)(first_position + (input->row_first + i) % sequence);
    }
}

ms_status ms__engine_fill_inputs(ms_engine *engine, const ms_program_chunk *chunk,
                                 const ms_micro_batch *micro_batch, double scale,
                                 int64_t first_position, ms_place place) {
    for (int32_t i = 0; i < chunk->input_count; i++) {
        const ms_program_input *input = &chunk->inputs[i];
        void *to = ms__engine_address(engine, input->buffer, place);
        size_t bytes = (size_t)input->elements * ms_dtype_bytes(input->dtype);
        switch (input->role) {
        case MS_INPUT_TOKENS:
            memcpy(to, micro_batch->tokens, bytes);
            break;
        case MS_INPUT_TARGETS:
            memcpy(to, micro_batch->targets, bytes);
            break;
        case MS_INPUT_SAMPLES:
            memcpy(to, micro_batch->samples, bytes);
            break;
        case MS_INPUT_POSITIONS:
            fill_positions(to, input, engine->program->request.sequence, first_position);
            break;
        case MS_INPUT_SCALE:
            memcpy(to, &scale, sizeof scale);
            break;
        default:
            break; /* comes from another stage */
        }
    }
    return MS_OK;
}
