/*
 * reduction.c - the order of sums (design section 10): micro-batches form runs, runs are the leaves
 * of a balanced tree, split at the largest power of two below the number of leaves. A replica's
 * runs are one subtree, which it adds up itself with a binary counter of gradient buffers.
 *
 * Where it stands: train/ makes the reduction of a batch, program/ sizes buffers by it, engine/
 * adds as it says.
 *
 *   runs of one replica     0   1   2   3          run r accumulates in buffer ones(r)
 *   buffer                  0   1   1   2          after run 1: 1 into 0; after run 3: 2 into 1, 1
 * into 0
 *
 * Invariant: the sum of all replicas' sums is ms_tree_sum over the runs, bit for bit, whoever holds
 * them. Rejected: shares that are no subtree (up to 2 log2 - 2 partial sums to send, and as many
 * buffers).
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

/*
 * A replica's runs are one subtree: subtrees begin at multiples of a power of two, so equal shares
 * are subtrees exactly when a share is a power of two, or the whole.
 */
static bool shares_are_subtrees(int64_t share, int64_t replicas) {
    return replicas == 1 || (share & (share - 1)) == 0;
}

static bool legal(int64_t micro_batches, int64_t replicas, int64_t groups) {
    return groups >= 1 && micro_batches % groups == 0 && groups % replicas == 0 &&
           shares_are_subtrees(groups / replicas, replicas);
}

/* One run per replica is always legal, and the smallest number that the replicas divide. */
static int64_t choose_groups(int64_t micro_batches, int64_t replicas) {
    int64_t groups = 8;
    while (micro_batches % groups != 0) {
        groups /= 2;
    }
    return legal(micro_batches, replicas, groups) ? groups : replicas;
}

/* The legal number nearest to the wanted one, the smaller of two: legal ones are replicas x a
 * divisor. */
static int64_t nearest_groups(int64_t micro_batches, int64_t replicas, int64_t wanted) {
    int64_t shares = micro_batches / replicas, nearest = replicas;
    for (int64_t small = 1; small <= shares / small; small++) {
        if (shares % small != 0) {
            continue;
        }
        const int64_t pair[2] = {small, shares / small};
        for (int i = 0; i < 2; i++) {
            int64_t groups = replicas * pair[i];
            int64_t distance = groups > wanted ? groups - wanted : wanted - groups;
            int64_t best = nearest > wanted ? nearest - wanted : wanted - nearest;
            if (shares_are_subtrees(pair[i], replicas) &&
                (distance < best || (distance == best && groups < nearest))) {
                nearest = groups;
            }
        }
    }
    return nearest;
}

static int64_t ones(int64_t n) {
    return __builtin_popcountll((unsigned long long)n);
}

/* The most finished subtrees that wait at once, and the run at work: 1 + the most ones in 0 .. runs
 * - 1. */
static int64_t buffers_of(int64_t runs) {
    if (runs == 1) {
        return 1;
    }
    int64_t top = 63 - __builtin_clzll((unsigned long long)(runs - 1));
    return 1 + ms_max_i64(top, ones(runs - 1)); /* 2^top - 1 has `top` ones */
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
    if (!legal(micro_batches, replicas, groups)) {
        return ms_fail(MS_ERR_CONFIG,
                       "train.reduction_groups %" PRId64 " must divide %" PRId64
                       " micro-batches and give each of %" PRId64
                       " replicas one subtree of the sum; the nearest that does is %" PRId64,
                       groups, micro_batches, replicas,
                       nearest_groups(micro_batches, replicas, ms_max_i64(groups, 0)));
    }
    *reduction = (ms_reduction){.micro_batches = micro_batches,
                                .groups = groups,
                                .replicas = replicas,
                                .runs_per_replica = groups / replicas,
                                .micro_batches_per_run = micro_batches / groups,
                                .buffer_count = buffers_of(groups / replicas)};
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
    while ((run >> merges & 1) != 0) {
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
