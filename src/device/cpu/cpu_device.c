/*
 * cpu_device.c - the CPU behind the device table: memory, streams that run at once, choice of
 * kernels.
 *
 * A stream has no queue: a call has finished when it returns, so an event is always complete and
 * synchronising does nothing. That keeps the engine's order of calls the only order there is.
 *
 * Choice of a kernel: the slot's variants from best to worst (cpu_table.c); the first that the
 * device's instruction set allows and that supports the spec. The level is the lowest of the
 * processor's, the ranks' (isa_max) and the forced one (MS_KERNEL, options.variant); "ref" leaves
 * only references.
 */
#include <dnnl.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "device/cpu/cpu_kernels.h"

static ms_status forced_level(const char *variant, ms_isa *level) {
    ms_isa best = ms_cpu_isa();
    for (int i = 0; i < MS_ISA_COUNT; i++) {
        if (strcmp(variant, ms_isa_name((ms_isa)i)) != 0) {
            continue;
        }
        if ((ms_isa)i > best) {
            return ms_fail(MS_ERR_UNSUPPORTED, "kernels %s: this processor has %s at most", variant,
                           ms_isa_name(best));
        }
        *level = (ms_isa)i;
        return MS_OK;
    }
    return ms_fail(MS_ERR_ARGUMENT,
                   "kernels %s: there are none of that name, use ref, avx2 or avx512", variant);
}

static ms_status cpu_open(const ms_device_options *options, ms_device **device) {
    ms_isa level = ms_cpu_isa();
    if (options->variant != NULL) {
        MS_TRY(forced_level(options->variant, &level));
    }
    if (options->isa_max < level) {
        level = options->isa_max;
    }
    ms_device *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->ops = &ms__cpu_device_ops;
    made->threads = options->threads;
    made->isa = level;
    snprintf(made->description, sizeof made->description, "%s%s", ms_isa_name(level),
             level >= MS_ISA_AVX2 ? "+onednn" : "");
    ms_thread_team_set(options->threads);
    if (options->isa_max == MS_ISA_AVX2) {
        /* So that all ranks' matmuls round alike. Refused once the process has used oneDNN, which
         * happens only where several devices are opened in one process, that is in tests. */
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
    }
    *device = made;
    return MS_OK;
}

static void cpu_close(ms_device *device) {
    ms_free(device);
}

static ms_status cpu_alloc(ms_device *device, size_t bytes, void **memory) {
    (void)device;
    MS_TRY(ms_alloc(bytes, MS_MEMORY_PLAN, memory));
    return MS_OK;
}

static void cpu_free(ms_device *device, void *memory) {
    (void)device;
    ms_free(memory);
}

static ms_status cpu_stream_create(ms_device *device, ms_stream **stream) {
    ms_stream *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->device = device;
    *stream = made;
    return MS_OK;
}

static void cpu_stream_destroy(ms_stream *stream) {
    ms_free(stream);
}

static ms_status cpu_stream_synchronize(ms_stream *stream) {
    (void)stream;
    return MS_OK;
}

static ms_status cpu_stream_copy(ms_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memmove(to, from, bytes);
    return MS_OK;
}

static ms_status cpu_stream_fill(ms_stream *stream, void *to, int byte, size_t bytes) {
    (void)stream;
    memset(to, byte, bytes);
    return MS_OK;
}

static ms_status cpu_stream_wait(ms_stream *stream, ms_event *event) {
    (void)stream;
    (void)event;
    return MS_OK;
}

static ms_status cpu_event_create(ms_device *device, ms_event **event) {
    ms_event *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->device = device;
    *event = made;
    return MS_OK;
}

static void cpu_event_destroy(ms_event *event) {
    ms_free(event);
}

static ms_status cpu_event_record(ms_event *event, ms_stream *stream) {
    (void)event;
    (void)stream;
    return MS_OK;
}

static bool cpu_event_done(const ms_event *event) {
    (void)event;
    return true;
}

static ms_status cpu_kernel_prepare(ms_device *device, ms_kernel_handle *handle) {
    const ms_kernel_variant *const *variants = ms__cpu_variants(handle->spec.slot);
    for (int i = 0; i < MS_VARIANTS_MAX; i++) {
        const ms_kernel_variant *variant = variants[i];
        if (variant == NULL || variant->isa > device->isa ||
            (!handle->empty && variant->supports != NULL &&
             !variant->supports(device, &handle->spec))) {
            continue;
        }
        handle->variant = variant;
        handle->needs.variant = variant->name;
        if (!handle->empty && variant->prepare != NULL) {
            MS_TRY(variant->prepare(device, handle));
        }
        return MS_OK;
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "kernel %s in %s: the %s kernels have none",
                   ms_slot_name(handle->spec.slot), ms_dtype_name(handle->spec.arguments[0].dtype),
                   ms_isa_name(device->isa));
}

static void cpu_kernel_release(ms_kernel_handle *handle) {
    if (handle->empty) {
        return;
    }
    if (handle->variant->destroy != NULL) {
        handle->variant->destroy(handle);
    } else {
        ms_free(handle->state);
    }
}

static ms_status cpu_kernel_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                                ms_stream *stream) {
    (void)stream; /* at once, on the calling thread's team */
    MS_TRY(handle->variant->run(handle, run));
    return MS_OK;
}

const ms_device_ops ms__cpu_device_ops = {
    .abi_version = MS_DEVICE_ABI_VERSION,
    .struct_size = sizeof(ms_device_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .stream_copy = cpu_stream_copy,
    .stream_fill = cpu_stream_fill,
    .stream_wait = cpu_stream_wait,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_done = cpu_event_done,
    .kernel_prepare = cpu_kernel_prepare,
    .kernel_release = cpu_kernel_release,
    .kernel_run = cpu_kernel_run,
};
