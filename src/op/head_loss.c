/*
 * head_loss.c - output head and softmax cross-entropy, fused over chunks of rows.
 *
 * For each chunk of R rows:
 *
 *   logits[R,V] = x w^T                    matmul, in the wide type
 *   stats[R,3]                             maximum, sum of exponentials, target's logit
 *   (all-gather of stats over the tensor axis, when the vocabulary is sharded)
 *   loss[R], dlogits[R,V]                  with the global token count already in `scale`
 *   dx[R,C] = dlogits w; dw += dlogits^T x
 *
 * so only R x V logits live at once and nothing is computed twice. In training the nodes belong to the
 * backward action: every schedule then runs a micro-batch's loss and gradients together.
 */
#include "op/op_internal.h"

static ms_status xent_stats_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    ms__set_shape(&outputs[0], ms__input(graph, node, 0)->dtype, 2,
                  ms__rows(graph, node->inputs[0]), 3);
    return MS_OK;
}

static double xent_flops(const ms_graph *graph, const ms_node *node) {
    return 4.0 * (double)ms_operand_elements(graph, node->inputs[0]);
}

const ms_op ms__op_xent_stats = {
    .name = "xent_stats",
    .slot = MS_SLOT_XENT_STATS,
    .input_count = 2,
    .output_count = 1,
    .infer = xent_stats_infer,
    .flops = xent_flops,
};

/* Both outputs are made by the builder. */
static ms_status xent_grad_infer(const ms_graph *graph, const ms_node *node, ms_value *outputs) {
    (void)outputs;
    return ms__input(graph, node, 2)->rank == 2 ? MS_OK : ms__shape_error(node, "stats");
}

static void xent_grad_lower(const ms_graph *graph, const ms_node *node, ms_kernel_spec *spec) {
    int64_t rows = ms__rows(graph, node->inputs[0]);
    int64_t dims[3] = {spec->arguments[2].dims[0] / rows, rows, 3};
    spec->arguments[2] = ms_argument_of(spec->arguments[2].dtype, 3, dims);
}

const ms_op ms__op_xent_grad = {
    .name = "xent_grad",
    .slot = MS_SLOT_XENT_GRAD,
    .input_count = 4,
    .output_count = 2,
    .infer = xent_grad_infer,
    .lower = xent_grad_lower,
    .flops = xent_flops,
};

typedef struct head_chunk {
    int64_t start, rows;
    int32_t dx, loss; /* whole values, written a range of rows at a time */
} head_chunk;

static ms_status new_value(ms_graph *graph, ms_dtype dtype, int rank, int64_t d0, int64_t d1,
                           int32_t *id) {
    ms_value value = {.kind = MS_VALUE_ACTIVATION, .parameter = -1, .layer = graph->layer,
                      .producer = -1, .alias = -1};
    ms__set_shape(&value, dtype, rank, d0, d1);
    return ms_graph_add_value(graph, &value, id);
}

static ms_status add_logits(ms_graph *graph, const ms_op_head_loss_options *options,
                            const head_chunk *chunk, int32_t *logits) {
    const ms_value *w = &graph->values[options->w];
    MS_TRY(new_value(graph, ms__wide_type(w->dtype), 2, chunk->rows, w->dims[0], logits));
    ms_node node = ms_node_of(&ms__op_matmul);
    node.inputs[0] = ms_rows(options->x, chunk->start, chunk->rows);
    node.inputs[1] = ms_whole(options->w);
    node.outputs[0] = ms_whole(*logits);
    node.attributes.matmul.transpose_b = true;
    return ms_graph_add_node(graph, &node);
}

static ms_status add_loss(ms_graph *graph, const ms_op_head_loss_options *options,
                          const head_chunk *chunk, int32_t logits, int32_t *dlogits) {
    int64_t vocabulary = graph->values[options->w].dims[0];
    ms_attributes attributes = {.xent = {.first = options->first, .valid = vocabulary}};
    ms_node stats = ms_node_of(&ms__op_xent_stats);
    stats.inputs[0] = ms_whole(logits);
    stats.inputs[1] = ms_rows(options->targets, chunk->start, chunk->rows);
    stats.outputs[0].value = MS_VALUE_NEW;
    stats.attributes = attributes;
    MS_TRY(ms_graph_add_node(graph, &stats));
    int32_t all_stats;
    MS_TRY(ms_op_all_gather(graph, ms_graph_output(graph, 0), MS_AXIS_TENSOR, &all_stats));
    ms_node grad = ms_node_of(&ms__op_xent_grad);
    grad.inputs[0] = ms_whole(logits);
    grad.inputs[1] = stats.inputs[1];
    grad.inputs[2] = ms_whole(all_stats);
    grad.inputs[3] = ms_whole(options->scale);
    *dlogits = MS_VALUE_NONE;
    if (options->train) {
        /* In place where the types allow it; bf16 gradients get memory of their own. */
        MS_TRY(new_value(graph, graph->values[options->x].dtype, 2, chunk->rows, vocabulary,
                         dlogits));
        if (graph->values[*dlogits].dtype == graph->values[logits].dtype) {
            graph->values[*dlogits].alias = logits;
        }
    }
    grad.outputs[0] = ms_whole(*dlogits);
    grad.outputs[1] = ms_rows(chunk->loss, chunk->start, chunk->rows);
    grad.attributes = attributes;
    return ms_graph_add_node(graph, &grad);
}

static ms_status add_gradients(ms_graph *graph, const ms_op_head_loss_options *options,
                               const head_chunk *chunk, int32_t dlogits) {
    ms_node dx = ms_node_of(&ms__op_matmul);
    dx.inputs[0] = ms_whole(dlogits);
    dx.inputs[1] = ms_whole(options->w);
    dx.outputs[0] = ms_rows(chunk->dx, chunk->start, chunk->rows);
    MS_TRY(ms_graph_add_node(graph, &dx));
    ms_node dw = ms_node_of(&ms__op_matmul);
    dw.inputs[0] = ms_whole(dlogits);
    dw.inputs[1] = ms_rows(options->x, chunk->start, chunk->rows);
    dw.attributes.matmul.transpose_a = true;
    MS_TRY(ms_graph_parameter_gradient(graph, options->w, &dw.outputs[0], &dw.accumulate));
    return ms_graph_add_node(graph, &dw);
}

ms_status ms_op_head_loss(ms_graph *graph, const ms_op_head_loss_options *options, int32_t *loss) {
    const ms_value x = graph->values[options->x];
    head_chunk chunk = {.dx = MS_VALUE_NONE};
    MS_TRY(new_value(graph, ms__wide_type(x.dtype), 1, x.dims[0], 0, &chunk.loss));
    graph->values[chunk.loss].output = MS_OUTPUT_LOSS;
    if (options->train) {
        MS_CHECK(graph->seed_count < (int)(sizeof graph->seeds / sizeof graph->seeds[0]));
        MS_TRY(new_value(graph, x.dtype, 2, x.dims[0], x.dims[1], &chunk.dx));
        graph->seeds[graph->seed_count++] = (ms_seed){options->x, chunk.dx};
    }
    ms_phase before = graph->phase;
    graph->phase = options->train ? MS_PHASE_INPUT_GRAD : MS_PHASE_FORWARD;
    for (chunk.start = 0; chunk.start < x.dims[0]; chunk.start += options->chunk_rows) {
        chunk.rows = ms_min_i64(options->chunk_rows, x.dims[0] - chunk.start);
        int32_t logits, dlogits;
        MS_TRY(add_logits(graph, options, &chunk, &logits));
        MS_TRY(add_loss(graph, options, &chunk, logits, &dlogits));
        if (options->train) {
            MS_TRY(add_gradients(graph, options, &chunk, dlogits));
        }
    }
    graph->phase = before;
    *loss = chunk.loss;
    return MS_OK;
}
