/*
 * matmul_ref.c - reference matmul in every type, and the pack that never pays.
 *
 * The truth that oneDNN's matmuls are measured against, and the only matmul in fp64, in which whole
 * small models are run to compare layouts; so it is plain but blocked. A tile of c (ROWS x COLUMNS)
 * is summed in double from panels of a and b that are copied to doubles first, whatever their type
 * and transposition:
 *
 *     a panel [ROWS][DEPTH]      tile [ROWS][COLUMNS]      b panel [DEPTH][COLUMNS]
 *
 * Every element of c is one sum over k in rising order, in double, rounded once: the bits depend
 * neither on the number of threads nor on the tile that an element falls into.
 * Rejected: intrinsics (this is the yardstick), and copying all of b (0.3 GB for a head in double).
 */
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

#include <omp.h>

#define ROWS 32
#define COLUMNS 64
#define DEPTH 128

typedef struct panels {
    double tile[ROWS][COLUMNS];
    double a[ROWS][DEPTH];
    double b[DEPTH][COLUMNS];
} panels;

typedef struct problem {
    const ms_kernel_run_info *run;
    ms_dtype x_type, c_type;
    int64_t m, n, k;         /* m: the rows of this run */
    int64_t a_row, a_column; /* strides of op(a) in elements */
    int64_t b_row, b_column;
} problem;

/* Rows of a tensor as doubles; the columns beyond are 0, so that a tile is always whole. */
static void copy_panel(const void *from, ms_dtype type, int64_t first, int64_t row_stride,
                       int64_t column_stride, int64_t rows, int64_t columns, double *to,
                       int64_t to_stride) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            to[i * to_stride + j] =
                ms__load(from, type, first + i * row_stride + j * column_stride);
        }
        for (int64_t j = columns; j < to_stride; j++) {
            to[i * to_stride + j] = 0.0;
        }
    }
}

/* tile += a panel * b panel; four steps of k at a time, added in order. */
static void multiply(panels *p, int64_t rows, int64_t depth) {
    for (int64_t i = 0; i < rows; i++) {
        double *restrict tile = p->tile[i];
        int64_t k = 0;
        for (; k + 4 <= depth; k += 4) {
            const double *a = &p->a[i][k];
            const double *b0 = p->b[k], *b1 = p->b[k + 1], *b2 = p->b[k + 2], *b3 = p->b[k + 3];
            for (int j = 0; j < COLUMNS; j++) {
                tile[j] = (((tile[j] + a[0] * b0[j]) + a[1] * b1[j]) + a[2] * b2[j]) + a[3] * b3[j];
            }
        }
        for (; k < depth; k++) {
            for (int j = 0; j < COLUMNS; j++) {
                tile[j] += p->a[i][k] * p->b[k][j];
            }
        }
    }
}

static void run_tile(const problem *p, panels *room, int64_t row, int64_t column) {
    void *const *arguments = p->run->arguments;
    int64_t rows = ms_min_i64(ROWS, p->m - row);
    int64_t columns = ms_min_i64(COLUMNS, p->n - column);
    memset(room->tile, 0, sizeof room->tile);
    for (int64_t k = 0; k < p->k; k += DEPTH) {
        int64_t depth = ms_min_i64(DEPTH, p->k - k);
        copy_panel(arguments[0], p->x_type, row * p->a_row + k * p->a_column, p->a_row, p->a_column,
                   rows, depth, room->a[0], DEPTH);
        copy_panel(arguments[1], p->x_type, k * p->b_row + column * p->b_column, p->b_row,
                   p->b_column, depth, columns, room->b[0], COLUMNS);
        multiply(room, rows, depth);
    }
    ms_dtype s_type = p->x_type == MS_F64 ? MS_F64 : MS_F32;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            double bias = arguments[2] != NULL ? ms__load(arguments[2], s_type, column + j) : 0.0;
            ms__store_acc(arguments[3], p->c_type, (row + i) * p->n + column + j,
                          room->tile[i][j] + bias, p->run->accumulate);
        }
    }
}

static bool matmul_supports(const ms_device *device, const ms_kernel_spec *spec) {
    (void)device;
    return !spec->attributes.matmul.packed; /* the reference's pack is the empty one */
}

static ms_status matmul_prepare(ms_device *device, ms_kernel_handle *handle) {
    int64_t tiles = ms_ceil_div(handle->spec.attributes.matmul.m, ROWS) *
                    ms_ceil_div(handle->spec.attributes.matmul.n, COLUMNS);
    (void)device;
    handle->needs.scratch_bytes = (size_t)ms__cpu_team(handle, tiles) * sizeof(panels);
    return MS_OK;
}

static ms_status matmul_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    bool transpose_a = handle->spec.attributes.matmul.transpose_a;
    bool transpose_b = handle->spec.attributes.matmul.transpose_b;
    problem p = {.run = run,
                 .x_type = ms__dtype(handle, 0),
                 .c_type = ms__dtype(handle, 3),
                 .m = handle->spec.attributes.matmul.m,
                 .n = handle->spec.attributes.matmul.n,
                 .k = handle->spec.attributes.matmul.k};
    p.a_row = transpose_a ? 1 : p.k;
    p.a_column = transpose_a ? p.m : 1;
    p.b_row = transpose_b ? 1 : p.n;
    p.b_column = transpose_b ? p.k : 1;
    if (handle->spec.attributes.matmul.runtime_rows) {
        p.m = run->extent[0];
    }
    int64_t across = ms_ceil_div(p.n, COLUMNS);
    int64_t tiles = ms_ceil_div(p.m, ROWS) * across;
    panels *rooms = run->scratch;
#pragma omp parallel for num_threads(ms__cpu_team(handle, tiles)) schedule(static)
    for (int64_t tile = 0; tile < tiles; tile++) {
        run_tile(&p, &rooms[omp_get_thread_num()], tile / across * ROWS, tile % across * COLUMNS);
    }
    return MS_OK;
}

const ms_kernel_variant ms__matmul_ref = {
    .name = "ref", .supports = matmul_supports, .prepare = matmul_prepare, .run = matmul_run};

/* packed_bytes stays 0: the caller uses b as it is. A run of it has nothing to do. */
static ms_status pack_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    (void)handle;
    (void)run;
    return MS_OK;
}

const ms_kernel_variant ms__pack_ref = {.name = "ref", .run = pack_run};
