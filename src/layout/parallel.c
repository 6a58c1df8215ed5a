/* parallel.c - see parallel.h. */
#include "layout/parallel.h"

#include <inttypes.h>

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
    {"context", MS_KEY_INT, FIELD(context), "1", "ranks", 1, 1, NULL, false,
     "Ranks that share each sequence (context parallelism); 1 only, so far."},
    {"expert", MS_KEY_INT, FIELD(expert), "1", "ranks", 1, 1, NULL, false,
     "Ranks that share the experts of a layer; 1 only, so far."},
    {"zero", MS_KEY_INT, FIELD(zero), "1", "", 0, 1, NULL, false,
     "ZeRO stage: 0 keeps the optimiser's state on every replica, 1 divides it among replicas; the bits are the same."},
    {"zero_group", MS_KEY_ENUM, FIELD(zero_group), "all", "", 0, 0, zero_groups, false,
     "Replicas among which ZeRO divides."},
    {"schedule", MS_KEY_ENUM, FIELD(schedule), "1f1b", "", 0, 0, schedules, false,
     "Order of forward and backward of micro-batches over pipeline stages."},
    {"virtual_stages", MS_KEY_INT, FIELD(virtual_stages), "1", "", 1, 1, NULL, false,
     "Chunks of layers on each stage; 1 only, so far."},
    {"recompute", MS_KEY_ENUM, FIELD(recompute), "none", "", 0, 0, recompute_policies, false,
     "What is computed again in the backward instead of kept: nothing, norms and activations, or whole layers; the bits are the same."},
    {"sequence_parallel", MS_KEY_BOOL, FIELD(sequence_parallel), "true", "", 0, 0, NULL, false,
     "With tensor > 1: keep residuals and norms sharded along the sequence."},
};

const ms_config_section ms_parallel_section = {
    .name = "parallel",
    .doc = "How the model and the batch are divided among ranks.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_parallel_config),
    .allow_auto = false,
};

const char *ms_parallel_schedule(const ms_parallel_config *config) {
    return schedules[config->schedule];
}

ms_status ms_layout_make(const ms_parallel_config *config, int64_t ranks, int64_t rank,
                         int64_t layers, ms_layout *layout) {
    ms_layout made = {.rank = rank,
                      .zero = (int)config->zero,
                      .sequence_parallel = config->sequence_parallel,
                      .recompute = (ms_recompute_policy)config->recompute};
    int64_t model_ranks = config->tensor * config->pipeline;
    if (ranks < 1 || ranks > MS_RANKS_MAX || ranks % model_ranks != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.tensor %" PRId64 " x parallel.pipeline %" PRId64 " = %" PRId64
                       " does not divide %" PRId64 " ranks; use --ranks %" PRId64,
                       config->tensor, config->pipeline, model_ranks, ranks,
                       ms_ceil_div(ms_max_i64(ranks, 1), model_ranks) * model_ranks);
    }
    int64_t data = config->data == MS_AUTO ? ranks / model_ranks : config->data;
    if (data * model_ranks != ranks) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.data %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64
                       " = %" PRId64 " ranks, but there are %" PRId64,
                       data, config->tensor, config->pipeline, data * model_ranks, ranks);
    }
    if (config->pipeline > layers) {
        return ms_fail(MS_ERR_CONFIG,
                       "parallel.pipeline %" PRId64 " stages need as many layers; the model has %" PRId64,
                       config->pipeline, layers);
    }
    made.mesh = (ms_mesh){.size = {[MS_AXIS_TENSOR] = config->tensor,
                                   [MS_AXIS_CONTEXT] = config->context,
                                   [MS_AXIS_EXPERT] = config->expert,
                                   [MS_AXIS_DATA] = data,
                                   [MS_AXIS_PIPELINE] = config->pipeline}};
    made.at = ms_mesh_coordinates(&made.mesh, rank);
    for (int64_t stage = 0; stage < config->pipeline; stage++) {
        made.stage_layers[stage] = ms_split_even(layers, stage, config->pipeline);
    }
    *layout = made;
    return MS_OK;
}
