/*
 * loop.c - the step loop: batch, update, figures, evaluation, checkpoint, stop.
 *
 * Main path: cli/train.c -> run.c -> session.c -> [here] -> engine/step.c. A step's order is the same on every
 * rank: whether to stop is agreed before each update, so that signals arriving at different moments do no harm.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/session.h"

typedef struct loop_state {
    ms_session *session;
    const ms_train_options *options;
    ms_metrics *metrics;
    double peak_gflops, flops_per_token;
    double busy_s; /* in updates but the first of this call */
    int64_t busy_tokens;
    int64_t last_saved, last_evaluated;
    ms_loop_result result;
} loop_state;

static ms_status agree_to_stop(ms_session *session, bool *stop) {
    int32_t wanted = ms__train_stop_requested() ? 1 : 0;
    MS_TRY(ms_comm_all_reduce(session->comm, &wanted, &wanted, 1, MS_I32, MS_REDUCE_MAX, NULL));
    *stop = wanted != 0;
    return MS_OK;
}

/* A failed save in mid-run may be survived (checkpoint.on_save_failure); the last one of a run is the run's result. */
static ms_status save(loop_state *loop, bool final) {
    ms_session *session = loop->session;
    if (session->checkpoint->dir == NULL || loop->last_saved == session->state.step) {
        return MS_OK;
    }
    loop->last_saved = session->state.step;
    ms_status status = ms_session_save(session);
    if (status == MS_OK || final || session->checkpoint->on_save_failure != 0 || status == MS_ERR_PEER ||
        status == MS_ERR_ABORTED || status == MS_ERR_TIMEOUT) {
        return status;
    }
    if (session->rank == 0) {
        ms_metrics_break_line(loop->metrics);
        ms_log_warn("step %" PRId64 " was not saved, training goes on: %s", session->state.step,
                    ms_error_detail());
    }
    return MS_OK;
}

static ms_status evaluate(loop_state *loop) {
    ms_session *session = loop->session;
    if (session->valid_data == NULL || loop->last_evaluated == session->state.step) {
        return MS_OK;
    }
    loop->last_evaluated = session->state.step;
    ms_evaluation_metrics figures = {.step = session->state.step};
    double start = ms_clock_s();
    MS_TRY(ms_session_evaluate(session, session->evaluate->batches, &figures.val_loss,
                               &figures.tokens));
    figures.seconds = ms_clock_s() - start;
    loop->result.val_loss = figures.val_loss;
    ms_train_state *state = &session->state;
    if (isnan(state->best_val_loss) || figures.val_loss < state->best_val_loss) {
        state->best_val_loss = figures.val_loss;
    }
    return ms_metrics_evaluation(loop->metrics, &figures);
}

static ms_status report(loop_state *loop, const ms_step_result *step, double learning_rate,
                        double seconds) {
    ms_session *session = loop->session;
    int64_t tokens = session->train->global_batch_size * session->sequence;
    double rate = (double)tokens / seconds;
    ms_step_metrics figures = {
        .step = session->state.step,
        .tokens = session->state.tokens,
        .samples = session->state.samples,
        .loss = step->loss,
        .grad_norm = step->grad_norm,
        .clip_scale = step->clip_scale,
        .lr = learning_rate,
        .step_ms = seconds * 1e3,
        .reduce_ms = step->reduce_s * 1e3,
        .update_ms = step->update_s * 1e3,
        .tokens_per_s = rate,
        .mfu = rate * loop->flops_per_token / (loop->peak_gflops * 1e9 * session->ranks)};
    MS_TRY(ms_metrics_step(loop->metrics, &figures));
    if (loop->options->on_step != NULL) {
        ms_train_progress progress = {.step = figures.step,
                                      .steps_total = session->train->steps,
                                      .tokens = figures.tokens,
                                      .loss = figures.loss,
                                      .grad_norm = figures.grad_norm,
                                      .learning_rate = learning_rate,
                                      .step_ms = figures.step_ms,
                                      .tokens_per_s = rate};
        loop->options->on_step(&progress, loop->options->context);
    }
    return MS_OK;
}

static ms_status update(loop_state *loop, bool first) {
    ms_session *session = loop->session;
    ms_train_state *state = &session->state;
    double start = ms_clock_s();
    MS_TRY(ms_session_load_batch(session));
    int64_t tokens = session->train->global_batch_size * session->sequence;
    ms_step_input input = {
        .micro_batches = session->batches,
        .target_tokens = tokens,
        .step = state->step,
        .learning_rate = ms_learning_rate(session->optimizer, state->step, session->train->steps,
                                          state->tokens),
        .apply = true};
    ms_step_result step;
    ms_status status = ms_engine_step(session->engine, &input, &step);
    if (status == MS_ERR_NUMERIC) {
        ms_error_prefix("step %" PRId64, state->step + 1);
    }
    MS_TRY(status);
    double seconds = ms_clock_s() - start;
    state->step++;
    state->samples += session->train->global_batch_size;
    state->tokens += tokens;
    loop->result.loss = step.loss;
    if (!first) {
        loop->busy_s += seconds;
        loop->busy_tokens += tokens;
    }
    return report(loop, &step, input.learning_rate, seconds);
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static ms_status run(loop_state *loop) {
    ms_session *session = loop->session;
    const ms_train_state *state = &session->state;
    for (bool first = true; state->step < session->train->steps; first = false) {
        bool stop;
        MS_TRY(agree_to_stop(session, &stop));
        if (stop) {
            loop->result.stopped = true;
            if (session->checkpoint->dir == NULL && session->rank == 0) {
                ms_metrics_break_line(loop->metrics);
                ms_log_warn("stopped on request; nothing is saved, as checkpoint.dir is not set");
            }
            return save(loop, true);
        }
        MS_TRY(update(loop, first));
        if (due(state->step, session->evaluate->every_steps) ||
            (state->step == session->train->steps && session->evaluate->every_steps > 0)) {
            MS_TRY(evaluate(loop));
        }
        if (due(state->step, session->checkpoint->every_steps)) {
            MS_TRY(save(loop, false));
        }
    }
    return session->checkpoint->save_at_end ? save(loop, true) : MS_OK;
}

/* The resolved configuration stands in the run's directory from its first step on. */
static ms_status write_config(const ms_session *session) {
    char path[MS_PATH_BYTES];
    ms_text yaml = {0};
    MS_TRY(ms_path_join(session->checkpoint->dir, "config.yaml", path, sizeof path));
    ms_status status = ms_config_emit(session->config, &yaml);
    if (status == MS_OK) {
        status = ms_file_write_atomic(path, yaml.bytes, yaml.length);
    }
    ms_text_release(&yaml);
    return status;
}

static ms_status begin(loop_state *loop) {
    ms_session *session = loop->session;
    loop->flops_per_token = ms_model_flops_per_token(session->model, session->sequence);
    MS_TRY(ms_measure_peak(session->device, ms_precision_compute(session->precision),
                           &loop->peak_gflops));
    if (session->rank != 0) {
        return MS_OK;
    }
    if (session->checkpoint->dir != NULL) {
        MS_TRY(write_config(session));
    }
    MS_TRY(ms_metrics_open(session->checkpoint->dir, session->report, session->state.step,
                           session->train->steps, session->quiet, &loop->metrics));
    if (!session->quiet) {
        printf("MFU       counts 6 FLOPs per matmul parameter and token + 12 x layers x width x sequence, "
               "against %.0f GFLOP/s measured here per rank\n",
               loop->peak_gflops);
        fflush(stdout);
    }
    return MS_OK;
}

ms_status ms_session_loop(ms_session *session, const ms_train_options *options,
                          ms_loop_result *result) {
    loop_state loop = {.session = session, .options = options, .last_saved = -1,
                       .last_evaluated = -1,
                       .result = {.loss = NAN, .val_loss = NAN}};
    if (session->resumed_from[0] != '\0') {
        loop.last_saved = session->state.step;
    }
    ms_status status = begin(&loop);
    if (status == MS_OK) {
        status = run(&loop);
    }
    if (loop.busy_s > 0) {
        loop.result.tokens_per_s = (double)loop.busy_tokens / loop.busy_s;
    }
    ms_status closed = ms_metrics_close(loop.metrics);
    MS_TRY(status);
    MS_TRY(closed);
    *result = loop.result;
    return MS_OK;
}
