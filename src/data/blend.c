/*
 * blend.c - which source sample g comes from, when sources have weights.
 *
 * Stands under dataset.c. Weights become whole shares of a period (the smallest period up to 65,536
 * in which they are exact; else 65,536 with the largest remainders rounded up), and the period a
 * pattern:
 *
 *   weights 0.5 0.3 0.2  ->  shares 5 3 2 of 10  ->  0 1 2 0 1 0 0 1 2 0 | 0 1 2 ...
 *   counter of source i at place g = (g / period) * shares[i] + places of i before g in its period
 *
 * so that the answer for any g costs one look-up and needs no state and no index file.
 *
 * The pattern is that of earliest deadline first: unit j of source i may be placed from j/share on
 * and must be placed before (j+1)/share (times the period). One place a step and shares that sum to
 * the period always meet every deadline (the fair-scheduling theorem of Baruah, Cohen, Plaxton and
 * Varvel, 1996, for one processor), so every prefix is exact to within one sample of each source.
 * Rejected: choosing the largest deficit (off by more than one with many sources); drawing sources
 * at random (right only on average, and a counter per source would have to be saved).
 */
#include <math.h>

#include "data/data_internal.h"

void ms__blend_release(ms_blend *blend) {
    ms_free(blend->shares);
    ms_free(blend->source_at);
    ms_free(blend->rank_at);
    *blend = (ms_blend){0};
}

/* Whether weights are whole multiples of sum / period. */
static bool exact_in(const double *weights, int count, double sum, int64_t period,
                     int64_t *shares) {
    for (int i = 0; i < count; i++) {
        double places = weights[i] / sum * (double)period;
        double whole = nearbyint(places);
        if (whole < 1 || fabs(places - whole) > 1e-7) {
            return false;
        }
        shares[i] = (int64_t)whole;
    }
    return true;
}

/* At least one place each; what is left over goes to, or is taken from, whoever is furthest off. */
static void round_shares(const double *weights, int count, double sum, int64_t *shares) {
    const int64_t period = MS_BLEND_PERIOD_MAX;
    int64_t used = 0;
    for (int i = 0; i < count; i++) {
        shares[i] = ms_max_i64(1, (int64_t)(weights[i] / sum * (double)period));
        used += shares[i];
    }
    for (; used != period; used += used < period ? 1 : -1) {
        int best = -1;
        double best_gap = 0;
        for (int i = 0; i < count; i++) {
            double gap = weights[i] / sum * (double)period - (double)shares[i];
            gap = used < period ? gap : -gap;
            if ((used < period || shares[i] > 1) && (best < 0 || gap > best_gap)) {
                best = i;
                best_gap = gap;
            }
        }
        shares[best] += used < period ? 1 : -1;
    }
}

typedef struct turn {
    int64_t placed, release, deadline; /* of the next unit */
} turn;

static void next_unit(turn *next, int64_t period, int64_t share) {
    next->release = next->placed * period / share;
    next->deadline = ms_ceil_div((next->placed + 1) * period, share);
}

static void fill_pattern(ms_blend *blend, int count, turn *turns) {
    for (int i = 0; i < count; i++) {
        turns[i].placed = 0;
        next_unit(&turns[i], blend->period, blend->shares[i]);
    }
    for (int64_t place = 0; place < blend->period; place++) {
        int best = -1;
        for (int i = 0; i < count; i++) {
            if (turns[i].release <= place && turns[i].placed < blend->shares[i] &&
                (best < 0 || turns[i].deadline < turns[best].deadline)) {
                best = i;
            }
        }
        MS_ASSERT(best >= 0 && turns[best].deadline > place);
        blend->source_at[place] = (uint16_t)best;
        blend->rank_at[place] = (uint16_t)turns[best].placed;
        turns[best].placed++;
        next_unit(&turns[best], blend->period, blend->shares[best]);
    }
}

static ms_status make(const double *weights, int count, ms_blend *blend, turn **turns) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += weights[i];
    }
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_PROCESS, &blend->shares));
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_PROCESS, turns));
    blend->period = count;
    while (blend->period < MS_BLEND_PERIOD_MAX &&
           !exact_in(weights, count, sum, blend->period, blend->shares)) {
        blend->period++;
    }
    if (blend->period == MS_BLEND_PERIOD_MAX) {
        round_shares(weights, count, sum, blend->shares);
    }
    MS_TRY(MS_NEW((size_t)blend->period, MS_MEMORY_PROCESS, &blend->source_at));
    MS_TRY(MS_NEW((size_t)blend->period, MS_MEMORY_PROCESS, &blend->rank_at));
    fill_pattern(blend, count, *turns);
    return MS_OK;
}

ms_status ms__blend_make(const double *weights, int count, ms_blend *blend) {
    if (count < 1 || count > MS_BLEND_SOURCES_MAX) {
        return ms_fail(MS_ERR_CONFIG, "a blend of %d sources; 1 to %d are possible", count,
                       MS_BLEND_SOURCES_MAX);
    }
    turn *turns = NULL;
    ms_status status = make(weights, count, blend, &turns);
    ms_free(turns);
    if (status != MS_OK) {
        ms__blend_release(blend);
    }
    return status;
}

void ms__blend_at(const ms_blend *blend, int64_t index, int *source, int64_t *counter) {
    int64_t place = index % blend->period;
    int at = blend->source_at[place];
    *source = at;
    *counter = index / blend->period * blend->shares[at] + blend->rank_at[place];
}
