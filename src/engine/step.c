/*
 * step.c - one training step as the schedule's actions, an evaluation, and one step of generation.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

enum { TAG_FORWARD, TAG_BACKWARD };

static ms_place place_of(const ms_engine *engine, int64_t micro_batch) {
    const ms_reduction *reduction = &engine->program->request.reduction;
    return (ms_place){.slot = engine->program->slots[micro_batch],
                      .level = ms_reduction_buffer(reduction,
                                                   micro_batch / reduction->micro_batches_per_run),
                      .micro_batch = micro_batch};
}

static ms_run_context context_of(const ms_engine *engine, int64_t micro_batch) {
    const ms_reduction *reduction = &engine->program->request.reduction;
    int64_t per_run = reduction->micro_batches_per_run;
    return (ms_run_context){.place = place_of(engine, micro_batch),
                            .accumulate = micro_batch % per_run != 0,
                            .run_end = micro_batch % per_run == per_run - 1,
                            .last = micro_batch == engine->program->request.micro_batches - 1,
                            .merges = ms_reduction_merges(reduction, micro_batch / per_run)};
}

static const ms_program_input *border_input(const ms_program_chunk *chunk, ms_input_role role) {
    for (int32_t i = 0; i < chunk->input_count; i++) {
        if (chunk->inputs[i].role == role) {
            return &chunk->inputs[i];
        }
    }
    return NULL;
}

static ms_status receive(ms_engine *engine, const ms_program_chunk *chunk, ms_input_role role,
                         int peer, ms_place place) {
    const ms_program_input *input = border_input(chunk, role);
    MS_CHECK(input != NULL);
    ms_request *request = NULL;
    MS_TRY(ms_comm_recv(engine->axis[MS_AXIS_PIPELINE],
                        ms__engine_address(engine, input->buffer, place), input->elements,
                        input->dtype, peer, role == MS_INPUT_FORWARD ? TAG_FORWARD : TAG_BACKWARD,
                        &request));
    return ms__engine_wait(engine, &request);
}

/* Posted, and waited for before the slot is used again. */
static ms_status post_send(ms_engine *engine, const ms_program_chunk *chunk, ms_buffer buffer,
                           int peer, int tag, ms_place place) {
    return ms_comm_send(engine->axis[MS_AXIS_PIPELINE], ms__engine_address(engine, buffer, place),
                        chunk->border_elements, engine->program->request.compute, peer, tag,
                        &engine->send_requests[place.slot * 2 + tag]);
}

static ms_status finish_sends(ms_engine *engine, int64_t slot) {
    for (int tag = 0; tag < 2; tag++) {
        MS_TRY(ms__engine_wait(engine, &engine->send_requests[slot * 2 + tag]));
    }
    return MS_OK;
}

static ms_status sum_loss(ms_engine *engine, const ms_program_chunk *chunk, ms_place place) {
    if (chunk->loss.region == MS_REGION_NONE) {
        return MS_OK;
    }
    void *const arguments[2] = {ms__engine_address(engine, chunk->loss, place),
                                ms__engine_address(engine, engine->program->loss_sums, place)};
    return ms__engine_kernel(engine, engine->program->loss_sum, arguments, false);
}

static ms_status run_action(ms_engine *engine, const ms_action *action,
                            const ms_step_input *input) {
    const ms_program_chunk *chunk = &engine->program->train;
    if (action->kind == MS_ACTION_STEP) {
        return MS_OK;
    }
    ms_run_context context = context_of(engine, action->micro_batch);
    switch (action->kind) {
    case MS_ACTION_RECV_FORWARD:
        MS_TRY(finish_sends(engine, context.place.slot));
        return receive(engine, chunk, MS_INPUT_FORWARD, action->peer_stage, context.place);
    case MS_ACTION_FORWARD:
        MS_TRY(finish_sends(engine, context.place.slot));
        MS_TRY(ms__engine_fill_inputs(engine, chunk, &input->micro_batches[action->micro_batch],
                                      1.0 / (double)input->target_tokens, 0, context.place));
        return ms__engine_run(engine, &chunk->forward, &context);
    case MS_ACTION_SEND_FORWARD:
        return post_send(engine, chunk, chunk->output_forward, action->peer_stage, TAG_FORWARD,
                         context.place);
    case MS_ACTION_RECV_BACKWARD:
        return receive(engine, chunk, MS_INPUT_BACKWARD, action->peer_stage, context.place);
    case MS_ACTION_BACKWARD:
        MS_TRY(ms__engine_run(engine, &chunk->backward, &context));
        return sum_loss(engine, chunk, context.place);
    case MS_ACTION_SEND_BACKWARD:
        return post_send(engine, chunk, chunk->output_backward, action->peer_stage, TAG_BACKWARD,
                         context.place);
    default:
        return ms_fail(MS_ERR_UNSUPPORTED, "the engine does not run action %d yet",
                       (int)action->kind);
    }
}

/* Parameters whose gradient this rank only receives start from zero. */
static void clear_unwritten(ms_engine *engine) {
    const ms_program *program = engine->program;
    for (int32_t i = 0; i < program->parameter_count; i++) {
        const ms_program_parameter *parameter = &program->parameters[i];
        if (!parameter->written) {
            void *sum = ms__engine_address(
                engine, ms_program_gradient(program, parameter->flat_start), (ms_place){0});
            memset(sum, 0, (size_t)parameter->count * ms_dtype_bytes(program->wide));
        }
    }
}

/* Sum over the micro-batches of all replicas in global order; every stage learns it. */
static ms_status gather_loss(ms_engine *engine, int64_t target_tokens, double *loss) {
    const ms_program *program = engine->program;
    int64_t own = program->request.micro_batches;
    double *sums = ms__engine_address(engine, program->loss_sums, (ms_place){0});
    double total = 0;
    if (program->train.loss.region != MS_REGION_NONE) {
        const double *all = sums;
        int64_t count = own;
        if (engine->replicas != NULL) {
            for (int64_t r = 0; r < program->replicas; r++) {
                engine->gather_counts[r] = own;
            }
            MS_TRY(ms_comm_all_gather(engine->replicas, sums, engine->losses,
                                      engine->gather_counts, MS_F64, NULL));
            all = engine->losses;
            count = own * program->replicas;
        }
        for (int64_t i = 0; i < count; i++) {
            total += all[i];
        }
        total /= (double)target_tokens;
    }
    ms_comm *pipeline = engine->axis[MS_AXIS_PIPELINE];
    if (pipeline != NULL) {
        MS_TRY(ms_comm_broadcast(pipeline, &total, 1, MS_F64, ms_comm_size(pipeline) - 1, NULL));
    }
    *loss = total;
    return MS_OK;
}

ms_status ms_engine_step(ms_engine *engine, const ms_step_input *input, ms_step_result *result) {
    const ms_program *program = engine->program;
    const ms_action_list *actions =
        &program->schedule->stage_lists[program->layout.at.at[MS_AXIS_PIPELINE]];
    ms_step_result made = {0};
    double start = ms_clock_s();
    engine->waited_s = 0;
    MS_TRY(ms__engine_pack_weights(engine));
    clear_unwritten(engine);
    for (int64_t i = 0; i < actions->count; i++) {
        MS_TRY(run_action(engine, &actions->actions[i], input));
    }
    for (int64_t slot = 0; slot < program->memory.saved_slots; slot++) {
        MS_TRY(finish_sends(engine, slot));
    }
    double computed = ms_clock_s();
    MS_TRY(ms__engine_reduce_all(engine));
    MS_TRY(gather_loss(engine, input->target_tokens, &made.loss));
    double reduced = ms_clock_s();
    MS_TRY(ms__engine_update(engine, input, &made));
    made.forward_backward_s = computed - start;
    made.reduce_s = reduced - computed;
    made.update_s = ms_clock_s() - reduced;
    *result = made;
    return MS_OK;
}

ms_status ms_engine_evaluate(ms_engine *engine, const ms_micro_batch *micro_batch,
                             double *loss_sum) {
    const ms_program *program = engine->program;
    const ms_program_chunk *chunk = &program->evaluate;
    int stages = (int)program->layout.mesh.size[MS_AXIS_PIPELINE];
    int stage = (int)program->layout.at.at[MS_AXIS_PIPELINE];
    ms_run_context context = {0};
    MS_TRY(ms__engine_pack_weights(engine));
    MS_TRY(ms__engine_fill_inputs(engine, chunk, micro_batch, 1.0, 0, context.place));
    if (stage > 0) {
        MS_TRY(receive(engine, chunk, MS_INPUT_FORWARD, stage - 1, context.place));
    }
    MS_TRY(ms__engine_run(engine, &chunk->forward, &context));
    if (stage < stages - 1) {
        MS_TRY(post_send(engine, chunk, chunk->output_forward, stage + 1, TAG_FORWARD,
                         context.place));
        MS_TRY(finish_sends(engine, 0));
    }
    MS_TRY(sum_loss(engine, chunk, context.place));
    double sum = 0;
    memcpy(&sum, ms__engine_address(engine, program->loss_sums, context.place), sizeof sum);
    if (engine->axis[MS_AXIS_PIPELINE] != NULL) {
        MS_TRY(ms_comm_broadcast(engine->axis[MS_AXIS_PIPELINE], &sum, 1, MS_F64, stages - 1,
                                 NULL));
    }
    *loss_sum = sum;
    return MS_OK;
}

ms_status ms_engine_decode(ms_engine *engine, const int32_t *tokens, int64_t count,
                           int64_t position, void *logits) {
    const ms_program *program = engine->program;
    const ms_program_chunk *chunk = &program->evaluate;
    int64_t rows = program->request.sequence;
    if (count < 1 || count > rows || position + count > program->request.cache_positions) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "%" PRId64 " tokens at position %" PRId64 " do not fit %" PRId64
                       " rows and %" PRId64 " positions",
                       count, position, rows, program->request.cache_positions);
    }
    ms_run_context context = {.extent = {count, position}};
    MS_TRY(ms__engine_pack_weights(engine));
    for (int32_t i = 0; i < chunk->input_count; i++) {
        const ms_program_input *input = &chunk->inputs[i];
        int32_t *to = ms__engine_address(engine, input->buffer, context.place);
        for (int64_t r = 0; r < input->elements; r++) {
            /* Rows past `count` are computed and not read: any legal values do. */
            bool used = r < count;
            to[r] = input->role == MS_INPUT_TOKENS ? (used ? tokens[r] : 0)
                                                   : (int32_t)(used ? position + r : 0);
        }
    }
    MS_TRY(ms__engine_run(engine, &chunk->forward, &context));
    size_t row_bytes = (size_t)(chunk->logits_elements / rows) * ms_dtype_bytes(program->wide);
    const char *all = ms__engine_address(engine, chunk->logits, context.place);
    memcpy(logits, all + (size_t)(count - 1) * row_bytes, row_bytes);
    return MS_OK;
}
