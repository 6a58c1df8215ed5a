/*
 * Writer of Megatron's IndexedDataset pairs, byte-equal to Megatron's own.
 *
 * Stands at the end of `data build`: tokens come sequence by sequence and go to disk through one
 * buffer; lengths, document borders and modes stay in memory (4 + 8 + 1 bytes at most for each) and
 * are written as .idx in finish.
 *
 * Invariants: nothing carries the final names before finish; .bin is durable under its name before
 * .idx gets its own, so a reader that finds .idx finds the whole pair. A failed call leaves the
 * writer as it was, or broken for good (`failed`), never half a sequence in a finished file.
 *
 * Rejected: storing offsets while running (8 bytes a sequence, and they are sums of the lengths).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "format/indexed.h"
#include "format/indexed_internal.h"

#define BUFFER_BYTES ((size_t)1 << 20)
#define PARTIAL_SUFFIX ".partial"

typedef struct output {
    int fd;
    uint64_t offset; /* bytes that reached the file */
    size_t filled;   /* bytes that wait in the buffer */
    uint8_t *buffer;
    char path[MS_PATH_BYTES], partial[MS_PATH_BYTES + sizeof PARTIAL_SUFFIX];
} output;

struct ms_indexed_writer {
    output bin, idx;
    ms_dtype dtype;
    size_t token_bytes;
    bool with_modes, failed, finished;
    int64_t token_count;
    int32_t *lengths;
    size_t length_count, length_capacity;
    int8_t *modes;
    size_t mode_capacity;
    int64_t *documents;
    size_t document_count, document_capacity; /* entries, the leading 0 included */
};

static ms_status output_open(output *out, const char *prefix, const char *suffix) {
    MS_TRY(ms__indexed_path(prefix, suffix, out->path));
    snprintf(out->partial, sizeof out->partial, "%s" PARTIAL_SUFFIX, out->path);
    MS_TRY(ms_alloc(BUFFER_BYTES, MS_MEMORY_CALLER, (void **)&out->buffer));
    out->fd = open(out->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot create: %s", out->partial, strerror(errno));
    }
    return MS_OK;
}

static ms_status output_flush(output *out) {
    MS_TRY(ms_file_write_at(out->fd, out->partial, out->buffer, out->filled, out->offset));
    out->offset += out->filled;
    out->filled = 0;
    return MS_OK;
}

static ms_status output_write(output *out, const void *bytes, size_t length) {
    const uint8_t *from = bytes;
    while (length > 0) {
        if (out->filled == BUFFER_BYTES) {
            MS_TRY(output_flush(out));
        }
        size_t part = BUFFER_BYTES - out->filled < length ? BUFFER_BYTES - out->filled : length;
        memcpy(out->buffer + out->filled, from, part);
        out->filled += part;
        from += part;
        length -= part;
    }
    return MS_OK;
}

static ms_status output_sync(output *out) {
    MS_TRY(output_flush(out));
    if (fsync(out->fd) != 0) {
        return ms_fail(MS_ERR_IO, "%s: fsync: %s", out->partial, strerror(errno));
    }
    return MS_OK;
}

/* Gives a synced file its final name, durably. */
static ms_status output_publish(output *out) {
    int fd = out->fd;
    out->fd = -1;
    if (close(fd) != 0) {
        return ms_fail(MS_ERR_IO, "%s: close: %s", out->partial, strerror(errno));
    }
    if (rename(out->partial, out->path) != 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot rename to %s: %s", out->partial, out->path,
                       strerror(errno));
    }
    char *slash = strrchr(out->path, '/');
    if (slash == NULL) {
        return ms_directory_sync(".");
    }
    char dir[MS_PATH_BYTES];
    size_t length = slash == out->path ? 1 : (size_t)(slash - out->path);
    memcpy(dir, out->path, length);
    dir[length] = '\0';
    return ms_directory_sync(dir);
}

static void output_close(output *out, bool remove_partial) {
    if (out->fd >= 0) {
        close(out->fd);
    }
    if (remove_partial && out->partial[0] != '\0') {
        unlink(out->partial);
    }
    ms_free(out->buffer);
}

static ms_status reserve(ms_indexed_writer *writer, size_t sequences, size_t documents) {
    MS_TRY(ms_array_reserve((void **)&writer->lengths, &writer->length_capacity,
                            writer->length_count + sequences, sizeof *writer->lengths,
                            MS_MEMORY_CALLER));
    if (writer->with_modes) {
        MS_TRY(ms_array_reserve((void **)&writer->modes, &writer->mode_capacity,
                                writer->length_count + sequences, sizeof *writer->modes,
                                MS_MEMORY_CALLER));
    }
    return ms_array_reserve((void **)&writer->documents, &writer->document_capacity,
                            writer->document_count + documents, sizeof *writer->documents,
                            MS_MEMORY_CALLER);
}

ms_status ms_indexed_writer_create(const char *prefix, ms_dtype dtype, bool with_modes,
                                   ms_indexed_writer **writer) {
    if (ms__indexed_code(dtype) < 0 || dtype == MS_F32 || dtype == MS_F64) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: token ids cannot be stored as %s", prefix,
                       ms_dtype_name(dtype));
    }
    ms_indexed_writer *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    made->bin.fd = made->idx.fd = -1;
    made->dtype = dtype;
    made->token_bytes = ms_dtype_bytes(dtype);
    made->with_modes = with_modes;
    ms_status status;
    MS_TRY_GOTO(output_open(&made->bin, prefix, ".bin"), destroy_writer);
    MS_TRY_GOTO(output_open(&made->idx, prefix, ".idx"), destroy_writer);
    MS_TRY_GOTO(reserve(made, 0, 1), destroy_writer);
    made->documents[made->document_count++] = 0;
    *writer = made;
    return MS_OK;
destroy_writer:
    ms_indexed_writer_destroy(made);
    return status;
}

static ms_status check_usable(const ms_indexed_writer *writer) {
    if (writer->failed || writer->finished) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: the writer has %s", writer->bin.path,
                       writer->finished ? "finished" : "failed before");
    }
    return MS_OK;
}

static void id_range(ms_dtype dtype, int64_t *minimum, int64_t *maximum) {
    switch (dtype) {
    case MS_U8:
        *minimum = 0, *maximum = UINT8_MAX;
        break;
    case MS_I8:
        *minimum = INT8_MIN, *maximum = INT8_MAX;
        break;
    case MS_I16:
        *minimum = INT16_MIN, *maximum = INT16_MAX;
        break;
    case MS_U16:
        *minimum = 0, *maximum = UINT16_MAX;
        break;
    default:
        *minimum = INT32_MIN, *maximum = INT32_MAX;
        break;
    }
}

static ms_status check_tokens(const ms_indexed_writer *writer, const int32_t *tokens,
                              int64_t count) {
    int64_t minimum, maximum;
    id_range(writer->dtype, &minimum, &maximum);
    if (count < 0 || count > INT32_MAX) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: a sequence of %" PRId64 " tokens; the format allows 0 to %d: cut it",
                       writer->bin.path, count, INT32_MAX);
    }
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < minimum || tokens[i] > maximum) {
            return ms_fail(MS_ERR_RANGE, "%s: token id %" PRId32 " does not fit %s",
                           writer->bin.path, tokens[i], ms_dtype_name(writer->dtype));
        }
    }
    return MS_OK;
}

static ms_status write_tokens(ms_indexed_writer *writer, const int32_t *tokens, int64_t count) {
    if (writer->dtype == MS_I32) {
        return output_write(&writer->bin, tokens, (size_t)count * sizeof *tokens);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t wide = tokens[i]; /* little-endian: its first bytes are the narrow value */
        MS_TRY(output_write(&writer->bin, &wide, writer->token_bytes));
    }
    return MS_OK;
}

ms_status ms_indexed_writer_add(ms_indexed_writer *writer, const int32_t *tokens, int64_t count,
                                int8_t mode) {
    MS_TRY(check_usable(writer));
    MS_TRY(check_tokens(writer, tokens, count));
    MS_TRY(reserve(writer, 1, 0));
    ms_status status = write_tokens(writer, tokens, count);
    if (status != MS_OK) {
        writer->failed = true; /* part of the sequence may be in the file */
        return status;
    }
    if (writer->with_modes) {
        writer->modes[writer->length_count] = mode;
    }
    writer->lengths[writer->length_count++] = (int32_t)count;
    writer->token_count += count;
    return MS_OK;
}

ms_status ms_indexed_writer_end_document(ms_indexed_writer *writer) {
    MS_TRY(check_usable(writer));
    MS_TRY(reserve(writer, 0, 1));
    writer->documents[writer->document_count++] = (int64_t)writer->length_count;
    return MS_OK;
}

static ms_status copy_stream(ms_indexed_writer *writer, const ms_indexed *data) {
    int32_t tokens[4096];
    int64_t total = ms_indexed_token_count(data);
    for (int64_t first = 0; first < total; first += 4096) {
        int64_t count = ms_min_i64(4096, total - first);
        MS_TRY(ms_indexed_read(data, first, count, 0, tokens));
        MS_TRY(write_tokens(writer, tokens, count));
    }
    return MS_OK;
}

ms_status ms_indexed_writer_append(ms_indexed_writer *writer, const ms_indexed *data) {
    MS_TRY(check_usable(writer));
    if (ms_indexed_dtype(data) != writer->dtype ||
        ms_indexed_has_modes(data) != writer->with_modes) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s: cannot append %s tokens %s modes to %s tokens %s modes",
                       writer->bin.path, ms_dtype_name(ms_indexed_dtype(data)),
                       ms_indexed_has_modes(data) ? "with" : "without",
                       ms_dtype_name(writer->dtype), writer->with_modes ? "with" : "without");
    }
    int64_t sequences = ms_indexed_sequence_count(data);
    int64_t documents = ms_indexed_document_count(data);
    MS_TRY(reserve(writer, (size_t)sequences, (size_t)documents));
    ms_status status = copy_stream(writer, data);
    if (status != MS_OK) {
        writer->failed = true;
        return status;
    }
    int64_t base = (int64_t)writer->length_count;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t first, count;
        int8_t mode;
        MS_TRY(ms_indexed_sequence(data, i, &first, &count));
        MS_TRY(ms_indexed_sequence_mode(data, i, &mode));
        if (writer->with_modes) {
            writer->modes[writer->length_count] = mode;
        }
        writer->lengths[writer->length_count++] = (int32_t)count;
    }
    for (int64_t i = 0; i < documents; i++) {
        int64_t first, count;
        MS_TRY(ms_indexed_document(data, i, &first, &count));
        writer->documents[writer->document_count++] = base + first + count;
    }
    writer->token_count += ms_indexed_token_count(data);
    return MS_OK;
}

int64_t ms_indexed_writer_token_count(const ms_indexed_writer *writer) {
    return writer->token_count;
}

static ms_status write_index(ms_indexed_writer *writer) {
    output *out = &writer->idx;
    uint64_t version = MS_INDEXED_VERSION, sequences = writer->length_count,
             documents = writer->document_count;
    uint8_t code = (uint8_t)ms__indexed_code(writer->dtype);
    MS_TRY(output_write(out, MS_INDEXED_MAGIC, MS_INDEXED_MAGIC_BYTES));
    MS_TRY(output_write(out, &version, sizeof version));
    MS_TRY(output_write(out, &code, sizeof code));
    MS_TRY(output_write(out, &sequences, sizeof sequences));
    MS_TRY(output_write(out, &documents, sizeof documents));
    MS_TRY(output_write(out, writer->lengths, writer->length_count * sizeof *writer->lengths));
    int64_t offset = 0;
    for (size_t i = 0; i < writer->length_count; i++) {
        MS_TRY(output_write(out, &offset, sizeof offset));
        offset += (int64_t)writer->lengths[i] * (int64_t)writer->token_bytes;
    }
    MS_TRY(
        output_write(out, writer->documents, writer->document_count * sizeof *writer->documents));
    return writer->with_modes ? output_write(out, writer->modes, writer->length_count) : MS_OK;
}

ms_status ms_indexed_writer_finish(ms_indexed_writer *writer) {
    MS_TRY(check_usable(writer));
    if (writer->documents[writer->document_count - 1] != (int64_t)writer->length_count) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "%s: the last %" PRId64 " sequences belong to no document; end it first",
                       writer->bin.path,
                       (int64_t)writer->length_count -
                           writer->documents[writer->document_count - 1]);
    }
    writer->failed = true; /* unless all of it works */
    MS_TRY(write_index(writer));
    MS_TRY(output_sync(&writer->bin)); /* a full disk shows here, before anything is replaced */
    MS_TRY(output_sync(&writer->idx));
    if (unlink(writer->idx.path) != 0 &&
        errno != ENOENT) { /* an older pair's: not to meet our .bin */
        return ms_fail(MS_ERR_IO, "%s: cannot replace: %s", writer->idx.path, strerror(errno));
    }
    MS_TRY(output_publish(&writer->bin));
    MS_TRY(output_publish(&writer->idx));
    writer->failed = false;
    writer->finished = true;
    return MS_OK;
}

void ms_indexed_writer_destroy(ms_indexed_writer *writer) {
    if (writer == NULL) {
        return;
    }
    output_close(&writer->bin, !writer->finished);
    output_close(&writer->idx, !writer->finished);
    ms_free(writer->lengths);
    ms_free(writer->modes);
    ms_free(writer->documents);
    ms_free(writer);
}
