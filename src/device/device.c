/*
 * device.c - the front of the room: finds the back end by name and passes every call on.
 *
 * Main path: engine/ opens one device per rank, prepares all kernels of its program once, then
 * calls ms_kernel_run for every node of every step. What is common to all devices is decided here,
 * once: that a spec keeps its slot's contract, that arguments present in the spec are present in
 * the run, and that run-time extents lie within their planned maxima. Back ends then trust what
 * they are given.
 *
 * Back ends stand in one static array (no constructor magic: static linking keeps them and the
 * order is visible). Rejected: function pointers in every handle, as the table of the device
 * already says all.
 */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "device/device_ops.h"

static const ms_device_ops *const back_ends[] = {&ms__cpu_device_ops};
#define BACK_END_COUNT (sizeof back_ends / sizeof back_ends[0])

ms_status ms_device_open(const ms_device_options *options, ms_device **device) {
    if (options == NULL || options->name == NULL || device == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "a device needs a name, such as cpu");
    }
    if (options->threads < 1) {
        return ms_fail(MS_ERR_ARGUMENT, "device %s: %d threads, must be 1 or more", options->name,
                       options->threads);
    }
    for (size_t i = 0; i < BACK_END_COUNT; i++) {
        if (strcmp(back_ends[i]->name, options->name) != 0) {
            continue;
        }
        if (back_ends[i]->abi_version != MS_DEVICE_ABI_VERSION ||
            back_ends[i]->struct_size != sizeof(ms_device_ops)) {
            return ms_fail(MS_ERR_MISMATCH, "device %s was built for table version %u, not %u",
                           options->name, back_ends[i]->abi_version, MS_DEVICE_ABI_VERSION);
        }
        MS_TRY(back_ends[i]->open(options, device));
        return MS_OK;
    }
    return ms_fail(MS_ERR_NOT_FOUND, "device %s: there is none of that name, use %s", options->name,
                   back_ends[0]->name);
}

void ms_device_close(ms_device *device) {
    if (device != NULL) {
        device->ops->close(device);
    }
}

const char *ms_device_name(const ms_device *device) {
    return device->ops->name;
}

const char *ms_device_description(const ms_device *device) {
    return device->description;
}

int ms_device_threads(const ms_device *device) {
    return device->threads;
}

ms_status ms_device_alloc(ms_device *device, size_t bytes, void **memory) {
    MS_TRY(device->ops->alloc(device, bytes, memory));
    return MS_OK;
}

void ms_device_free(ms_device *device, void *memory) {
    if (memory != NULL) {
        device->ops->free(device, memory);
    }
}

ms_status ms_stream_create(ms_device *device, ms_stream **stream) {
    MS_TRY(device->ops->stream_create(device, stream));
    return MS_OK;
}

void ms_stream_destroy(ms_stream *stream) {
    if (stream != NULL) {
        stream->device->ops->stream_destroy(stream);
    }
}

ms_status ms_stream_synchronize(ms_stream *stream) {
    MS_TRY(stream->device->ops->stream_synchronize(stream));
    return MS_OK;
}

ms_status ms_stream_copy(ms_stream *stream, void *to, const void *from, size_t bytes) {
    if (bytes > 0) {
        MS_TRY(stream->device->ops->stream_copy(stream, to, from, bytes));
    }
    return MS_OK;
}

ms_status ms_stream_fill(ms_stream *stream, void *to, int byte, size_t bytes) {
    if (bytes > 0) {
        MS_TRY(stream->device->ops->stream_fill(stream, to, byte, bytes));
    }
    return MS_OK;
}

ms_status ms_event_create(ms_device *device, ms_event **event) {
    MS_TRY(device->ops->event_create(device, event));
    return MS_OK;
}

void ms_event_destroy(ms_event *event) {
    if (event != NULL) {
        event->device->ops->event_destroy(event);
    }
}

ms_status ms_event_record(ms_event *event, ms_stream *stream) {
    MS_TRY(event->device->ops->event_record(event, stream));
    return MS_OK;
}

bool ms_event_done(const ms_event *event) {
    return event->device->ops->event_done(event);
}

ms_status ms_stream_wait(ms_stream *stream, ms_event *event) {
    MS_TRY(stream->device->ops->stream_wait(stream, event));
    return MS_OK;
}

ms_status ms_kernel_prepare(ms_device *device, const ms_kernel_spec *spec,
                            ms_kernel_handle **handle) {
    ms_kernel_handle *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->device = device;
    made->spec = *spec;
    ms_status status;
    MS_TRY_GOTO(ms__spec_check(&made->spec), free_handle);
    made->empty = ms__spec_is_empty(&made->spec);
    MS_TRY_GOTO(device->ops->kernel_prepare(device, made), free_handle);
    *handle = made;
    return MS_OK;
free_handle:
    ms_free(made);
    return status;
}

void ms_kernel_destroy(ms_kernel_handle *handle) {
    if (handle != NULL) {
        handle->device->ops->kernel_release(handle);
        ms_free(handle);
    }
}

ms_kernel_needs ms_kernel_get_needs(const ms_kernel_handle *handle) {
    return handle->needs;
}

static ms_status check_presence(const ms_kernel_handle *handle, const ms_kernel_run_info *run) {
    const ms_kernel_spec *spec = &handle->spec;
    for (int i = 0; i < spec->argument_count; i++) {
        bool wanted = spec->arguments[i].rank >= 0;
        if (spec->slot == MS_SLOT_PACK && i == 1) { /* its size was not known at prepare */
            wanted = handle->needs.packed_bytes > 0 || run->arguments[i] != NULL;
        }
        if (wanted != (run->arguments[i] != NULL)) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "kernel %s: argument %s is %s in the run, not in the spec",
                           ms_slot_name(spec->slot), ms__argument_name(spec->slot, i),
                           run->arguments[i] != NULL ? "present" : "absent");
        }
    }
    if (handle->needs.scratch_bytes > 0 && run->scratch == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: needs %zu bytes of scratch, got none",
                       ms_slot_name(spec->slot), handle->needs.scratch_bytes);
    }
    return MS_OK;
}

/* Run-time extents within their planned maxima; *nothing is set when there are no rows. */
static ms_status check_extents(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                               bool *nothing) {
    const ms_kernel_spec *spec = &handle->spec;
    int64_t rows = run->extent[0];
    if (spec->slot == MS_SLOT_MATMUL) {
        if (run->accumulate && spec->arguments[2].rank >= 0) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "kernel matmul: bias and accumulate exclude each other");
        }
        if (!spec->attributes.matmul.runtime_rows) {
            return MS_OK;
        }
        if (rows < 0 || rows > spec->attributes.matmul.m) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "kernel matmul: %" PRId64 " rows of %" PRId64 " planned", rows,
                           spec->attributes.matmul.m);
        }
        *nothing = rows == 0;
    } else if (spec->slot == MS_SLOT_ATTENTION_CACHED) {
        int64_t cache_rows = spec->arguments[3].dims[0];
        if (rows < 0 || rows > spec->arguments[0].dims[0] || run->extent[1] < 0 ||
            run->extent[1] > cache_rows - rows) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "kernel attention_cached: %" PRId64 " new rows (of %" PRId64
                           " planned) after %" PRId64 " in a cache of %" PRId64,
                           rows, spec->arguments[0].dims[0], run->extent[1], cache_rows);
        }
        *nothing = rows == 0;
    }
    return MS_OK;
}

ms_status ms_kernel_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                        ms_stream *stream) {
    if (handle->empty) {
        return MS_OK;
    }
    bool nothing = false;
    MS_TRY(check_presence(handle, run));
    MS_TRY(check_extents(handle, run, &nothing));
    if (!nothing) {
        MS_TRY(handle->device->ops->kernel_run(handle, run, stream));
    }
    return MS_OK;
}
