/*
 * parallel.c - section `parallel`, and a rank's layout made of it.
 *
 * Where it stands: train/ loads the section, then asks for this rank's layout; program/ lowers it.
 *
 *   ranks = tensor x context x data x pipeline      (expert divides data's ranks and is 1 here)
 *
 * Every number in a refusal is one that the user typed or can type: the product that does not
 * divide, the ranks that there are, the nearest number that would do.
 */
#include "layout/parallel.h"

#include <inttypes.h>
#include <stdio.h>

#define FIELD(name) offsetof(ms_parallel_config, name)

static const char *const schedules[] = {"1f1b", "gpipe", NULL};
static const char *const recompute_policies[] = {"none", "selective", "full", NULL};
static const char *const zero_groups[] = {"all", NULL};

static const ms_key keys[] = {
    {"data", MS_KEY_INT, FIELD(data), "auto", "ranks", 1, MS_RANKS_MAX, NULL, true,
     "Replicas of the model; auto: all ranks that the other axes leave."},
    {"tensor", MS_KEY_INT, FIELD(tensor), "1", "ranks", 1, MS_RANKS_MAX, NULL, false,
     "Ranks that share each layer's matrices (tensor parallelism)."},
    {"pipeline", MS_KEY_INT, FIELD(pipeline), "1", "ranks", 1, MS_STAGES_MAX, NULL, false,
     "Stages among which the layers are dealt (pipeline parallelism)."},
    {"context", MS_KEY_INT, FIELD(context), "1", "ranks", 1, MS_RANKS_MAX, NULL, false,
     "Ranks that share each sequence (context parallelism); 1 only, so far."},
    {"expert", MS_KEY_INT, FIELD(expert), "1", "ranks", 1, MS_RANKS_MAX, NULL, false,
     "Ranks that share the experts of a layer; 1 only, so far."},
    {"zero", MS_KEY_INT, FIELD(zero), "1", "", 0, 3, NULL, false,
     "ZeRO stage: 0 keeps the optimiser's state on every replica, 1 divides it among replicas; the "
     "bits are the same. 2 and 3 are refused, so far."},
    {"zero_group", MS_KEY_ENUM, FIELD(zero_group), "all", "", 0, 0, zero_groups, false,
     "Replicas among which ZeRO divides."},
    {"schedule", MS_KEY_ENUM, FIELD(schedule), "1f1b", "", 0, 0, schedules, false,
     "Order of forward and backward of micro-batches over pipeline stages."},
    {"virtual_stages", MS_KEY_INT, FIELD(virtual_stages), "1", "", 1, MS_STAGES_MAX, NULL, false,
     "Chunks of layers on each stage; 1 only, so far."},
    {"recompute", MS_KEY_ENUM, FIELD(recompute), "none", "", 0, 0, recompute_policies, false,
     "What is computed again in the backward instead of kept: nothing, norms and activations, or "
     "whole layers; the bits are the same."},
    {"sequence_parallel", MS_KEY_BOOL, FIELD(sequence_parallel), "true", "", 0, 0, NULL, false,
     "With tensor > 1: keep residuals and norms sharded along the sequence."},
};

const ms_config_section ms_parallel_section = {
    .name = "parallel",
    .doc = "How the model and the batch are divided among ranks.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_parallel_config),
    .allow_auto = true,
};

const char *ms_parallel_schedule(const ms_parallel_config *config) {
    return schedules[config->schedule];
}

static ms_status refuse(const char *key, int64_t value, const char *reason, const char *instead) {
    return ms_fail(MS_ERR_CONFIG, "parallel.%s %" PRId64 ": %s; set %s", key, value, reason,
                   instead);
}

ms_status ms_parallel_check(const ms_parallel_config *config) {
    if (config->zero > 1) {
        return refuse("zero", config->zero,
                      config->zero == 2 ? "dividing gradients among replicas is not built yet"
                                        : "dividing gradients and weights among replicas is not "
                                          "built yet",
                      "parallel.zero=1, which divides the optimiser's state");
    }
    if (config->context > 1) {
        return refuse("context", config->context,
                      "dividing a sequence's positions among ranks is not built yet",
                      "parallel.context=1 (parallel.tensor also divides the activations)");
    }
    if (config->expert > 1) {
        return refuse("expert", config->expert, "layers of experts are not built yet",
                      "parallel.expert=1");
    }
    if (config->virtual_stages > 1) {
        return refuse("virtual_stages", config->virtual_stages,
                      "interleaved schedules are not built yet", "parallel.virtual_stages=1");
    }
    return MS_OK;
}

ms_status ms_parallel_resolve(const ms_parallel_config *config, int64_t ranks, int64_t *data) {
    /* The mesh of one replica; its product is checked, as each size alone may be MS_RANKS_MAX. */
    ms_mesh one = {.size = {[MS_AXIS_TENSOR] = config->tensor,
                            [MS_AXIS_CONTEXT] = config->context,
                            [MS_AXIS_EXPERT] = 1,
                            [MS_AXIS_DATA] = 1,
                            [MS_AXIS_PIPELINE] = config->pipeline}};
    MS_TRY(ms_mesh_check(&one));
    if (ranks < 1 || ranks > MS_RANKS_MAX) {
        return ms_fail(MS_ERR_CONFIG, "a run has 1 to %d ranks, not %" PRId64, MS_RANKS_MAX, ranks);
    }
    int64_t each = ms_mesh_ranks(&one);
    char context[48] = "";
    if (config->context > 1) {
        snprintf(context, sizeof context, " x parallel.context %" PRId64, config->context);
    }
    if (ranks % each != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.tensor %" PRId64 " x parallel.pipeline %" PRId64 "%s = %" PRId64
                       " does not divide %" PRId64 " ranks; use --ranks %" PRId64,
                       config->tensor, config->pipeline, context, each, ranks,
                       ms_ceil_div(ranks, each) * each);
    }
    int64_t made = config->data == MS_AUTO ? ranks / each : config->data;
    if (made != ranks / each) {
        return ms_fail(
            MS_ERR_CONFIG,
            "parallel.data %" PRId64 " x parallel.tensor %" PRId64 " x parallel.pipeline %" PRId64
            "%s = %" PRId64 " ranks, but there are %" PRId64
            "; set parallel.data=auto or use --ranks %" PRId64,
            made, config->tensor, config->pipeline, context, made * each, ranks, made * each);
    }
    *data = made;
    return MS_OK;
}

ms_status ms_layers_deal(int64_t layers, int64_t stages, ms_segment *stage_layers) {
    if (stages < 1 || stages > MS_STAGES_MAX || stages > layers) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.pipeline %" PRId64
                       ": each stage needs a layer, the model has %" PRId64 "; use 1 to %" PRId64,
                       stages, layers, ms_max_i64(1, ms_min_i64(layers, MS_STAGES_MAX)));
    }
    for (int64_t stage = 0; stage < stages; stage++) {
        stage_layers[stage] = ms_split_even(layers, stage, stages);
    }
    return MS_OK;
}

ms_status ms_layout_make(const ms_parallel_config *config, int64_t ranks, int64_t rank,
                         int64_t layers, ms_layout *layout) {
    ms_layout made = {.rank = rank,
                      .zero = (int)config->zero,
                      .sequence_parallel = config->sequence_parallel,
                      .recompute = (ms_recompute_policy)config->recompute};
    int64_t data;
    MS_TRY(ms_parallel_check(config));
    MS_TRY(ms_parallel_resolve(config, ranks, &data));
    if (rank < 0 || rank >= ranks) {
        return ms_fail(MS_ERR_ARGUMENT, "rank %" PRId64 " is not one of %" PRId64 " ranks", rank,
                       ranks);
    }
    made.mesh = (ms_mesh){.size = {[MS_AXIS_TENSOR] = config->tensor,
                                   [MS_AXIS_CONTEXT] = config->context,
                                   [MS_AXIS_EXPERT] = config->expert,
                                   [MS_AXIS_DATA] = data,
                                   [MS_AXIS_PIPELINE] = config->pipeline}};
    MS_TRY(ms_mesh_check(&made.mesh));
    made.at = ms_mesh_coordinates(&made.mesh, rank);
    MS_TRY(ms_layers_deal(layers, config->pipeline, made.stage_layers));
    *layout = made;
    return MS_OK;
}
