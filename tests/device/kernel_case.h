/*
 * kernel_case.h - one kernel call as data, run by every variant and compared with the reference.
 *
 * A case holds a spec, the contents of each argument before the run, which arguments are outputs
 * and how far they may be from the reference. case_check runs it with references and with every
 * vector level of this processor on 1, 2 and 3 threads: results within the bounds, the same bits
 * for any team, nothing written behind an argument's end.
 */
#ifndef MS_TESTS_DEVICE_KERNEL_CASE_H
#define MS_TESTS_DEVICE_KERNEL_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

#define CASE_THREADS_MAX 3
#define CASE_CANARY_BYTES 64
#define CASE_CANARY 0xa5
#ifdef __SANITIZE_ADDRESS__
#define CASE_TAIL_BYTES 0 /* the sanitizer sees more than a canary */
#else
#define CASE_TAIL_BYTES CASE_CANARY_BYTES
#endif

typedef struct kernel_case {
    ms_kernel_spec spec;
    void *initial[MS_ARGS_MAX]; /* NULL where absent */
    bool output[MS_ARGS_MAX];
    double relative[MS_ARGS_MAX], absolute[MS_ARGS_MAX];
    int alias[MS_ARGS_MAX]; /* argument whose memory is used instead, or -1 */
    bool accumulate;
    bool fixed_bits;  /* outputs must have the reference's bits */
    bool any_variant; /* the level need not have a kernel of its own for this spec */
    char text[128];   /* for messages */
} kernel_case;

static uint64_t case_random_state = 1;

static inline uint32_t case_random(void) {
    case_random_state = case_random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(case_random_state >> 33);
}
/* Uniform in [-1, 1). */
static inline double case_unit(void) {
    return (double)case_random() / 1073741824.0 - 1.0;
}

static inline double case_load(const void *base, ms_dtype dtype, int64_t i) {
    switch (dtype) {
    case MS_F64:
        return ((const double *)base)[i];
    case MS_F32:
        return (double)((const float *)base)[i];
    case MS_BF16:
        return (double)ms_bf16_to_f32(((const uint16_t *)base)[i]);
    case MS_I64:
        return (double)((const int64_t *)base)[i];
    default:
        return (double)((const int32_t *)base)[i];
    }
}

static inline void case_store(void *base, ms_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case MS_F64:
        ((double *)base)[i] = value;
        break;
    case MS_F32:
        ((float *)base)[i] = (float)value;
        break;
    case MS_BF16:
        ((uint16_t *)base)[i] = ms_f32_to_bf16((float)value);
        break;
    case MS_I64:
        ((int64_t *)base)[i] = (int64_t)value;
        break;
    default:
        ((int32_t *)base)[i] = (int32_t)value;
        break;
    }
}

static inline void *case_alloc(size_t bytes) {
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, bytes + CASE_TAIL_BYTES + (bytes == 0)), 0);
    memset(memory, 0, bytes);
    memset((uint8_t *)memory + bytes, CASE_CANARY, CASE_TAIL_BYTES);
    return memory;
}

static inline void case_check_canary(const void *memory, size_t bytes, const char *text) {
    for (size_t i = 0; i < CASE_TAIL_BYTES; i++) {
        if (((const uint8_t *)memory)[bytes + i] != CASE_CANARY) {
            fail_msg("%s: wrote byte %zu behind the end", text, i);
        }
    }
}

static inline kernel_case case_begin(ms_slot slot) {
    kernel_case made;
    memset(&made, 0, sizeof made);
    made.spec.slot = slot;
    for (int i = 0; i < MS_ARGS_MAX; i++) {
        made.alias[i] = -1;
    }
    return made;
}

static inline void case_release(kernel_case *c) {
    for (int i = 0; i < MS_ARGS_MAX; i++) {
        free(c->initial[i]);
    }
}

static inline int case_absent(kernel_case *c) {
    int index = c->spec.argument_count++;
    c->spec.arguments[index] = ms_argument_absent();
    return index;
}

/* An argument of up to three dims (-1: not there) filled with numbers in [-1, 1). */
static inline int case_tensor(kernel_case *c, ms_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    int index = c->spec.argument_count++;
    int64_t dims[3] = {d0, d1, d2};
    int rank = d1 < 0 ? 1 : (d2 < 0 ? 2 : 3);
    c->spec.arguments[index] = ms_argument_of(dtype, rank, dims);
    int64_t elements = ms_argument_elements(&c->spec.arguments[index]);
    c->initial[index] = case_alloc((size_t)elements * ms_dtype_bytes(dtype));
    for (int64_t i = 0; i < elements; i++) {
        case_store(c->initial[index], dtype, i, case_unit());
    }
    return index;
}

static inline int case_output(kernel_case *c, ms_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                              double relative, double absolute) {
    int index = case_tensor(c, dtype, d0, d1, d2);
    c->output[index] = true;
    c->relative[index] = relative;
    c->absolute[index] = absolute;
    return index;
}

static inline int64_t case_elements(const kernel_case *c, int index) {
    return ms_argument_elements(&c->spec.arguments[index]);
}
static inline double case_get(const kernel_case *c, int index, int64_t i) {
    return case_load(c->initial[index], c->spec.arguments[index].dtype, i);
}
static inline void case_set(kernel_case *c, int index, int64_t i, double value) {
    case_store(c->initial[index], c->spec.arguments[index].dtype, i, value);
}
/* Multiplies and shifts all elements. */
static inline void case_scale(kernel_case *c, int index, double factor, double shift) {
    for (int64_t i = 0; i < case_elements(c, index); i++) {
        case_set(c, index, i, case_get(c, index, i) * factor + shift);
    }
}
/* Integers in [low, high]. */
static inline void case_integers(kernel_case *c, int index, int64_t low, int64_t high) {
    for (int64_t i = 0; i < case_elements(c, index); i++) {
        case_set(c, index, i, (double)(low + (int64_t)case_random() % (high - low + 1)));
    }
}
/* NaN, infinities, zeros, denormals and large numbers at every third element or so. */
static inline void case_specials(kernel_case *c, int index) {
    static const double specials[] = {NAN,    INFINITY, -INFINITY, 0.0,  -0.0,  1e-40,
                                      -3e-42, 1e9,      -1e9,      90.0, -90.0, 15.0};
    for (int64_t i = 0; i < case_elements(c, index); i++) {
        uint32_t choice = case_random() % 36;
        if (choice < 12) {
            case_set(c, index, i, specials[choice]);
        }
    }
}

/* Devices by level (MS_ISA_COUNT: the best) and team; opened once, closed by case_close_devices. */
static ms_device *case_devices[MS_ISA_COUNT + 1][CASE_THREADS_MAX + 1];

static inline ms_device *case_device(ms_isa level, int threads) {
    ms_device **device = &case_devices[level][threads];
    if (*device == NULL) {
        ms_device_options options = {.name = "cpu", .threads = threads, .isa_max = MS_ISA_COUNT};
        options.variant = level == MS_ISA_COUNT ? NULL : ms_isa_name(level);
        if (ms_device_open(&options, device) != MS_OK) {
            fail_msg("%s", ms_error_detail());
        }
    }
    return *device;
}

static inline int case_close_devices(void **state) {
    (void)state;
    for (int level = 0; level <= MS_ISA_COUNT; level++) {
        for (int threads = 0; threads <= CASE_THREADS_MAX; threads++) {
            ms_device_close(case_devices[level][threads]);
            case_devices[level][threads] = NULL;
        }
    }
    return 0;
}

typedef struct case_result {
    void *arguments[MS_ARGS_MAX]; /* those that alias another are that one's pointer */
    const char *variant;
} case_result;

static inline void case_result_release(const kernel_case *c, case_result *result) {
    for (int i = 0; i < c->spec.argument_count; i++) {
        if (c->alias[i] < 0) {
            free(result->arguments[i]);
        }
    }
}

static inline case_result case_run(const kernel_case *c, ms_device *device) {
    case_result result = {0};
    ms_kernel_handle *handle = NULL;
    if (ms_kernel_prepare(device, &c->spec, &handle) != MS_OK) {
        fail_msg("%s: %s", c->text, ms_error_detail());
    }
    ms_kernel_needs needs = ms_kernel_get_needs(handle);
    result.variant = needs.variant;
    void *scratch = case_alloc(needs.scratch_bytes);
    memset(scratch, 0x7f, needs.scratch_bytes);
    size_t bytes[MS_ARGS_MAX] = {0};
    for (int i = 0; i < c->spec.argument_count; i++) {
        if (c->alias[i] >= 0 || c->initial[i] == NULL) {
            continue;
        }
        bytes[i] = (size_t)case_elements(c, i) * ms_dtype_bytes(c->spec.arguments[i].dtype);
        result.arguments[i] = case_alloc(bytes[i]);
        memcpy(result.arguments[i], c->initial[i], bytes[i]);
    }
    for (int i = 0; i < c->spec.argument_count; i++) {
        if (c->alias[i] >= 0) {
            result.arguments[i] = result.arguments[c->alias[i]];
        }
    }
    ms_kernel_run_info run = {
        .arguments = result.arguments, .scratch = scratch, .accumulate = c->accumulate};
    if (ms_kernel_run(handle, &run, NULL) != MS_OK) {
        fail_msg("%s: %s", c->text, ms_error_detail());
    }
    ms_kernel_destroy(handle);
    case_check_canary(scratch, needs.scratch_bytes, c->text);
    free(scratch);
    for (int i = 0; i < c->spec.argument_count; i++) {
        if (c->alias[i] < 0 && result.arguments[i] != NULL) {
            case_check_canary(result.arguments[i], bytes[i], c->text);
        }
    }
    return result;
}

static inline bool case_close_enough(double got, double want, double relative, double absolute) {
    if (!isfinite(want)) {
        return !isfinite(got); /* NaN against infinity is fine: both are found in the norm */
    }
    return fabs(got - want) <= relative * fabs(want) + absolute;
}

/* The outputs of two runs, element by element; inputs must be untouched. */
static inline void case_compare(const kernel_case *c, const case_result *got,
                                const case_result *want, bool bits, int threads) {
    for (int i = 0; i < c->spec.argument_count; i++) {
        if (got->arguments[i] == NULL || c->alias[i] >= 0) {
            continue;
        }
        ms_dtype dtype = c->spec.arguments[i].dtype;
        size_t size = ms_dtype_bytes(dtype);
        bool exact = bits || !c->output[i];
        for (int64_t j = 0; j < case_elements(c, i); j++) {
            const uint8_t *a = (const uint8_t *)got->arguments[i] + (size_t)j * size;
            const uint8_t *b = (const uint8_t *)want->arguments[i] + (size_t)j * size;
            double x = case_load(got->arguments[i], dtype, j);
            double y = case_load(want->arguments[i], dtype, j);
            bool fine = exact ? memcmp(a, b, size) == 0 || (isnan(x) && isnan(y))
                              : case_close_enough(x, y, c->relative[i], c->absolute[i]);
            if (!fine) {
                fail_msg("%s %s, %d threads: argument %d element %" PRId64
                         " is %.9g, the reference %.9g",
                         c->text, got->variant, threads, i, j, x, y);
            }
        }
    }
}

/* Everything this header's comment promises. */
static inline void case_check(const kernel_case *c) {
    case_result reference = case_run(c, case_device(MS_ISA_REF, 1));
    assert_string_equal(reference.variant, "ref");
    for (int level = MS_ISA_AVX2; level <= (int)ms_cpu_isa(); level++) {
        case_result first = {0};
        for (int threads = 1; threads <= CASE_THREADS_MAX; threads++) {
            case_result result = case_run(c, case_device((ms_isa)level, threads));
            if (!c->any_variant && strcmp(result.variant, ms_isa_name((ms_isa)level)) != 0) {
                fail_msg("%s: level %s ran %s", c->text, ms_isa_name((ms_isa)level),
                         result.variant);
            }
            case_compare(c, &result, &reference, c->fixed_bits, threads);
            if (threads == 1) {
                first = result;
                continue;
            }
            case_compare(c, &result, &first, true, threads);
            case_result_release(c, &result);
        }
        case_result_release(c, &first);
    }
    case_result_release(c, &reference);
}

#endif
