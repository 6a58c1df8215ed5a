/*
 * reduction.c - the order of sums (design section 10): micro-batches form runs, runs are the leaves of a
 * balanced tree, split at the largest power of two below the number of leaves. A replica's runs are one subtree,
 * which it adds up itself with a binary counter of gradient buffers.
 */
#include <inttypes.h>

#include "base/config.h"
#include "layout/layout.h"

/* Leaves of the left subtree of n: the largest power of two below n. */
static int64_t left_leaves(int64_t n) {
    int64_t left = 1;
    while (left * 2 < n) {
        left *= 2;
    }
    return left;
}

/* Whether leaves [start, start + count) are exactly one subtree of a tree of n. */
static bool is_subtree(int64_t n, int64_t start, int64_t count) {
    if (start == 0 && count == n) {
        return true;
    }
    if (n <= 1) {
        return false;
    }
    int64_t left = left_leaves(n);
    return start + count <= left ? is_subtree(left, start, count)
           : start >= left       ? is_subtree(n - left, start - left, count)
                                 : false;
}

static bool all_subtrees(int64_t groups, int64_t replicas) {
    int64_t each = groups / replicas;
    for (int64_t r = 0; r < replicas; r++) {
        if (!is_subtree(groups, r * each, each)) {
            return false;
        }
    }
    return true;
}

static bool legal(int64_t micro_batches, int64_t replicas, int64_t groups) {
    return micro_batches % groups == 0 && groups % replicas == 0 && all_subtrees(groups, replicas);
}

static int64_t choose_groups(int64_t micro_batches, int64_t replicas) {
    int64_t groups = 8;
    while (micro_batches % groups != 0) {
        groups /= 2;
    }
    if (legal(micro_batches, replicas, groups)) {
        return groups;
    }
    for (groups = replicas; groups <= micro_batches; groups += replicas) {
        if (legal(micro_batches, replicas, groups)) {
            return groups;
        }
    }
    return replicas;
}

static int64_t ones(int64_t n) {
    int64_t count = 0;
    for (; n != 0; n &= n - 1) {
        count++;
    }
    return count;
}

ms_status ms_reduction_make(int64_t micro_batches, int64_t replicas, int64_t groups_wanted,
                            ms_reduction *reduction) {
    if (micro_batches < 1 || replicas < 1 || micro_batches % replicas != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "%" PRId64 " micro-batches (train.global_batch_size / "
                       "train.micro_batch_size) do not divide among %" PRId64
                       " replicas; change the batch or the number of ranks",
                       micro_batches, replicas);
    }
    int64_t groups =
        groups_wanted == MS_AUTO ? choose_groups(micro_batches, replicas) : groups_wanted;
    if (groups < 1 || !legal(micro_batches, replicas, groups)) {
        return ms_fail(MS_ERR_CONFIG,
                       "train.reduction_groups %" PRId64 " must divide %" PRId64
                       " micro-batches and give each of %" PRId64
                       " replicas one subtree of the sum; %" PRId64 " does",
                       groups, micro_batches, replicas, choose_groups(micro_batches, replicas));
    }
    ms_reduction made = {.micro_batches = micro_batches,
                         .groups = groups,
                         .replicas = replicas,
                         .runs_per_replica = groups / replicas,
                         .micro_batches_per_run = micro_batches / groups,
                         .buffer_count = 1};
    for (int64_t run = 0; run < made.runs_per_replica; run++) {
        made.buffer_count = ms_max_i64(made.buffer_count, ones(run) + 1);
    }
    *reduction = made;
    return MS_OK;
}

int64_t ms_reduction_buffer(const ms_reduction *reduction, int64_t run) {
    (void)reduction;
    return ones(run); /* one buffer for each finished subtree that waits */
}

int64_t ms_reduction_merges(const ms_reduction *reduction, int64_t run) {
    if (run == reduction->runs_per_replica - 1) {
        return ones(run); /* the last run: everything that waits is added up */
    }
    int64_t merges = 0;
    for (; (run >> merges & 1) != 0;) {
        merges++;
    }
    return merges;
}

double ms_tree_sum(const double *values, int64_t count) {
    if (count <= 0) {
        return 0;
    }
    if (count == 1) {
        return values[0];
    }
    int64_t left = left_leaves(count);
    return ms_tree_sum(values, left) + ms_tree_sum(values + left, count - left);
}
