/* train_config.c - the tables of the training loop's own sections, and the list of all sections. */
#include "train/train_config.h"

#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "layout/parallel.h"
#include "model/model.h"
#include "optim/optim.h"
#include "train/metrics.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

#define FIELD(name) offsetof(ms_train_config, name)
static const ms_key train_keys[] = {
    {"steps", MS_KEY_INT, FIELD(steps), "2000", "updates", 1, 1e15, NULL, false,
     "Updates of the weights to make in all, counted over resumed runs."},
    {"global_batch_size", MS_KEY_INT, FIELD(global_batch_size), "12", "sequences", 1, 1e12, NULL, false,
     "Sequences of one update, over all replicas."},
    {"micro_batch_size", MS_KEY_INT, FIELD(micro_batch_size), "auto", "sequences", 1, 1e9, NULL, true,
     "Sequences computed at once on one replica; auto: the largest divisor of global_batch_size up to 8."},
    {"seed", MS_KEY_INT, FIELD(seed), "1337", "", 0, 9e18, NULL, false,
     "Seed of weights, data order and dropout."},
    {"deterministic", MS_KEY_BOOL, FIELD(deterministic), "true", "", 0, 0, NULL, false,
     "The same bits in every run and for any number of replicas; on the CPU this costs nothing and cannot be switched off."},
    {"reduction_groups", MS_KEY_INT, FIELD(reduction_groups), "auto", "", 1, 1e9, NULL, true,
     "Equal runs of micro-batches whose gradients are the leaves of the sum's tree; auto: the largest power of two up to 8 that divides the micro-batches."},
};
#undef FIELD

#define FIELD(name) offsetof(ms_run_section, name)
static const char *const log_levels[] = {"error", "warn", "info", "debug", "trace", NULL};
static const ms_key run_keys[] = {
    {"threads", MS_KEY_INT, FIELD(threads), "auto", "", 1, 4096, NULL, true,
     "Threads of each rank; auto: cores / ranks on this machine."},
    {"memory_limit_mib", MS_KEY_INT, FIELD(memory_limit_mib), "0", "MiB", 0, 1e12, NULL, false,
     "Memory one rank may plan to use; 0: no limit. What does not fit is refused before anything starts."},
    {"log_level", MS_KEY_ENUM, FIELD(log_level), "info", "", 0, 0, log_levels, false,
     "How much is written to stderr."},
};
#undef FIELD

#define FIELD(name) offsetof(ms_precision_config, name)
static const char *const compute_types[] = {"fp32", "bf16", "fp64", NULL};
static const char *const wide_types[] = {"fp32", NULL};
static const ms_key precision_keys[] = {
    {"compute", MS_KEY_ENUM, FIELD(compute), "fp32", "", 0, 0, compute_types, false,
     "Type of activations and of the weights kernels read; sums are taken in fp32 for bf16. fp64 uses the reference kernels, and fp64 for everything."},
    {"gradients", MS_KEY_ENUM, FIELD(gradients), "fp32", "", 0, 0, wide_types, false,
     "Type in which gradients of weights are accumulated."},
    {"optimizer", MS_KEY_ENUM, FIELD(optimizer), "fp32", "", 0, 0, wide_types, false,
     "Type of master weights and of the optimiser's state."},
};
#undef FIELD

#define FIELD(name) offsetof(ms_comm_config, name)
static const char *const transports[] = {"auto", "shm", NULL};
static const char *const codecs[] = {"none", NULL};
static const ms_key comm_keys[] = {
    {"transport", MS_KEY_ENUM, FIELD(transport), "auto", "", 0, 0, transports, false,
     "How bytes move between ranks; auto: shared memory within this machine."},
    {"codec", MS_KEY_ENUM, FIELD(codec), "none", "", 0, 0, codecs, false,
     "Compression of gradients between machines."},
    {"bucket_mib", MS_KEY_INT, FIELD(bucket_mib), "25", "MiB", 1, 65536, NULL, false,
     "Gradients are reduced in buckets of about this size."},
    {"overlap", MS_KEY_BOOL, FIELD(overlap), "true", "", 0, 0, NULL, false,
     "Reduce a bucket while the backward goes on; the bits are the same on and off."},
    {"death_timeout_s", MS_KEY_REAL, FIELD(death_timeout_s), "10", "s", 0.1, 86400, NULL, false,
     "A rank that is silent for so long is dead; also the wait for all ranks to start."},
    {"operation_timeout_s", MS_KEY_REAL, FIELD(operation_timeout_s), "600", "s", 0.1, 1e6, NULL, false,
     "Longest wait for the other ranks in one operation."},
};
#undef FIELD

#define FIELD(name) offsetof(ms_evaluate_config, name)
static const ms_key evaluate_keys[] = {
    {"every_steps", MS_KEY_INT, FIELD(every_steps), "250", "updates", 0, 1e15, NULL, false,
     "Evaluate on the validation data after so many updates, and at the end; 0: never."},
    {"batches", MS_KEY_INT, FIELD(batches), "20", "global batches", 0, 1e12, NULL, false,
     "Global batches of one evaluation; 0: the whole validation data."},
};
#undef FIELD

static const ms_config_section train_section = {
    "train", "Steps, batch and seed.", train_keys, COUNT(train_keys), sizeof(ms_train_config), false};
static const ms_config_section run_section = {
    "run", "This machine: threads, memory, messages.", run_keys, COUNT(run_keys),
    sizeof(ms_run_section), false};
static const ms_config_section precision_section = {
    "precision", "Number types.", precision_keys, COUNT(precision_keys),
    sizeof(ms_precision_config), false};
static const ms_config_section comm_section = {
    "comm", "Communication between ranks.", comm_keys, COUNT(comm_keys), sizeof(ms_comm_config),
    false};
static const ms_config_section evaluate_section = {
    "evaluate", "Evaluation during training.", evaluate_keys, COUNT(evaluate_keys),
    sizeof(ms_evaluate_config), false};

const ms_config_section *const *ms_train_sections(int *count) {
    static const ms_config_section *const sections[] = {
        &ms_model_section,     &ms_data_section,       &train_section,
        &run_section,          &ms_optimizer_section,  &precision_section,
        &ms_parallel_section,  &comm_section,          &ms_checkpoint_section,
        &evaluate_section,     &ms_report_section,
    };
    *count = COUNT(sections);
    return sections;
}

ms_dtype ms_precision_compute(const ms_precision_config *config) {
    static const ms_dtype types[] = {MS_F32, MS_BF16, MS_F64};
    return types[config->compute];
}
