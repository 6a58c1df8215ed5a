/*
 * train_config.h - the configuration of a run: sections train, run, precision, comm and evaluate, and the list
 * of all sections of the product, from which help, --set, MS_* and docs/config.md come.
 */
#ifndef MS_TRAIN_TRAIN_CONFIG_H
#define MS_TRAIN_TRAIN_CONFIG_H

#include "base/config.h"
#include "base/types.h"

typedef struct ms_train_config {
    int64_t steps, global_batch_size, micro_batch_size, seed, reduction_groups;
    bool deterministic;
} ms_train_config;

typedef struct ms_run_section {
    int64_t threads, memory_limit_mib;
    int log_level; /* ms_log_level */
} ms_run_section;

typedef struct ms_precision_config {
    int compute; /* index of fp32, bf16, fp64 */
    int gradients, optimizer;
} ms_precision_config;

typedef struct ms_comm_config {
    int transport; /* ms_comm_transport: auto, shm */
    int codec;     /* none */
    int64_t bucket_mib;
    bool overlap;
    double death_timeout_s, operation_timeout_s;
} ms_comm_config;

typedef struct ms_evaluate_config {
    int64_t every_steps, batches;
} ms_evaluate_config;

/* Every section of a training configuration, in the order of docs/config.md; the count is written. */
const ms_config_section *const *ms_train_sections(int *count);
/* precision.compute as a type. */
ms_dtype ms_precision_compute(const ms_precision_config *config);

#endif
