/*
 * optim.c - section `optimizer`, learning-rate schedules, clipping, hyper-parameters of a step.
 *
 * The learning rate is a function of step and tokens alone: nothing to save, nothing to restore wrongly.
 */
#include "optim/optim.h"

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
     "Part of the run in which wsd falls."},
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

/* How far a run has come: by tokens where a number of tokens is set, else by updates. */
static double progress(int64_t tokens_total, int64_t tokens, int64_t steps_total, int64_t step) {
    return tokens_total > 0 ? (double)tokens / (double)tokens_total
                            : (double)step / (double)ms_max_i64(steps_total, 1);
}

static double decayed(const ms_optimizer_config *config, double done) {
    double range = config->lr - config->min_lr;
    switch ((ms_decay_kind)config->decay) {
    case MS_DECAY_COSINE:
        return config->min_lr + 0.5 * (1.0 + cos(acos(-1.0) * done)) * range;
    case MS_DECAY_LINEAR:
        return config->lr - done * range;
    case MS_DECAY_WSD: {
        double begin = 1.0 - config->wsd_fraction;
        double falling = done <= begin ? 0 : (done - begin) / config->wsd_fraction;
        return config->lr - falling * range;
    }
    default:
        return config->lr;
    }
}

double ms_learning_rate(const ms_optimizer_config *config, int64_t step, int64_t steps_total,
                        int64_t tokens) {
    bool warm_by_tokens = config->warmup_tokens > 0;
    if (warm_by_tokens ? tokens < config->warmup_tokens : step < config->warmup_steps) {
        double part = warm_by_tokens
                          ? (double)(tokens + 1) / (double)(config->warmup_tokens + 1)
                          : (double)(step + 1) / (double)(config->warmup_steps + 1);
        return config->lr * part;
    }
    int64_t decay_steps = config->decay_steps == MS_AUTO ? steps_total : config->decay_steps;
    double warm = warm_by_tokens
                      ? progress(config->decay_tokens, config->warmup_tokens, decay_steps, step)
                      : progress(0, 0, decay_steps, config->warmup_steps);
    if (config->decay_tokens > 0 && !warm_by_tokens) {
        warm = 0;
    }
    if (warm_by_tokens && config->decay_tokens == 0) {
        warm = 0;
    }
    double done = progress(config->decay_tokens, tokens, decay_steps, step);
    double fraction = warm >= 1 ? 1 : (done - warm) / (1 - warm);
    return decayed(config, fmin(1, fmax(0, fraction)));
}

/* Not finite in: NaN or 0 out; the caller refuses such a norm before it gets here. */
double ms_clip_scale(double clip, double norm) {
    if (clip <= 0) {
        return 1;
    }
    double scale = clip / (norm + 1e-6);
    return scale < 1 ? scale : norm == norm ? 1 : scale;
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

ms_status ms_optimizer_config_check(const ms_optimizer_config *config) {
    if (config->min_lr > config->lr && config->decay != MS_DECAY_CONSTANT) {
        return ms_fail(MS_ERR_CONFIG, "optimizer.min_lr %g is above optimizer.lr %g", config->min_lr,
                       config->lr);
    }
    if (config->decay == MS_DECAY_WSD && config->wsd_fraction <= 0) {
        return ms_fail(MS_ERR_CONFIG, "optimizer.wsd_fraction must be above 0 for decay wsd");
    }
    return MS_OK;
}
