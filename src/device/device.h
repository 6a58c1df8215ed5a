/*
 * device.h - one device behind one table: memory, streams, events, kernels.
 *
 * Nothing above this room knows which device it runs on. On the CPU a stream runs at once and an event
 * is always complete; a GPU fits behind the same calls. A device belongs to one rank and one thread at
 * a time; kernels use its team of threads.
 */
#ifndef MS_DEVICE_DEVICE_H
#define MS_DEVICE_DEVICE_H

#include "base/cpu.h"
#include "device/kernel.h"

typedef struct ms_device ms_device;
typedef struct ms_stream ms_stream;
typedef struct ms_event ms_event;

typedef struct ms_device_options {
    const char *name;    /* "cpu" */
    int threads;         /* of this rank */
    ms_isa isa_max;      /* the lowest instruction set among the ranks; MS_ISA_COUNT: no bound */
    const char *variant; /* forces kernels: "ref", "avx2", "avx512"; NULL: the best (MS_KERNEL) */
} ms_device_options;

ms_status ms_device_open(const ms_device_options *options, ms_device **device);
void ms_device_close(ms_device *device);
const char *ms_device_name(const ms_device *device);
/* "avx512+onednn": what the kernels will be, for the start of a run. */
const char *ms_device_description(const ms_device *device);
int ms_device_threads(const ms_device *device);

/* Device memory, zeroed, 64-byte aligned, through ms_alloc with the plan's tag on the CPU. */
ms_status ms_device_alloc(ms_device *device, size_t bytes, void **memory);
void ms_device_free(ms_device *device, void *memory);

ms_status ms_stream_create(ms_device *device, ms_stream **stream);
void ms_stream_destroy(ms_stream *stream);
ms_status ms_stream_synchronize(ms_stream *stream);
/* Host to device, device to host and within; ordered in the stream. */
ms_status ms_stream_copy(ms_stream *stream, void *to, const void *from, size_t bytes);
ms_status ms_stream_fill(ms_stream *stream, void *to, int byte, size_t bytes);
ms_status ms_event_create(ms_device *device, ms_event **event);
void ms_event_destroy(ms_event *event);
ms_status ms_event_record(ms_event *event, ms_stream *stream);
bool ms_event_done(const ms_event *event);
ms_status ms_stream_wait(ms_stream *stream, ms_event *event);

/*
 * Chooses a kernel for the spec and readies it. MS_ERR_UNSUPPORTED names the slot and types,
 * MS_ERR_ARGUMENT a spec that breaks the slot's contract.
 */
ms_status ms_kernel_prepare(ms_device *device, const ms_kernel_spec *spec,
                            ms_kernel_handle **handle);
void ms_kernel_destroy(ms_kernel_handle *handle);
ms_kernel_needs ms_kernel_get_needs(const ms_kernel_handle *handle);
/* Runs in the stream (NULL: at once on the calling thread's team). */
ms_status ms_kernel_run(const ms_kernel_handle *handle, const ms_kernel_run_info *run,
                        ms_stream *stream);

#endif
