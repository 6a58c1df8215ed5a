/*
 * shard_rule.c - cutting tensors among ranks, and flat ranges among ZeRO owners.
 *
 * Where it stands: model/ declares a rule per parameter; program/ makes this rank's shards and
 * borders.
 *
 *   parts      | q        | k    | v    |      each part is cut by itself, at multiples of its
 * granule, so rank 1 of 2     ^^^^^    ^^^    ^^^       heads stay whole and every rank has its q,
 * k and v
 *
 * Invariant: the shards of all coordinates tile the tensor; the borders ascend and tile the range.
 */
#include <inttypes.h>

#include "layout/layout.h"

#define ZERO_BLOCK ((int64_t)4096) /* elements of one partial sum of a squared norm */
#define PARTS_MAX ((int)(sizeof((ms_shard_rule *)0)->parts / sizeof(int64_t)))

ms_segment ms_split_even(int64_t total, int64_t index, int64_t ranks) {
    int64_t base = total / ranks, larger = total % ranks;
    return (ms_segment){.start = index * base + ms_min_i64(index, larger),
                        .count = base + (index < larger ? 1 : 0)};
}

static ms_status check_rule(const ms_tensor *tensor, const ms_shard_rule *rule, int64_t index,
                            int64_t count) {
    if (rule->split_dim < -1 || rule->split_dim >= tensor->rank || rule->part_count < 0 ||
        rule->part_count > PARTS_MAX || count < 1 || index < 0 || index >= count) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "%s: no shard %" PRId64 " of %" PRId64 " along dim %d in %d parts",
                       tensor->name, index, count, rule->split_dim, rule->part_count);
    }
    int64_t rest = rule->split_dim >= 0 ? tensor->dims[rule->split_dim] : 0;
    for (int p = 0; p < rule->part_count && rule->split_dim >= 0; p++) {
        if (rule->parts[p] < 0 || rule->parts[p] > rest) {
            rest = -1;
            break;
        }
        rest -= rule->parts[p];
    }
    if (rule->split_dim >= 0 && rule->part_count > 0 && rest != 0) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: the fused parts do not add up to dim %d, %" PRId64,
                       tensor->name, rule->split_dim, tensor->dims[rule->split_dim]);
    }
    return MS_OK;
}

/* What coordinate `index` has of one part. */
static ms_status cut_part(const ms_tensor *tensor, const ms_shard_rule *rule, ms_segment part,
                          int64_t granule, int64_t index, int64_t count, ms_segment *cut) {
    if (part.count % granule != 0) {
        return ms_fail(MS_ERR_CONFIG, "%s: %" PRId64 " elements are not whole pieces of %" PRId64,
                       tensor->name, part.count, granule);
    }
    int64_t granules = part.count / granule;
    if (granules < count) {
        return ms_fail(MS_ERR_CONFIG,
                       "%s: %" PRId64 " elements in pieces of %" PRId64 " make %" PRId64
                       " pieces, fewer than parallel.%s %" PRId64,
                       tensor->name, part.count, granule, granules, ms_axis_name(rule->axis),
                       count);
    }
    ms_segment pieces = ms_split_even(granules, index, count);
    *cut = (ms_segment){part.start + pieces.start * granule, pieces.count * granule};
    return MS_OK;
}

ms_status ms_shard_make(const ms_tensor *tensor, const ms_shard_rule *rule, int64_t index,
                        int64_t count, ms_shard *shard) {
    MS_TRY(check_rule(tensor, rule, index, count));
    ms_shard made = ms_shard_whole(tensor);
    int dim = rule->split_dim;
    if (dim < 0 || count == 1) {
        *shard = made;
        return MS_OK;
    }
    ms_shard_dim *cut = &made.dims[dim];
    cut->segment_count = rule->part_count > 0 ? rule->part_count : 1;
    made.local_dims[dim] = 0;
    int64_t start = 0;
    for (int p = 0; p < cut->segment_count; p++) {
        ms_segment part = {start, rule->part_count > 0 ? rule->parts[p] : tensor->dims[dim]};
        int64_t granule = ms_max_i64(rule->granules[p], 1);
        MS_TRY(cut_part(tensor, rule, part, granule, index, count, &cut->segments[p]));
        made.local_dims[dim] += cut->segments[p].count;
        start += part.count;
    }
    *shard = made;
    return MS_OK;
}

/* The nearer of the legal borders around `wanted`, which lies in a tensor or in the padding after
 * it. */
static int64_t legal_border(int64_t start, int64_t count, int64_t next, int64_t wanted) {
    int64_t inside = ms_min_i64(wanted - start, ms_max_i64(count - 1, 0));
    int64_t below = start + inside / ZERO_BLOCK * ZERO_BLOCK;
    int64_t above = below + ZERO_BLOCK < start + count ? below + ZERO_BLOCK : next;
    return wanted - below <= above - wanted ? below : above;
}

void ms_zero_borders(const int64_t *tensor_starts, const int64_t *tensor_counts, int tensor_count,
                     int64_t range_start, int64_t range_end, int64_t replicas, int64_t *borders) {
    int at = -1; /* the last tensor that begins at or before the wanted border, which only grows */
    borders[0] = range_start;
    for (int64_t r = 1; r < replicas; r++) {
        int64_t wanted = range_start + ms_split_even(range_end - range_start, r, replicas).start;
        while (at + 1 < tensor_count && tensor_starts[at + 1] <= wanted) {
            at++;
        }
        int64_t next = at + 1 < tensor_count ? tensor_starts[at + 1] : range_end;
        int64_t border =
            at < 0 ? next : legal_border(tensor_starts[at], tensor_counts[at], next, wanted);
        borders[r] = ms_min_i64(range_end, ms_max_i64(border, borders[r - 1]));
    }
    borders[replicas] = range_end;
}
