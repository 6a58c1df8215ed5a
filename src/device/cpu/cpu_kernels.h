/*
 * cpu_kernels.h - inside the room: what a kernel file gives to the CPU's table of kernels.
 *
 * A kernel file exports one ms_kernel_variant for each slot it serves; cpu_table.c lists, for each
 * slot, the variants from best to worst, ending in "ref", which serves everything the contract
 * allows (but a packed operand: its layout is known only to the kernel that packed it).
 * ms_kernel_prepare takes the first whose instruction set the device has and that supports the
 * spec.
 *
 * A variant may rely on this: the spec has been checked against kernel.h (argument count, presence,
 * types, shapes, attributes), no dim is 0, and at a run every argument that is present is non-NULL
 * and so is the scratch when scratch_bytes > 0. A variant must give the same bits for any thread
 * count (oneDNN's matmuls excepted) and take no memory of ours in run.
 */
#ifndef MS_DEVICE_CPU_CPU_KERNELS_H
#define MS_DEVICE_CPU_CPU_KERNELS_H

#include "device/device_ops.h"

typedef struct ms_kernel_variant {
    const char *name; /* "ref", "avx2", "avx512", "onednn" */
    ms_isa isa;       /* the least it needs, and what MS_KERNEL compares; oneDNN: MS_ISA_AVX2 */
    /* NULL: all that the contract allows. */
    bool (*supports)(const ms_device *device, const ms_kernel_spec *spec);
    /* NULL: nothing to ready. Else sets handle->needs' bytes and handle->state (from ms_alloc). On
     * failure it leaves nothing behind. needs.variant is set by the caller. */
    ms_status (*prepare)(ms_device *device, ms_kernel_handle *handle);
    ms_status (*run)(const ms_kernel_handle *handle, const ms_kernel_run_info *run);
    void (*destroy)(ms_kernel_handle *handle); /* NULL: ms_free(handle->state) is all */
} ms_kernel_variant;

#define MS_VARIANTS_MAX 4

/* The variants of a slot from best to worst; entries may be NULL. */
const ms_kernel_variant *const *ms__cpu_variants(ms_slot slot);

/* Threads a kernel should use for `pieces` independent pieces of work, at least 1. For the clause
 * num_threads() of every parallel region: a region never relies on the process's default team. */
static inline int ms__cpu_team(const ms_kernel_handle *handle, int64_t pieces) {
    int64_t threads = handle->device->threads;
    return (int)(pieces < threads ? (pieces > 1 ? pieces : 1) : threads);
}

/* Shorthands over the spec. */
static inline const ms_argument *ms__argument(const ms_kernel_handle *handle, int index) {
    return &handle->spec.arguments[index];
}
static inline int64_t ms__dim(const ms_kernel_handle *handle, int index, int dim) {
    return handle->spec.arguments[index].dims[dim];
}
static inline ms_dtype ms__dtype(const ms_kernel_handle *handle, int index) {
    return handle->spec.arguments[index].dtype;
}
static inline bool ms__present(const ms_kernel_handle *handle, int index) {
    return handle->spec.arguments[index].rank >= 0;
}

/* matmul_*.c and attention_*.c */
extern const ms_kernel_variant ms__matmul_onednn, ms__matmul_ref;
extern const ms_kernel_variant ms__pack_onednn, ms__pack_ref;
extern const ms_kernel_variant ms__attention_avx512, ms__attention_avx2, ms__attention_ref;
extern const ms_kernel_variant ms__attention_grad_avx512, ms__attention_grad_avx2,
    ms__attention_grad_ref;
extern const ms_kernel_variant ms__attention_cached_avx512, ms__attention_cached_avx2,
    ms__attention_cached_ref;

/* ref_*.c, and one file for each family and instruction set */
#define MS_DECLARE_VARIANTS(slot)                                                                  \
    extern const ms_kernel_variant ms__##slot##_ref, ms__##slot##_avx2, ms__##slot##_avx512
MS_DECLARE_VARIANTS(column_sum);
MS_DECLARE_VARIANTS(embedding);
MS_DECLARE_VARIANTS(embedding_grad);
MS_DECLARE_VARIANTS(norm);
MS_DECLARE_VARIANTS(norm_input_grad);
MS_DECLARE_VARIANTS(norm_weight_grad);
MS_DECLARE_VARIANTS(activation);
MS_DECLARE_VARIANTS(activation_grad);
MS_DECLARE_VARIANTS(rope);
MS_DECLARE_VARIANTS(dropout);
MS_DECLARE_VARIANTS(xent_stats);
MS_DECLARE_VARIANTS(xent_grad);
MS_DECLARE_VARIANTS(add);
MS_DECLARE_VARIANTS(cast);
MS_DECLARE_VARIANTS(sum);
MS_DECLARE_VARIANTS(square_sum);
MS_DECLARE_VARIANTS(adamw);
MS_DECLARE_VARIANTS(sgd);
#undef MS_DECLARE_VARIANTS

#endif
