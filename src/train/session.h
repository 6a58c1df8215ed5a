/*
 * session.h - everything one rank of a run is made of, opened in the order it depends on one another:
 * configuration, ranks, device, data, model, layout, program (checked against the memory limit), engine, weights.
 */
#ifndef MS_TRAIN_SESSION_H
#define MS_TRAIN_SESSION_H

#include <mindspeed/train.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "format/tokenizer.h"
#include "layout/parallel.h"
#include "train/metrics.h"
#include "train/train_config.h"

typedef struct ms_session {
    ms_config *config; /* borrowed */
    const ms_model_config *model_config;
    const ms_data_config *data_config;
    const ms_train_config *train;
    const ms_run_section *run;
    const ms_optimizer_config *optimizer;
    const ms_precision_config *precision;
    const ms_parallel_config *parallel;
    const ms_comm_config *comm_config;
    const ms_checkpoint_config *checkpoint;
    const ms_evaluate_config *evaluate;
    const ms_report_config *report;

    ms_comm *comm; /* borrowed */
    int rank, ranks;
    bool quiet;
    ms_run_lock *lock;
    ms_device *device;
    ms_tokenizer *tokenizer;
    ms_dataset *train_data, *valid_data; /* valid_data NULL: none */
    ms_model *model;
    ms_layout layout;
    ms_reduction reduction;
    ms_program *program;
    ms_engine *engine;
    int64_t sequence, micro_batch_size, micro_batches; /* of this replica */
    ms_train_state state;
    char resumed_from[MS_PATH_BYTES]; /* empty: a fresh start */

    int32_t *tokens, *targets; /* of this replica's part of a global batch */
    int64_t *samples;
    ms_micro_batch *batches;
} ms_session;

/* On failure everything opened so far is closed. dry_run stops before the engine. */
ms_status ms_session_open(ms_config *config, ms_comm *comm, bool quiet, bool dry_run,
                          ms_session *session);
void ms_session_close(ms_session *session);

/* Fills `batches` with this replica's part of the global batch that begins at state.samples. */
ms_status ms_session_load_batch(ms_session *session);

/* resume.c: weights and state from a checkpoint, from model.from, or from the seed. */
ms_status ms_session_find_resume(ms_session *session); /* fills state and resumed_from */
ms_status ms_session_load(ms_session *session);
ms_status ms_session_save(ms_session *session);

/* evaluate.c: mean loss over validation data, the same on every rank. batches 0: all of it. */
ms_status ms_session_evaluate(ms_session *session, int64_t batches, double *loss, int64_t *tokens);

/* loop.c: updates from state.step to train.steps, with evaluations, figures and checkpoints. */
typedef struct ms_loop_result {
    double loss, val_loss; /* NaN when never computed */
    double tokens_per_s;   /* over all updates but the first */
    bool stopped;
} ms_loop_result;
ms_status ms_session_loop(ms_session *session, const ms_train_options *options,
                          ms_loop_result *result);
/* Set by ms_train_stop: save after the present update, then return. */
bool ms__train_stop_requested(void);

/* peak.c: GFLOP/s of one rank's matmuls of a type, measured in some 30 ms. */
ms_status ms_measure_peak(ms_device *device, ms_dtype dtype, double *gflops);

#endif
