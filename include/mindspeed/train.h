/*
 * train.h - train a language model from a configuration file, from your own program. Since 0.1.
 *
 *   ms_train_options options = MS_TRAIN_OPTIONS_INIT;
 *   options.config_path = "gpt.yaml";
 *   ms_train_summary summary;
 *   if (ms_train(&options, &summary) != MS_OK) fprintf(stderr, "%s\n", ms_error_detail());
 *
 * One rank calls it in one process; `mindspeed train --ranks N` starts N of them.
 */
#ifndef MINDSPEED_TRAIN_H
#define MINDSPEED_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include <mindspeed/comm.h>
#include <mindspeed/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is known after each update; on every rank. */
typedef struct ms_train_progress {
    int64_t step, steps_total, tokens;
    double loss, grad_norm, learning_rate, step_ms, tokens_per_s;
} ms_train_progress;

typedef struct ms_train_options {
    size_t struct_size;
    const char *config_path;              /* YAML; NULL: defaults */
    const char *const *assignments;       /* "section.key=value" */
    int assignment_count;
    int use_environment;                  /* MS_SECTION_KEY */
    ms_comm *comm;                        /* of all ranks; NULL: joins the job it was launched for */
    int dry_run;                          /* print plan and memory, train nothing */
    int quiet;                            /* print nothing to stdout */
    void (*on_step)(const ms_train_progress *progress, void *context); /* may be NULL */
    void *context;
} ms_train_options;
#define MS_TRAIN_OPTIONS_INIT                                                                      \
    { sizeof(ms_train_options), NULL, NULL, 0, 1, NULL, 0, 0, NULL, NULL }

typedef struct ms_train_summary {
    int64_t steps, tokens, resumed_from_step;
    double loss, val_loss;       /* NaN when never computed */
    double tokens_per_s;         /* over this call's updates but the first */
    uint64_t memory_bytes;       /* of this rank, planned and held */
    int stopped;                 /* 1: ms_train_stop was called, the state is saved */
} ms_train_summary;

/*
 * Trains, or resumes, to the configuration's train.steps. Blocks. Errors: MS_ERR_CONFIG,
 * MS_ERR_MEMORY_LIMIT, MS_ERR_NUMERIC (no update made), MS_ERR_PEER, ...; ms_error_detail() is one line.
 * One call at a time in a process. summary is written on success.
 */
MS_API ms_status ms_train(const ms_train_options *options, ms_train_summary *summary);

/*
 * Asks a running ms_train to save after the present update and return. Async-signal-safe; but let no handler run on a
 * thread that computes unless it has a stack of its own (sigaltstack, SA_ONSTACK): generated matrix kernels use the stack
 * pointer for other things. A thread that waits with sigwait, as `mindspeed train` has, is the simple way.
 */
MS_API void ms_train_stop(void);

#ifdef __cplusplus
}
#endif
#endif
