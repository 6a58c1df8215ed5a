/*
 * comm_sum.c - the tree over the members, in blocks that stay in the first-level cache.
 *
 * Where it stands: collective.c calls ms__sum_block with a pointer into every member's memory.
 *
 * A block of SUM_BLOCK elements is taken through the whole tree before the next one. Inner nodes
 * need one scratch buffer for each level (at most 6 for 64 members), kept on the stack: 8 KiB each.
 * Where a value is added in its own type, leaves are used where they lie and the root is written to
 * the result.
 *
 * Invariants: the left subtree is complete and comes first; the result is written after all sources
 * of its block have been read, so it may be one of them.
 */
#include "comm/comm_sum.h"

#include <stdbool.h>
#include <string.h>

#define SUM_BLOCK ((size_t)1024)
#define SUM_LEVELS 7 /* of a tree of 64 leaves */
_Static_assert(MS__SUM_MEMBERS_MAX <= 1 << (SUM_LEVELS - 1), "a scratch buffer for each level");

typedef struct sum_task {
    const ms__sum_kernels *kernels;
    ms_dtype dtype;
    ms__sum_type type;
    ms_reduce_op combine; /* AVG is SUM here */
    const void *const *sources;
    size_t start; /* element */
    size_t count; /* at most SUM_BLOCK */
} sum_task;

typedef union sum_scratch {
    double f64[SUM_BLOCK];
    float f32[SUM_BLOCK];
    int64_t i64[SUM_BLOCK];
} sum_scratch;

const ms__sum_kernels *ms__sum_kernels_for(ms_isa isa) {
#if defined(__x86_64__)
    if (isa == MS_ISA_AVX512) {
        return &ms__sum_kernels_avx512;
    }
    if (isa == MS_ISA_AVX2) {
        return &ms__sum_kernels_avx2;
    }
#else
    (void)isa;
#endif
    return &ms__sum_kernels_ref;
}

ms_status ms__sum_check(ms_dtype dtype, ms_reduce_op op) {
    if ((unsigned)op >= MS_REDUCE_OP_COUNT) {
        return ms_fail(MS_ERR_ARGUMENT, "reduction %d does not exist", (int)op);
    }
    switch (dtype) {
    case MS_F64:
    case MS_F32:
    case MS_BF16:
    case MS_F16:
    case MS_I64:
    case MS_I32:
    case MS_U8:
        return MS_OK;
    default:
        return ms_fail(
            MS_ERR_UNSUPPORTED,
            "%s values cannot be reduced; use fp64, fp32, bf16, fp16, int64, int32 or uint8",
            (unsigned)dtype < MS_DTYPE_COUNT ? ms_dtype_name(dtype) : "unknown");
    }
}

static ms__sum_type sum_type_of(ms_dtype dtype) {
    switch (dtype) {
    case MS_F64:
        return MS__SUM_F64;
    case MS_F32:
    case MS_BF16:
    case MS_F16:
        return MS__SUM_F32;
    default:
        return MS__SUM_I64;
    }
}

static bool is_own_type(ms_dtype dtype) {
    return dtype == MS_F64 || dtype == MS_F32 || dtype == MS_I64;
}

/* A leaf in the type it is added in: where it lies, or converted into the scratch buffer. */
static const void *leaf(const sum_task *task, int member, sum_scratch *scratch) {
    const uint8_t *bytes = task->sources[member];
    const void *values = bytes + task->start * ms_dtype_bytes(task->dtype);
    switch (task->dtype) {
    case MS_BF16:
        task->kernels->bf16_to_f32(scratch->f32, values, task->count);
        return scratch;
    case MS_F16:
        task->kernels->f16_to_f32(scratch->f32, values, task->count);
        return scratch;
    case MS_I32:
        for (size_t i = 0; i < task->count; i++) {
            scratch->i64[i] = ((const int32_t *)values)[i];
        }
        return scratch;
    case MS_U8:
        for (size_t i = 0; i < task->count; i++) {
            scratch->i64[i] = ((const uint8_t *)values)[i];
        }
        return scratch;
    default:
        return values;
    }
}

/* The subtree of members [first, first + members): in scratch[0] or, for one leaf, where it lies.
 * root: where the result goes instead, or NULL. */
static const void *subtree(const sum_task *task, int first, int members, sum_scratch *scratch,
                           void *root) {
    if (members == 1) {
        return leaf(task, first, scratch);
    }
    int half = 1;
    while (2 * half < members) {
        half *= 2;
    }
    const void *left = subtree(task, first, half, scratch, NULL);
    const void *right = subtree(task, first + half, members - half, scratch + 1, NULL);
    void *result = root != NULL ? root : scratch;
    task->kernels->combine[task->type][task->combine](result, left, right, task->count);
    return result;
}

static void store(const sum_task *task, const void *values, void *result) {
    switch (task->dtype) {
    case MS_BF16:
        task->kernels->f32_to_bf16(result, values, task->count);
        return;
    case MS_F16:
        task->kernels->f32_to_f16(result, values, task->count);
        return;
    case MS_I32:
        for (size_t i = 0; i < task->count; i++) {
            ((int32_t *)result)[i] = (int32_t)(uint32_t)(uint64_t)((const int64_t *)values)[i];
        }
        return;
    case MS_U8:
        for (size_t i = 0; i < task->count; i++) {
            ((uint8_t *)result)[i] = (uint8_t)(uint64_t)((const int64_t *)values)[i];
        }
        return;
    default:
        if (values != result) {
            memmove(result, values, task->count * ms_dtype_bytes(task->dtype));
        }
        return;
    }
}

void ms__sum_block(const ms__sum_kernels *kernels, ms_dtype dtype, ms_reduce_op op,
                   const void *const *sources, int members, void *result, size_t count) {
    sum_scratch scratch[SUM_LEVELS];
    size_t element_bytes = ms_dtype_bytes(dtype);
    sum_task task = {.kernels = kernels,
                     .dtype = dtype,
                     .type = sum_type_of(dtype),
                     .combine = op == MS_REDUCE_AVG ? MS_REDUCE_SUM : op,
                     .sources = sources};
    bool own = is_own_type(dtype);
    if (own && members == 2 && op != MS_REDUCE_AVG) { /* one pass over all of it */
        kernels->combine[task.type][task.combine](result, sources[0], sources[1], count);
        return;
    }
    for (; task.start < count; task.start += task.count) {
        task.count = count - task.start < SUM_BLOCK ? count - task.start : SUM_BLOCK;
        uint8_t *out = (uint8_t *)result + task.start * element_bytes;
        bool divides = op == MS_REDUCE_AVG && members > 1;
        const void *sum = subtree(&task, 0, members, scratch, own && !divides ? (void *)out : NULL);
        if (divides) {
            void *quotient = own ? (void *)out : (void *)scratch;
            kernels->divide[task.type](quotient, sum, members, task.count);
            sum = quotient;
        }
        store(&task, sum, out);
    }
}
