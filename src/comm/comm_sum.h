/*
 * comm_sum.h - the order of sums: reducing the members' values in a fixed tree.
 *
 * n values are added as a balanced binary tree over the member index, split at the largest power of
 * two below n; bf16 and fp16 are added in fp32, int32 and uint8 in int64, and rounded or narrowed
 * once. Everything works element by element, so no result depends on where a block begins or ends.
 */
#ifndef MS_COMM_COMM_SUM_H
#define MS_COMM_COMM_SUM_H

#include <mindspeed/comm.h>

#include "base/cpu.h"
#include "base/types.h"

#define MS__SUM_MEMBERS_MAX MS_COMM_RANKS_MAX

/* What values are added in. */
typedef enum ms__sum_type {
    MS__SUM_F64,
    MS__SUM_F32,
    MS__SUM_I64,
    MS__SUM_TYPE_COUNT
} ms__sum_type;

/* Loops over contiguous elements, one table per instruction set. result may be a or b. */
typedef struct ms__sum_kernels {
    void (*combine[MS__SUM_TYPE_COUNT][MS_REDUCE_AVG])(void *result, const void *a, const void *b,
                                                       size_t count);
    void (*divide[MS__SUM_TYPE_COUNT])(void *result, const void *values, int members, size_t count);
    void (*bf16_to_f32)(float *result, const uint16_t *values, size_t count);
    void (*f16_to_f32)(float *result, const uint16_t *values, size_t count);
    void (*f32_to_bf16)(uint16_t *result, const float *values, size_t count);
    void (*f32_to_f16)(uint16_t *result, const float *values, size_t count);
    /* memcpy past the caches, for what nobody reads soon; source and result do not overlap */
    void (*copy_stream)(void *result, const void *source, size_t bytes);
} ms__sum_kernels;

extern const ms__sum_kernels ms__sum_kernels_ref;
extern const ms__sum_kernels ms__sum_kernels_avx2;
extern const ms__sum_kernels ms__sum_kernels_avx512;
const ms__sum_kernels *ms__sum_kernels_for(ms_isa isa);

/* What an operation can be asked for; MS_ERR_UNSUPPORTED otherwise. */
ms_status ms__sum_check(ms_dtype dtype, ms_reduce_op op);

/*
 * result = reduction of sources[0 .. members), count elements each. result may be one of the
 * sources; otherwise they do not overlap.
 */
void ms__sum_block(const ms__sum_kernels *kernels, ms_dtype dtype, ms_reduce_op op,
                   const void *const *sources, int members, void *result, size_t count);

#endif
