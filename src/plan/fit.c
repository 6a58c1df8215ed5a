/*
 * fit.c - see fit.h. Main path: train/session.c lowers a program and asks here before anything is
 * allocated.
 */
#include "plan/fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

typedef struct fix_candidate {
    int64_t rank_factor; /* replicas, times today's */
    bool zero;
    ms_recompute_policy recompute;
    int64_t micro_batch_divisor;
} fix_candidate;

static const fix_candidate candidates[] = {
    {1, true, MS_RECOMPUTE_NONE, 1},      {1, true, MS_RECOMPUTE_SELECTIVE, 1},
    {2, true, MS_RECOMPUTE_NONE, 1},      {2, true, MS_RECOMPUTE_SELECTIVE, 1},
    {1, true, MS_RECOMPUTE_FULL, 1},      {2, true, MS_RECOMPUTE_FULL, 1},
    {1, true, MS_RECOMPUTE_NONE, 2},      {1, true, MS_RECOMPUTE_FULL, 2},
    {2, true, MS_RECOMPUTE_FULL, 2},      {4, true, MS_RECOMPUTE_NONE, 1},
    {4, true, MS_RECOMPUTE_FULL, 1},      {4, true, MS_RECOMPUTE_FULL, 2},
    {8, true, MS_RECOMPUTE_FULL, 1},      {8, true, MS_RECOMPUTE_FULL, 4},
};

/* MS_AUTO when the request's groups are what auto makes; else they were asked for, and a fix keeps
 * them. */
static int64_t groups_of(const ms_reduction *reduction) {
    ms_reduction automatic;
    bool same = ms_reduction_make(reduction->micro_batches, reduction->replicas, MS_AUTO,
                                  &automatic) == MS_OK &&
                automatic.groups == reduction->groups;
    return same ? MS_AUTO : reduction->groups;
}

/* Turns a request into the candidate's; false when it cannot be had (or is no change). */
static bool apply(const fix_candidate *candidate, int64_t ranks_max, ms_program_request *request,
                  ms_layout *layout) {
    int64_t global = request->micro_batches * layout->mesh.size[MS_AXIS_DATA];
    int64_t replicas = layout->mesh.size[MS_AXIS_DATA] * candidate->rank_factor;
    layout->mesh.size[MS_AXIS_DATA] = replicas;
    if (ms_mesh_ranks(&layout->mesh) > ranks_max && candidate->rank_factor > 1) {
        return false;
    }
    if (candidate->recompute < layout->recompute ||
        request->micro_batch_size % candidate->micro_batch_divisor != 0) {
        return false;
    }
    layout->recompute = candidate->recompute;
    layout->zero = replicas > 1 && candidate->zero ? 1 : layout->zero;
    request->micro_batch_size /= candidate->micro_batch_divisor;
    global *= candidate->micro_batch_divisor;
    if (global % replicas != 0) {
        return false;
    }
    request->micro_batches = global / replicas;
    int64_t groups = groups_of(&request->reduction);
    return ms_reduction_make(global, replicas, groups, &request->reduction) == MS_OK;
}

static void describe(const fix_candidate *candidate, const ms_program_request *from,
                     const ms_program_request *to, ms_fix *fix) {
    size_t at = 0;
    static const char *const policies[] = {"none", "selective", "full"};
    fix->change[0] = '\0';
    if (candidate->rank_factor > 1) {
        at += (size_t)snprintf(fix->change + at, sizeof fix->change - at, "--ranks %" PRId64 " ",
                               ms_mesh_ranks(&to->layout->mesh));
    }
    if (to->layout->zero != from->layout->zero) {
        at += (size_t)snprintf(fix->change + at, sizeof fix->change - at,
                               "--set parallel.zero=%d ", to->layout->zero);
    }
    if (to->layout->recompute != from->layout->recompute) {
        at += (size_t)snprintf(fix->change + at, sizeof fix->change - at,
                               "--set parallel.recompute=%s ", policies[to->layout->recompute]);
    }
    if (to->micro_batch_size != from->micro_batch_size) {
        at += (size_t)snprintf(fix->change + at, sizeof fix->change - at,
                               "--set train.micro_batch_size=%" PRId64 " ", to->micro_batch_size);
    }
    if (at > 0) {
        fix->change[at - 1] = '\0';
    }
    snprintf(fix->cost, sizeof fix->cost, "%s",
             candidate->recompute == MS_RECOMPUTE_FULL        ? "about a third more computing"
             : candidate->recompute == MS_RECOMPUTE_SELECTIVE ? "a few percent more computing"
             : candidate->rank_factor > 1                     ? "no more computing per token"
                                                              : "smaller matmuls");
}

/* Bytes of the rank that needs the most; above limit_bytes as soon as one does. SIZE_MAX: cannot be
 * lowered. */
static size_t most_bytes(const ms_program_request *tried, ms_layout *layout, size_t limit_bytes) {
    size_t most = 0;
    int64_t ranks = ms_mesh_ranks(&layout->mesh);
    /* Stages hold other layers, replicas slices of other sizes; tensor ranks are alike. */
    for (int64_t rank = 0; rank < ranks && most <= limit_bytes; rank++) {
        layout->rank = rank;
        layout->at = ms_mesh_coordinates(&layout->mesh, rank);
        if (layout->at.at[MS_AXIS_TENSOR] > 0) {
            continue;
        }
        ms_program *program;
        if (ms_program_create(tried, &program) != MS_OK) {
            return SIZE_MAX; /* what cannot be lowered is no fix */
        }
        most = program->memory.total_bytes > most ? program->memory.total_bytes : most;
        ms_program_destroy(program);
    }
    return most;
}

ms_status ms_plan_cheapest_fix(const ms_program_request *request, size_t limit_bytes,
                               int64_t ranks_max, ms_fix *fix) {
    *fix = (ms_fix){0};
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        ms_program_request tried = *request;
        ms_layout layout = *request->layout;
        tried.layout = &layout;
        if (!apply(&candidates[i], ranks_max, &tried, &layout)) {
            continue;
        }
        size_t bytes = most_bytes(&tried, &layout, limit_bytes);
        if (bytes <= limit_bytes) {
            describe(&candidates[i], request, &tried, fix);
            fix->total_bytes = bytes;
            if (fix->change[0] != '\0') {
                return MS_OK;
            }
        }
    }
    return MS_OK;
}

ms_status ms_plan_check_fit(const ms_program *program, size_t limit_bytes, int64_t ranks_max) {
    size_t needed = program->memory.total_bytes;
    if (limit_bytes == 0 || needed <= limit_bytes) {
        return MS_OK;
    }
    ms_fix fix;
    MS_TRY(ms_plan_cheapest_fix(&program->request, limit_bytes, ranks_max, &fix));
    char who[48] = "each rank needs", need[32], limit[32], with[32];
    if (program->layout.mesh.size[MS_AXIS_PIPELINE] > 1) { /* stages differ */
        snprintf(who, sizeof who, "rank %" PRId64 " needs", program->layout.rank);
    }
    ms_format_bytes(needed, need, sizeof need);
    ms_format_bytes(limit_bytes, limit, sizeof limit);
    if (fix.change[0] == '\0') {
        return ms_fail(MS_ERR_MEMORY_LIMIT,
                       "%s %zu bytes (%s), run.memory_limit_mib allows %zu (%s); "
                       "nothing tried fits: use more ranks or a smaller model",
                       who, needed, need, limit_bytes, limit);
    }
    return ms_fail(MS_ERR_MEMORY_LIMIT,
                   "%s %zu bytes (%s), run.memory_limit_mib allows %zu (%s); cheapest "
                   "fix: %s (then %zu bytes, %s, per rank; %s)",
                   who, needed, need, limit_bytes, limit, fix.change, fix.total_bytes,
                   ms_format_bytes(fix.total_bytes, with, sizeof with), fix.cost);
}
