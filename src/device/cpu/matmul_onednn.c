/*
 * matmul_onednn.c - matmul and pack through oneDNN: which of its ways suits which matmul.
 *
 * oneDNN has several, and they differ by up to 2x (figures: GFLOP/s of one thread of a Sapphire
 * Rapids at GPT-2's shapes, peak 214 in fp32):
 *
 *     fp32   dnnl_sgemm 165-175, matmul primitive plain 80-165, with packed b 157-172. sgemm copies
 *            its operands into its own panels anyway, takes any rows and accumulates by beta, so it
 *            does everything in fp32, and packing never pays. A bias is put into c beforehand: 2 %.
 *     bf16   matmul primitive plain 740-1060, with packed b 850-1260 (processors with AMX).
 *            * A primitive with a run-time dim takes another way (740-900, and 31 instead of 17 at
 *              one row): one primitive for every number of rows, so matmul.runtime_rows has it.
 *            * So do weight gradients with AMX, where the usual way with a transposed is slow
 *              (530-620 against 740-900), except over few tokens (503 against 337 at 256).
 *            * Without AVX512_BF16, oneDNN's bf16 is slower than its fp32 or absent: operands are
 *              widened into scratch and multiplied in fp32.
 *
 * An fp32 or widened matmul has no state; scratch of the latter is a, b and c in fp32. Others have
 * primitives, to overwrite and to accumulate, and memory objects for a, b, bias and c.
 *
 * Primitives are made in prepare, both forms, as accumulate is a run's choice. Equal primitives of
 * different handles share their code in oneDNN's cache.
 * Rejected: inner product primitives (no accumulation into weight gradients); choosing among
 * implementations by the iterator (2.6's primitive cache returns the first whatever is asked);
 * weight gradients from transposed copies of a (no faster, and slow at a power of two tokens).
 */
#include <string.h>

#include "base/memory.h"
#include "device/cpu/matmul_onednn.h"

typedef enum matmul_path { PATH_SGEMM, PATH_WIDENED, PATH_PRIMITIVE } matmul_path;

enum { OVERWRITE, ACCUMULATE, FORM_COUNT };

typedef struct matmul_state {
    ms_onednn_form form[FORM_COUNT];
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c;
    int64_t rows;      /* of the memory objects a and c; 0: none yet */
    bool runtime_rows; /* the primitives' rows are a run-time dim */
} matmul_state;

/* Tokens (k) from which weight gradients take the way of run-time dims. */
#define RUNTIME_GRADIENT_TOKENS 768

static matmul_path choose_path(const ms_device *device, const ms_kernel_spec *spec) {
    if (spec->arguments[0].dtype == MS_F32) {
        return PATH_SGEMM;
    }
    return ms__onednn_has_bf16(device) ? PATH_PRIMITIVE : PATH_WIDENED;
}

static bool takes_runtime_rows(const ms_device *device, const ms_kernel_spec *spec) {
    const ms_attributes *attributes = &spec->attributes;
    return attributes->matmul.runtime_rows ||
           (attributes->matmul.transpose_a && !attributes->matmul.packed &&
            attributes->matmul.k >= RUNTIME_GRADIENT_TOKENS && ms__onednn_has_amx(device));
}

/* ---- fp32 ---- */

typedef struct sizes {
    int64_t m, n, k; /* m: the rows of this run */
    bool transpose_a, transpose_b;
} sizes;

static sizes run_sizes(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const ms_attributes *attributes = &handle->spec.attributes;
    return (sizes){.m = attributes->matmul.runtime_rows ? run->extent[0] : attributes->matmul.m,
                   .n = attributes->matmul.n,
                   .k = attributes->matmul.k,
                   .transpose_a = attributes->matmul.transpose_a,
                   .transpose_b = attributes->matmul.transpose_b};
}

/* Elements are copied and converted in pieces of about this many by the team. */
#define CONVERT_ELEMENTS 16384

static ms_status sgemm(const ms_device *device, const sizes *s, const float *a, const float *b,
                       const float *bias, float *c, bool accumulate) {
    if (bias != NULL) {
#pragma omp parallel for num_threads(device->threads) if (s->m * s->n > CONVERT_ELEMENTS)
        for (int64_t i = 0; i < s->m; i++) {
            memcpy(c + i * s->n, bias, (size_t)s->n * sizeof *c);
        }
    }
    MS_TRY(ms__onednn_check(dnnl_sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m,
                                       s->n, s->k, 1.0f, a, s->transpose_a ? s->m : s->k, b,
                                       s->transpose_b ? s->k : s->n,
                                       accumulate || bias != NULL ? 1.0f : 0.0f, c, s->n),
                            MS_SLOT_MATMUL, "sgemm"));
    return MS_OK;
}

static ms_status convert(const ms_device *device, const void *from, ms_dtype from_type, void *to,
                         ms_dtype to_type, int64_t count) {
    int64_t pieces = ms_ceil_div(count, CONVERT_ELEMENTS);
    ms_status status = MS_OK;
#pragma omp parallel for num_threads(device->threads)
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = i * CONVERT_ELEMENTS;
        const char *source = (const char *)from + (size_t)first * ms_dtype_bytes(from_type);
        char *target = (char *)to + (size_t)first * ms_dtype_bytes(to_type);
        ms_status piece = ms_convert(source, from_type, target, to_type,
                                     ms_min_i64(CONVERT_ELEMENTS, count - first));
        if (piece != MS_OK) {
#pragma omp critical(matmul_convert)
            status = piece;
        }
    }
    return status;
}

/* Floats of scratch, each part aligned. */
static size_t float_bytes(int64_t count) {
    return ms_align_up((size_t)count * sizeof(float), MS_ALIGNMENT);
}

static ms_status widened_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                             const sizes *s) {
    const ms_device *device = handle->device;
    char *scratch = run->scratch;
    float *a = (float *)(void *)scratch;
    float *b = (float *)(void *)(scratch + float_bytes(handle->spec.attributes.matmul.m * s->k));
    float *c = run->arguments[3];
    bool narrow = ms__dtype(handle, 3) == MS_BF16;
    if (narrow) {
        c = (float *)(void *)((char *)b + float_bytes(s->k * s->n));
        if (run->accumulate) {
            MS_TRY(convert(device, run->arguments[3], MS_BF16, c, MS_F32, s->m * s->n));
        }
    }
    MS_TRY(convert(device, run->arguments[0], MS_BF16, a, MS_F32, s->m * s->k));
    MS_TRY(convert(device, run->arguments[1], MS_BF16, b, MS_F32, s->k * s->n));
    MS_TRY(sgemm(device, s, a, b, run->arguments[2], c, run->accumulate));
    if (narrow) {
        MS_TRY(convert(device, c, MS_F32, run->arguments[3], MS_BF16, s->m * s->n));
    }
    return MS_OK;
}

/* ---- bf16 primitives ---- */

static void state_destroy(matmul_state *state) {
    for (int i = 0; i < FORM_COUNT; i++) {
        ms__onednn_form_destroy(&state->form[i]);
    }
    dnnl_memory_t memories[4] = {state->a, state->b, state->bias, state->c};
    for (int i = 0; i < 4; i++) {
        if (memories[i] != NULL) {
            dnnl_memory_destroy(memories[i]);
        }
    }
    if (state->stream != NULL) {
        dnnl_stream_destroy(state->stream);
    }
    ms_free(state);
}

static void matmul_destroy(ms_kernel_handle *handle) {
    if (handle->state != NULL) {
        state_destroy(handle->state);
    }
}

/* Descriptors of a and c for a number of rows, or for DNNL_RUNTIME_DIM_VAL. */
static ms_status describe_rows(const ms_kernel_handle *handle, int64_t rows, dnnl_memory_desc_t *a,
                               dnnl_memory_desc_t *c) {
    const ms_attributes *attributes = &handle->spec.attributes;
    MS_TRY(
        ms__onednn_matrix(MS_BF16, rows, attributes->matmul.k, attributes->matmul.transpose_a, a));
    MS_TRY(ms__onednn_matrix(ms__dtype(handle, 3), rows, attributes->matmul.n, false, c));
    return MS_OK;
}

static ms_status set_rows(const ms_kernel_handle *handle, matmul_state *state, int64_t rows) {
    if (state->rows == rows) {
        return MS_OK;
    }
    dnnl_memory_desc_t a, c;
    MS_TRY(describe_rows(handle, rows, &a, &c));
    dnnl_memory_t *memories[2] = {&state->a, &state->c};
    for (int i = 0; i < 2; i++) {
        if (*memories[i] != NULL) {
            dnnl_memory_destroy(*memories[i]);
            *memories[i] = NULL;
        }
    }
    state->rows = 0;
    MS_TRY(ms__onednn_memory_make(&a, &state->a));
    MS_TRY(ms__onednn_memory_make(&c, &state->c));
    state->rows = rows;
    return MS_OK;
}

static ms_status check_packed_size(const ms_kernel_spec *spec, const ms_argument *packed,
                                   size_t bytes) {
    if ((size_t)packed->dims[0] != bytes) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel %s: packed has %lld bytes, oneDNN's layout takes %zu; use the "
                       "packed_bytes of the slot pack",
                       ms_slot_name(spec->slot), (long long)packed->dims[0], bytes);
    }
    return MS_OK;
}

/* The layout of b, checked against the spec when packed. */
static ms_status describe_b(const ms_kernel_spec *spec, dnnl_memory_desc_t *b) {
    const ms_attributes *attributes = &spec->attributes;
    int64_t k = attributes->matmul.k, n = attributes->matmul.n;
    if (attributes->matmul.packed) {
        MS_TRY(ms__onednn_packed(k, n, b));
        MS_TRY(check_packed_size(spec, &spec->arguments[1], dnnl_memory_desc_get_size(b)));
    } else {
        MS_TRY(ms__onednn_matrix(MS_BF16, k, n, attributes->matmul.transpose_b, b));
    }
    return MS_OK;
}

static ms_status prepare_primitives(ms_kernel_handle *handle, matmul_state *state) {
    const ms_attributes *attributes = &handle->spec.attributes;
    int64_t rows = state->runtime_rows ? DNNL_RUNTIME_DIM_VAL : attributes->matmul.m;
    ms_onednn_shapes shapes = {0};
    MS_TRY(describe_rows(handle, rows, &shapes.a, &shapes.c));
    MS_TRY(describe_b(&handle->spec, &shapes.b));
    MS_TRY(ms__onednn_memory_make(&shapes.b, &state->b));
    if (ms__present(handle, 2)) {
        MS_TRY(ms__onednn_matrix(MS_F32, 1, attributes->matmul.n, false, &shapes.bias));
        MS_TRY(ms__onednn_memory_make(&shapes.bias, &state->bias));
    } else {
        /* The contract has no accumulation with a bias. */
        MS_TRY(ms__onednn_form_make(&shapes, true, &state->form[ACCUMULATE],
                                    &handle->needs.scratch_bytes));
    }
    MS_TRY(ms__onednn_form_make(&shapes, false, &state->form[OVERWRITE],
                                &handle->needs.scratch_bytes));
    MS_TRY(set_rows(handle, state, attributes->matmul.m));
    return MS_OK;
}

static bool matmul_supports(const ms_device *device, const ms_kernel_spec *spec) {
    ms_dtype type = spec->arguments[0].dtype;
    if (type != MS_F32 && type != MS_BF16) {
        return false;
    }
    matmul_path path = choose_path(device, spec);
    return !spec->attributes.matmul.packed ||
           (path == PATH_PRIMITIVE && !spec->attributes.matmul.runtime_rows);
}

static ms_status matmul_prepare(ms_device *device, ms_kernel_handle *handle) {
    const ms_attributes *attributes = &handle->spec.attributes;
    matmul_path path = choose_path(device, &handle->spec);
    ms__onednn_use_team(device);
    if (path == PATH_SGEMM) {
        return MS_OK;
    }
    if (path == PATH_WIDENED) {
        int64_t m = attributes->matmul.m, n = attributes->matmul.n, k = attributes->matmul.k;
        handle->needs.scratch_bytes = float_bytes(m * k) + float_bytes(k * n) +
                                      (ms__dtype(handle, 3) == MS_BF16 ? float_bytes(m * n) : 0);
        return MS_OK;
    }
    matmul_state *state = NULL;
    dnnl_engine_t engine;
    MS_TRY(ms__onednn_engine(&engine));
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &state));
    state->runtime_rows = takes_runtime_rows(device, &handle->spec);
    ms_status status;
    MS_TRY_GOTO(
        ms__onednn_check(dnnl_stream_create(&state->stream, engine, dnnl_stream_default_flags),
                         MS_SLOT_MATMUL, "a stream"),
        destroy_state);
    MS_TRY_GOTO(prepare_primitives(handle, state), destroy_state);
    handle->state = state;
    return MS_OK;
destroy_state:
    state_destroy(state);
    return status;
}

static ms_status primitive_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                               const sizes *s) {
    matmul_state *state = handle->state;
    MS_TRY(set_rows(handle, state, s->m));
    MS_TRY(ms__onednn_point(state->a, run->arguments[0], state->stream));
    MS_TRY(ms__onednn_point(state->b, run->arguments[1], state->stream));
    MS_TRY(ms__onednn_point(state->c, run->arguments[3], state->stream));
    if (state->bias != NULL) {
        MS_TRY(ms__onednn_point(state->bias, run->arguments[2], state->stream));
    }
    MS_TRY(ms__onednn_run(&state->form[run->accumulate ? ACCUMULATE : OVERWRITE], state->stream,
                          state->a, state->b, state->bias, state->c, run->scratch));
    return MS_OK;
}

static ms_status matmul_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    sizes s = run_sizes(handle, run);
    ms__onednn_use_team(handle->device);
    if (ms__dtype(handle, 0) == MS_F32) {
        MS_TRY(sgemm(handle->device, &s, run->arguments[0], run->arguments[1], run->arguments[2],
                     run->arguments[3], run->accumulate));
        return MS_OK;
    }
    if (handle->state == NULL) {
        MS_TRY(widened_run(handle, run, &s));
    } else {
        MS_TRY(primitive_run(handle, run, &s));
    }
    return MS_OK;
}

const ms_kernel_variant ms__matmul_onednn = {.name = "onednn",
                                             .isa = MS_ISA_AVX2,
                                             .supports = matmul_supports,
                                             .prepare = matmul_prepare,
                                             .run = matmul_run,
                                             .destroy = matmul_destroy};

/* ---- pack ---- */

/*
 * Packing reads and writes b once for each use of the packed copy that the caller plans (once a
 * step). It pays when the matmul's rows are many and b is not so large that packing is bound by
 * memory; a [k, n] b (input gradients) gains more than a [n, k] one (forward), which oneDNN's own
 * copies serve well, and nothing is gained by the latter with a large k. Measured with AMX:
 * break-even at 900 and 400 rows, where the packed copy is used once; without: at about 700.
 */
#define PACK_ROWS_TRANSPOSED 1024
#define PACK_DEPTH_TRANSPOSED_MAX 2048
#define PACK_ROWS 512
#define PACK_BYTES_MAX (INT64_C(32) << 20)

static bool pack_supports(const ms_device *device, const ms_kernel_spec *spec) {
    const ms_attributes *attributes = &spec->attributes;
    int64_t bytes = ms_argument_elements(&spec->arguments[0]) * (int64_t)sizeof(uint16_t);
    bool pays = attributes->matmul.m >= PACK_ROWS;
    if (attributes->matmul.transpose_b) {
        pays = attributes->matmul.m >= PACK_ROWS_TRANSPOSED &&
               attributes->matmul.k <= PACK_DEPTH_TRANSPOSED_MAX;
    }
    return pays && bytes <= PACK_BYTES_MAX && spec->arguments[0].dtype == MS_BF16 &&
           ms__onednn_has_bf16(device) && !attributes->matmul.runtime_rows;
}

typedef struct pack_state {
    dnnl_stream_t stream;
    ms_onednn_reorder reorder;
} pack_state;

static void pack_state_destroy(pack_state *state) {
    ms__onednn_reorder_destroy(&state->reorder);
    if (state->stream != NULL) {
        dnnl_stream_destroy(state->stream);
    }
    ms_free(state);
}

static void pack_destroy(ms_kernel_handle *handle) {
    if (handle->state != NULL) {
        pack_state_destroy(handle->state);
    }
}

static ms_status pack_prepare(ms_device *device, ms_kernel_handle *handle) {
    const ms_attributes *attributes = &handle->spec.attributes;
    int64_t k = attributes->matmul.k, n = attributes->matmul.n;
    ms__onednn_use_team(device);
    dnnl_engine_t engine;
    dnnl_memory_desc_t plain, packed;
    MS_TRY(ms__onednn_engine(&engine));
    MS_TRY(ms__onednn_packed(k, n, &packed));
    MS_TRY(ms__onednn_matrix(MS_BF16, k, n, attributes->matmul.transpose_b, &plain));
    if (ms__present(handle, 1)) {
        MS_TRY(check_packed_size(&handle->spec, ms__argument(handle, 1),
                                 dnnl_memory_desc_get_size(&packed)));
    }
    pack_state *state = NULL;
    ms_status status;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &state));
    MS_TRY_GOTO(
        ms__onednn_check(dnnl_stream_create(&state->stream, engine, dnnl_stream_default_flags),
                         MS_SLOT_PACK, "a stream"),
        destroy_state);
    MS_TRY_GOTO(ms__onednn_reorder_make(&plain, &packed, &state->reorder), destroy_state);
    handle->needs.packed_bytes = state->reorder.to_bytes;
    handle->needs.scratch_bytes = state->reorder.scratch_bytes;
    handle->state = state;
    return MS_OK;
destroy_state:
    pack_state_destroy(state);
    return status;
}

static ms_status pack_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const pack_state *state = handle->state;
    ms__onednn_use_team(handle->device);
    MS_TRY(ms__onednn_reorder_run(&state->reorder, state->stream, run->arguments[0],
                                  run->arguments[1], run->scratch));
    return MS_OK;
}

const ms_kernel_variant ms__pack_onednn = {.name = "onednn",
                                           .isa = MS_ISA_AVX2,
                                           .supports = pack_supports,
                                           .prepare = pack_prepare,
                                           .run = pack_run,
                                           .destroy = pack_destroy};
