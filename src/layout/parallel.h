/*
 * parallel.h - section `parallel` of the config, and making a layout of it: what cannot be combined is refused
 * here, with the reason and the nearest legal choice.
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

/* The layout of one rank among `ranks`, for a model of `layers` layers. MS_ERR_CONFIG with the arithmetic. */
ms_status ms_layout_make(const ms_parallel_config *config, int64_t ranks, int64_t rank,
                         int64_t layers, ms_layout *layout);

#endif
