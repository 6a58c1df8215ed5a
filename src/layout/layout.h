/*
 * layout.h - WHERE things live: the mesh of ranks, shard rules, ZeRO ranges.
 *
 * The mesh has five axes. A rank's coordinates, its groups along axes and its neighbours come from
 * here; nothing above or below computes them again. Nesting, innermost first: tensor, context, expert,
 * data, pipeline, so that the axes that talk most are nearest. `expert` divides data's ranks (expert x
 * expert-data = data x context) and is 1 here until experts land; its place is in the order.
 */
#ifndef MS_LAYOUT_LAYOUT_H
#define MS_LAYOUT_LAYOUT_H

#include "tensor/axis.h"
#include "tensor/tensor.h"

#define MS_RANKS_MAX 65536

typedef struct ms_mesh {
    int64_t size[MS_AXIS_COUNT]; /* each >= 1 */
} ms_mesh;

typedef struct ms_coordinates {
    int64_t at[MS_AXIS_COUNT];
} ms_coordinates;

const char *ms_axis_name(ms_axis axis); /* "tensor" */
/* Sizes are at least 1 and make at most MS_RANKS_MAX ranks, else MS_ERR_CONFIG with the product.
 * The other functions want a checked mesh and coordinates inside it. */
ms_status ms_mesh_check(const ms_mesh *mesh);
int64_t ms_mesh_ranks(const ms_mesh *mesh); /* INT64_MAX when the product does not fit */
ms_coordinates ms_mesh_coordinates(const ms_mesh *mesh, int64_t rank);
int64_t ms_mesh_rank(const ms_mesh *mesh, const ms_coordinates *coordinates);
/*
 * The ranks that differ from `rank` only along the axes of the mask (bit 1 << axis), ascending in mesh
 * order; writes at most ranks_max, returns how many there are.
 */
int64_t ms_mesh_group(const ms_mesh *mesh, int64_t rank, unsigned axis_mask, int *ranks,
                      int64_t ranks_max);

typedef enum ms_recompute_policy {
    MS_RECOMPUTE_NONE,
    MS_RECOMPUTE_SELECTIVE, /* norms, activations, dropout: cheap to redo, large to keep */
    MS_RECOMPUTE_FULL,      /* all but each layer's input */
} ms_recompute_policy;

#define MS_STAGES_MAX 256

/* Everything about WHERE for one rank, as plain data. */
typedef struct ms_layout {
    ms_mesh mesh;
    int64_t rank;
    ms_coordinates at; /* of this rank */
    int zero;          /* ZeRO stage over data x context */
    bool sequence_parallel; /* norms and residuals sharded along the sequence over the tensor axis */
    ms_recompute_policy recompute;
    ms_segment stage_layers[MS_STAGES_MAX]; /* per pipeline stage */
} ms_layout;

/* How a logical tensor is cut along one axis. split_dim -1: replicated. */
typedef struct ms_shard_rule {
    ms_axis axis;
    int split_dim;
    int part_count;   /* fused parts along split_dim, such as q|k|v; 0 counts as one whole part */
    int64_t parts[4]; /* elements of each part */
    int64_t granules[4]; /* a part is cut only at multiples of this (head size); 0 counts as 1 */
} ms_shard_rule;

/*
 * The shard of a tensor at coordinate `index` of `count`. Parts are cut into count nearly equal runs of
 * granules (the first ones larger). MS_ERR_CONFIG with the arithmetic when a part has fewer granules
 * than ranks.
 */
ms_status ms_shard_make(const ms_tensor *tensor, const ms_shard_rule *rule, int64_t index,
                        int64_t count, ms_shard *shard);
/* [start, start + count) of `total` for coordinate index of `ranks`, nearly equal, larger ones first. */
ms_segment ms_split_even(int64_t total, int64_t index, int64_t ranks);

/*
 * ZeRO: cuts a flat range that holds `tensor_count` tensors (start offsets and element counts, ascending)
 * among `replicas` owners. Borders lie on multiples of 4,096 elements of a tensor (or on a tensor's start),
 * so that partial sums of squared norms belong to one owner each. Writes replicas + 1 borders.
 */
void ms_zero_borders(const int64_t *tensor_starts, const int64_t *tensor_counts, int tensor_count,
                     int64_t range_start, int64_t range_end, int64_t replicas, int64_t *borders);

/* The order of sums, design section 10. */
typedef struct ms_reduction {
    int64_t micro_batches;     /* M, of the global batch */
    int64_t groups;            /* equal runs of micro-batches: leaves of the tree */
    int64_t replicas;
    int64_t runs_per_replica;  /* groups / replicas */
    int64_t micro_batches_per_run;
    int64_t buffer_count;      /* gradient buffers a replica needs: 1 + log2(runs_per_replica) */
} ms_reduction;
/*
 * groups_wanted MS_AUTO: the largest power of two up to 8 that divides M; if the replicas do not divide
 * that, the smallest divisor of M that they divide. Each replica's runs must form one subtree of the
 * tree (else MS_ERR_CONFIG names the nearest legal value), and replicas must divide M.
 */
ms_status ms_reduction_make(int64_t micro_batches, int64_t replicas, int64_t groups_wanted,
                            ms_reduction *reduction);
/* Buffer that run r (local index) accumulates in, and how many merges follow it: merge i adds buffer
 * target - i into buffer target - i - 1. */
int64_t ms_reduction_buffer(const ms_reduction *reduction, int64_t run);
int64_t ms_reduction_merges(const ms_reduction *reduction, int64_t run);
/* Sums n values as the balanced tree does (split at the largest power of two below n). */
double ms_tree_sum(const double *values, int64_t count);

#endif
