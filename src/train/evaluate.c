/*
 * evaluate.c - mean loss over validation data: samples in their own order, dealt to replicas by micro-batch, summed
 * in micro-batch order, so the result does not depend on the number of ranks.
 */
#include <string.h>

#include "train/session.h"

typedef struct evaluation {
    int64_t samples, micro_batches;
    double *sums; /* of each micro-batch; zero where another replica computes it */
    int32_t *tokens, *targets;
    int64_t *indices;
} evaluation;

static ms_status fill(ms_session *session, evaluation *run, int64_t micro_batch) {
    int64_t T = session->sequence, B = session->micro_batch_size;
    for (int64_t b = 0; b < B; b++) {
        int64_t sample = micro_batch * B + b;
        run->indices[b] = sample;
        if (sample < run->samples) {
            MS_TRY(ms_dataset_sample(session->valid_data, sample, run->tokens + b * T,
                                     run->targets + b * T));
            continue;
        }
        for (int64_t t = 0; t < T; t++) { /* past the end: rows that count for nothing */
            run->tokens[b * T + t] = 0;
            run->targets[b * T + t] = MS_IGNORED_TARGET;
        }
    }
    return MS_OK;
}

static ms_status run_all(ms_session *session, evaluation *run) {
    const ms_program *program = session->program;
    bool reports = program->layout.at.at[MS_AXIS_TENSOR] == 0 &&
                   program->layout.at.at[MS_AXIS_PIPELINE] == 0;
    for (int64_t m = program->replica; m < run->micro_batches; m += program->replicas) {
        MS_TRY(fill(session, run, m));
        ms_micro_batch batch = {run->tokens, run->targets, run->indices};
        double sum;
        MS_TRY(ms_engine_evaluate(session->engine, &batch, &sum));
        run->sums[m] = reports ? sum : 0;
    }
    /* One rank has each sum, the others zero: this addition is exact. */
    return ms_comm_all_reduce(session->comm, run->sums, run->sums, run->micro_batches, MS_F64,
                              MS_REDUCE_SUM, NULL);
}

static ms_status make_room(const ms_session *session, evaluation *run) {
    size_t rows = (size_t)(session->sequence * session->micro_batch_size);
    MS_TRY(MS_NEW((size_t)run->micro_batches, MS_MEMORY_PROCESS, &run->sums));
    MS_TRY(MS_NEW(rows, MS_MEMORY_PROCESS, &run->tokens));
    MS_TRY(MS_NEW(rows, MS_MEMORY_PROCESS, &run->targets));
    return MS_NEW((size_t)session->micro_batch_size, MS_MEMORY_PROCESS, &run->indices);
}

ms_status ms_session_evaluate(ms_session *session, int64_t batches, double *loss,
                              int64_t *tokens) {
    evaluation run = {.samples = ms_dataset_count(session->valid_data)};
    int64_t wanted = session->train->global_batch_size;
    if (batches > 0 && ms_i64_mul(wanted, batches, &wanted)) {
        run.samples = ms_min_i64(run.samples, wanted);
    }
    run.micro_batches = ms_ceil_div(run.samples, session->micro_batch_size);
    ms_status status = make_room(session, &run);
    if (status == MS_OK) {
        status = run_all(session, &run);
    }
    if (status == MS_OK) {
        double total = 0;
        for (int64_t m = 0; m < run.micro_batches; m++) {
            total += run.sums[m];
        }
        *tokens = run.samples * session->sequence;
        *loss = total / (double)*tokens;
    }
    ms_free(run.sums);
    ms_free(run.tokens);
    ms_free(run.targets);
    ms_free(run.indices);
    return status;
}
