/*
 * ref_embedding.c - references: rows of a table by id, its gradient, and dropout.
 *
 * The gradient adds rows in order, each sum rounded to the table's type, so that equal ids give the
 * same bits in every variant.
 */
#include "base/random.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

static ms_status embedding_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    const int32_t *ids = arguments[0];
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t entries = ms__dim(handle, 1, 0);
    int64_t columns = ms__dim(handle, 1, 1);
    ms_dtype x_type = ms__dtype(handle, 1);
    for (int64_t n = 0; n < rows; n++) {
        int64_t entry = (int64_t)ids[n] - handle->spec.attributes.embedding.first;
        bool here = entry >= 0 && entry < entries;
        for (int64_t c = 0; c < columns; c++) {
            double value = here ? ms__load(arguments[1], x_type, entry * columns + c) : 0.0;
            if (arguments[2] != NULL) {
                value += ms__load(arguments[2], x_type, n * columns + c);
            }
            ms__store(arguments[3], x_type, n * columns + c, value);
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__embedding_ref = {.name = "ref", .run = embedding_run};

static ms_status embedding_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    const int32_t *ids = arguments[0];
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t entries = ms__dim(handle, 2, 0);
    int64_t columns = ms__dim(handle, 2, 1);
    ms_dtype x_type = ms__dtype(handle, 1);
    ms_dtype s_type = ms__dtype(handle, 2);
    for (int64_t i = 0; i < entries * columns && !run->accumulate; i++) {
        ms__store(arguments[2], s_type, i, 0.0);
    }
    for (int64_t n = 0; n < rows; n++) {
        int64_t entry = (int64_t)ids[n] - handle->spec.attributes.embedding.first;
        for (int64_t c = 0; c < columns && entry >= 0 && entry < entries; c++) {
            ms__store_acc(arguments[2], s_type, entry * columns + c,
                          ms__load(arguments[1], x_type, n * columns + c), true);
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__embedding_grad_ref = {.name = "ref", .run = embedding_grad_run};

static ms_status dropout_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const int64_t *samples = run->arguments[1];
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    ms_dtype x_type = ms__dtype(handle, 0);
    double probability = handle->spec.attributes.dropout.probability;
    int64_t positions = handle->spec.attributes.dropout.positions;
    ms_random_key key = handle->spec.attributes.dropout.key;
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = handle->spec.attributes.dropout.row_first + n;
        uint64_t sample = (uint64_t)samples[row / positions];
        int64_t position = row % positions;
        for (int64_t c = 0; c < columns; c++) {
            uint64_t i =
                (uint64_t)position * (uint64_t)handle->spec.attributes.dropout.columns_global +
                (uint64_t)(handle->spec.attributes.dropout.column_first + c);
            uint32_t word = ms_random_at(key, sample, i / 4).word[i % 4];
            double keep = (double)ms_random_unit_f32(word) >= probability ? 1.0 : 0.0;
            ms__store(run->arguments[2], x_type, n * columns + c,
                      ms__load(run->arguments[0], x_type, n * columns + c) * keep /
                          (1.0 - probability));
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__dropout_ref = {.name = "ref", .run = dropout_run};
