/*
 * device_ops.h - inside the room: what a back end (cpu/, later cuda/) hands to device.c.
 *
 * device.c checks arguments and specs, keeps the objects below, and calls the back end through its
 * table. A back end is one static const ms_device_ops, listed in device.c; it embeds struct
 * ms_device (and, when it needs more than these, ms_stream and ms_event) as the first member of its
 * own struct.
 */
#ifndef MS_DEVICE_DEVICE_OPS_H
#define MS_DEVICE_DEVICE_OPS_H

#include "device/device.h"

#define MS_DEVICE_ABI_VERSION 1u
#define MS_DESCRIPTION_BYTES 64

typedef struct ms_device_ops ms_device_ops;

struct ms_device {
    const ms_device_ops *ops;
    int threads;
    ms_isa isa; /* kernels above this level are not used: processor, ranks and MS_KERNEL together */
    char description[MS_DESCRIPTION_BYTES];
};

struct ms_stream {
    ms_device *device;
};

struct ms_event {
    ms_device *device;
};

/* What a back end chose for a spec; `variant` is the back end's own type. */
struct ms_kernel_handle {
    ms_device *device;
    const struct ms_kernel_variant *variant;
    ms_kernel_spec spec; /* a copy, with what prepare fills in (matmul.m, n, k; attention.scale) */
    ms_kernel_needs needs;
    bool empty;  /* a dim is 0: a run does nothing, and the variant's prepare was not called */
    void *state; /* the variant's own, from its prepare */
};

struct ms_device_ops {
    uint32_t abi_version;
    size_t struct_size;
    const char *name;
    ms_status (*open)(const ms_device_options *options, ms_device **device);
    void (*close)(ms_device *device);
    ms_status (*alloc)(ms_device *device, size_t bytes, void **memory);
    void (*free)(ms_device *device, void *memory);
    ms_status (*stream_create)(ms_device *device, ms_stream **stream);
    void (*stream_destroy)(ms_stream *stream);
    ms_status (*stream_synchronize)(ms_stream *stream);
    ms_status (*stream_copy)(ms_stream *stream, void *to, const void *from, size_t bytes);
    ms_status (*stream_fill)(ms_stream *stream, void *to, int byte, size_t bytes);
    ms_status (*stream_wait)(ms_stream *stream, ms_event *event);
    ms_status (*event_create)(ms_device *device, ms_event **event);
    void (*event_destroy)(ms_event *event);
    ms_status (*event_record)(ms_event *event, ms_stream *stream);
    bool (*event_done)(const ms_event *event);
    /* The spec has been checked and completed; the handle's device and spec are set. Sets variant,
     * needs and state. */
    ms_status (*kernel_prepare)(ms_device *device, ms_kernel_handle *handle);
    void (*kernel_release)(ms_kernel_handle *handle); /* what prepare took, not the handle itself */
    ms_status (*kernel_run)(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                            ms_stream *stream);
};

extern const ms_device_ops ms__cpu_device_ops;

/* Checks a spec against its slot's contract and fills in what follows from the shapes. */
ms_status ms__spec_check(ms_kernel_spec *spec);
/* True when a run of the (checked) spec has nothing to do. */
bool ms__spec_is_empty(const ms_kernel_spec *spec);
/* "q": the name of an argument in messages; "argument 7" has none. */
const char *ms__argument_name(ms_slot slot, int index);

#endif
