/*
 * Reader of Megatron's IndexedDataset pairs.
 *
 * Stands below data/: the loader asks for runs of the token stream by position; documents and
 * sequences are for those who cut samples at their borders.
 *
 *   .bin   tokens, back to back
 *   .idx   header (34 bytes) | i32 lengths[S] | i64 offsets[S] | i64 documents[D] | i8 modes[S]?
 *
 * Data: both files as maps; the arrays of .idx are read in place with memcpy, as 34 bytes of header
 * leave them unaligned. `starts` is not stored: offsets[i] / size is the first token of sequence i.
 *
 * Invariants after open: offsets[i] is the sum of the lengths before it times the type's size, the
 * last sequence ends where .bin ends, documents[] climbs from 0 to S. Megatron's builder always
 * writes such files, so any other is damage; a flipped bit anywhere but in a token is found.
 *
 * Rejected: trusting offsets that leave gaps; 32-bit positions anywhere (files pass 2^31 tokens).
 */
#include "format/indexed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format/indexed_internal.h"

struct ms_indexed {
    ms_file_map idx, bin; /* data NULL when the bytes belong to the caller */
    char *idx_name, *bin_name;
    const uint8_t *lengths, *offsets, *documents, *modes; /* in the bytes of .idx */
    const uint8_t *tokens;
    size_t idx_bytes, bin_bytes;
    ms_dtype dtype;
    size_t token_bytes;
    int64_t sequence_count, document_count, token_count;
};

static const ms_dtype dtype_of_code[] = {[1] = MS_U8,  [2] = MS_I8,  [3] = MS_I16, [4] = MS_I32,
                                         [5] = MS_I64, [6] = MS_F64, [7] = MS_F32, [8] = MS_U16};
#define CODE_COUNT (sizeof dtype_of_code / sizeof *dtype_of_code)

int ms__indexed_code(ms_dtype dtype) {
    for (size_t code = 1; code < CODE_COUNT; code++) {
        if (dtype_of_code[code] == dtype) {
            return (int)code;
        }
    }
    return -1;
}

ms_status ms__indexed_path(const char *path, const char *suffix, char out[MS_PATH_BYTES]) {
    size_t length = strlen(path);
    if (length > 4 &&
        (strcmp(path + length - 4, ".bin") == 0 || strcmp(path + length - 4, ".idx") == 0)) {
        length -= 4;
    }
    if (length + strlen(suffix) + 1 > MS_PATH_BYTES) {
        return ms_fail(MS_ERR_RANGE, "%.60s...: path is too long", path);
    }
    memcpy(out, path, length);
    memcpy(out + length, suffix, strlen(suffix) + 1);
    return MS_OK;
}

/* The file is little-endian, and so are the machines that we run on. */
static uint64_t load_u64(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static int64_t load_i64(const uint8_t *array, int64_t index) {
    int64_t value;
    memcpy(&value, array + (size_t)index * sizeof value, sizeof value);
    return value;
}

static int32_t load_i32(const uint8_t *array, int64_t index) {
    int32_t value;
    memcpy(&value, array + (size_t)index * sizeof value, sizeof value);
    return value;
}

static ms_status parse_header(ms_indexed *data, const uint8_t *idx, uint64_t *sequences,
                              uint64_t *documents) {
    if (data->idx_bytes < MS_INDEXED_HEADER_BYTES) {
        return ms_fail(MS_ERR_FORMAT, "%s: %zu bytes, shorter than the header of %d",
                       data->idx_name, data->idx_bytes, MS_INDEXED_HEADER_BYTES);
    }
    if (memcmp(idx, MS_INDEXED_MAGIC, MS_INDEXED_MAGIC_BYTES) != 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: byte 0: not an index: magic MMIDIDX expected",
                       data->idx_name);
    }
    uint64_t version = load_u64(idx + 9);
    if (version != MS_INDEXED_VERSION) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: byte 9: version %" PRIu64 ", only 1 is known",
                       data->idx_name, version);
    }
    unsigned code = idx[17];
    if (code < 1 || code >= CODE_COUNT) {
        return ms_fail(MS_ERR_FORMAT, "%s: byte 17: type code %u, allowed are 1 to %zu",
                       data->idx_name, code, CODE_COUNT - 1);
    }
    data->dtype = dtype_of_code[code];
    data->token_bytes = ms_dtype_bytes(data->dtype);
    *sequences = load_u64(idx + 18);
    *documents = load_u64(idx + 26);
    return MS_OK;
}

/* Where the arrays lie, from the counts and the size of the file. */
static ms_status place_arrays(ms_indexed *data, const uint8_t *idx, uint64_t sequences,
                              uint64_t documents) {
    size_t by_sequence, by_document, total;
    if (!ms_size_mul((size_t)sequences, 12, &by_sequence) ||
        !ms_size_mul((size_t)documents, 8, &by_document) ||
        !ms_size_add(by_sequence, by_document, &total) ||
        !ms_size_add(total, MS_INDEXED_HEADER_BYTES, &total)) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: byte 18: %" PRIu64 " sequences and %" PRIu64
                       " document entries are impossible",
                       data->idx_name, sequences, documents);
    }
    size_t rest = data->idx_bytes - MS_INDEXED_HEADER_BYTES;
    bool modes = total <= data->idx_bytes && data->idx_bytes - total == sequences && sequences > 0;
    if (total != data->idx_bytes && !modes) {
        return ms_fail(
            MS_ERR_FORMAT,
            "%s: byte 18: %" PRIu64 " sequences and %" PRIu64 " document entries need %zu "
            "bytes after the header (%zu with modes), the file has %zu: truncated or damaged",
            data->idx_name, sequences, documents, total - MS_INDEXED_HEADER_BYTES,
            total - MS_INDEXED_HEADER_BYTES + (size_t)sequences, rest);
    }
    if (documents == 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: byte 26: the document index has no entry, not even 0",
                       data->idx_name);
    }
    data->sequence_count = (int64_t)sequences;
    data->document_count = (int64_t)documents - 1;
    data->lengths = idx + MS_INDEXED_HEADER_BYTES;
    data->offsets = data->lengths + 4 * sequences;
    data->documents = data->offsets + 8 * sequences;
    data->modes = modes ? data->documents + 8 * documents : NULL;
    return MS_OK;
}

static ms_status check_sequences(ms_indexed *data, const uint8_t *idx) {
    int64_t tokens = 0, end = 0; /* of what precedes the sequence at hand */
    for (int64_t i = 0; i < data->sequence_count; i++) {
        int32_t length = load_i32(data->lengths, i);
        if (length < 0) {
            return ms_fail(
                MS_ERR_FORMAT, "%s: byte %zu: length of sequence %" PRId64 " is %" PRId32,
                data->idx_name, (size_t)(data->lengths - idx) + 4 * (size_t)i, i, length);
        }
        if (load_i64(data->offsets, i) != end) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: byte %zu: sequence %" PRId64 " begins at %" PRId64
                           ", the lengths before it give %" PRId64,
                           data->idx_name, (size_t)(data->offsets - idx) + 8 * (size_t)i, i,
                           load_i64(data->offsets, i), end);
        }
        tokens += length; /* fewer than end, which is checked */
        if (!ms_i64_mul(tokens, (int64_t)data->token_bytes, &end)) {
            return ms_fail(MS_ERR_FORMAT, "%s: its sequences have more than 2^63 bytes",
                           data->idx_name);
        }
    }
    if ((uint64_t)end != data->bin_bytes) {
        return ms_fail(
            MS_ERR_FORMAT,
            "%s: has %zu bytes, but %s says %" PRId64 " tokens of %zu bytes, which end at byte "
            "%" PRId64 ": truncated, or not its pair",
            data->bin_name, data->bin_bytes, data->idx_name, tokens, data->token_bytes, end);
    }
    data->token_count = tokens;
    return MS_OK;
}

static ms_status check_documents(const ms_indexed *data, const uint8_t *idx) {
    int64_t before = 0;
    for (int64_t i = 0; i <= data->document_count; i++) {
        int64_t entry = load_i64(data->documents, i);
        int64_t minimum = before;
        int64_t maximum = i == 0 ? 0 : data->sequence_count;
        if (i == data->document_count && data->document_count > 0) {
            minimum = data->sequence_count;
        }
        if (entry < minimum || entry > maximum) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: byte %zu: entry %" PRId64 " of the document index is %" PRId64
                           ", expected %" PRId64 " to %" PRId64,
                           data->idx_name, (size_t)(data->documents - idx) + 8 * (size_t)i, i,
                           entry, minimum, maximum);
        }
        before = entry;
    }
    return MS_OK;
}

static ms_status parse(ms_indexed *data, const uint8_t *idx, const uint8_t *bin) {
    uint64_t sequences = 0, documents = 0;
    MS_TRY(parse_header(data, idx, &sequences, &documents));
    MS_TRY(place_arrays(data, idx, sequences, documents));
    MS_TRY(check_sequences(data, idx));
    MS_TRY(check_documents(data, idx));
    data->tokens = bin;
    return MS_OK;
}

static ms_status copy_name(const char *name, char **copy) {
    MS_TRY(ms_alloc(strlen(name) + 1, MS_MEMORY_CALLER, (void **)copy));
    memcpy(*copy, name, strlen(name) + 1);
    return MS_OK;
}

static ms_status create(const void *idx, size_t idx_bytes, const void *bin, size_t bin_bytes,
                        const char *idx_name, const char *bin_name, ms_indexed **data) {
    ms_indexed *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    made->idx_bytes = idx_bytes;
    made->bin_bytes = bin_bytes;
    ms_status status;
    MS_TRY_GOTO(copy_name(idx_name, &made->idx_name), close_made);
    MS_TRY_GOTO(copy_name(bin_name, &made->bin_name), close_made);
    MS_TRY_GOTO(parse(made, idx, bin), close_made);
    *data = made;
    return MS_OK;
close_made:
    ms_indexed_close(made);
    return status;
}

ms_status ms_indexed_open_memory(const void *idx, size_t idx_bytes, const void *bin,
                                 size_t bin_bytes, const char *name, ms_indexed **data) {
    char idx_name[MS_PATH_BYTES], bin_name[MS_PATH_BYTES];
    MS_TRY(ms__indexed_path(name, ".idx", idx_name));
    MS_TRY(ms__indexed_path(name, ".bin", bin_name));
    return create(idx, idx_bytes, bin, bin_bytes, idx_name, bin_name, data);
}

ms_status ms_indexed_open(const char *path, ms_indexed **data) {
    char idx_name[MS_PATH_BYTES], bin_name[MS_PATH_BYTES];
    MS_TRY(ms__indexed_path(path, ".idx", idx_name));
    MS_TRY(ms__indexed_path(path, ".bin", bin_name));
    ms_file_map idx, bin;
    ms_indexed *made = NULL;
    ms_status status;
    MS_TRY(ms_file_map_open(idx_name, &idx));
    MS_TRY_GOTO(ms_file_map_open(bin_name, &bin), close_idx);
    MS_TRY_GOTO(create(idx.data, idx.bytes, bin.data, bin.bytes, idx_name, bin_name, &made),
                close_bin);
    made->idx = idx;
    made->bin = bin;
    *data = made;
    return MS_OK;
close_bin:
    ms_file_map_close(&bin);
close_idx:
    ms_file_map_close(&idx);
    return status;
}

void ms_indexed_close(ms_indexed *data) {
    if (data == NULL) {
        return;
    }
    if (data->idx.data != NULL) {
        ms_file_map_close(&data->idx);
    }
    if (data->bin.data != NULL) {
        ms_file_map_close(&data->bin);
    }
    ms_free(data->idx_name);
    ms_free(data->bin_name);
    ms_free(data);
}

bool ms_indexed_exists(const char *path) {
    char idx_name[MS_PATH_BYTES], bin_name[MS_PATH_BYTES];
    bool exists = ms__indexed_path(path, ".idx", idx_name) == MS_OK &&
                  ms__indexed_path(path, ".bin", bin_name) == MS_OK && ms_path_exists(idx_name) &&
                  ms_path_exists(bin_name);
    return exists;
}

ms_dtype ms_indexed_dtype(const ms_indexed *data) {
    return data->dtype;
}
int64_t ms_indexed_sequence_count(const ms_indexed *data) {
    return data->sequence_count;
}
int64_t ms_indexed_document_count(const ms_indexed *data) {
    return data->document_count;
}
int64_t ms_indexed_token_count(const ms_indexed *data) {
    return data->token_count;
}
bool ms_indexed_has_modes(const ms_indexed *data) {
    return data->modes != NULL;
}

static ms_status check_index(const ms_indexed *data, const char *what, int64_t index,
                             int64_t count) {
    if (index < 0 || index >= count) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: %s %" PRId64 " asked for, there are %" PRId64,
                       data->idx_name, what, index, count);
    }
    return MS_OK;
}

ms_status ms_indexed_sequence(const ms_indexed *data, int64_t sequence, int64_t *first,
                              int64_t *count) {
    MS_TRY(check_index(data, "sequence", sequence, data->sequence_count));
    *first = load_i64(data->offsets, sequence) / (int64_t)data->token_bytes;
    *count = load_i32(data->lengths, sequence);
    return MS_OK;
}

ms_status ms_indexed_sequence_mode(const ms_indexed *data, int64_t sequence, int8_t *mode) {
    MS_TRY(check_index(data, "sequence", sequence, data->sequence_count));
    *mode = data->modes != NULL ? (int8_t)data->modes[sequence] : 0;
    return MS_OK;
}

ms_status ms_indexed_document(const ms_indexed *data, int64_t document, int64_t *first,
                              int64_t *count) {
    MS_TRY(check_index(data, "document", document, data->document_count));
    *first = load_i64(data->documents, document);
    *count = load_i64(data->documents, document + 1) - *first;
    return MS_OK;
}

/* One macro for each integer type keeps the loop free of a switch. */
#define COPY_TOKENS(type)                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type value;                                                                                \
        memcpy(&value, from + (size_t)i * sizeof value, sizeof value);                             \
        tokens[i] = (int32_t)value;                                                                \
    }

static ms_status copy_wide(const ms_indexed *data, int64_t first, int64_t count, int32_t *tokens) {
    for (int64_t i = 0; i < count; i++) {
        int64_t value = load_i64(data->tokens, first + i);
        if (value < INT32_MIN || value > INT32_MAX) {
            return ms_fail(MS_ERR_RANGE,
                           "%s: token %" PRId64 " is %" PRId64 ", which is not 32 bits wide",
                           data->bin_name, first + i, value);
        }
        tokens[i] = (int32_t)value;
    }
    return MS_OK;
}

static ms_status check_vocabulary(const ms_indexed *data, int64_t first, int64_t count,
                                  int64_t vocabulary_size, const int32_t *tokens) {
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocabulary_size) {
            return ms_fail(MS_ERR_RANGE,
                           "%s: token %" PRId64 " (byte %" PRId64 ") is id %" PRId32
                           ", but the vocabulary has %" PRId64
                           " entries: the file was made with another tokenizer",
                           data->bin_name, first + i, (first + i) * (int64_t)data->token_bytes,
                           tokens[i], vocabulary_size);
        }
    }
    return MS_OK;
}

ms_status ms_indexed_read(const ms_indexed *data, int64_t first, int64_t count,
                          int64_t vocabulary_size, int32_t *tokens) {
    if (first < 0 || count < 0 || first > data->token_count || count > data->token_count - first) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "%s: tokens %" PRId64 " and %" PRId64 " more asked for, there are %" PRId64,
                       data->bin_name, first, count, data->token_count);
    }
    if (count == 0) {
        return MS_OK;
    }
    const uint8_t *from = data->tokens + (size_t)first * data->token_bytes;
    switch (data->dtype) {
    case MS_U8:
        COPY_TOKENS(uint8_t)
        break;
    case MS_I8:
        COPY_TOKENS(int8_t)
        break;
    case MS_I16:
        COPY_TOKENS(int16_t)
        break;
    case MS_U16:
        COPY_TOKENS(uint16_t)
        break;
    case MS_I32:
        memcpy(tokens, from, (size_t)count * sizeof *tokens);
        break;
    case MS_I64:
        MS_TRY(copy_wide(data, first, count, tokens));
        break;
    default:
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: holds %s, not token ids", data->bin_name,
                       ms_dtype_name(data->dtype));
    }
    return vocabulary_size != 0 ? check_vocabulary(data, first, count, vocabulary_size, tokens)
                                : MS_OK;
}

ms_dtype ms_indexed_dtype_for(int64_t vocabulary_size) {
    return vocabulary_size < 65500 ? MS_U16 : MS_I32;
}
