/*
 * reduce.c - gradients from micro-batches to one sum, in the order of design section 10.
 *
 * Within a replica a run of micro-batches accumulates in one gradient buffer (a level); at a run's end
 * levels are merged as a binary counter carries, so the sum is the balanced tree's. A bucket's levels are
 * merged, and after the last micro-batch its reduction over replicas is started, as soon as the backward has
 * finished it; the owner of a slice then adds the replicas' sums in the same tree.
 */
#include "engine/engine_internal.h"

static void *gradient(const ms_engine *engine, int64_t flat, int64_t level) {
    return ms__engine_address(engine, ms_program_gradient(engine->program, flat),
                              (ms_place){.level = level});
}

static ms_status merge_levels(ms_engine *engine, const ms_bucket *bucket,
                              const ms_run_context *context) {
    for (int64_t i = 0; i < context->merges; i++) {
        int64_t from = context->place.level - i;
        void *into = gradient(engine, bucket->flat_start, from - 1);
        void *const arguments[3] = {into, gradient(engine, bucket->flat_start, from), into};
        MS_TRY(ms__engine_kernel(engine, bucket->merge, arguments, false));
    }
    return MS_OK;
}

static ms_status start_reduction(ms_engine *engine, int32_t index) {
    const ms_program *program = engine->program;
    const ms_bucket *bucket = &program->buckets[index];
    engine->bucket_started[index] = true;
    if (engine->replicas == NULL) {
        return MS_OK;
    }
    void *sum = gradient(engine, bucket->flat_start, 0);
    if (program->layout.zero == 0) {
        return ms_comm_all_reduce(engine->replicas, sum, sum, bucket->flat_end - bucket->flat_start,
                                  program->wide, MS_REDUCE_SUM, &engine->bucket_requests[index]);
    }
    for (int64_t r = 0; r < program->replicas; r++) {
        engine->gather_counts[r] = bucket->borders[r + 1] - bucket->borders[r];
    }
    return ms_comm_reduce_scatter(engine->replicas, sum, gradient(engine, bucket->own_start, 0),
                                  engine->gather_counts, program->wide, MS_REDUCE_SUM,
                                  &engine->bucket_requests[index]);
}

ms_status ms__engine_bucket_ready(ms_engine *engine, int32_t index,
                                  const ms_run_context *context) {
    const ms_bucket *bucket = &engine->program->buckets[index];
    if (context->run_end) {
        MS_TRY(merge_levels(engine, bucket, context));
    }
    if (context->last && engine->overlap && !bucket->partial && !bucket->tied) {
        MS_TRY(start_reduction(engine, index));
    }
    return MS_OK;
}

/* Sums that come before the replicas': copies of a tied weight, parts on tensor ranks. */
static ms_status sum_parts(ms_engine *engine, const ms_bucket *bucket) {
    void *sum = gradient(engine, bucket->flat_start, 0);
    int64_t count = bucket->flat_end - bucket->flat_start;
    ms_dtype dtype = engine->program->wide;
    if (bucket->tied) {
        MS_TRY(ms_comm_all_reduce(engine->tied, sum, sum, count, dtype, MS_REDUCE_SUM, NULL));
    }
    if (bucket->partial) {
        MS_TRY(ms_comm_all_reduce(engine->axis[MS_AXIS_TENSOR], sum, sum, count, dtype,
                                  MS_REDUCE_SUM, NULL));
    }
    return MS_OK;
}

ms_status ms__engine_reduce_all(ms_engine *engine) {
    for (int32_t i = 0; i < engine->program->bucket_count; i++) {
        if (!engine->bucket_started[i]) {
            MS_TRY(sum_parts(engine, &engine->program->buckets[i]));
            MS_TRY(start_reduction(engine, i));
            if (!engine->overlap) {
                MS_TRY(ms__engine_wait(engine, &engine->bucket_requests[i]));
            }
        }
    }
    for (int32_t i = 0; i < engine->program->bucket_count; i++) {
        MS_TRY(ms__engine_wait(engine, &engine->bucket_requests[i]));
        engine->bucket_started[i] = false;
    }
    return MS_OK;
}
