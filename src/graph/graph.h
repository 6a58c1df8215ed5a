/*
 * graph.h - WHAT is computed: values and nodes of one pipeline chunk for one micro-batch.
 *
 * A graph is a list of nodes in the order they run. A node applies an operator (a static table entry,
 * see op/) to values and makes new ones; each activation is made once. Nothing here points to memory and
 * nothing knows its rank: shapes are local, made by the model for one layout.
 *
 *   forward nodes ... | recompute, input_grad and weight_grad nodes ...
 *
 * The second half is appended by ms_graph_differentiate; each of its nodes says whether a zero-bubble
 * schedule may put it off (weight_grad) or not. ms_graph_recompute then trades saved values for nodes.
 *
 * Values are row-major with dim 0 as rows; an operand may name a range of rows of a value (the loss works
 * on chunks of rows). Not thread-safe while being built, immutable afterwards.
 */
#ifndef MS_GRAPH_GRAPH_H
#define MS_GRAPH_GRAPH_H

#include "device/kernel.h"
#include "tensor/axis.h"
#include "base/text.h"
#include "tensor/tensor.h"

#define MS_VALUE_NONE (-1) /* an absent operand */
#define MS_VALUE_NEW (-2)  /* an output that the shape rule makes */
#define MS_NODE_INPUTS_MAX 8
#define MS_NODE_OUTPUTS_MAX 4

typedef enum ms_value_kind {
    MS_VALUE_INPUT,     /* filled from outside, see ms_input_role */
    MS_VALUE_PARAMETER, /* a shard of logical tensor `parameter`, in the type that kernels read */
    MS_VALUE_GRADIENT,  /* of parameter `parameter` */
    MS_VALUE_ACTIVATION,
    MS_VALUE_STATE,     /* lives from run to run: key/value caches */
} ms_value_kind;

typedef enum ms_input_role {
    MS_INPUT_NONE,
    MS_INPUT_TOKENS,    /* i32[N] */
    MS_INPUT_TARGETS,   /* i32[N], MS_IGNORED_TARGET where there is none */
    MS_INPUT_POSITIONS, /* i32[N] */
    MS_INPUT_SAMPLES,   /* i64[B], global sample index: the counter of dropout */
    MS_INPUT_SCALE,     /* f64[1], 1 / target tokens of the global batch */
    MS_INPUT_FORWARD,   /* activation from the previous pipeline part */
    MS_INPUT_BACKWARD,  /* gradient from the next pipeline part */
} ms_input_role;

typedef enum ms_output_role {
    MS_OUTPUT_NONE,
    MS_OUTPUT_FORWARD,  /* to the next part */
    MS_OUTPUT_BACKWARD, /* gradient to the previous part */
    MS_OUTPUT_LOSS,     /* loss of each row */
    MS_OUTPUT_LOGITS,
} ms_output_role;

typedef enum ms_phase {
    MS_PHASE_FORWARD,
    MS_PHASE_RECOMPUTE,
    MS_PHASE_INPUT_GRAD,
    MS_PHASE_WEIGHT_GRAD,
} ms_phase;

typedef enum ms_accumulate {
    MS_ACCUMULATE_NEVER,
    MS_ACCUMULATE_AFTER_FIRST, /* from the second micro-batch of a run on */
    MS_ACCUMULATE_ALWAYS,      /* a later contribution within one micro-batch */
} ms_accumulate;

typedef struct ms_value {
    ms_value_kind kind;
    ms_dtype dtype;
    int rank;
    int64_t dims[MS_TENSOR_DIMS_MAX];
    int32_t parameter; /* of PARAMETER and GRADIENT, else -1 */
    ms_input_role input;
    ms_output_role output;
    int32_t layer;   /* -1: none */
    int32_t producer; /* node that first writes it, -1 */
    int64_t row_first; /* INPUT: this shard's first row of the micro-batch's rows */
    int32_t alias;    /* value whose memory it is (an identity such as copy), -1 */
    bool keep;       /* a layer's input: full recomputation starts here */
} ms_value;

typedef struct ms_operand {
    int32_t value;
    int64_t row_start, row_count; /* row_count 0: the whole value */
} ms_operand;

typedef struct ms_graph ms_graph;
typedef struct ms_node ms_node;
typedef struct ms_autodiff ms_autodiff;

typedef enum ms_collective_kind {
    MS_COLLECTIVE_NONE,
    MS_COLLECTIVE_ALL_GATHER,     /* rows of the axis's ranks one after the other */
    MS_COLLECTIVE_REDUCE_SCATTER, /* sums, and keeps this rank's rows */
    MS_COLLECTIVE_ALL_REDUCE,
} ms_collective_kind;

/* An operator: a static const entry, one per file of op/. */
typedef struct ms_op {
    const char *name;
    ms_slot slot; /* MS_SLOT_COUNT: no kernel (collectives, identities) */
    ms_collective_kind collective;
    unsigned redo_outputs; /* bit i: output i is cheap to make again (norms, activations) */
    int input_count, output_count;
    /* Shape rule: checks the inputs, fills dtype, rank and dims of each output that is new. */
    ms_status (*infer)(const ms_graph *graph, const ms_node *node, ms_value *outputs);
    /* Optional: changes the kernel's view of shapes (a norm over heads, flat additions). */
    void (*lower)(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec);
    /* Floating-point operations of one run. */
    double (*flops)(const ms_graph *graph, const ms_node *node);
    /* Appends the nodes of its gradient; NULL: not differentiable (gradient nodes themselves). */
    ms_status (*gradient)(ms_autodiff *autodiff, int32_t node_index);
    /* Optional: turns a copy of the node into a cheaper one for making its outputs again, given which
     * values are gone (indexed by value). */
    void (*redo_form)(const ms_graph *graph, ms_node *node, const bool *dropped);
} ms_op;

struct ms_node {
    const ms_op *op;
    ms_phase phase;
    ms_accumulate accumulate;
    int32_t layer;
    ms_axis axis; /* of collectives */
    ms_operand inputs[MS_NODE_INPUTS_MAX];
    ms_operand outputs[MS_NODE_OUTPUTS_MAX];
    ms_attributes attributes;
};

/* A gradient that a forward-declared node already makes: the fused loss makes its input's. */
typedef struct ms_seed {
    int32_t value, gradient;
} ms_seed;

struct ms_graph {
    ms_value *values;
    int32_t value_count;
    ms_node *nodes;
    int32_t node_count;
    size_t value_capacity, node_capacity;
    ms_seed seeds[4];
    int seed_count;
    int32_t layer;      /* stamped on what is added */
    ms_phase phase;     /* likewise */
    int64_t axis_size[MS_AXIS_COUNT]; /* what collectives need of the layout */
    int64_t axis_index[MS_AXIS_COUNT];
    bool *gradient_started; /* per parameter: a contribution was emitted already */
    int32_t parameter_count;
};

ms_status ms_graph_create(int32_t parameter_count, ms_graph **graph);
void ms_graph_destroy(ms_graph *graph);

ms_status ms_graph_add_value(ms_graph *graph, const ms_value *value, int32_t *id);
ms_status ms_graph_input(ms_graph *graph, ms_input_role role, ms_dtype dtype, int rank,
                         const int64_t *dims, int32_t *id);
/* The value of a parameter's shard; made once, found afterwards. */
ms_status ms_graph_parameter(ms_graph *graph, int32_t parameter, ms_dtype dtype, int rank,
                             const int64_t *dims, int32_t *id);
/* Its gradient's value, with the accumulate rule of the next contribution. */
ms_status ms_graph_parameter_gradient(ms_graph *graph, int32_t parameter_value, ms_operand *gradient,
                                      ms_accumulate *accumulate);

/* A node with every operand absent, axis none, accumulate never. */
ms_node ms_node_of(const ms_op *op);
/* Appends a node: runs the shape rule, makes its new outputs, stamps phase and layer. The ids of outputs
 * are then in the returned node (graph->nodes[graph->node_count - 1]). */
ms_status ms_graph_add_node(ms_graph *graph, const ms_node *node);
static inline ms_operand ms_whole(int32_t value) { return (ms_operand){value, 0, 0}; }
static inline ms_operand ms_rows(int32_t value, int64_t start, int64_t count) {
    return (ms_operand){value, start, count};
}
/* The last node's output i. */
int32_t ms_graph_output(const ms_graph *graph, int i);

/* Dims of an operand: the value's, with dim 0 replaced by the row range. */
ms_argument ms_operand_argument(const ms_graph *graph, ms_operand operand);
int64_t ms_operand_elements(const ms_graph *graph, ms_operand operand);
int64_t ms_operand_bytes(const ms_graph *graph, ms_operand operand);
/* The kernel spec of a node: inputs then outputs, in the slot's order. */
ms_kernel_spec ms_node_spec(const ms_graph *graph, const ms_node *node);
double ms_node_flops(const ms_graph *graph, const ms_node *node);
int64_t ms_node_bytes_read(const ms_graph *graph, const ms_node *node);
int64_t ms_node_bytes_written(const ms_graph *graph, const ms_node *node);
/* Bytes one rank sends along the node's axis: (P-1)/P of the whole, twice for an all-reduce. */
int64_t ms_node_bytes_sent(const ms_graph *graph, const ms_node *node);

/* Writes the graph for people, a node a line. */
ms_status ms_graph_print(const ms_graph *graph, ms_text *text);

/*
 * Appends the gradient of everything the seeds (and an output of role FORWARD, whose gradient is an
 * input of role BACKWARD) depend on, down to the parameters; the gradient of the input of role FORWARD
 * gets the output role BACKWARD.
 */
ms_status ms_graph_differentiate(ms_graph *graph);

/* For gradient rules. */
ms_graph *ms_autodiff_graph(ms_autodiff *autodiff);
/* Gradient that has arrived at a value so far, or MS_VALUE_NONE. */
int32_t ms_autodiff_gradient(const ms_autodiff *autodiff, int32_t value);
/* Whether anything below the value wants a gradient. */
bool ms_autodiff_wanted(const ms_autodiff *autodiff, int32_t value);
/* One more contribution: adds to what is there, if anything is. */
ms_status ms_autodiff_contribute(ms_autodiff *autodiff, int32_t value, int32_t gradient);
/* Puts a gradient in place of what is there (which the caller has folded into it). */
void ms_autodiff_replace(ms_autodiff *autodiff, int32_t value, int32_t gradient);

/* Recomputation: what is not kept is made again just before its first use in the backward half. */
typedef enum ms_redo { MS_REDO_NONE, MS_REDO_SELECTIVE, MS_REDO_FULL } ms_redo;
ms_status ms_graph_recompute(ms_graph *graph, ms_redo policy);

#endif
