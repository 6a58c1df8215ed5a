/*
 * ref_optimizer.c - references: AdamW and SGD with momentum over flat ranges.
 *
 * m and v are used as computed, before they are rounded to their own type: the step that the
 * formula says.
 */
#include <math.h>

#include "device/cpu/cpu_kernels.h"
#include "device/cpu/ref_value.h"

static ms_status adamw_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    const double *hyper = arguments[4];
    double beta1 = hyper[MS_HYPER_BETA1];
    double beta2 = hyper[MS_HYPER_BETA2];
    double rate = hyper[MS_HYPER_LEARNING_RATE];
    double decay = 1.0 - rate * hyper[MS_HYPER_WEIGHT_DECAY];
    double correction1 = 1.0 - pow(beta1, hyper[MS_HYPER_STEP]);
    double correction2 = 1.0 - pow(beta2, hyper[MS_HYPER_STEP]);
    ms_dtype type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        double g = ms__load(arguments[1], type, i) * hyper[MS_HYPER_GRADIENT_SCALE];
        double m = beta1 * ms__load(arguments[2], type, i) + (1.0 - beta1) * g;
        double v = beta2 * ms__load(arguments[3], type, i) + (1.0 - beta2) * g * g;
        ms__store(arguments[2], type, i, m);
        ms__store(arguments[3], type, i, v);
        double step = rate * (m / correction1) / (sqrt(v / correction2) + hyper[MS_HYPER_EPSILON]);
        ms__store(arguments[0], type, i, ms__load(arguments[0], type, i) * decay - step);
        if (arguments[5] != NULL) {
            ms__store(arguments[5], MS_BF16, i, ms__load(arguments[0], type, i));
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__adamw_ref = {.name = "ref", .run = adamw_run};

static ms_status sgd_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    void *const *arguments = run->arguments;
    const double *hyper = arguments[3];
    double momentum = hyper[MS_HYPER_BETA1];
    bool first = hyper[MS_HYPER_STEP] <= 1.0;
    ms_dtype type = ms__dtype(handle, 0);
    int64_t elements = ms_argument_elements(ms__argument(handle, 0));
    for (int64_t i = 0; i < elements; i++) {
        double w = ms__load(arguments[0], type, i);
        double g = ms__load(arguments[1], type, i) * hyper[MS_HYPER_GRADIENT_SCALE] +
                   hyper[MS_HYPER_WEIGHT_DECAY] * w;
        if (arguments[2] != NULL) {
            double m = first ? g : momentum * ms__load(arguments[2], type, i) + g;
            ms__store(arguments[2], type, i, m);
            g = handle->spec.attributes.sgd.nesterov ? g + momentum * m : m;
        }
        ms__store(arguments[0], type, i, w - hyper[MS_HYPER_LEARNING_RATE] * g);
        if (arguments[4] != NULL) {
            ms__store(arguments[4], MS_BF16, i, ms__load(arguments[0], type, i));
        }
    }
    return MS_OK;
}

const ms_kernel_variant ms__sgd_ref = {.name = "ref", .run = sgd_run};
