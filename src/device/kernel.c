/*
 * kernel.c - names of slots, and the small helpers that build the arguments of a spec.
 *
 * Used by whoever describes a kernel call (op/ and program/ above, tests). The names are those of
 * messages, tables and `mindspeed bench kernels`.
 */
#include "device/kernel.h"

static const char *const slot_names[MS_SLOT_COUNT] = {
    [MS_SLOT_MATMUL] = "matmul",
    [MS_SLOT_PACK] = "pack",
    [MS_SLOT_COLUMN_SUM] = "column_sum",
    [MS_SLOT_EMBEDDING] = "embedding",
    [MS_SLOT_EMBEDDING_GRAD] = "embedding_grad",
    [MS_SLOT_NORM] = "norm",
    [MS_SLOT_NORM_INPUT_GRAD] = "norm_input_grad",
    [MS_SLOT_NORM_WEIGHT_GRAD] = "norm_weight_grad",
    [MS_SLOT_ACTIVATION] = "activation",
    [MS_SLOT_ACTIVATION_GRAD] = "activation_grad",
    [MS_SLOT_ATTENTION] = "attention",
    [MS_SLOT_ATTENTION_GRAD] = "attention_grad",
    [MS_SLOT_ATTENTION_CACHED] = "attention_cached",
    [MS_SLOT_ROPE] = "rope",
    [MS_SLOT_DROPOUT] = "dropout",
    [MS_SLOT_XENT_STATS] = "xent_stats",
    [MS_SLOT_XENT_GRAD] = "xent_grad",
    [MS_SLOT_ADD] = "add",
    [MS_SLOT_CAST] = "cast",
    [MS_SLOT_SUM] = "sum",
    [MS_SLOT_SQUARE_SUM] = "square_sum",
    [MS_SLOT_ADAMW] = "adamw",
    [MS_SLOT_SGD] = "sgd",
};

const char *ms_slot_name(ms_slot slot) {
    if ((unsigned)slot >= MS_SLOT_COUNT) {
        return "unknown";
    }
    return slot_names[slot];
}

ms_argument ms_argument_absent(void) {
    return (ms_argument){.dtype = MS_F32, .rank = -1};
}

ms_argument ms_argument_of(ms_dtype dtype, int rank, const int64_t *dims) {
    ms_argument argument = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank && i < MS_DIMS_MAX; i++) {
        argument.dims[i] = dims[i];
    }
    return argument;
}

int64_t ms_argument_elements(const ms_argument *argument) {
    if (argument->rank < 0) {
        return 0;
    }
    int64_t elements = 1;
    for (int i = 0; i < argument->rank && i < MS_DIMS_MAX; i++) {
        elements *= argument->dims[i];
    }
    return elements;
}
