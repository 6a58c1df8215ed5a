/*
 * parallel.h - section `parallel` of the config, and making a layout of it: what cannot be combined
 * is refused here, with the reason and the nearest legal choice. Pure functions; thread-safe.
 */
#ifndef MS_LAYOUT_PARALLEL_H
#define MS_LAYOUT_PARALLEL_H

#include "base/config.h"
#include "layout/layout.h"

typedef struct ms_parallel_config {
    int64_t data, tensor, pipeline, context, expert, zero, virtual_stages;
    int zero_group, schedule, recompute;
    bool sequence_parallel;
} ms_parallel_config;
extern const ms_config_section ms_parallel_section;

/* The schedule's name, as ms_schedule_create takes it. */
const char *ms_parallel_schedule(const ms_parallel_config *config);

/*
 * Refuses, with the reason and what to set instead, values that the tables know but this version
 * does not run: zero 2 and 3, context, expert and virtual_stages above 1. MS_ERR_CONFIG.
 */
ms_status ms_parallel_check(const ms_parallel_config *config);

/*
 * The replicas that `ranks` make: data where it is given, else ranks / (tensor x pipeline x
 * context). MS_ERR_CONFIG with the arithmetic when the axes do not make `ranks`.
 */
ms_status ms_parallel_resolve(const ms_parallel_config *config, int64_t ranks, int64_t *data);

/*
 * Deals `layers` to `stages`, nearly equal runs, larger ones first, into stage_layers[0 .. stages -
 * 1]. MS_ERR_CONFIG when a stage would have none.
 */
ms_status ms_layers_deal(int64_t layers, int64_t stages, ms_segment *stage_layers);

/* The layout of one rank among `ranks`, for a model of `layers` layers. MS_ERR_CONFIG with the
 * arithmetic. */
ms_status ms_layout_make(const ms_parallel_config *config, int64_t ranks, int64_t rank,
                         int64_t layers, ms_layout *layout);

#endif
