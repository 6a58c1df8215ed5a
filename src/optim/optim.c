/*
 * optim.c - section `optimizer`, learning-rate schedules, clipping, hyper-parameters of a step.
 *
 * Where it stands: program/ asks which slot and how much state; train/ asks for the learning rate
 * of a step; engine/ fills the hyper-parameters that the update's kernel reads. The arithmetic is
 * the kernel's.
 *
 * Invariant: the learning rate is a function of step and tokens alone: nothing to save, nothing to
 * restore wrongly, and every replica computes the same bits. Rejected: a scheduler object with a
 * state of its own (after a resume it warms up again, or is one step behind).
 */
#include "optim/optim.h"

#include <inttypes.h>
#include <math.h>

#define FIELD(name) offsetof(ms_optimizer_config, name)

static const char *const optimizers[] = {"adamw", "sgd", NULL};
static const char *const decays[] = {"cosine", "linear", "constant", "wsd", NULL};

static const ms_key keys[] = {
    {"name", MS_KEY_ENUM, FIELD(name), "adamw", "", 0, 0, optimizers, false, "Optimiser."},
    {"lr", MS_KEY_REAL, FIELD(lr), "1e-3", "", 0, 1e6, NULL, false, "Peak learning rate."},
    {"min_lr", MS_KEY_REAL, FIELD(min_lr), "1e-4", "", 0, 1e6, NULL, false,
     "Learning rate at the end of the decay."},
    {"warmup_steps", MS_KEY_INT, FIELD(warmup_steps), "100", "updates", 0, 1e15, NULL, false,
     "Updates over which the learning rate rises from near zero."},
    {"warmup_tokens", MS_KEY_INT, FIELD(warmup_tokens), "0", "tokens", 0, 9e18, NULL, false,
     "When positive: tokens of the warm-up, in place of warmup_steps."},
    {"decay", MS_KEY_ENUM, FIELD(decay), "cosine", "", 0, 0, decays, false,
     "Shape of the decay from lr to min_lr; wsd stays at lr and falls in the last wsd_fraction."},
    {"decay_steps", MS_KEY_INT, FIELD(decay_steps), "auto", "updates", 1, 1e15, NULL, true,
     "Update at which min_lr is reached; auto: train.steps."},
    {"decay_tokens", MS_KEY_INT, FIELD(decay_tokens), "0", "tokens", 0, 9e18, NULL, false,
     "When positive: tokens at which min_lr is reached, in place of decay_steps."},
    {"wsd_fraction", MS_KEY_REAL, FIELD(wsd_fraction), "0.2", "", 0, 1, NULL, false,
     "wsd: last part of decay_steps (or decay_tokens) in which the learning rate falls."},
    {"beta1", MS_KEY_REAL, FIELD(beta1), "0.9", "", 0, 0.999999, NULL, false,
     "AdamW: decay of the first moment."},
    {"beta2", MS_KEY_REAL, FIELD(beta2), "0.99", "", 0, 0.999999999, NULL, false,
     "AdamW: decay of the second moment."},
    {"eps", MS_KEY_REAL, FIELD(eps), "1e-8", "", 0, 1, NULL, false,
     "AdamW: added to the root of the second moment."},
    {"weight_decay", MS_KEY_REAL, FIELD(weight_decay), "0.1", "", 0, 100, NULL, false,
     "Weight decay of matrices; vectors (norms, biases) do not decay."},
    {"momentum", MS_KEY_REAL, FIELD(momentum), "0.9", "", 0, 0.999999, NULL, false,
     "SGD: momentum; 0 keeps no state."},
    {"nesterov", MS_KEY_BOOL, FIELD(nesterov), "false", "", 0, 0, NULL, false,
     "SGD: Nesterov's form."},
    {"clip_grad", MS_KEY_REAL, FIELD(clip_grad), "1.0", "", 0, 1e12, NULL, false,
     "Largest global gradient norm; 0: no clipping."},
};

const ms_config_section ms_optimizer_section = {
    .name = "optimizer",
    .doc = "The optimiser and its learning rate.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_optimizer_config),
};

int ms_optimizer_state_count(const ms_optimizer_config *config) {
    return config->name == MS_OPTIMIZER_ADAMW ? 2 : config->momentum > 0 ? 1 : 0;
}

const char *ms_optimizer_state_name(const ms_optimizer_config *config, int index) {
    if (config->name == MS_OPTIMIZER_SGD) {
        return "momentum_buffer";
    }
    return index == 0 ? "exp_avg" : "exp_avg_sq";
}

ms_slot ms_optimizer_slot(const ms_optimizer_config *config) {
    return config->name == MS_OPTIMIZER_ADAMW ? MS_SLOT_ADAMW : MS_SLOT_SGD;
}

/* Where the decay begins, where it ends and where the run is, all in updates or all in tokens. */
typedef struct decay_span {
    double begin, end, at;
} decay_span;

static decay_span span_of(const ms_optimizer_config *config, int64_t step, int64_t steps_total,
                          int64_t tokens) {
    bool warm_by_tokens = config->warmup_tokens > 0;
    if (config->decay_tokens > 0) {
        return (decay_span){.begin = warm_by_tokens ? (double)config->warmup_tokens : 0,
                            .end = (double)config->decay_tokens,
                            .at = (double)tokens};
    }
    int64_t end = config->decay_steps == MS_AUTO ? steps_total : config->decay_steps;
    return (decay_span){.begin = warm_by_tokens ? 0 : (double)config->warmup_steps,
                        .end = (double)end,
                        .at = (double)step};
}

/* Part of the way from `begin` to `end` that has been gone. */
static double part_gone(double begin, double end, double at) {
    if (at >= end) {
        return 1;
    }
    return at <= begin ? 0 : (at - begin) / (end - begin);
}

/* Exactly lr and min_lr at the ends, which lr - (lr - min_lr) need not be. */
static double between(const ms_optimizer_config *config, double above) {
    if (above >= 1) {
        return config->lr;
    }
    return above <= 0 ? config->min_lr : config->min_lr + above * (config->lr - config->min_lr);
}

static double decayed(const ms_optimizer_config *config, decay_span span) {
    double gone = part_gone(span.begin, span.end, span.at);
    switch ((ms_decay_kind)config->decay) {
    case MS_DECAY_COSINE:
        return between(config, 0.5 * (1.0 + cos(acos(-1.0) * gone)));
    case MS_DECAY_LINEAR:
        return between(config, 1.0 - gone);
    case MS_DECAY_WSD: {
        double fall = fmax(span.begin, (1.0 - config->wsd_fraction) * span.end);
        return between(config, 1.0 - part_gone(fall, span.end, span.at));
    }
    default:
        return config->lr;
    }
}

double ms_learning_rate(const ms_optimizer_config *config, int64_t step, int64_t steps_total,
                        int64_t tokens) {
    bool by_tokens = config->warmup_tokens > 0;
    int64_t warmup = by_tokens ? config->warmup_tokens : config->warmup_steps;
    int64_t at = by_tokens ? tokens : step;
    if (at < warmup) {
        return config->lr * ((double)at + 1.0) / ((double)warmup + 1.0);
    }
    return decayed(config, span_of(config, step, steps_total, tokens));
}

double ms_clip_scale(double clip, double norm) {
    if (clip <= 0) {
        return 1;
    }
    return isfinite(norm) ? fmin(1, clip / (norm + 1e-6)) : 0;
}

void ms_optimizer_hyper(const ms_optimizer_config *config, int64_t step, double learning_rate,
                        double gradient_scale, bool decays_weights, double *hyper) {
    bool adamw = config->name == MS_OPTIMIZER_ADAMW;
    hyper[MS_HYPER_LEARNING_RATE] = learning_rate;
    hyper[MS_HYPER_WEIGHT_DECAY] = decays_weights ? config->weight_decay : 0;
    hyper[MS_HYPER_BETA1] = adamw ? config->beta1 : config->momentum;
    hyper[MS_HYPER_BETA2] = config->beta2;
    hyper[MS_HYPER_EPSILON] = config->eps;
    hyper[MS_HYPER_STEP] = (double)(step + 1);
    hyper[MS_HYPER_GRADIENT_SCALE] = gradient_scale;
}

/* A decay that ends before the warm-up does would jump from lr to min_lr. */
static ms_status check_decay(const ms_optimizer_config *config) {
    if (config->decay_tokens > 0 && config->decay_tokens <= config->warmup_tokens) {
        return ms_fail(MS_ERR_CONFIG,
                       "optimizer.decay_tokens %" PRId64
                       " must be above optimizer.warmup_tokens %" PRId64,
                       config->decay_tokens, config->warmup_tokens);
    }
    bool by_steps = config->decay_tokens == 0 && config->warmup_tokens == 0;
    if (by_steps && config->decay_steps != MS_AUTO && config->decay_steps <= config->warmup_steps) {
        return ms_fail(MS_ERR_CONFIG,
                       "optimizer.decay_steps %" PRId64
                       " must be above optimizer.warmup_steps %" PRId64
                       "; lower the warm-up or set optimizer.decay_steps=auto (train.steps)",
                       config->decay_steps, config->warmup_steps);
    }
    if (config->decay == MS_DECAY_WSD && config->wsd_fraction <= 0) {
        return ms_fail(MS_ERR_CONFIG, "optimizer.wsd_fraction must be above 0 for decay wsd");
    }
    return MS_OK;
}

ms_status ms_optimizer_config_check(const ms_optimizer_config *config) {
    if (config->decay != MS_DECAY_CONSTANT) {
        if (config->min_lr > config->lr) {
            return ms_fail(MS_ERR_CONFIG,
                           "optimizer.min_lr %g is above optimizer.lr %g; lower it, or set "
                           "optimizer.decay=constant",
                           config->min_lr, config->lr);
        }
        MS_TRY(check_decay(config));
    }
    if (config->name == MS_OPTIMIZER_SGD && config->nesterov && config->momentum <= 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "optimizer.nesterov needs optimizer.momentum above 0 (0.9 is usual)");
    }
    return MS_OK;
}
