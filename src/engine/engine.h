/*
 * engine.h - runs a program: allocates its regions, fills its inputs, runs its actions over device and
 * communicator, and takes the optimiser's step.
 *
 * One engine is one rank; several may live in one process (the loop transport). Every call is made by all
 * ranks of the communicator at the same place. After the first step nothing of ours is allocated. Not
 * thread-safe.
 */
#ifndef MS_ENGINE_ENGINE_H
#define MS_ENGINE_ENGINE_H

#include <mindspeed/comm.h>

#include "base/text.h"
#include "program/program.h"

typedef struct ms_engine ms_engine;

typedef struct ms_engine_options {
    const ms_program *program; /* outlives the engine */
    ms_comm *comm;             /* of all ranks of the mesh, in rank order; outlives the engine */
    bool overlap;              /* start a bucket's reduction within the last backward */
} ms_engine_options;

/* Allocates exactly the program's bytes. */
ms_status ms_engine_create(const ms_engine_options *options, ms_engine **engine);
void ms_engine_destroy(ms_engine *engine);
/* Bytes of the regions as allocated: the plan's, up to page rounding of shared memory. */
size_t ms_engine_memory_bytes(const ms_engine *engine);

/* Initial weights from seed and logical names alone; state zero. */
ms_status ms_engine_initialize(ms_engine *engine, uint64_t seed);

/* A micro-batch's data, host memory of the caller: B sequences of T. */
typedef struct ms_micro_batch {
    const int32_t *tokens, *targets; /* B x T; targets MS_IGNORED_TARGET where there is none */
    const int64_t *samples;          /* B global sample indices */
} ms_micro_batch;

typedef struct ms_step_input {
    const ms_micro_batch *micro_batches; /* of this replica, in order */
    int64_t target_tokens;               /* of the global batch: the loss's divisor */
    int64_t step;                        /* 0 is the first */
    double learning_rate;
    bool apply;                          /* false: gradients and norm only (verification) */
} ms_step_input;

typedef struct ms_step_result {
    double loss, grad_norm, clip_scale;
    double forward_backward_s, reduce_s, update_s; /* wall time; reduce_s is what was waited for */
} ms_step_result;

/*
 * One update. A norm that is not finite is MS_ERR_NUMERIC on every rank, before any weight is touched; the
 * sentence names the operator and layer where it began, or the tensor.
 */
ms_status ms_engine_step(ms_engine *engine, const ms_step_input *input, ms_step_result *result);

/* Sum of the losses of one micro-batch of this replica, on every rank of its pipeline. */
ms_status ms_engine_evaluate(ms_engine *engine, const ms_micro_batch *micro_batch, double *loss_sum);

/* Generation: `count` tokens at positions position..; logits (vocabulary of them, fp32 or fp64 by the
 * program's compute type) of the last one are written to `logits`. */
ms_status ms_engine_decode(ms_engine *engine, const int32_t *tokens, int64_t count,
                           int64_t position, void *logits);

/* Between the two, time is kept for each operator and shape; end writes a table, longest first. */
ms_status ms_engine_profile_begin(ms_engine *engine);
ms_status ms_engine_profile_end(ms_engine *engine, ms_text *table);

/* A contiguous piece of one logical tensor in this rank's memory, for checkpoints and verification. */
typedef struct ms_engine_piece {
    const ms_tensor *tensor;
    const char *state; /* NULL: the weight; "gradient"; or the optimiser's name of a state */
    const ms_shard *shard;
    int64_t local_start, local_count;
    ms_dtype dtype;
    void *data;
    bool writer; /* one of the ranks that hold the same piece is */
} ms_engine_piece;

typedef enum ms_piece_set {
    MS_PIECES_SAVE,      /* master weights and state, each once among all ranks that are writers */
    MS_PIECES_LOAD,      /* everything a rank needs to go on: weights, master weights, state */
    MS_PIECES_WEIGHTS,   /* what kernels read, and the master weights: to start from a model */
    MS_PIECES_GRADIENTS, /* after a step with apply false */
} ms_piece_set;

/* Number of pieces; writes at most `most` of them. pieces may be NULL with most 0. */
int64_t ms_engine_pieces(ms_engine *engine, ms_piece_set set, ms_engine_piece *pieces,
                         int64_t most);
/* Must follow writes through pieces: packed weights are made again. */
void ms_engine_weights_changed(ms_engine *engine);

#endif
