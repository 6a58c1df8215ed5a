/* engine_internal.h - shared by the files of engine/. */
#ifndef MS_ENGINE_ENGINE_INTERNAL_H
#define MS_ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"

struct ms_engine {
    const ms_program *program;
    ms_device *device;
    bool overlap;
    void *regions[MS_REGION_COUNT];
    size_t region_bytes[MS_REGION_COUNT];
    ms_comm *world;
    /* NULL where the group has one rank. */
    ms_comm *axis[MS_AXIS_COUNT];
    ms_comm *replicas; /* data x context: gradients */
    ms_comm *tied;     /* first and last stage */
    ms_comm *parts;    /* tensor x pipeline: norms */
    bool regions_from_comm[MS_REGION_COUNT];
    bool weights_changed;
    /* per step */
    ms_request **bucket_requests;
    bool *bucket_started;
    ms_request **send_requests; /* slot x direction */
    double *losses;             /* of all micro-batches of the step, gathered */
    int64_t *gather_counts;     /* replicas of them */
    double waited_s;
    struct ms_profile *profile; /* NULL: not measured */
};

/* Where an argument is, for a slot, gradient level and micro-batch. */
typedef struct ms_place {
    int64_t slot, level, micro_batch;
} ms_place;
void *ms__engine_address(const ms_engine *engine, ms_buffer buffer, ms_place place);

/* Runs a list of nodes. micro_in_run: position of the micro-batch in its run. */
typedef struct ms_run_context {
    ms_place place;
    bool accumulate;    /* not the first micro-batch of its run */
    bool run_end, last; /* last micro-batch of its run; of the step */
    int64_t merges;     /* at a run's end */
    int64_t extent[2];
} ms_run_context;
ms_status ms__engine_run(ms_engine *engine, const ms_node_list *list,
                         const ms_run_context *context);
ms_status ms__engine_kernel(ms_engine *engine, const ms_kernel_handle *kernel, void *const *arguments,
                            bool accumulate);
ms_status ms__engine_fill_inputs(ms_engine *engine, const ms_program_chunk *chunk,
                                 const ms_micro_batch *micro_batch, double scale,
                                 int64_t first_position, ms_place place);
/* Waits for a request and counts the time as waited. */
ms_status ms__engine_wait(ms_engine *engine, ms_request **request);
ms_status ms__engine_pack_weights(ms_engine *engine);

/* profile.c: one more run of a kernel. NULL profile: nothing. */
void ms__profile_add(struct ms_profile *profile, const ms_kernel_handle *kernel, double seconds);

/* reduce.c */
ms_status ms__engine_bucket_ready(ms_engine *engine, int32_t bucket, const ms_run_context *context);
ms_status ms__engine_reduce_all(ms_engine *engine);
/* update.c */
ms_status ms__engine_update(ms_engine *engine, const ms_step_input *input, ms_step_result *result);
/* Names where a value that is not finite came from. */
ms_status ms__engine_blame(ms_engine *engine, const ms_step_input *input);

#endif
