/*
 * matmul_primitive.c - oneDNN's objects in the small: descriptors, primitives, memory, reorders.
 *
 * matmul_onednn.c decides which primitives a matmul needs; this file makes and runs them. All are
 * made with a scratchpad of the user's, so that a run's memory is the plan's.
 *
 * Memory objects are made without memory and pointed at it in each run, which is why a handle
 * serves one thread at a time. The engine is the process's (it holds nothing but its kind); streams
 * belong to the handles, so that several ranks may live in one process.
 */
#include "device/cpu/matmul_onednn.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/thread.h"

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t process_engine;
static dnnl_status_t engine_status;

static void make_engine(void) {
    engine_status = dnnl_engine_create(&process_engine, dnnl_cpu, 0);
}

ms_status ms__onednn_check(dnnl_status_t code, ms_slot slot, const char *what) {
    switch (code) {
    case dnnl_success:
        return MS_OK;
    case dnnl_out_of_memory:
        return ms_fail(MS_ERR_MEMORY, "kernel %s: oneDNN has no memory for %s", ms_slot_name(slot),
                       what);
    case dnnl_unimplemented:
        return ms_fail(MS_ERR_UNSUPPORTED, "kernel %s: oneDNN has no %s for this shape",
                       ms_slot_name(slot), what);
    default:
        return ms_fail(MS_ERR_BUG, "kernel %s: oneDNN refused %s with status %d",
                       ms_slot_name(slot), what, (int)code);
    }
}

#define TRY_DNNL(call, what) MS_TRY(ms__onednn_check((call), MS_SLOT_MATMUL, (what)))

ms_status ms__onednn_engine(dnnl_engine_t *engine) {
    pthread_once(&engine_once, make_engine);
    TRY_DNNL(engine_status, "an engine");
    *engine = process_engine;
    return MS_OK;
}

static dnnl_data_type_t data_type(ms_dtype type) {
    return type == MS_BF16 ? dnnl_bf16 : dnnl_f32;
}

ms_status ms__onednn_matrix(ms_dtype type, int64_t rows, int64_t columns, bool transposed,
                            dnnl_memory_desc_t *shape) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : columns, transposed ? rows : 1};
    TRY_DNNL(dnnl_memory_desc_init_by_strides(shape, 2, dims, data_type(type), strides),
             "a matrix");
    return MS_OK;
}

static ms_status describe(const ms_onednn_shapes *shapes, bool accumulate,
                          dnnl_primitive_desc_t *description) {
    dnnl_engine_t engine;
    MS_TRY(ms__onednn_engine(&engine));
    dnnl_matmul_desc_t matmul;
    TRY_DNNL(dnnl_matmul_desc_init(&matmul, &shapes->a, &shapes->b, &shapes->bias, &shapes->c),
             "a matmul");
    dnnl_primitive_attr_t attributes;
    TRY_DNNL(dnnl_primitive_attr_create(&attributes), "attributes");
    dnnl_status_t code =
        dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    dnnl_post_ops_t post_ops = NULL;
    if (code == dnnl_success && accumulate) {
        code = dnnl_post_ops_create(&post_ops);
        if (code == dnnl_success) {
            code = dnnl_post_ops_append_sum(post_ops, 1.0f);
        }
        if (code == dnnl_success) {
            code = dnnl_primitive_attr_set_post_ops(attributes, post_ops);
        }
    }
    if (code == dnnl_success) {
        code = dnnl_primitive_desc_create(description, &matmul, attributes, engine, NULL);
    }
    if (post_ops != NULL) {
        dnnl_post_ops_destroy(post_ops);
    }
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(code, "a matmul");
    return MS_OK;
}

/* Rows for which the layout is asked; the answer has been seen to depend on k and n only. */
#define PACKED_ROWS 256

ms_status ms__onednn_packed(int64_t k, int64_t n, dnnl_memory_desc_t *shape) {
    ms_onednn_shapes shapes = {0};
    MS_TRY(ms__onednn_matrix(MS_BF16, PACKED_ROWS, k, false, &shapes.a));
    MS_TRY(ms__onednn_matrix(MS_F32, PACKED_ROWS, n, false, &shapes.c));
    dnnl_dims_t dims = {k, n};
    TRY_DNNL(dnnl_memory_desc_init_by_tag(&shapes.b, 2, dims, dnnl_bf16, dnnl_format_tag_any),
             "a matrix");
    dnnl_primitive_desc_t description;
    MS_TRY(describe(&shapes, false, &description));
    const dnnl_memory_desc_t *chosen =
        dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0);
    if (chosen != NULL) {
        *shape = *chosen;
    }
    dnnl_primitive_desc_destroy(description);
    TRY_DNNL(chosen != NULL ? dnnl_success : dnnl_unimplemented, "packed layout");
    return MS_OK;
}

ms_status ms__onednn_memory_make(const dnnl_memory_desc_t *shape, dnnl_memory_t *memory) {
    dnnl_engine_t engine;
    MS_TRY(ms__onednn_engine(&engine));
    TRY_DNNL(dnnl_memory_create(memory, shape, engine, DNNL_MEMORY_NONE), "a memory object");
    return MS_OK;
}

/* The scratchpad of a description as a memory object, NULL when it is empty. */
static ms_status scratch_make(const_dnnl_primitive_desc_t description, dnnl_memory_t *memory,
                              size_t *bytes) {
    const dnnl_memory_desc_t *shape =
        dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    *bytes = shape != NULL ? dnnl_memory_desc_get_size(shape) : 0;
    *memory = NULL;
    if (*bytes > 0) {
        MS_TRY(ms__onednn_memory_make(shape, memory));
    }
    return MS_OK;
}

ms_status ms__onednn_form_make(const ms_onednn_shapes *shapes, bool accumulate,
                               ms_onednn_form *form, size_t *scratch_bytes) {
    dnnl_primitive_desc_t description;
    MS_TRY(describe(shapes, accumulate, &description));
    ms_onednn_form made = {0};
    size_t bytes = 0;
    ms_status status = scratch_make(description, &made.scratch, &bytes);
    if (status == MS_OK) {
        status = ms__onednn_check(dnnl_primitive_create(&made.primitive, description),
                                  MS_SLOT_MATMUL, "a matmul");
    }
    dnnl_primitive_desc_destroy(description);
    if (status != MS_OK) {
        ms__onednn_form_destroy(&made);
        MS_TRY(status);
    }
    *form = made;
    *scratch_bytes = bytes > *scratch_bytes ? bytes : *scratch_bytes;
    return MS_OK;
}

void ms__onednn_form_destroy(ms_onednn_form *form) {
    if (form->primitive != NULL) {
        dnnl_primitive_destroy(form->primitive);
    }
    if (form->scratch != NULL) {
        dnnl_memory_destroy(form->scratch);
    }
    *form = (ms_onednn_form){0};
}

ms_status ms__onednn_point(dnnl_memory_t memory, const void *to, dnnl_stream_t stream) {
    /* The interface has no const; operands are only read. */
    TRY_DNNL(dnnl_memory_set_data_handle_v2(memory, (void *)(uintptr_t)to, stream),
             "a memory object");
    return MS_OK;
}

ms_status ms__onednn_run(const ms_onednn_form *form, dnnl_stream_t stream, dnnl_memory_t a,
                         dnnl_memory_t b, dnnl_memory_t bias, dnnl_memory_t c, void *scratch) {
    dnnl_exec_arg_t arguments[5] = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    int count = 3;
    if (bias != NULL) {
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, bias};
    }
    if (form->scratch != NULL) {
        MS_TRY(ms__onednn_point(form->scratch, scratch, stream));
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, form->scratch};
    }
    TRY_DNNL(dnnl_primitive_execute(form->primitive, stream, count, arguments), "to run");
    TRY_DNNL(dnnl_stream_wait(stream), "to run");
    return MS_OK;
}

ms_status ms__onednn_reorder_make(const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                                  ms_onednn_reorder *reorder) {
    dnnl_engine_t engine;
    MS_TRY(ms__onednn_engine(&engine));
    dnnl_primitive_attr_t attributes;
    TRY_DNNL(dnnl_primitive_attr_create(&attributes), "attributes");
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t code =
        dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (code == dnnl_success) {
        code =
            dnnl_reorder_primitive_desc_create(&description, from, engine, to, engine, attributes);
    }
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(code, "a reorder");
    ms_onednn_reorder made = {.to_bytes = dnnl_memory_desc_get_size(to)};
    ms_status status = scratch_make(description, &made.scratch, &made.scratch_bytes);
    if (status == MS_OK) {
        status = ms__onednn_check(dnnl_primitive_create(&made.primitive, description), MS_SLOT_PACK,
                                  "a reorder");
    }
    dnnl_primitive_desc_destroy(description);
    if (status == MS_OK) {
        status = ms__onednn_memory_make(from, &made.from);
    }
    if (status == MS_OK) {
        status = ms__onednn_memory_make(to, &made.to);
    }
    if (status != MS_OK) {
        ms__onednn_reorder_destroy(&made);
        MS_TRY(status);
    }
    *reorder = made;
    return MS_OK;
}

void ms__onednn_reorder_destroy(ms_onednn_reorder *reorder) {
    if (reorder->primitive != NULL) {
        dnnl_primitive_destroy(reorder->primitive);
    }
    dnnl_memory_t memories[3] = {reorder->from, reorder->to, reorder->scratch};
    for (int i = 0; i < 3; i++) {
        if (memories[i] != NULL) {
            dnnl_memory_destroy(memories[i]);
        }
    }
    *reorder = (ms_onednn_reorder){0};
}

ms_status ms__onednn_reorder_run(const ms_onednn_reorder *reorder, dnnl_stream_t stream,
                                 const void *from, void *to, void *scratch) {
    MS_TRY(ms__onednn_point(reorder->from, from, stream));
    MS_TRY(ms__onednn_point(reorder->to, to, stream));
    dnnl_exec_arg_t arguments[3] = {{DNNL_ARG_FROM, reorder->from}, {DNNL_ARG_TO, reorder->to}};
    int count = 2;
    if (reorder->scratch != NULL) {
        MS_TRY(ms__onednn_point(reorder->scratch, scratch, stream));
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, reorder->scratch};
    }
    TRY_DNNL(dnnl_primitive_execute(reorder->primitive, stream, count, arguments), "to reorder");
    TRY_DNNL(dnnl_stream_wait(stream), "to reorder");
    return MS_OK;
}

static bool effective_isa_has(dnnl_cpu_isa_t wanted) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)wanted) == (unsigned)wanted;
}

bool ms__onednn_has_bf16(const ms_device *device) {
    return device->isa >= MS_ISA_AVX512 && ms_cpu_has_avx512_bf16() &&
           effective_isa_has(dnnl_cpu_isa_avx512_core_bf16);
}

bool ms__onednn_has_amx(const ms_device *device) {
    return ms__onednn_has_bf16(device) && ms_cpu_has_amx_bf16() &&
           effective_isa_has(dnnl_cpu_isa_avx512_core_amx);
}

void ms__onednn_use_team(const ms_device *device) {
    if (ms_thread_team_get() != device->threads) {
        ms_thread_team_set(device->threads);
    }
}
