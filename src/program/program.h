/*
 * program.h - one rank's step, fully decided and not yet run: every buffer with its region, offset and
 * bytes, every kernel readied, every collective placed.
 *
 *   graph x layout x schedule x optimiser  --ms_program_create-->  program
 *
 * It allocates no buffer: the engine does, and then holds exactly the bytes named here; the planner sums
 * the same numbers, so it cannot forget what the engine does.
 *
 * Regions
 *   shared    memory that peers read: weights (compute type), gradients (one level or more)
 *   private   master weights, optimiser state, packed weights, norms, hyper-parameters, caches
 *   saved     values that live from a micro-batch's forward to its backward: one slot per micro-batch
 *             in flight, the count from the schedule
 *   scratch   values that live within one action, packed by lifetime, and the kernels' own scratch
 *
 * The flat order of parameters: matrices, then vectors; within each by class (see ms_bucket) and the order
 * in which the backward finishes them. Buckets are ranges of it; ZeRO cuts each bucket among replicas.
 */
#ifndef MS_PROGRAM_PROGRAM_H
#define MS_PROGRAM_PROGRAM_H

#include "device/device.h"
#include "layout/layout.h"
#include "model/model.h"
#include "optim/optim.h"
#include "schedule/schedule.h"

typedef enum ms_region {
    MS_REGION_SHARED,
    MS_REGION_PRIVATE,
    MS_REGION_SAVED,
    MS_REGION_SCRATCH,
    MS_REGION_COUNT,
    MS_REGION_NONE /* an absent argument */
} ms_region;

/* What a buffer's address moves with at run time. */
typedef enum ms_index {
    MS_INDEX_NONE,
    MS_INDEX_SLOT,  /* of the micro-batch in flight */
    MS_INDEX_LEVEL, /* of the gradient buffers, by the run of micro-batches (design section 10) */
    MS_INDEX_MICRO_BATCH,
} ms_index;

typedef struct ms_buffer {
    ms_region region;
    ms_index index;
    size_t offset, stride;
} ms_buffer;

typedef enum ms_step_kind {
    MS_STEP_KERNEL,
    MS_STEP_COLLECTIVE,   /* of the graph, along an axis */
    MS_STEP_BUCKET_READY, /* all its gradients of this micro-batch are there */
} ms_step_kind;

typedef struct ms_program_node {
    ms_step_kind kind;
    int32_t graph_node; /* -1: none */
    ms_kernel_handle *kernel; /* of the program's cache */
    ms_accumulate accumulate;
    ms_buffer arguments[MS_ARGS_MAX];
    /* collectives */
    ms_collective_kind collective;
    ms_axis axis;
    int64_t count; /* elements of the input */
    ms_dtype dtype;
    int32_t bucket;
} ms_program_node;

typedef struct ms_program_input {
    ms_input_role role;
    ms_buffer buffer;
    ms_dtype dtype;
    int64_t elements, row_first;
} ms_program_input;

typedef struct ms_node_list {
    ms_program_node *nodes;
    int32_t count;
    size_t capacity;
} ms_node_list;

/* A lowered graph. */
typedef struct ms_program_chunk {
    ms_graph *graph;
    ms_node_list forward, backward;
    ms_program_input *inputs;
    int32_t input_count;
    ms_buffer output_forward, output_backward, loss, logits; /* region NONE when there is none */
    int64_t border_elements; /* of an activation or gradient sent to another part */
    int64_t loss_elements, logits_elements;
    size_t saved_bytes; /* of one slot */
    size_t scratch_bytes;
} ms_program_chunk;

/* A parameter as this rank holds it. */
typedef struct ms_program_parameter {
    int32_t index; /* of the model's list */
    ms_shard shard;
    int64_t flat_start, count; /* elements */
    int32_t bucket;
    bool counted;  /* its norm is this rank's to count: once among tensor ranks and tied copies */
    bool written;  /* a node of this rank's backward writes its gradient (else it is zero here) */
    bool tied;     /* held by the first and the last stage */
    bool partial;  /* to be summed over the tensor axis */
} ms_program_parameter;

/*
 * Parameters reduced, updated and gathered together. Classes: (matrix or vector) x plain, partial or tied.
 * Plain buckets' reduction starts inside the last backward; the others' sums come first, in the step.
 */
typedef struct ms_bucket {
    int64_t flat_start, flat_end;
    int32_t first_parameter, parameter_count; /* of the flat-ordered list */
    bool vector, partial, tied;
    int64_t *borders;            /* replicas + 1, flat elements */
    int64_t own_start, own_end;  /* updated by this rank: its slice under ZeRO, else everything */
    int64_t state_start;         /* of own_start, in elements of the optimiser's arrays */
    int64_t master_start;        /* likewise of the master weights, when they are apart */
    ms_kernel_handle *merge;     /* level += level, over the whole bucket; NULL: one level */
    ms_kernel_handle *update;
} ms_bucket;

/* Partial sums of squares of (parameter, own range). */
typedef struct ms_norm_part {
    int32_t parameter;
    int64_t flat_start, count;
    int64_t first_block; /* of this rank's array of partial sums */
    int64_t block_count;
    ms_kernel_handle *kernel;
} ms_norm_part;

/* A weight in the layout its kernel likes best, made once after each update. */
typedef struct ms_pack {
    ms_kernel_handle *kernel;
    ms_buffer from, to;
    size_t bytes;
} ms_pack;

/* Bytes by what they are for; the regions' sums are what the engine allocates. */
typedef struct ms_memory_plan {
    size_t region_bytes[MS_REGION_COUNT];
    size_t weight_bytes, master_bytes, gradient_bytes, optimizer_bytes, packed_bytes, cache_bytes,
        other_bytes;         /* of shared and private */
    size_t saved_slot_bytes; /* of one micro-batch in flight */
    int64_t saved_slots;
    size_t constant_bytes;   /* tables inside kernels */
    size_t total_bytes;
} ms_memory_plan;

typedef struct ms_program_request {
    const ms_model *model;
    const ms_layout *layout;
    ms_model_mode mode; /* TRAIN also lowers an evaluation */
    int64_t micro_batch_size, sequence;
    int64_t micro_batches;    /* of this replica, per step */
    int64_t cache_positions;  /* GENERATE */
    ms_reduction reduction;
    ms_dtype compute;
    const ms_optimizer_config *optimizer;
    const char *schedule;
    size_t bucket_bytes;
    uint64_t seed;
    ms_device *device; /* kernels are readied on it */
} ms_program_request;

typedef struct ms_program {
    ms_program_request request; /* a copy; model, layout and device outlive the program */
    ms_layout layout;
    ms_model_part part;
    ms_dtype wide; /* of gradients, state and master weights */
    ms_schedule *schedule, *forward_schedule; /* NULL in GENERATE */
    ms_program_chunk train, evaluate; /* evaluate serves GENERATE too */
    int64_t *slots; /* of each micro-batch */

    ms_program_parameter *parameters; /* in flat order */
    int32_t parameter_count;
    int64_t matrix_elements, flat_elements; /* vectors follow the matrices */
    ms_bucket *buckets;
    int32_t bucket_count;
    ms_norm_part *norm_parts;
    int32_t norm_part_count;
    int64_t norm_block_count;   /* of this rank */
    int64_t *norm_block_counts; /* of each owner, for the gather; one owner without ZeRO */
    int64_t norm_blocks_total, norm_own_start;
    int64_t *norm_order; /* indices of the gathered sums, in flat order, those counted here */
    int64_t norm_order_count;
    ms_pack *packs;
    int32_t pack_count;

    int64_t replicas, replica;  /* data x context */
    int64_t gradient_levels;
    int64_t state_elements, master_elements; /* own */
    int optimizer_states;
    ms_buffer matrix_weights, vector_weights, gradients, master, states, norms, hyper, loss_sums,
        kernel_scratch;
    ms_kernel_handle *loss_sum;
    bool separate_master; /* compute type is narrower than the master's */

    ms_memory_plan memory;
    double flops;           /* of one step of this rank */
    ms_kernel_handle **kernels; /* the cache: one handle per distinct spec */
    ms_kernel_spec *kernel_specs;
    int32_t kernel_count;
    size_t kernel_capacity;
} ms_program;

/*
 * Lowers. Errors are the user's: MS_ERR_CONFIG with the arithmetic. Allocates only the description. Not
 * thread-safe for one device.
 */
ms_status ms_program_create(const ms_program_request *request, ms_program **program);
void ms_program_destroy(ms_program *program);

/* Offset of flat element `flat` in the weights, by kind. */
ms_buffer ms_program_weight(const ms_program *program, int64_t flat);
size_t ms_program_weight_element_bytes(const ms_program *program, int64_t flat);
ms_buffer ms_program_gradient(const ms_program *program, int64_t flat);
/* The parameter of a model index, or NULL when this rank does not hold it. */
const ms_program_parameter *ms_program_find(const ms_program *program, int32_t model_index);
/* Memory by part, for people. */
ms_status ms_program_print_memory(const ms_program *program, ms_text *text);

#endif
