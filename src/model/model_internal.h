/* model_internal.h - shared by the files of model/: declaring parameters, and building layers. */
#ifndef MS_MODEL_MODEL_INTERNAL_H
#define MS_MODEL_MODEL_INTERNAL_H

#include "model/model.h"
#include "op/op.h"

/* Declares parameters in the order they are listed. */
typedef struct ms_declaration {
    ms_model *model;
    size_t capacity;
    int32_t layer;
    char prefix[96]; /* put before each name */
} ms_declaration;

/* Adds one parameter; dims of rank 1 or 2. Returns its place to be completed. */
ms_status ms__declare(ms_declaration *declaration, const char *name, int rank, int64_t d0,
                      int64_t d1, ms_parameter **parameter);
/* Cut along the tensor axis at `dim`, in pieces of `granule`. */
void ms__cut(ms_parameter *parameter, int dim, int64_t granule);
void ms__init_one(ms_parameter *parameter);

/* What a chunk's builder carries from line to line. */
typedef struct ms_builder {
    const ms_model *model;
    const ms_model_request *request;
    ms_graph *graph;
    int32_t tokens, targets, positions, local_positions, samples, scale;
    int64_t rows;       /* of the whole micro-batch */
    int64_t local_rows; /* of a residual: fewer under sequence parallelism */
    int64_t row_first;
    int32_t x;          /* residual stream */
    int32_t delta;      /* branch not yet added to it, or MS_VALUE_NONE */
} ms_builder;

/* The value of a parameter by full name; MS_VALUE_NONE when the model has none of that name. */
ms_status ms__parameter(ms_builder *builder, const char *name, int32_t *value);
ms_status ms__layer_parameter(ms_builder *builder, int64_t layer, const char *name,
                              int32_t *value);
/* Norm of the residual stream; adds the pending branch and leaves the sum as the stream. */
ms_status ms__residual_norm(ms_builder *builder, int32_t weight, int32_t bias, bool rms,
                            int32_t *y);
/* Around tensor-parallel linears: the stream to all rows; a part back to the stream. */
ms_status ms__enter_parallel(ms_builder *builder, int32_t x, int32_t *y);
ms_status ms__leave_parallel(ms_builder *builder, int32_t x, int32_t *y);
ms_status ms__dropout(ms_builder *builder, int32_t x, double probability, const char *name,
                      int32_t *y);
/* Attention over q, k, v (or packed), cached when generating. Local heads. */
ms_status ms__attention(ms_builder *builder, int64_t layer, int32_t q, int32_t k, int32_t v,
                        int32_t *out);

ms_status ms__gpt2_declare(ms_declaration *declaration);
ms_status ms__gpt2_embed(ms_builder *builder);
ms_status ms__gpt2_layer(ms_builder *builder, int64_t layer);
ms_status ms__gpt2_final_norm(ms_builder *builder, int32_t *y);
ms_status ms__llama_declare(ms_declaration *declaration);
ms_status ms__llama_embed(ms_builder *builder);
ms_status ms__llama_layer(ms_builder *builder, int64_t layer);
ms_status ms__llama_final_norm(ms_builder *builder, int32_t *y);

#endif
