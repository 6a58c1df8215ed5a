/*
 * parity.h - runs a small model under a layout, ranks as threads of this process, and gathers what must not depend on the
 * layout: losses, norms, every logical gradient and updated weight.
 */
#ifndef MS_TEST_PARITY_H
#define MS_TEST_PARITY_H

#include <math.h>
#include <pthread.h>

#include "base/thread.h"
#include "engine/engine_support.h"

#define PARITY_STEPS 3
#define PARITY_RANKS_MAX 8

typedef struct parity_outcome {
    double loss[PARITY_STEPS], norm[PARITY_STEPS];
    double *gradients; /* of the last step, all logical tensors one after the other */
    double *weights;   /* after it */
    int64_t elements;
} parity_outcome;

typedef struct parity_job {
    const test_setup *setup;
    ms_comm *comm;
    int64_t rank, ranks;
    parity_outcome *outcome; /* shared: ranks write disjoint parts */
    ms_status status;
    char sentence[512];
} parity_job;

static inline int64_t parity_start(const ms_model *model, const ms_tensor *tensor) {
    int64_t start = 0;
    for (int32_t i = 0; &model->parameters[i].tensor != tensor; i++) {
        start += ms_tensor_elements(&model->parameters[i].tensor);
    }
    return start;
}

typedef struct parity_copy {
    const ms_engine_piece *piece;
    double *to;
} parity_copy;

static inline double parity_value(const ms_engine_piece *piece, int64_t i) {
    return piece->dtype == MS_F64    ? ((const double *)piece->data)[i]
           : piece->dtype == MS_BF16 ? (double)ms_bf16_to_f32(((const uint16_t *)piece->data)[i])
                                     : (double)((const float *)piece->data)[i];
}

static inline ms_status parity_copy_run(const ms_shard_run *run, void *context) {
    const parity_copy *copy = context;
    for (int64_t i = 0; i < run->count; i++) {
        copy->to[run->global_start + i] =
            parity_value(copy->piece, run->local_start + i - copy->piece->local_start);
    }
    return MS_OK;
}

static inline ms_status parity_collect(test_rank *rank, ms_piece_set set, double *to) {
    ms_engine_piece pieces[512];
    int64_t count = ms_engine_pieces(rank->engine, set, pieces, 512);
    for (int64_t i = 0; i < count && count <= 512; i++) {
        if (!pieces[i].writer ||
            (set == MS_PIECES_SAVE && pieces[i].state != NULL)) {
            continue;
        }
        parity_copy copy = {&pieces[i], to + parity_start(rank->model, pieces[i].tensor)};
        MS_TRY(ms_shard_visit(pieces[i].shard, pieces[i].local_start, pieces[i].local_count,
                              parity_copy_run, &copy));
    }
    return MS_OK;
}

/* A batch that depends on the global sample index alone. */
static inline void parity_fill(const test_setup *setup, int64_t step, int64_t first,
                               int64_t sequences, int32_t *tokens, int32_t *targets,
                               int64_t *samples) {
    ms_random_key key = ms_random_key_make(99, "parity");
    for (int64_t s = 0; s < sequences; s++) {
        int64_t global = step * setup->micro_batches * setup->micro_batch_size + first + s;
        samples[s] = global;
        for (int64_t t = 0; t < setup->sequence; t++) {
            ms_random_block block =
                ms_random_at(key, (uint64_t)global, (uint64_t)t);
            tokens[s * setup->sequence + t] =
                (int32_t)(block.word[0] % (uint32_t)setup->spec.vocabulary);
            targets[s * setup->sequence + t] =
                (int32_t)(block.word[1] % (uint32_t)setup->spec.vocabulary);
        }
    }
}

static inline ms_status parity_steps(parity_job *job, test_rank *rank) {
    const test_setup *setup = job->setup;
    const ms_program *program = rank->program;
    int64_t micro_batches = program->request.micro_batches;
    int64_t sequences = micro_batches * setup->micro_batch_size;
    int32_t *tokens = calloc((size_t)(sequences * setup->sequence), sizeof *tokens);
    int32_t *targets = calloc((size_t)(sequences * setup->sequence), sizeof *targets);
    int64_t *samples = calloc((size_t)sequences, sizeof *samples);
    ms_micro_batch *batches = calloc((size_t)micro_batches, sizeof *batches);
    ms_status status = ms_engine_initialize(rank->engine, setup->seed);
    for (int64_t step = 0; step < PARITY_STEPS && status == MS_OK; step++) {
        parity_fill(setup, step, program->replica * sequences, sequences, tokens, targets, samples);
        for (int64_t m = 0; m < micro_batches; m++) {
            int64_t at = m * setup->micro_batch_size;
            batches[m] = (ms_micro_batch){tokens + at * setup->sequence,
                                          targets + at * setup->sequence, samples + at};
        }
        ms_step_input input = {.micro_batches = batches,
                               .target_tokens = setup->micro_batches * setup->micro_batch_size *
                                                setup->sequence,
                               .step = step,
                               .learning_rate = setup->optimizer.lr,
                               .apply = true};
        ms_step_result result;
        status = ms_engine_step(rank->engine, &input, &result);
        if (job->rank == 0) {
            job->outcome->loss[step] = result.loss;
            job->outcome->norm[step] = result.grad_norm;
        }
    }
    if (status == MS_OK) {
        status = parity_collect(rank, MS_PIECES_GRADIENTS, job->outcome->gradients);
    }
    if (status == MS_OK) {
        status = parity_collect(rank, MS_PIECES_SAVE, job->outcome->weights);
    }
    free(tokens);
    free(targets);
    free(samples);
    free(batches);
    return status;
}

static inline void *parity_rank(void *context) {
    parity_job *job = context;
    test_rank rank = {0};
    ms_thread_team_set(job->setup->threads);
    job->status = test_rank_open(&rank, job->setup, job->rank, job->ranks > 1 ? job->comm : NULL);
    if (job->status == MS_OK) {
        job->status = parity_steps(job, &rank);
    }
    if (job->status != MS_OK) {
        snprintf(job->sentence, sizeof job->sentence, "%s (%s)", ms_error_detail(),
                 ms_error_trail());
        if (job->ranks > 1) {
            ms_comm_abort(job->comm, "a rank of the test failed");
        }
    }
    test_rank_close(&rank);
    return NULL;
}

static inline void parity_run(const test_setup *setup, parity_outcome *outcome) {
    ms_model *model;
    assert_ok(ms_model_create(&setup->spec, &model));
    int64_t elements = ms_model_parameter_elements(model);
    ms_model_destroy(model);
    int64_t ranks = ms_mesh_ranks(&setup->mesh);
    *outcome = (parity_outcome){.elements = elements,
                                .gradients = calloc((size_t)elements, sizeof(double)),
                                .weights = calloc((size_t)elements, sizeof(double))};
    ms_comm *comms[PARITY_RANKS_MAX] = {NULL};
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.operation_timeout_s = 20;
    if (ranks > 1) {
        assert_ok(ms_comm_create_loop(&options, (int)ranks, comms));
    }
    parity_job jobs[PARITY_RANKS_MAX] = {0};
    pthread_t threads[PARITY_RANKS_MAX];
    for (int64_t r = 0; r < ranks; r++) {
        jobs[r] = (parity_job){.setup = setup, .comm = comms[r], .rank = r, .ranks = ranks,
                               .outcome = outcome};
        assert_int_equal(pthread_create(&threads[r], NULL, parity_rank, &jobs[r]), 0);
    }
    for (int64_t r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int64_t r = 0; r < ranks; r++) {
        if (jobs[r].status != MS_OK) {
            fail_msg("rank %d: %s: %s", (int)r, ms_status_name(jobs[r].status), jobs[r].sentence);
        }
        ms_comm_destroy(comms[r]);
    }
}

static inline void parity_free(parity_outcome *outcome) {
    free(outcome->gradients);
    free(outcome->weights);
}

static inline double parity_worst(const double *a, const double *b, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(a[i] - b[i]));
    }
    return worst;
}

#endif
