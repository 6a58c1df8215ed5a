/*
 * events.h - TensorBoard's event files: records {u64 length, masked CRC32C of it, bytes, masked
 * CRC32C of them}, each an Event message of protocol buffers.
 */
#ifndef MS_FORMAT_EVENTS_H
#define MS_FORMAT_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A writer of scalars; one thread at a time. Every call writes its record to the file at once. */
typedef struct ms_events_writer ms_events_writer;
/* Creates dir/events.out.tfevents.SECONDS.HOST.PID.N; the directory must exist. */
ms_status ms_events_writer_create(const char *dir, ms_events_writer **writer);
/* wall_time_s: seconds since 1970. */
ms_status ms_events_writer_scalar(ms_events_writer *writer, const char *tag, int64_t step,
                                  double wall_time_s, float value);
const char *ms_events_writer_path(const ms_events_writer *writer);
void ms_events_writer_destroy(ms_events_writer *writer);

typedef struct ms_event {
    uint64_t offset; /* of the record in the file */
    double wall_time_s;
    int64_t step;
    const char *file_version; /* not terminated; NULL when absent */
    size_t file_version_length;
    const uint8_t *summary; /* the Summary message; NULL when absent */
    size_t summary_bytes;
} ms_event;

typedef struct ms_event_value {
    const char *tag; /* not terminated */
    size_t tag_length;
    bool is_scalar; /* a simple_value, or a tensor of one float */
    float value;
} ms_event_value;

typedef struct ms_events_reader ms_events_reader;
ms_status ms_events_reader_open(const char *path, ms_events_reader **reader);
/* The bytes belong to the caller and must outlive the handle. */
ms_status ms_events_reader_open_memory(const void *bytes, size_t length, const char *name,
                                       ms_events_reader **reader);
void ms_events_reader_close(ms_events_reader *reader);
/* *more is false at the end. A record cut short at the end of the file (a writer still at work, or
 * killed) ends it too; ms_events_reader_is_truncated then tells. */
ms_status ms_events_reader_next(ms_events_reader *reader, ms_event *event, bool *more);
bool ms_events_reader_is_truncated(const ms_events_reader *reader);
/* Values of an event's summary: start with *position 0. */
ms_status ms_event_next_value(const ms_events_reader *reader, const ms_event *event,
                              size_t *position, ms_event_value *value, bool *more);

#endif
