/*
 * JSON Lines: metrics out, corpora in.
 *
 * Stands under train/'s metrics (writer) and data/'s builder (reader).
 *
 * Writer: a line is put together in one text and leaves with one write(2) to a file opened for
 * append, so a kill leaves whole lines and at most one cut short; opening for append cuts that one
 * off.
 *
 * Reader: a map of the file and a position. Several readers with disjoint byte ranges, each taking
 * the lines that begin in its own, see every line once. Line numbers cost nothing until an error
 * needs one: then the newlines before it are counted.
 *
 * Rejected: stdio (its locks and buffers hide when bytes leave, and a kill would lose them);
 * storing a line number per reader (a range in the middle does not know how many lines lie before
 * it).
 */
#include "format/jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "format/json.h"

#define LINE_BYTES_MAX_DEFAULT ((size_t)64 << 20)

struct ms_jsonl_writer {
    int fd;
    char *path;
    ms_text line;
    ms_status status; /* of the fields so far */
};

/* Cuts what follows the last newline. */
static ms_status cut_partial_line(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return ms_fail(MS_ERR_IO, "%s: stat: %s", path, strerror(errno));
    }
    uint64_t size = (uint64_t)info.st_size, keep = size;
    char block[4096];
    bool found = false;
    while (keep > 0 && !found) {
        size_t part = keep < sizeof block ? (size_t)keep : sizeof block;
        MS_TRY(ms_file_read_at(fd, path, block, part, keep - part));
        size_t i = part;
        while (i > 0 && block[i - 1] != '\n') {
            i--;
        }
        found = i > 0;
        keep = keep - part + i;
    }
    if (keep == size) {
        return MS_OK;
    }
    ms_log_warn("%s: the last line is cut short; %" PRIu64 " bytes dropped", path, size - keep);
    if (ftruncate(fd, (off_t)keep) != 0) {
        return ms_fail(MS_ERR_IO, "%s: truncate: %s", path, strerror(errno));
    }
    return MS_OK;
}

static ms_status open_for_writing(ms_jsonl_writer *writer, bool append) {
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC);
    writer->fd = open(writer->path, flags, 0666);
    if (writer->fd < 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot open for writing: %s", writer->path, strerror(errno));
    }
    return append ? cut_partial_line(writer->fd, writer->path) : MS_OK;
}

ms_status ms_jsonl_writer_create(const char *path, bool append, ms_jsonl_writer **writer) {
    ms_jsonl_writer *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    made->fd = -1;
    ms_status status;
    MS_TRY_GOTO(ms_alloc(strlen(path) + 1, MS_MEMORY_CALLER, (void **)&made->path), destroy_writer);
    memcpy(made->path, path, strlen(path) + 1);
    MS_TRY_GOTO(open_for_writing(made, append), destroy_writer);
    *writer = made;
    return MS_OK;
destroy_writer:
    ms_jsonl_writer_destroy(made);
    return status;
}

void ms_jsonl_writer_destroy(ms_jsonl_writer *writer) {
    if (writer == NULL) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    ms_text_release(&writer->line);
    ms_free(writer->path);
    ms_free(writer);
}

/* The key of the next field; false once something has failed. */
static bool begin_field(ms_jsonl_writer *writer, const char *key) {
    if (writer->status != MS_OK) {
        return false;
    }
    if (ms_utf8_valid_prefix(key, strlen(key)) != strlen(key)) {
        writer->status = ms_fail(MS_ERR_ARGUMENT, "%s: a key is not UTF-8", writer->path);
        return false;
    }
    writer->status = ms_text_append_z(&writer->line, writer->line.length == 0 ? "{" : ",");
    if (writer->status == MS_OK) {
        writer->status = ms_json_append_string(&writer->line, key, strlen(key));
    }
    if (writer->status == MS_OK) {
        writer->status = ms_text_append(&writer->line, ":", 1);
    }
    return writer->status == MS_OK;
}

void ms_jsonl_int(ms_jsonl_writer *writer, const char *key, int64_t value) {
    if (begin_field(writer, key)) {
        writer->status = ms_text_printf(&writer->line, "%" PRId64, value);
    }
}

void ms_jsonl_real(ms_jsonl_writer *writer, const char *key, double value) {
    if (begin_field(writer, key)) {
        writer->status = ms_json_append_real(&writer->line, value);
    }
}

void ms_jsonl_bool(ms_jsonl_writer *writer, const char *key, bool value) {
    if (begin_field(writer, key)) {
        writer->status = ms_text_append_z(&writer->line, value ? "true" : "false");
    }
}

void ms_jsonl_string(ms_jsonl_writer *writer, const char *key, const char *value) {
    if (!begin_field(writer, key)) {
        return;
    }
    if (value == NULL) {
        writer->status = ms_text_append(&writer->line, "null", 4);
        return;
    }
    size_t length = strlen(value);
    if (ms_utf8_valid_prefix(value, length) != length) {
        writer->status =
            ms_fail(MS_ERR_ARGUMENT, "%s: the value of \"%s\" is not UTF-8", writer->path, key);
        return;
    }
    writer->status = ms_json_append_string(&writer->line, value, length);
}

static ms_status write_line(ms_jsonl_writer *writer) {
    size_t done = 0;
    while (done < writer->line.length) {
        ssize_t count = write(writer->fd, writer->line.bytes + done, writer->line.length - done);
        if (count < 0 && errno != EINTR) {
            return ms_fail(MS_ERR_IO, "%s: write: %s", writer->path, strerror(errno));
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return MS_OK;
}

ms_status ms_jsonl_end(ms_jsonl_writer *writer) {
    ms_status status = writer->status;
    if (status == MS_OK) {
        status = ms_text_append_z(&writer->line, writer->line.length == 0 ? "{}\n" : "}\n");
    }
    if (status == MS_OK) {
        status = write_line(writer);
    }
    ms_text_clear(&writer->line);
    writer->status = MS_OK;
    return status;
}

ms_status ms_jsonl_writer_sync(ms_jsonl_writer *writer) {
    if (fdatasync(writer->fd) != 0) {
        return ms_fail(MS_ERR_IO, "%s: fdatasync: %s", writer->path, strerror(errno));
    }
    return MS_OK;
}

struct ms_jsonl_reader {
    ms_file_map map; /* data NULL when the bytes belong to the caller */
    char *name;
    const char *bytes;
    size_t length;
    size_t position, end; /* lines that begin in [position, end) are still to come */
    size_t line_begin;    /* of the last object */
    ms_jsonl_options options;
    json_t *object;
};

static void start_range(ms_jsonl_reader *reader) {
    uint64_t begin = reader->options.begin, end = reader->options.end;
    reader->end = end == 0 || end > reader->length ? reader->length : (size_t)end;
    reader->position = begin > reader->length ? reader->length : (size_t)begin;
    if (reader->position == 0) {
        return;
    }
    /* The line that is under way at `begin` belongs to the range before it. */
    const char *from = reader->bytes + reader->position - 1;
    const char *newline = memchr(from, '\n', reader->length - reader->position + 1);
    reader->position = newline != NULL ? (size_t)(newline - reader->bytes) + 1 : reader->length;
}

ms_status ms_jsonl_reader_open_memory(const void *bytes, size_t length, const char *name,
                                      const ms_jsonl_options *options, ms_jsonl_reader **reader) {
    ms_jsonl_reader *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = ms_alloc(strlen(name) + 1, MS_MEMORY_CALLER, (void **)&made->name);
    if (status != MS_OK) {
        ms_free(made);
        return status;
    }
    memcpy(made->name, name, strlen(name) + 1);
    made->bytes = bytes;
    made->length = length;
    if (options != NULL) {
        made->options = *options;
    }
    if (made->options.line_bytes_max == 0) {
        made->options.line_bytes_max = LINE_BYTES_MAX_DEFAULT;
    }
    start_range(made);
    *reader = made;
    return MS_OK;
}

ms_status ms_jsonl_reader_open(const char *path, const ms_jsonl_options *options,
                               ms_jsonl_reader **reader) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_status status = ms_jsonl_reader_open_memory(map.data, map.bytes, path, options, reader);
    if (status != MS_OK) {
        ms_file_map_close(&map);
        return status;
    }
    (*reader)->map = map;
    return MS_OK;
}

void ms_jsonl_reader_close(ms_jsonl_reader *reader) {
    if (reader == NULL) {
        return;
    }
    json_decref(reader->object);
    if (reader->map.data != NULL) {
        ms_file_map_close(&reader->map);
    }
    ms_free(reader->name);
    ms_free(reader);
}

int64_t ms_jsonl_reader_line(const ms_jsonl_reader *reader) {
    int64_t line = 1;
    const char *from = reader->bytes, *to = reader->bytes + reader->line_begin;
    while (from < to && (from = memchr(from, '\n', (size_t)(to - from))) != NULL) {
        line++;
        from++;
    }
    return line;
}

uint64_t ms_jsonl_reader_bytes(const ms_jsonl_reader *reader) {
    return reader->length;
}
uint64_t ms_jsonl_reader_offset(const ms_jsonl_reader *reader) {
    return reader->position;
}

static bool is_blank(const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != ' ' && bytes[i] != '\t' && bytes[i] != '\r') {
            return false;
        }
    }
    return true;
}

/* The next line that is not blank; *line is NULL at the end. */
static ms_status next_line(ms_jsonl_reader *reader, const char **line, size_t *length,
                           bool *is_whole) {
    *line = NULL;
    while (reader->position < reader->end) {
        const char *from = reader->bytes + reader->position;
        size_t rest = reader->length - reader->position;
        const char *newline = memchr(from, '\n', rest);
        size_t count = newline != NULL ? (size_t)(newline - from) : rest;
        reader->line_begin = reader->position;
        reader->position += count + (newline != NULL ? 1 : 0);
        if (count > reader->options.line_bytes_max) {
            return ms_fail(MS_ERR_RANGE, "%s:%" PRId64 ": a line of %zu bytes, allowed are %zu",
                           reader->name, ms_jsonl_reader_line(reader), count,
                           reader->options.line_bytes_max);
        }
        if (reader->line_begin == 0 && count >= 3 && memcmp(from, "\xef\xbb\xbf", 3) == 0) {
            from += 3; /* a byte-order mark */
            count -= 3;
        }
        if (!is_blank(from, count)) {
            *line = from;
            *length = count;
            *is_whole = newline != NULL;
            return MS_OK;
        }
    }
    return MS_OK;
}

ms_status ms_jsonl_reader_next(ms_jsonl_reader *reader, json_t **object) {
    const char *line = NULL;
    size_t length = 0;
    bool is_whole = false;
    json_decref(reader->object);
    reader->object = NULL;
    MS_TRY(next_line(reader, &line, &length, &is_whole));
    if (line == NULL) {
        *object = NULL;
        return MS_OK;
    }
    json_error_t error;
    reader->object = json_loadb(line, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (reader->object == NULL && !is_whole && reader->options.allow_truncated_last) {
        *object = NULL;
        return MS_OK;
    }
    if (reader->object == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s:%" PRId64 ": not valid JSON at column %d: %s",
                       reader->name, ms_jsonl_reader_line(reader), error.column, error.text);
    }
    if (!json_is_object(reader->object)) {
        return ms_fail(MS_ERR_FORMAT, "%s:%" PRId64 ": the line must be an object { ... }",
                       reader->name, ms_jsonl_reader_line(reader));
    }
    *object = reader->object;
    return MS_OK;
}

ms_status ms_jsonl_reader_next_text(ms_jsonl_reader *reader, const char *key, const char **text,
                                    size_t *length) {
    json_t *object = NULL;
    MS_TRY(ms_jsonl_reader_next(reader, &object));
    if (object == NULL) {
        *text = NULL;
        *length = 0;
        return MS_OK;
    }
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        return ms_fail(MS_ERR_FORMAT, "%s:%" PRId64 ": %s \"%s\"", reader->name,
                       ms_jsonl_reader_line(reader),
                       value == NULL ? "no key" : "no string under the key", key);
    }
    *text = json_string_value(value);
    *length = json_string_length(value);
    return MS_OK;
}
