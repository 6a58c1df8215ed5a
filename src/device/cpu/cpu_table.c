/*
 * cpu_table.c - which kernels the CPU has for each slot, from best to worst.
 *
 * The only list of kernels: adding one is one line here and one declaration in cpu_kernels.h. Every
 * row ends in the reference, so no slot is ever empty.
 */
#include "device/cpu/cpu_kernels.h"

#define THREE_VARIANTS(slot)                                                                       \
    { &ms__##slot##_avx512, &ms__##slot##_avx2, &ms__##slot##_ref }

static const ms_kernel_variant *const variants[MS_SLOT_COUNT][MS_VARIANTS_MAX] = {
    [MS_SLOT_MATMUL] = {&ms__matmul_onednn, &ms__matmul_ref},
    [MS_SLOT_PACK] = {&ms__pack_onednn, &ms__pack_ref},
    [MS_SLOT_COLUMN_SUM] = THREE_VARIANTS(column_sum),
    [MS_SLOT_EMBEDDING] = THREE_VARIANTS(embedding),
    [MS_SLOT_EMBEDDING_GRAD] = THREE_VARIANTS(embedding_grad),
    [MS_SLOT_NORM] = THREE_VARIANTS(norm),
    [MS_SLOT_NORM_INPUT_GRAD] = THREE_VARIANTS(norm_input_grad),
    [MS_SLOT_NORM_WEIGHT_GRAD] = THREE_VARIANTS(norm_weight_grad),
    [MS_SLOT_ACTIVATION] = THREE_VARIANTS(activation),
    [MS_SLOT_ACTIVATION_GRAD] = THREE_VARIANTS(activation_grad),
    [MS_SLOT_ATTENTION] = THREE_VARIANTS(attention),
    [MS_SLOT_ATTENTION_GRAD] = THREE_VARIANTS(attention_grad),
    [MS_SLOT_ATTENTION_CACHED] = THREE_VARIANTS(attention_cached),
    [MS_SLOT_ROPE] = THREE_VARIANTS(rope),
    [MS_SLOT_DROPOUT] = THREE_VARIANTS(dropout),
    [MS_SLOT_XENT_STATS] = THREE_VARIANTS(xent_stats),
    [MS_SLOT_XENT_GRAD] = THREE_VARIANTS(xent_grad),
    [MS_SLOT_ADD] = THREE_VARIANTS(add),
    [MS_SLOT_CAST] = THREE_VARIANTS(cast),
    [MS_SLOT_SUM] = THREE_VARIANTS(sum),
    [MS_SLOT_SQUARE_SUM] = THREE_VARIANTS(square_sum),
    [MS_SLOT_ADAMW] = THREE_VARIANTS(adamw),
    [MS_SLOT_SGD] = THREE_VARIANTS(sgd),
};

const ms_kernel_variant *const *ms__cpu_variants(ms_slot slot) {
    return variants[slot];
}
