/* mesh.c - ranks and coordinates: rank = sum over axes of coordinate x (product of the sizes inside). */
#include "layout/layout.h"

const char *ms_axis_name(ms_axis axis) {
    static const char *const names[] = {"tensor", "context", "expert", "data", "pipeline"};
    return axis >= 0 && axis < MS_AXIS_COUNT ? names[axis] : "none";
}

int64_t ms_mesh_ranks(const ms_mesh *mesh) {
    int64_t ranks = 1;
    for (int axis = 0; axis < MS_AXIS_COUNT; axis++) {
        ranks *= mesh->size[axis];
    }
    return ranks;
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
