/*
 * flat.c - the flat order of this rank's parameters, buckets of it, and who owns what.
 *
 * Order: matrices, then vectors (in bf16 training their weights stay wide, so they are apart); within each
 * plain, partial, tied; within a class in reverse of the model's own order, which is how a backward finishes
 * them, so that the first bucket can be reduced first. The order depends on the model and the part alone: it is
 * the same on ranks whose graphs differ (one tensor rank adds a bias, the others do not). Every parameter starts
 * on 64 bytes.
 */
#include <stdlib.h>

#include "program/program_internal.h"

#define FLAT_ALIGNMENT 32 /* elements: 64 bytes of bf16 */

typedef struct flat_key {
    int32_t parameter; /* of the model */
    int class;         /* vector, partial, tied */
} flat_key;

static int by_class_and_model(const void *a, const void *b) {
    const flat_key *left = a, *right = b;
    if (left->class != right->class) {
        return left->class - right->class;
    }
    return right->parameter - left->parameter;
}

static bool is_tied(const ms_program *program, int32_t parameter) {
    const ms_model *model = program->request.model;
    return model->spec.tied && parameter == model->embedding &&
           program->layout.mesh.size[MS_AXIS_PIPELINE] > 1;
}

static bool is_partial(const ms_program *program, int32_t index) {
    const ms_parameter *parameter = &program->request.model->parameters[index];
    if (program->layout.mesh.size[MS_AXIS_TENSOR] == 1) {
        return false;
    }
    return parameter->partial ||
           (parameter->partial_sequence && program->layout.sequence_parallel);
}

/* Whether a node of this rank's backward writes a parameter's gradient. */
static bool has_writer(const ms_graph *graph, int32_t parameter) {
    for (int32_t v = 0; graph != NULL && v < graph->value_count; v++) {
        if (graph->values[v].kind == MS_VALUE_GRADIENT &&
            graph->values[v].parameter == parameter) {
            return true;
        }
    }
    return false;
}

static int32_t collect_keys(const ms_program *program, flat_key *keys) {
    const ms_model *model = program->request.model;
    int32_t count = 0;
    for (int32_t i = 0; i < model->parameter_count; i++) {
        if (!ms_model_part_has(model, &program->part, i)) {
            continue;
        }
        keys[count++] = (flat_key){
            .parameter = i,
            .class = (model->parameters[i].tensor.rank == 1 ? 4 : 0) +
                     (is_partial(program, i) ? 1 : 0) + (is_tied(program, i) ? 2 : 0)};
    }
    qsort(keys, (size_t)count, sizeof *keys, by_class_and_model);
    return count;
}

static ms_status describe_parameter(ms_program *program, const flat_key *key,
                                    ms_program_parameter *parameter) {
    const ms_layout *layout = &program->layout;
    const ms_model *model = program->request.model;
    parameter->index = key->parameter;
    parameter->partial = (key->class & 1) != 0;
    parameter->tied = (key->class & 2) != 0;
    parameter->written = has_writer(program->train.graph, key->parameter);
    MS_TRY(ms_model_shard(model, key->parameter, layout->mesh.size[MS_AXIS_TENSOR],
                          layout->at.at[MS_AXIS_TENSOR], &parameter->shard));
    parameter->count = ms_shard_elements(&parameter->shard);
    bool replicated = model->parameters[key->parameter].rule.split_dim < 0;
    parameter->counted = (!replicated || layout->at.at[MS_AXIS_TENSOR] == 0) &&
                         !(parameter->tied && layout->at.at[MS_AXIS_PIPELINE] != 0);
    return MS_OK;
}

static ms_status order_parameters(ms_program *program) {
    flat_key *keys = NULL;
    size_t most = (size_t)program->request.model->parameter_count;
    MS_TRY(MS_NEW(most, MS_MEMORY_PROCESS, &keys));
    ms_status status = MS_NEW(most, MS_MEMORY_PROCESS, &program->parameters);
    int64_t flat = 0;
    program->parameter_count = status == MS_OK ? collect_keys(program, keys) : 0;
    program->matrix_elements = -1;
    for (int32_t i = 0; i < program->parameter_count && status == MS_OK; i++) {
        ms_program_parameter *parameter = &program->parameters[i];
        status = describe_parameter(program, &keys[i], parameter);
        if (keys[i].class >= 4 && program->matrix_elements < 0) {
            program->matrix_elements = flat;
        }
        parameter->flat_start = flat;
        flat += (int64_t)ms_align_up((size_t)parameter->count, FLAT_ALIGNMENT);
    }
    program->flat_elements = flat;
    if (program->matrix_elements < 0) {
        program->matrix_elements = flat;
    }
    ms_free(keys);
    return status;
}

static bool same_class(const ms_program *program, const ms_program_parameter *a,
                       const ms_program_parameter *b) {
    return (a->flat_start < program->matrix_elements) ==
               (b->flat_start < program->matrix_elements) &&
           a->partial == b->partial && a->tied == b->tied;
}

static ms_status make_buckets(ms_program *program) {
    MS_TRY(MS_NEW((size_t)program->parameter_count, MS_MEMORY_PROCESS, &program->buckets));
    size_t element_bytes = ms_dtype_bytes(program->wide);
    for (int32_t i = 0; i < program->parameter_count; i++) {
        ms_program_parameter *parameter = &program->parameters[i];
        int64_t end = parameter->flat_start +
                      (int64_t)ms_align_up((size_t)parameter->count, FLAT_ALIGNMENT);
        ms_bucket *bucket =
            program->bucket_count > 0 ? &program->buckets[program->bucket_count - 1] : NULL;
        if (bucket == NULL || !same_class(program, parameter, &program->parameters[i - 1]) ||
            (size_t)(end - bucket->flat_start) * element_bytes > program->request.bucket_bytes) {
            bucket = &program->buckets[program->bucket_count++];
            *bucket = (ms_bucket){.flat_start = parameter->flat_start,
                                  .first_parameter = i,
                                  .vector = parameter->flat_start >= program->matrix_elements,
                                  .partial = parameter->partial,
                                  .tied = parameter->tied};
        }
        bucket->flat_end = end;
        bucket->parameter_count++;
        parameter->bucket = program->bucket_count - 1;
    }
    return MS_OK;
}

/* ZeRO's borders of one bucket; without ZeRO the sums are still dealt out, only updates are not. */
static ms_status deal_bucket(ms_program *program, ms_bucket *bucket) {
    int64_t *starts = NULL, *counts = NULL;
    size_t parameters = (size_t)bucket->parameter_count;
    MS_TRY(MS_NEW((size_t)program->replicas + 1, MS_MEMORY_PROCESS, &bucket->borders));
    MS_TRY(MS_NEW(parameters, MS_MEMORY_PROCESS, &starts));
    ms_status status = MS_NEW(parameters, MS_MEMORY_PROCESS, &counts);
    if (status == MS_OK) {
        for (size_t i = 0; i < parameters; i++) {
            starts[i] = program->parameters[(size_t)bucket->first_parameter + i].flat_start;
            counts[i] = program->parameters[(size_t)bucket->first_parameter + i].count;
        }
        ms_zero_borders(starts, counts, bucket->parameter_count, bucket->flat_start,
                        bucket->flat_end, program->replicas, bucket->borders);
        bool zero = program->layout.zero >= 1;
        bucket->own_start = zero ? bucket->borders[program->replica] : bucket->flat_start;
        bucket->own_end = zero ? bucket->borders[program->replica + 1] : bucket->flat_end;
        bucket->state_start = program->state_elements;
        program->state_elements += bucket->own_end - bucket->own_start;
        if (program->separate_master && !bucket->vector) {
            bucket->master_start = program->master_elements;
            program->master_elements += bucket->own_end - bucket->own_start;
        }
    }
    ms_free(starts);
    ms_free(counts);
    return status;
}

static ms_status reserve_training(ms_program *program) {
    size_t wide = ms_dtype_bytes(program->wide);
    size_t level = ms_align_up((size_t)program->flat_elements * wide, MS_ALIGNMENT);
    ms_memory_plan *memory = &program->memory;
    program->gradients = (ms_buffer){.region = MS_REGION_SHARED, .index = MS_INDEX_LEVEL,
                                     .stride = level};
    memory->gradient_bytes = level * (size_t)program->gradient_levels;
    MS_TRY(ms__program_reserve(program, MS_REGION_SHARED, memory->gradient_bytes,
                               &program->gradients.offset));
    memory->master_bytes = (size_t)program->master_elements * wide;
    program->master.region = MS_REGION_PRIVATE;
    MS_TRY(ms__program_reserve(program, MS_REGION_PRIVATE, memory->master_bytes,
                               &program->master.offset));
    size_t state = ms_align_up((size_t)program->state_elements * wide, MS_ALIGNMENT);
    program->states = (ms_buffer){.region = MS_REGION_PRIVATE, .stride = state};
    memory->optimizer_bytes = state * (size_t)program->optimizer_states;
    return ms__program_reserve(program, MS_REGION_PRIVATE, memory->optimizer_bytes,
                               &program->states.offset);
}

static ms_status reserve_weights(ms_program *program) {
    size_t wide = ms_dtype_bytes(program->wide);
    size_t compute = ms_dtype_bytes(program->request.compute);
    int64_t vectors = program->flat_elements - program->matrix_elements;
    size_t matrix_bytes =
        ms_align_up((size_t)program->matrix_elements * compute, MS_ALIGNMENT);
    size_t vector_bytes = ms_align_up((size_t)vectors * wide, MS_ALIGNMENT);
    program->memory.weight_bytes = matrix_bytes + vector_bytes;
    program->matrix_weights.region = program->vector_weights.region = MS_REGION_SHARED;
    MS_TRY(ms__program_reserve(program, MS_REGION_SHARED, matrix_bytes,
                               &program->matrix_weights.offset));
    return ms__program_reserve(program, MS_REGION_SHARED, vector_bytes,
                               &program->vector_weights.offset);
}

ms_status ms__program_flatten(ms_program *program) {
    program->separate_master = program->request.compute != program->wide;
    MS_TRY(order_parameters(program));
    MS_TRY(make_buckets(program));
    MS_TRY(reserve_weights(program));
    if (program->request.mode != MS_MODE_TRAIN) {
        return MS_OK;
    }
    for (int32_t i = 0; i < program->bucket_count; i++) {
        MS_TRY(deal_bucket(program, &program->buckets[i]));
    }
    return reserve_training(program);
}

static ms_kernel_spec flat_spec(ms_slot slot, ms_dtype dtype, int arguments, int64_t count) {
    ms_kernel_spec spec = {.slot = slot, .argument_count = arguments};
    for (int i = 0; i < arguments; i++) {
        spec.arguments[i] = ms_argument_of(dtype, 1, &count);
    }
    return spec;
}

static ms_status update_kernel(ms_program *program, ms_bucket *bucket) {
    int64_t count = bucket->own_end - bucket->own_start;
    const int64_t hyper = MS_HYPER_COUNT;
    ms_kernel_spec spec = flat_spec(ms_optimizer_slot(program->request.optimizer), program->wide,
                                    program->request.optimizer->name == MS_OPTIMIZER_ADAMW ? 6 : 5,
                                    count);
    int last = spec.argument_count - 1;
    spec.arguments[last - 1] = ms_argument_of(MS_F64, 1, &hyper);
    spec.arguments[last] = program->separate_master && !bucket->vector
                               ? ms_argument_of(program->request.compute, 1, &count)
                               : ms_argument_absent();
    if (program->request.optimizer->name == MS_OPTIMIZER_SGD) {
        spec.attributes.sgd.nesterov = program->request.optimizer->nesterov;
        if (program->optimizer_states == 0) {
            spec.arguments[2] = ms_argument_absent();
        }
    }
    return ms__program_kernel(program, &spec, &bucket->update);
}

/* (parameter, own range) pieces; their blocks are counted from the parameter's start, so they are the
 * same whoever owns them. */
static ms_status add_norm_parts(ms_program *program, const ms_bucket *bucket) {
    for (int32_t i = 0; i < bucket->parameter_count; i++) {
        int32_t index = bucket->first_parameter + i;
        const ms_program_parameter *parameter = &program->parameters[index];
        int64_t start = ms_max_i64(parameter->flat_start, bucket->own_start);
        int64_t end = ms_min_i64(parameter->flat_start + parameter->count, bucket->own_end);
        if (start >= end) {
            continue;
        }
        MS_CHECK((start - parameter->flat_start) % MS_NORM_BLOCK == 0);
        ms_norm_part *part = &program->norm_parts[program->norm_part_count++];
        *part = (ms_norm_part){.parameter = index, .flat_start = start, .count = end - start,
                               .first_block = program->norm_block_count,
                               .block_count = ms_ceil_div(end - start, MS_NORM_BLOCK)};
        program->norm_block_count += part->block_count;
        ms_kernel_spec spec = flat_spec(MS_SLOT_SQUARE_SUM, program->wide, 2, part->count);
        spec.arguments[1] = ms_argument_of(MS_F64, 1, &part->block_count);
        MS_TRY(ms__program_kernel(program, &spec, &part->kernel));
    }
    return MS_OK;
}

/* Blocks of a parameter that lie between two flat borders. */
static int64_t blocks_between(const ms_program_parameter *parameter, int64_t start, int64_t end) {
    int64_t from = ms_max_i64(parameter->flat_start, start);
    int64_t to = ms_min_i64(parameter->flat_start + parameter->count, end);
    return from < to ? ms_ceil_div(to - from, MS_NORM_BLOCK) : 0;
}

/* With ZeRO each replica has its own slice's blocks, else everybody has all. */
static void owned_range(const ms_program *program, const ms_bucket *bucket, int64_t owner,
                        int64_t *start, int64_t *end) {
    bool zero = program->layout.zero >= 1;
    *start = zero ? bucket->borders[owner] : bucket->flat_start;
    *end = zero ? bucket->borders[owner + 1] : bucket->flat_end;
}

static void count_blocks(ms_program *program, int64_t owners) {
    for (int64_t owner = 0; owner < owners; owner++) {
        for (int32_t i = 0; i < program->parameter_count; i++) {
            const ms_program_parameter *parameter = &program->parameters[i];
            int64_t start, end;
            owned_range(program, &program->buckets[parameter->bucket], owner, &start, &end);
            program->norm_block_counts[owner] += blocks_between(parameter, start, end);
        }
        program->norm_blocks_total += program->norm_block_counts[owner];
    }
}

/*
 * Where each block's partial sum stands in the gathered array, in flat order: the sum is then taken in one
 * order whatever the number of owners. Blocks that another rank counts are left out.
 */
static ms_status order_blocks(ms_program *program, int64_t owners) {
    int64_t *cursors = NULL;
    MS_TRY(MS_NEW((size_t)program->norm_blocks_total + 1, MS_MEMORY_PROCESS, &program->norm_order));
    MS_TRY(MS_NEW((size_t)owners, MS_MEMORY_PROCESS, &cursors));
    for (int64_t owner = 1; owner < owners; owner++) {
        cursors[owner] = cursors[owner - 1] + program->norm_block_counts[owner - 1];
    }
    for (int32_t i = 0; i < program->parameter_count; i++) {
        const ms_program_parameter *parameter = &program->parameters[i];
        for (int64_t owner = 0; owner < owners; owner++) {
            int64_t start, end;
            owned_range(program, &program->buckets[parameter->bucket], owner, &start, &end);
            int64_t blocks = blocks_between(parameter, start, end);
            for (int64_t k = 0; k < blocks && parameter->counted; k++) {
                program->norm_order[program->norm_order_count++] = cursors[owner] + k;
            }
            cursors[owner] += blocks;
        }
    }
    ms_free(cursors);
    return MS_OK;
}

static ms_status finish_norms(ms_program *program) {
    int64_t owners = program->layout.zero >= 1 ? program->replicas : 1;
    MS_TRY(MS_NEW((size_t)owners, MS_MEMORY_PROCESS, &program->norm_block_counts));
    for (int32_t b = 0; b < program->bucket_count; b++) {
        MS_TRY(add_norm_parts(program, &program->buckets[b]));
    }
    count_blocks(program, owners);
    MS_TRY(order_blocks(program, owners));
    /* This rank's partial sums stand at their place among everybody's. */
    size_t bytes = (size_t)program->norm_blocks_total * sizeof(double);
    for (int64_t owner = 0; owner < program->replica && owners > 1; owner++) {
        program->norm_own_start += program->norm_block_counts[owner];
    }
    program->norms.region = MS_REGION_PRIVATE;
    program->memory.other_bytes += bytes;
    return ms__program_reserve(program, MS_REGION_PRIVATE, bytes, &program->norms.offset);
}

ms_status ms__program_finish_buckets(ms_program *program) {
    MS_TRY(MS_NEW((size_t)program->parameter_count, MS_MEMORY_PROCESS, &program->norm_parts));
    for (int32_t b = 0; b < program->bucket_count; b++) {
        ms_bucket *bucket = &program->buckets[b];
        MS_TRY(update_kernel(program, bucket));
        if (program->gradient_levels > 1) {
            ms_kernel_spec spec = flat_spec(MS_SLOT_ADD, program->wide, 3,
                                            bucket->flat_end - bucket->flat_start);
            MS_TRY(ms__program_kernel(program, &spec, &bucket->merge));
        }
    }
    MS_TRY(finish_norms(program));
    size_t bytes = 2 * MS_HYPER_COUNT * sizeof(double);
    program->hyper = (ms_buffer){.region = MS_REGION_PRIVATE,
                                 .stride = MS_HYPER_COUNT * sizeof(double)};
    program->memory.other_bytes += bytes;
    return ms__program_reserve(program, MS_REGION_PRIVATE, bytes, &program->hyper.offset);
}
