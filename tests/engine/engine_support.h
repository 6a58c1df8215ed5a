/*
 * engine_support.h - one rank of a small model, ready to step: for tests of program/, engine/ and verify/.
 */
#ifndef MS_TEST_ENGINE_SUPPORT_H
#define MS_TEST_ENGINE_SUPPORT_H

#include "engine/engine.h"
#include "support/test_support.h"

typedef struct test_setup {
    ms_model_spec spec;
    ms_mesh mesh;
    int64_t micro_batch_size, sequence, micro_batches; /* of the global batch */
    int64_t reduction_groups;                          /* MS_AUTO */
    ms_dtype compute;
    ms_optimizer_config optimizer;
    int zero;
    bool sequence_parallel, overlap;
    ms_recompute_policy recompute;
    size_t bucket_bytes;
    uint64_t seed;
    const char *schedule;
    const char *variant; /* of kernels; NULL: best */
    int threads;
} test_setup;

typedef struct test_rank {
    ms_model *model;
    ms_device *device;
    ms_layout layout;
    ms_program *program;
    ms_engine *engine;
} test_rank;

static inline ms_optimizer_config test_adamw(double lr) {
    return (ms_optimizer_config){.name = MS_OPTIMIZER_ADAMW, .lr = lr, .min_lr = lr,
                                 .decay = MS_DECAY_CONSTANT, .beta1 = 0.9, .beta2 = 0.99,
                                 .eps = 1e-8, .weight_decay = 0.1, .clip_grad = 1.0};
}

static inline test_setup test_setup_of(ms_model_spec spec) {
    test_setup setup = {.spec = spec, .micro_batch_size = 2, .sequence = spec.positions,
                        .micro_batches = 1, .reduction_groups = MS_AUTO, .compute = MS_F64,
                        .optimizer = test_adamw(1e-3), .overlap = true, .bucket_bytes = 65536,
                        .seed = 7, .schedule = "1f1b", .threads = 1};
    for (int i = 0; i < MS_AXIS_COUNT; i++) {
        setup.mesh.size[i] = 1;
    }
    return setup;
}

/* Layers of stage `stage` of `stages`, nearly equal. */
static inline void test_split_layers(ms_layout *layout, int64_t layers, int64_t stages) {
    for (int64_t s = 0; s < stages; s++) {
        layout->stage_layers[s] = ms_split_even(layers, s, stages);
    }
}

static inline ms_status test_rank_open(test_rank *rank, const test_setup *setup, int64_t index,
                                       ms_comm *comm) {
    MS_TRY(ms_model_create(&setup->spec, &rank->model));
    ms_device_options options = {.name = "cpu", .threads = setup->threads,
                                 .isa_max = MS_ISA_COUNT, .variant = setup->variant};
    MS_TRY(ms_device_open(&options, &rank->device));
    rank->layout = (ms_layout){.mesh = setup->mesh, .rank = index,
                               .at = ms_mesh_coordinates(&setup->mesh, index),
                               .zero = setup->zero,
                               .sequence_parallel = setup->sequence_parallel,
                               .recompute = setup->recompute};
    test_split_layers(&rank->layout, setup->spec.layers, setup->mesh.size[MS_AXIS_PIPELINE]);
    ms_program_request request = {.model = rank->model,
                                  .layout = &rank->layout,
                                  .mode = MS_MODE_TRAIN,
                                  .micro_batch_size = setup->micro_batch_size,
                                  .sequence = setup->sequence,
                                  .compute = setup->compute,
                                  .optimizer = &setup->optimizer,
                                  .schedule = setup->schedule,
                                  .bucket_bytes = setup->bucket_bytes,
                                  .seed = setup->seed,
                                  .device = rank->device};
    int64_t replicas = setup->mesh.size[MS_AXIS_DATA];
    MS_TRY(ms_reduction_make(setup->micro_batches, replicas, setup->reduction_groups,
                             &request.reduction));
    request.micro_batches = setup->micro_batches / replicas;
    MS_TRY(ms_program_create(&request, &rank->program));
    ms_engine_options engine = {.program = rank->program, .comm = comm,
                                .overlap = setup->overlap};
    return ms_engine_create(&engine, &rank->engine);
}

static inline void test_rank_close(test_rank *rank) {
    ms_engine_destroy(rank->engine);
    ms_program_destroy(rank->program);
    ms_device_close(rank->device);
    ms_model_destroy(rank->model);
}

#endif
