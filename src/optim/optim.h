/*
 * optim.h - optimisers, learning-rate schedules and clipping, as numbers for a step. The arithmetic
 * over tensors is in device slots; this room says which slot, how much state, and with which
 * hyper-parameters. Pure functions; thread-safe.
 */
#ifndef MS_OPTIM_OPTIM_H
#define MS_OPTIM_OPTIM_H

#include "base/config.h"
#include "device/kernel.h"

typedef enum ms_optimizer_kind { MS_OPTIMIZER_ADAMW, MS_OPTIMIZER_SGD } ms_optimizer_kind;
typedef enum ms_decay_kind {
    MS_DECAY_COSINE,   /* Loshchilov & Hutter 2017, eq. 5 without restarts, from lr to min_lr */
    MS_DECAY_LINEAR,
    MS_DECAY_CONSTANT,
    MS_DECAY_WSD, /* warm-up, stable, decay over the last optimizer.wsd_fraction (Hu et al. 2024) */
} ms_decay_kind;

/* Section `optimizer` of the config. */
typedef struct ms_optimizer_config {
    int name; /* ms_optimizer_kind */
    double lr, min_lr;
    int64_t warmup_steps, warmup_tokens; /* tokens, when > 0, take the place of steps */
    int64_t decay_steps;                 /* MS_AUTO: train.steps */
    int64_t decay_tokens;                /* when > 0, in place of steps */
    int decay;                           /* ms_decay_kind */
    double wsd_fraction;
    double beta1, beta2, eps, weight_decay;
    double momentum;
    bool nesterov;
    double clip_grad; /* 0: no clipping */
} ms_optimizer_config;

extern const ms_config_section ms_optimizer_section;

/* State tensors beside the weight: adamw 2, sgd 1 or 0; with their names in checkpoints. */
int ms_optimizer_state_count(const ms_optimizer_config *config);
const char *ms_optimizer_state_name(const ms_optimizer_config *config, int index); /* "exp_avg" */
ms_slot ms_optimizer_slot(const ms_optimizer_config *config);

/*
 * The learning rate of step `step` (0 is the first) after `tokens` tokens have been trained on: a
 * function of these alone, so that a resumed run has nothing to restore.
 *   warm-up  lr (step + 1) / (warmup_steps + 1) while step < warmup_steps; or the same with tokens
 *   decay    from the end of the warm-up to decay_steps (or decay_tokens), then min_lr. Where warm-up
 *            and decay count in different units, the decay counts from the run's start.
 *   wsd      lr until the last wsd_fraction of decay_steps (or decay_tokens), then straight to min_lr
 */
double ms_learning_rate(const ms_optimizer_config *config, int64_t step, int64_t steps_total,
                        int64_t tokens);
/*
 * min(1, clip / (norm + 1e-6)), as PyTorch's clip_grad_norm_; 1 when clip is 0. Always finite: a
 * norm that is not a finite number gives 0 (where clip is above 0), never 1 and never NaN. That does
 * not make the gradient harmless (0 x NaN is NaN): the caller makes no update with such a norm.
 */
double ms_clip_scale(double clip, double norm);
/* Fills MS_HYPER_COUNT numbers for an update; decays says whether weight decay applies. */
void ms_optimizer_hyper(const ms_optimizer_config *config, int64_t step, double learning_rate,
                        double gradient_scale, bool decays, double *hyper);
/* Checks what ranges alone cannot (min_lr <= lr, ...). */
ms_status ms_optimizer_config_check(const ms_optimizer_config *config);

#endif
