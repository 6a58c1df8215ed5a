/* shard_rule.c - cutting tensors among ranks, and flat ranges among ZeRO owners. */
#include <inttypes.h>

#include "layout/layout.h"

ms_segment ms_split_even(int64_t total, int64_t index, int64_t ranks) {
    int64_t base = total / ranks, larger = total % ranks;
    return (ms_segment){.start = index * base + ms_min_i64(index, larger),
                        .count = base + (index < larger ? 1 : 0)};
}

ms_status ms_shard_make(const ms_tensor *tensor, const ms_shard_rule *rule, int64_t index,
                        int64_t count, ms_shard *shard) {
    ms_shard made = ms_shard_whole(tensor);
    if (rule->split_dim >= 0 && count > 1) {
        int dim = rule->split_dim;
        int parts = rule->part_count > 0 ? rule->part_count : 1;
        int64_t part_start = 0, local = 0;
        for (int p = 0; p < parts; p++) {
            int64_t size = rule->part_count > 0 ? rule->parts[p] : tensor->dims[dim];
            int64_t granule = rule->granules[p] > 0 ? rule->granules[p] : 1;
            int64_t granules = size / granule;
            if (size % granule != 0 || granules < count) {
                return ms_fail(MS_ERR_CONFIG,
                               "%s: %" PRId64 " elements in pieces of %" PRId64 " make %" PRId64
                               " pieces, fewer than parallel.%s %" PRId64,
                               tensor->name, size, granule, granules, ms_axis_name(rule->axis),
                               count);
            }
            ms_segment cut = ms_split_even(granules, index, count);
            made.dims[dim].segments[p] =
                (ms_segment){part_start + cut.start * granule, cut.count * granule};
            local += cut.count * granule;
            part_start += size;
        }
        made.dims[dim].segment_count = parts;
        made.local_dims[dim] = local;
    }
    *shard = made;
    return MS_OK;
}

/* The legal border nearest below `wanted`: a multiple of the block within a tensor, or a tensor's start. */
static int64_t legal_border(const int64_t *starts, const int64_t *counts, int tensors,
                            int64_t range_end, int64_t wanted) {
    for (int i = tensors - 1; i >= 0; i--) {
        if (wanted < starts[i]) {
            continue;
        }
        int64_t block = 4096;
        int64_t below = starts[i] + (wanted - starts[i]) / block * block;
        int64_t next = i + 1 < tensors ? starts[i + 1] : range_end;
        int64_t above = ms_min_i64(below + block, next);
        if (below + block >= starts[i] + counts[i]) {
            above = next;
        }
        if (below > starts[i] + counts[i]) {
            below = next; /* in the padding after the tensor */
        }
        return wanted - below <= above - wanted ? below : above;
    }
    return starts[0];
}

void ms_zero_borders(const int64_t *tensor_starts, const int64_t *tensor_counts, int tensor_count,
                     int64_t range_start, int64_t range_end, int64_t replicas, int64_t *borders) {
    borders[0] = range_start;
    for (int64_t r = 1; r < replicas; r++) {
        int64_t wanted = range_start + ms_split_even(range_end - range_start, r, replicas).start;
        int64_t border =
            legal_border(tensor_starts, tensor_counts, tensor_count, range_end, wanted);
        borders[r] = ms_min_i64(range_end, ms_max_i64(border, borders[r - 1]));
    }
    borders[replicas] = range_end;
}
