/*
 * mesh.c - ranks and coordinates: rank = sum over axes of coordinate x (product of the sizes
 * inside).
 *
 * Where it stands: ms_layout_make places this rank; engine/ asks for its groups once, at the start.
 * Invariant: rank -> coordinates -> rank is the identity on [0, ranks); a group is ascending.
 * Rejected: a table of ranks per group (ranks^2 entries on every rank).
 */
#include <inttypes.h>

#include "layout/layout.h"

const char *ms_axis_name(ms_axis axis) {
    static const char *const names[] = {"tensor", "context", "expert", "data", "pipeline"};
    return axis >= 0 && axis < MS_AXIS_COUNT ? names[axis] : "none";
}

int64_t ms_mesh_ranks(const ms_mesh *mesh) {
    int64_t ranks = 1;
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        if (!ms_i64_mul(ranks, mesh->size[axis], &ranks)) {
            return INT64_MAX;
        }
    }
    return ranks;
}

ms_status ms_mesh_check(const ms_mesh *mesh) {
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        if (mesh->size[axis] < 1) {
            return ms_fail(MS_ERR_CONFIG, "a mesh has at least 1 rank along axis %s, not %" PRId64,
                           ms_axis_name((ms_axis)axis), mesh->size[axis]);
        }
    }
    const int64_t *size = mesh->size;
    if (ms_mesh_ranks(mesh) > MS_RANKS_MAX) {
        return ms_fail(MS_ERR_CONFIG,
                       "tensor %" PRId64 " x context %" PRId64 " x expert %" PRId64
                       " x data %" PRId64 " x pipeline %" PRId64 " are more than %d ranks",
                       size[MS_AXIS_TENSOR], size[MS_AXIS_CONTEXT], size[MS_AXIS_EXPERT],
                       size[MS_AXIS_DATA], size[MS_AXIS_PIPELINE], MS_RANKS_MAX);
    }
    return MS_OK;
}

ms_coordinates ms_mesh_coordinates(const ms_mesh *mesh, int64_t rank) {
    ms_coordinates coordinates;
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        coordinates.at[axis] = rank % mesh->size[axis];
        rank /= mesh->size[axis];
    }
    return coordinates;
}

int64_t ms_mesh_rank(const ms_mesh *mesh, const ms_coordinates *coordinates) {
    int64_t rank = 0;
    for (int axis = MS_AXIS_COUNT - 1; axis >= 0; axis--) {
        rank = rank * mesh->size[axis] + coordinates->at[axis];
    }
    return rank;
}

int64_t ms_mesh_group(const ms_mesh *mesh, int64_t rank, unsigned axis_mask, int *ranks,
                      int64_t ranks_max) {
    ms_coordinates at = ms_mesh_coordinates(mesh, rank);
    int64_t count = 1;
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        if (axis_mask >> axis & 1u) {
            at.at[axis] = 0;
            count *= mesh->size[axis];
        }
    }
    for (int64_t i = 0; i < count && i < ranks_max; i++) {
        ms_coordinates member = at;
        int64_t rest = i;
        for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
            if (axis_mask >> axis & 1u) {
                member.at[axis] = rest % mesh->size[axis];
                rest /= mesh->size[axis];
            }
        }
        ranks[i] = (int)ms_mesh_rank(mesh, &member);
    }
    return count;
}
