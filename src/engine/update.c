/*
 * update.c - the optimiser's step: norm, clipping, update of what this rank owns, gathering of weights.
 *
 * The norm is the root of a sum of squares in fp64, taken over fixed blocks of 4,096 elements of each
 * parameter and added in flat order whoever computed them; then over tensor and pipeline ranks in rank
 * order. It is known, and the same on every rank, before any weight is touched.
 */
#include <math.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

static double *norm_array(const ms_engine *engine) {
    return ms__engine_address(engine, engine->program->norms, (ms_place){0});
}

static void *at_gradient(const ms_engine *engine, int64_t flat) {
    return ms__engine_address(engine, ms_program_gradient(engine->program, flat), (ms_place){0});
}

static ms_status square_sums(ms_engine *engine) {
    const ms_program *program = engine->program;
    double *own = norm_array(engine) + program->norm_own_start;
    for (int32_t i = 0; i < program->norm_part_count; i++) {
        const ms_norm_part *part = &program->norm_parts[i];
        void *const arguments[2] = {at_gradient(engine, part->flat_start), own + part->first_block};
        MS_TRY(ms__engine_kernel(engine, part->kernel, arguments, false));
    }
    if (engine->replicas != NULL && program->layout.zero >= 1) {
        MS_TRY(ms_comm_all_gather(engine->replicas, own, norm_array(engine),
                                  program->norm_block_counts, MS_F64, NULL));
    }
    return MS_OK;
}

static ms_status global_norm(ms_engine *engine, double *norm) {
    const ms_program *program = engine->program;
    MS_TRY(square_sums(engine));
    const double *sums = norm_array(engine);
    double total = 0;
    for (int64_t i = 0; i < program->norm_order_count; i++) {
        total += sums[program->norm_order[i]];
    }
    if (engine->parts != NULL) {
        double all[MS_COMM_RANKS_MAX];
        int64_t counts[MS_COMM_RANKS_MAX];
        int ranks = ms_comm_size(engine->parts);
        for (int rank = 0; rank < ranks; rank++) {
            counts[rank] = 1;
        }
        double mine = total;
        MS_TRY(ms_comm_all_gather(engine->parts, &mine, all, counts, MS_F64, NULL));
        total = 0;
        for (int rank = 0; rank < ranks; rank++) {
            total += all[rank];
        }
    }
    *norm = sqrt(total);
    return MS_OK;
}

/* Weights of flat range start.. as the update's target: the master's, where it is apart. */
static void *update_target(const ms_engine *engine, const ms_bucket *bucket) {
    const ms_program *program = engine->program;
    if (program->separate_master && !bucket->vector) {
        ms_buffer buffer = program->master;
        buffer.offset += (size_t)bucket->master_start * ms_dtype_bytes(program->wide);
        return ms__engine_address(engine, buffer, (ms_place){0});
    }
    return ms__engine_address(engine, ms_program_weight(program, bucket->own_start), (ms_place){0});
}

static ms_status update_bucket(ms_engine *engine, const ms_bucket *bucket) {
    const ms_program *program = engine->program;
    if (bucket->own_start == bucket->own_end) {
        return MS_OK;
    }
    void *arguments[6];
    int count = 0;
    arguments[count++] = update_target(engine, bucket);
    arguments[count++] = at_gradient(engine, bucket->own_start);
    int slots = program->request.optimizer->name == MS_OPTIMIZER_ADAMW ? 2 : 1;
    for (int s = 0; s < slots; s++) {
        ms_buffer state = program->states;
        state.offset += (size_t)s * state.stride +
                        (size_t)bucket->state_start * ms_dtype_bytes(program->wide);
        arguments[count++] = s < program->optimizer_states
                                 ? ms__engine_address(engine, state, (ms_place){0})
                                 : NULL;
    }
    ms_buffer hyper = program->hyper;
    hyper.offset += bucket->vector ? hyper.stride : 0;
    arguments[count++] = ms__engine_address(engine, hyper, (ms_place){0});
    bool copy = program->separate_master && !bucket->vector;
    arguments[count++] =
        copy ? ms__engine_address(engine, ms_program_weight(program, bucket->own_start),
                                  (ms_place){0})
             : NULL;
    return ms__engine_kernel(engine, bucket->update, arguments, false);
}

static ms_status start_gather(ms_engine *engine, int32_t index) {
    const ms_program *program = engine->program;
    const ms_bucket *bucket = &program->buckets[index];
    if (engine->replicas == NULL || program->layout.zero == 0) {
        return MS_OK;
    }
    for (int64_t r = 0; r < program->replicas; r++) {
        engine->gather_counts[r] = bucket->borders[r + 1] - bucket->borders[r];
    }
    ms_place none = {0};
    return ms_comm_all_gather(
        engine->replicas,
        ms__engine_address(engine, ms_program_weight(program, bucket->own_start), none),
        ms__engine_address(engine, ms_program_weight(program, bucket->flat_start), none),
        engine->gather_counts, bucket->vector ? program->wide : program->request.compute,
        &engine->bucket_requests[index]);
}

static ms_status apply_update(ms_engine *engine, const ms_step_input *input, double clip_scale) {
    const ms_program *program = engine->program;
    for (int vector = 0; vector < 2; vector++) {
        ms_buffer buffer = program->hyper;
        buffer.offset += vector ? buffer.stride : 0;
        ms_optimizer_hyper(program->request.optimizer, input->step, input->learning_rate,
                           clip_scale, vector == 0,
                           ms__engine_address(engine, buffer, (ms_place){0}));
    }
    for (int32_t i = 0; i < program->bucket_count; i++) {
        MS_TRY(update_bucket(engine, &program->buckets[i]));
        MS_TRY(start_gather(engine, i));
        if (!engine->overlap) {
            MS_TRY(ms__engine_wait(engine, &engine->bucket_requests[i]));
        }
    }
    for (int32_t i = 0; i < program->bucket_count; i++) {
        MS_TRY(ms__engine_wait(engine, &engine->bucket_requests[i]));
    }
    engine->weights_changed = true;
    return MS_OK;
}

ms_status ms__engine_update(ms_engine *engine, const ms_step_input *input,
                            ms_step_result *result) {
    double norm;
    MS_TRY(global_norm(engine, &norm));
    if (!isfinite(norm) || !isfinite(result->loss)) {
        return ms__engine_blame(engine, input);
    }
    result->grad_norm = norm;
    result->clip_scale = ms_clip_scale(engine->program->request.optimizer->clip_grad, norm);
    return input->apply ? apply_update(engine, input, result->clip_scale) : MS_OK;
}
