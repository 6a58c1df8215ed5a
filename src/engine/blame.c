/*
 * blame.c - after a loss or norm that is not finite: where it began. Nothing has been updated, so
 * weights are looked at, then the forward is run again, node by node, looking at what each one
 * wrote, and at last the gradients, all of which are usually lost by then.
 *
 * Loss and norm are the same on every rank, so every rank is here; the one that found the earliest
 * cause tells the others, and all fail with one sentence.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"

static bool all_finite(const void *data, ms_dtype dtype, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = dtype == MS_F64    ? ((const double *)data)[i]
                       : dtype == MS_BF16 ? (double)ms_bf16_to_f32(((const uint16_t *)data)[i])
                                          : (double)((const float *)data)[i];
        if (!isfinite(value)) {
            return false;
        }
    }
    return true;
}

static bool is_floating(ms_dtype dtype) {
    return dtype == MS_F64 || dtype == MS_F32 || dtype == MS_BF16;
}

/* Runs one node, then looks at its outputs. Only ranks without divided layers can run alone. */
static ms_status check_node(ms_engine *engine, int32_t index, const ms_run_context *context) {
    const ms_program_chunk *chunk = &engine->program->train;
    ms_node_list one = {.nodes = &chunk->forward.nodes[index], .count = 1};
    MS_TRY(ms__engine_run(engine, &one, context));
    const ms_program_node *lowered = &chunk->forward.nodes[index];
    const ms_node *node = &chunk->graph->nodes[lowered->graph_node];
    for (int i = 0; i < node->op->output_count; i++) {
        ms_operand output = node->outputs[i];
        if (output.value < 0 || !is_floating(chunk->graph->values[output.value].dtype)) {
            continue;
        }
        const void *data = ms__engine_address(
            engine, lowered->arguments[node->op->input_count + i], context->place);
        if (!all_finite(data, chunk->graph->values[output.value].dtype,
                        ms_operand_elements(chunk->graph, output))) {
            return ms_fail(MS_ERR_NUMERIC,
                           "layer %" PRId32 ": the output of %s is not finite; no update was made. "
                           "Lower optimizer.lr, set optimizer.clip_grad, or resume from an earlier "
                           "checkpoint",
                           node->layer, node->op->name);
        }
    }
    return MS_OK;
}

static ms_status check_forward(ms_engine *engine, const ms_step_input *input) {
    const ms_program *program = engine->program;
    for (int64_t m = 0; m < program->request.micro_batches; m++) {
        ms_run_context context = {.place = {.slot = program->slots[m], .micro_batch = m}};
        MS_TRY(ms__engine_fill_inputs(engine, &program->train, &input->micro_batches[m], 1.0, 0,
                                      context.place));
        for (int32_t i = 0; i < program->train.forward.count; i++) {
            MS_TRY(check_node(engine, i, &context));
        }
    }
    return MS_OK;
}

static const ms_tensor *tensor_of(const ms_program *program, int32_t parameter) {
    return &program->request.model->parameters[program->parameters[parameter].index].tensor;
}

static ms_status check_weights(ms_engine *engine) {
    const ms_program *program = engine->program;
    for (int32_t i = 0; i < program->parameter_count; i++) {
        const ms_program_parameter *parameter = &program->parameters[i];
        bool vector = parameter->flat_start >= program->matrix_elements;
        const void *weight = ms__engine_address(
            engine, ms_program_weight(program, parameter->flat_start), (ms_place){0});
        if (!all_finite(weight, vector ? program->wide : program->request.compute,
                        parameter->count)) {
            return ms_fail(MS_ERR_NUMERIC, "weight %s is not finite; no update was made",
                           tensor_of(program, i)->name);
        }
    }
    return MS_OK;
}

static ms_status check_gradients(ms_engine *engine) {
    const ms_program *program = engine->program;
    for (int32_t i = 0; i < program->norm_part_count; i++) {
        const ms_norm_part *part = &program->norm_parts[i];
        const void *sum = ms__engine_address(
            engine, ms_program_gradient(program, part->flat_start), (ms_place){0});
        if (!all_finite(sum, program->wide, part->count)) {
            return ms_fail(MS_ERR_NUMERIC,
                           "the gradient of %s is not finite; no update was made. Lower "
                           "optimizer.lr or resume from an earlier checkpoint",
                           tensor_of(program, part->parameter)->name);
        }
    }
    return MS_OK;
}

/* Causes from early to late; a late one usually follows from an early one somewhere else. */
typedef enum blame_cause { BLAME_WEIGHT, BLAME_FORWARD, BLAME_GRADIENT, BLAME_NONE } blame_cause;

/* The sentence is in the error's detail, unless there is no cause here. */
static ms_status find_cause(ms_engine *engine, const ms_step_input *input, blame_cause *cause) {
    *cause = BLAME_WEIGHT;
    MS_TRY(check_weights(engine));
    *cause = BLAME_FORWARD;
    if (engine->parts == NULL) { /* the ranks of a divided model cannot stop at different nodes */
        MS_TRY(check_forward(engine, input));
    }
    *cause = BLAME_GRADIENT;
    MS_TRY(check_gradients(engine));
    *cause = BLAME_NONE;
    return MS_OK;
}

ms_status ms__engine_blame(ms_engine *engine, const ms_step_input *input) {
    char sentence[512] = "the loss or the gradient norm is not finite; no update was made";
    blame_cause cause;
    ms_status status = find_cause(engine, input, &cause);
    if (status != MS_OK && status != MS_ERR_NUMERIC) {
        return status;
    }
    if (status == MS_ERR_NUMERIC) {
        snprintf(sentence, sizeof sentence, "%s", ms_error_detail());
    }
    if (engine->world != NULL && ms_comm_size(engine->world) > 1) {
        int32_t own = (int32_t)cause * MS_COMM_RANKS_MAX + ms_comm_rank(engine->world), earliest;
        MS_TRY(ms_comm_all_reduce(engine->world, &own, &earliest, 1, MS_I32, MS_REDUCE_MIN, NULL));
        MS_TRY(ms_comm_broadcast(engine->world, sentence, (int64_t)sizeof sentence, MS_U8,
                                 earliest % MS_COMM_RANKS_MAX, NULL));
    }
    return ms_fail(MS_ERR_NUMERIC, "%s", sentence);
}
