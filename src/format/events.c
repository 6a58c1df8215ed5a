/*
 * TensorBoard's event files.
 *
 * Stands under train/'s sinks (writer) and its tests and tools (reader).
 *
 *   record   u64 length | u32 masked crc32c(length) | bytes | u32 masked crc32c(bytes)
 *   Event    1: double wall_time  2: int64 step  3: string file_version  5: Summary
 *   Summary  1: repeated Value;  Value  1: string tag  2: float simple_value  8: TensorProto
 *
 * Both messages are small and fixed, so they are encoded and walked by hand: a field is a varint
 * key (number << 3 | wire type) and a value of wire type 0 varint, 1 eight bytes, 2 length and
 * bytes, 5 four bytes; unknown fields are stepped over.
 *
 * Invariants: a record is written with one write(2), so that TensorBoard, reading meanwhile, sees
 * whole records or the start of one; the reader never looks outside the record at hand.
 *
 * Rejected: protobuf-c (a dependency and generated code for four fields); buffering (a scalar every
 * few seconds costs nothing, and a crash loses none).
 */
#include "format/events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

#define FRAME_HEAD_BYTES 12 /* length and its checksum */
#define FRAME_TAIL_BYTES 4
#define TAG_BYTES_MAX 1024
#define RECORD_BYTES_MAX ((uint64_t)1 << 30)

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct ms_events_writer {
    int fd;
    char path[MS_PATH_BYTES];
};

static uint32_t masked_crc(const void *bytes, size_t length) {
    uint32_t crc = ms_crc32c(bytes, length);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Encoding into a buffer that is large enough by construction (see ENCODED_BYTES_MAX). */
#define ENCODED_BYTES_MAX (TAG_BYTES_MAX + 128)

typedef struct encoder {
    uint8_t bytes[ENCODED_BYTES_MAX];
    size_t length;
} encoder;

static void put(encoder *out, const void *bytes, size_t length) {
    MS_ASSERT(length <= sizeof out->bytes - out->length);
    memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
}

static void put_varint(encoder *out, uint64_t value) {
    while (value >= 0x80) {
        uint8_t byte = (uint8_t)(value | 0x80);
        put(out, &byte, 1);
        value >>= 7;
    }
    uint8_t byte = (uint8_t)value;
    put(out, &byte, 1);
}

static void put_key(encoder *out, unsigned number, enum wire wire) {
    put_varint(out, number << 3 | (unsigned)wire);
}

static void put_bytes(encoder *out, unsigned number, const void *bytes, size_t length) {
    put_key(out, number, WIRE_BYTES);
    put_varint(out, length);
    put(out, bytes, length);
}

static ms_status write_record(ms_events_writer *writer, const encoder *event) {
    uint8_t frame[FRAME_HEAD_BYTES + ENCODED_BYTES_MAX + FRAME_TAIL_BYTES];
    uint64_t length = event->length;
    uint32_t crc = masked_crc(&length, sizeof length);
    memcpy(frame, &length, sizeof length);
    memcpy(frame + sizeof length, &crc, sizeof crc);
    memcpy(frame + FRAME_HEAD_BYTES, event->bytes, event->length);
    crc = masked_crc(event->bytes, event->length);
    memcpy(frame + FRAME_HEAD_BYTES + event->length, &crc, sizeof crc);
    size_t total = FRAME_HEAD_BYTES + event->length + FRAME_TAIL_BYTES, done = 0;
    while (done < total) {
        ssize_t count = write(writer->fd, frame + done, total - done);
        if (count < 0 && errno != EINTR) {
            return ms_fail(MS_ERR_IO, "%s: write: %s", writer->path, strerror(errno));
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return MS_OK;
}

static ms_status open_file(ms_events_writer *writer, const char *dir) {
    static _Atomic unsigned serial; /* several writers of one process in one second */
    char host[128] = "localhost", name[256];
    if (gethostname(host, sizeof host) != 0 || host[0] == '\0') {
        snprintf(host, sizeof host, "localhost");
    }
    host[sizeof host - 1] = '\0';
    snprintf(name, sizeof name, "events.out.tfevents.%" PRId64 ".%s.%ld.%u",
             (int64_t)ms_wall_time_s(), host, (long)getpid(), atomic_fetch_add(&serial, 1));
    MS_TRY(ms_path_join(dir, name, writer->path, sizeof writer->path));
    writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot create: %s", writer->path, strerror(errno));
    }
    encoder event = {.length = 0};
    double wall_time_s = ms_wall_time_s();
    static const char version[] = "brain.Event:2";
    put_key(&event, 1, WIRE_64);
    put(&event, &wall_time_s, sizeof wall_time_s);
    put_bytes(&event, 3, version, sizeof version - 1);
    return write_record(writer, &event);
}

ms_status ms_events_writer_create(const char *dir, ms_events_writer **writer) {
    ms_events_writer *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    made->fd = -1;
    ms_status status = open_file(made, dir);
    if (status != MS_OK) {
        ms_events_writer_destroy(made);
        return status;
    }
    *writer = made;
    return MS_OK;
}

ms_status ms_events_writer_scalar(ms_events_writer *writer, const char *tag, int64_t step,
                                  double wall_time_s, float value) {
    size_t tag_length = strlen(tag);
    if (tag_length == 0 || tag_length > TAG_BYTES_MAX ||
        ms_utf8_valid_prefix(tag, tag_length) != tag_length) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: a tag must be UTF-8 of 1 to %d bytes", writer->path,
                       TAG_BYTES_MAX);
    }
    encoder inner = {.length = 0}, summary = {.length = 0}, event = {.length = 0};
    put_bytes(&inner, 1, tag, tag_length);
    put_key(&inner, 2, WIRE_32);
    put(&inner, &value, sizeof value);
    put_bytes(&summary, 1, inner.bytes, inner.length);
    put_key(&event, 1, WIRE_64);
    put(&event, &wall_time_s, sizeof wall_time_s);
    put_key(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.bytes, summary.length);
    return write_record(writer, &event);
}

const char *ms_events_writer_path(const ms_events_writer *writer) {
    return writer->path;
}

void ms_events_writer_destroy(ms_events_writer *writer) {
    if (writer == NULL) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    ms_free(writer);
}

struct ms_events_reader {
    ms_file_map map; /* data NULL when the bytes belong to the caller */
    char *name;
    const uint8_t *bytes;
    size_t length, position;
    bool is_truncated;
};

/* One field of a message: number, wire type, and its value or its bytes. */
typedef struct field {
    uint64_t number;
    unsigned wire;
    uint64_t value;
    const uint8_t *bytes;
    size_t length;
} field;

static bool get_varint(const uint8_t *bytes, size_t length, size_t *position, uint64_t *value) {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (*position == length) {
            return false;
        }
        uint8_t byte = bytes[(*position)++];
        result |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *value = result;
            return true;
        }
    }
    return false;
}

/* The field at *position, which moves past it; false when it does not fit the message. */
static bool get_field(const uint8_t *bytes, size_t length, size_t *position, field *out) {
    uint64_t key, count;
    if (!get_varint(bytes, length, position, &key)) {
        return false;
    }
    out->number = key >> 3;
    out->wire = (unsigned)(key & 7);
    switch (out->wire) {
    case WIRE_VARINT:
        return get_varint(bytes, length, position, &out->value);
    case WIRE_64:
        count = 8;
        break;
    case WIRE_32:
        count = 4;
        break;
    case WIRE_BYTES:
        if (!get_varint(bytes, length, position, &count)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (count > length - *position) {
        return false;
    }
    out->bytes = bytes + *position;
    out->length = (size_t)count;
    *position += (size_t)count;
    return true;
}

ms_status ms_events_reader_open_memory(const void *bytes, size_t length, const char *name,
                                       ms_events_reader **reader) {
    ms_events_reader *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = ms_alloc(strlen(name) + 1, MS_MEMORY_CALLER, (void **)&made->name);
    if (status != MS_OK) {
        ms_free(made);
        return status;
    }
    memcpy(made->name, name, strlen(name) + 1);
    made->bytes = bytes;
    made->length = length;
    *reader = made;
    return MS_OK;
}

ms_status ms_events_reader_open(const char *path, ms_events_reader **reader) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_status status = ms_events_reader_open_memory(map.data, map.bytes, path, reader);
    if (status != MS_OK) {
        ms_file_map_close(&map);
        return status;
    }
    (*reader)->map = map;
    return MS_OK;
}

void ms_events_reader_close(ms_events_reader *reader) {
    if (reader == NULL) {
        return;
    }
    if (reader->map.data != NULL) {
        ms_file_map_close(&reader->map);
    }
    ms_free(reader->name);
    ms_free(reader);
}

bool ms_events_reader_is_truncated(const ms_events_reader *reader) {
    return reader->is_truncated;
}

static ms_status check_crc(const ms_events_reader *reader, size_t offset, size_t length,
                           const char *what) {
    uint32_t stored;
    memcpy(&stored, reader->bytes + offset + length, sizeof stored);
    if (stored != masked_crc(reader->bytes + offset, length)) {
        return ms_fail(MS_ERR_CHECKSUM, "%s: byte %zu: the checksum of the record's %s is wrong",
                       reader->name, offset, what);
    }
    return MS_OK;
}

/* The record at the position; *length 0 and *more false at the end of what is whole. */
static ms_status next_record(ms_events_reader *reader, uint64_t *length, bool *more) {
    size_t rest = reader->length - reader->position;
    *more = false;
    if (rest < FRAME_HEAD_BYTES) {
        reader->is_truncated = rest > 0;
        return MS_OK;
    }
    memcpy(length, reader->bytes + reader->position, sizeof *length);
    MS_TRY(check_crc(reader, reader->position, sizeof *length, "length"));
    if (*length > RECORD_BYTES_MAX) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: byte %zu: a record of %" PRIu64 " bytes, allowed are %" PRIu64,
                       reader->name, reader->position, *length, RECORD_BYTES_MAX);
    }
    if (rest - FRAME_HEAD_BYTES < FRAME_TAIL_BYTES ||
        *length > rest - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES) {
        reader->is_truncated = true;
        return MS_OK;
    }
    MS_TRY(check_crc(reader, reader->position + FRAME_HEAD_BYTES, (size_t)*length, "bytes"));
    *more = true;
    return MS_OK;
}

ms_status ms_events_reader_next(ms_events_reader *reader, ms_event *event, bool *more) {
    uint64_t length = 0;
    bool found = false;
    MS_TRY(next_record(reader, &length, &found));
    if (!found) {
        *more = false;
        return MS_OK;
    }
    const uint8_t *bytes = reader->bytes + reader->position + FRAME_HEAD_BYTES;
    ms_event made = {.offset = reader->position};
    for (size_t position = 0; position < length;) {
        field item = {0};
        if (!get_field(bytes, (size_t)length, &position, &item)) {
            return ms_fail(MS_ERR_FORMAT, "%s: byte %zu: the record is no Event message",
                           reader->name, reader->position);
        }
        if (item.number == 1 && item.wire == WIRE_64) {
            memcpy(&made.wall_time_s, item.bytes, sizeof made.wall_time_s);
        } else if (item.number == 2 && item.wire == WIRE_VARINT) {
            made.step = (int64_t)item.value;
        } else if (item.number == 3 && item.wire == WIRE_BYTES) {
            made.file_version = (const char *)item.bytes;
            made.file_version_length = item.length;
        } else if (item.number == 5 && item.wire == WIRE_BYTES) {
            made.summary = item.bytes;
            made.summary_bytes = item.length;
        }
    }
    reader->position += FRAME_HEAD_BYTES + (size_t)length + FRAME_TAIL_BYTES;
    *event = made;
    *more = true;
    return MS_OK;
}

/* TensorFlow 2 stores a scalar as a TensorProto: 1: dtype (1 is float), 4: content, 5: floats. */
static void read_tensor(const field *tensor, ms_event_value *value) {
    bool is_float = false, has_value = false;
    for (size_t position = 0; position < tensor->length;) {
        field item = {0};
        if (!get_field(tensor->bytes, tensor->length, &position, &item)) {
            return;
        }
        if (item.number == 1 && item.wire == WIRE_VARINT) {
            is_float = item.value == 1;
        } else if ((item.number == 4 || item.number == 5) && item.wire != WIRE_VARINT &&
                   item.length == sizeof value->value) {
            memcpy(&value->value, item.bytes, sizeof value->value);
            has_value = true;
        }
    }
    value->is_scalar = is_float && has_value;
}

ms_status ms_event_next_value(const ms_events_reader *reader, const ms_event *event,
                              size_t *position, ms_event_value *value, bool *more) {
    field outer = {0};
    do {
        if (*position >= event->summary_bytes) {
            *more = false;
            return MS_OK;
        }
        if (!get_field(event->summary, event->summary_bytes, position, &outer)) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: byte %" PRIu64 ": the record holds no Summary message",
                           reader->name, event->offset);
        }
    } while (outer.number != 1 || outer.wire != WIRE_BYTES);
    ms_event_value made = {.tag = "", .is_scalar = false};
    for (size_t inner = 0; inner < outer.length;) {
        field item = {0};
        if (!get_field(outer.bytes, outer.length, &inner, &item)) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: byte %" PRIu64 ": a value of the summary is malformed",
                           reader->name, event->offset);
        }
        if (item.number == 1 && item.wire == WIRE_BYTES) {
            made.tag = (const char *)item.bytes;
            made.tag_length = item.length;
        } else if (item.number == 2 && item.wire == WIRE_32) {
            memcpy(&made.value, item.bytes, sizeof made.value);
            made.is_scalar = true;
        } else if (item.number == 8 && item.wire == WIRE_BYTES) {
            read_tensor(&item, &made);
        }
    }
    *value = made;
    *more = true;
    return MS_OK;
}
