/*
 * ref_xent.c - references: softmax cross-entropy over a vocabulary that may be in several shards.
 *
 * Two kernels with a (tiny) exchange of statistics between them when the vocabulary is sharded:
 * stats of each row, then loss and gradient from the stats of all shards, combined in shard order.
 */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

/* The column of a row's target, or -1 when it is ignored or belongs to another shard. */
static int64_t target_column(const ms_kernel_handle *handle, int32_t target) {
    int64_t column = (int64_t)target - handle->spec.attributes.xent.first;
    bool here =
        target != MS_IGNORED_TARGET && column >= 0 && column < handle->spec.attributes.xent.valid;
    return here ? column : -1;
}

static ms_status xent_stats_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const int32_t *targets = run->arguments[1];
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    int64_t valid = handle->spec.attributes.xent.valid;
    ms_dtype s_type = ms__dtype(handle, 0);
    for (int64_t n = 0; n < rows; n++) {
        double maximum = -(double)INFINITY;
        double sum = 0.0;
        for (int64_t c = 0; c < valid; c++) {
            double logit = ms__load(run->arguments[0], s_type, n * columns + c);
            maximum = logit > maximum ? logit : maximum;
        }
        for (int64_t c = 0; c < valid; c++) {
            sum += exp(ms__load(run->arguments[0], s_type, n * columns + c) - maximum);
        }
        int64_t column = target_column(handle, targets[n]);
        double logit =
            column >= 0 ? ms__load(run->arguments[0], s_type, n * columns + column) : 0.0;
        ms__store(run->arguments[2], s_type, 3 * n, maximum);
        ms__store(run->arguments[2], s_type, 3 * n + 1, sum);
        ms__store(run->arguments[2], s_type, 3 * n + 2, logit);
    }
    return MS_OK;
}

const ms_kernel_variant ms__xent_stats_ref = {.name = "ref", .run = xent_stats_run};

static ms_status xent_grad_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    const int32_t *targets = arguments[1];
    int64_t rows = ms__dim(handle, 0, 0);
    int64_t columns = ms__dim(handle, 0, 1);
    int64_t valid = handle->spec.attributes.xent.valid;
    double scale = ((const double *)arguments[3])[0];
    ms_dtype s_type = ms__dtype(handle, 0);
    ms_dtype x_type = ms__dtype(handle, 4);
    for (int64_t n = 0; n < rows; n++) {
        double maximum = -(double)INFINITY;
        double sum = 0.0;
        double target_logit = 0.0;
        for (int64_t p = 0; p < ms__dim(handle, 2, 0); p++) {
            double shard_maximum = ms__load(arguments[2], s_type, 3 * (p * rows + n));
            maximum = shard_maximum > maximum ? shard_maximum : maximum;
        }
        for (int64_t p = 0; p < ms__dim(handle, 2, 0); p++) {
            int64_t i = 3 * (p * rows + n);
            double shift = exp(ms__load(arguments[2], s_type, i) - maximum);
            sum += ms__load(arguments[2], s_type, i + 1) * shift;
            target_logit += ms__load(arguments[2], s_type, i + 2);
        }
        bool ignored = targets[n] == MS_IGNORED_TARGET;
        int64_t target = target_column(handle, targets[n]);
        ms__store(arguments[5], s_type, n, ignored ? 0.0 : log(sum) + maximum - target_logit);
        for (int64_t c = 0; c < columns && arguments[4] != NULL; c++) {
            double value = 0.0;
            if (!ignored && c < valid) {
                double logit = ms__load(arguments[0], s_type, n * columns + c);
                value = (exp(logit - maximum) / sum - (c == target ? 1.0 : 0.0)) * scale;
            }
            ms__store(arguments[4], x_type, n * columns + c, value);
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__xent_grad_ref = {.name = "ref", .run = xent_grad_run};
