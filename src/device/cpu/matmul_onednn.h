/*
 * matmul_onednn.h - inside the room: what matmul_onednn.c and matmul_primitive.c share.
 *
 * A "form" is one oneDNN primitive with its scratchpad; a matmul that may accumulate has two.
 */
#ifndef MS_DEVICE_CPU_MATMUL_ONEDNN_H
#define MS_DEVICE_CPU_MATMUL_ONEDNN_H

#include <dnnl.h>

#include "device/cpu/cpu_kernels.h"

typedef struct ms_onednn_form {
    dnnl_primitive_t primitive;
    dnnl_memory_t scratch; /* NULL when it needs none */
} ms_onednn_form;

/* Descriptors of a matmul's operands; bias.ndims 0 when there is none. */
typedef struct ms_onednn_shapes {
    dnnl_memory_desc_t a, b, bias, c;
} ms_onednn_shapes;

/* Status with a sentence for a failed call of oneDNN; MS_OK for success. */
ms_status ms__onednn_check(dnnl_status_t code, ms_slot slot, const char *what);
/* The CPU engine, one for the process, made at the first call. */
ms_status ms__onednn_engine(dnnl_engine_t *engine);

/* [rows, columns] of fp32 or bf16, with the strides of a row-major matrix or of its transpose.
 * rows may be DNNL_RUNTIME_DIM_VAL. */
ms_status ms__onednn_matrix(ms_dtype type, int64_t rows, int64_t columns, bool transposed,
                            dnnl_memory_desc_t *shape);
/* The layout that bf16 matmuls like best for a second operand [k, n]; the same for any number of
 * rows of the first. */
ms_status ms__onednn_packed(int64_t k, int64_t n, dnnl_memory_desc_t *shape);

/* Makes a form and raises *scratch_bytes to what it needs. */
ms_status ms__onednn_form_make(const ms_onednn_shapes *shapes, bool accumulate,
                               ms_onednn_form *form, size_t *scratch_bytes);
void ms__onednn_form_destroy(ms_onednn_form *form);
/* A memory object without memory; ms__onednn_point gives it some. */
ms_status ms__onednn_memory_make(const dnnl_memory_desc_t *shape, dnnl_memory_t *memory);
ms_status ms__onednn_point(dnnl_memory_t memory, const void *to, dnnl_stream_t stream);
/* Runs a form; bias may be NULL, scratch is plain memory. */
ms_status ms__onednn_run(const ms_onednn_form *form, dnnl_stream_t stream, dnnl_memory_t a,
                         dnnl_memory_t b, dnnl_memory_t bias, dnnl_memory_t c, void *scratch);

/* A copy of a matrix in another layout. */
typedef struct ms_onednn_reorder {
    dnnl_primitive_t primitive;
    dnnl_memory_t from, to, scratch;
    size_t scratch_bytes;
    size_t to_bytes;
} ms_onednn_reorder;
ms_status ms__onednn_reorder_make(const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                                  ms_onednn_reorder *reorder);
void ms__onednn_reorder_destroy(ms_onednn_reorder *reorder);
ms_status ms__onednn_reorder_run(const ms_onednn_reorder *reorder, dnnl_stream_t stream,
                                 const void *from, void *to, void *scratch);

/* What oneDNN may use here: its own processor detection, and the level of the device. */
bool ms__onednn_has_bf16(const ms_device *device);
bool ms__onednn_has_amx(const ms_device *device);

/* oneDNN takes its threads from OpenMP's setting of the calling thread. */
void ms__onednn_use_team(const ms_device *device);

#endif
