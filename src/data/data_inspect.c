/*
 * data_inspect.c - `data info`: what a file holds, read once, without a tokenizer.
 *
 * Stands beside dataset_build.c. Invariant: memory does not grow with the file (the set of
 * characters is one bit for each code point).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/data_internal.h"
#include "format/jsonl.h"

#define CODE_POINTS 0x110000
#define SCAN_TOKENS 8192

typedef struct character_set {
    uint8_t seen[CODE_POINTS / 8];
    ms_data_facts *facts;
} character_set;

static ms_status count_text(const char *name, const char *bytes, size_t length,
                            character_set *set) {
    size_t valid = ms_utf8_valid_prefix(bytes, length);
    if (valid != length) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: not UTF-8 at byte %zu (0x%02x); only the byte tokenizer "
                       "takes such text",
                       name, valid, (unsigned)(unsigned char)bytes[valid]);
    }
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(bytes + i, length - i, &code_point);
        uint8_t bit = (uint8_t)(1u << (code_point % 8));
        set->facts->distinct_characters += (set->seen[code_point / 8] & bit) == 0;
        set->seen[code_point / 8] |= bit;
        set->facts->characters++;
    }
    return MS_OK;
}

static ms_status inspect_text(const char *path, character_set *set) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    const char *bytes = (const char *)map.data;
    set->facts->bytes = map.bytes;
    ms_status status = map.bytes > 0 ? count_text(path, bytes, map.bytes, set) : MS_OK;
    for (size_t at = 0; at < map.bytes; set->facts->lines++) {
        const char *newline = memchr(bytes + at, '\n', map.bytes - at);
        at = newline != NULL ? (size_t)(newline - bytes) + 1 : map.bytes;
    }
    ms_file_map_close(&map);
    return status;
}

static ms_status inspect_jsonl(const char *path, const char *text_key, character_set *set) {
    ms_jsonl_reader *reader;
    MS_TRY(ms_jsonl_reader_open(path, NULL, &reader));
    set->facts->bytes = ms_jsonl_reader_bytes(reader);
    const char *text = NULL;
    size_t length = 0;
    ms_status status;
    while ((status = ms_jsonl_reader_next_text(reader, text_key, &text, &length)) == MS_OK &&
           text != NULL) {
        set->facts->documents++;
        status = count_text(path, text, length, set);
        if (status != MS_OK) {
            ms_error_prefix("line %" PRId64, ms_jsonl_reader_line(reader));
            break;
        }
    }
    ms_jsonl_reader_close(reader);
    return status;
}

static ms_status measure_documents(const ms_indexed *data, ms_data_facts *facts) {
    for (int64_t i = 0; i < facts->documents; i++) {
        int64_t sequence, sequences, tokens = 0;
        MS_TRY(ms_indexed_document(data, i, &sequence, &sequences));
        for (int64_t j = 0; j < sequences; j++) {
            int64_t first, count;
            MS_TRY(ms_indexed_sequence(data, sequence + j, &first, &count));
            tokens += count;
        }
        facts->document_tokens_min =
            i == 0 ? tokens : ms_min_i64(facts->document_tokens_min, tokens);
        facts->document_tokens_max = ms_max_i64(facts->document_tokens_max, tokens);
    }
    return MS_OK;
}

static ms_status scan_ids(const ms_indexed *data, ms_data_facts *facts) {
    int32_t ids[SCAN_TOKENS];
    for (int64_t first = 0; first < facts->tokens; first += SCAN_TOKENS) {
        int64_t count = ms_min_i64(SCAN_TOKENS, facts->tokens - first);
        MS_TRY(ms_indexed_read(data, first, count, 0, ids));
        for (int64_t i = 0; i < count; i++) {
            bool is_first = first + i == 0;
            facts->id_min = is_first || ids[i] < facts->id_min ? ids[i] : facts->id_min;
            facts->id_max = is_first || ids[i] > facts->id_max ? ids[i] : facts->id_max;
        }
    }
    return MS_OK;
}

static ms_status inspect_indexed(const char *path, bool scan, ms_data_facts *facts) {
    ms_indexed *data;
    MS_TRY(ms_indexed_open(path, &data));
    facts->sequences = ms_indexed_sequence_count(data);
    facts->documents = ms_indexed_document_count(data);
    facts->tokens = ms_indexed_token_count(data);
    facts->dtype = ms_indexed_dtype(data);
    facts->bytes = (uint64_t)facts->tokens * ms_dtype_bytes(facts->dtype);
    ms_status status = measure_documents(data, facts);
    if (status == MS_OK && scan) {
        status = scan_ids(data, facts);
    }
    ms_indexed_close(data);
    return status;
}

ms_status ms_data_inspect(const char *path, const char *text_key, bool scan, ms_data_facts *facts) {
    ms_source_kind kind;
    MS_TRY(ms__data_source_kind_of(path, &kind));
    ms_data_facts found = {.kind = ms__data_source_kind_name(kind)};
    ms_status status;
    if (kind == MS_SOURCE_INDEXED) {
        status = inspect_indexed(path, scan, &found);
    } else {
        character_set *set = NULL;
        MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &set));
        set->facts = &found;
        status = kind == MS_SOURCE_TEXT
                     ? inspect_text(path, set)
                     : inspect_jsonl(path, text_key != NULL ? text_key : "text", set);
        ms_free(set);
    }
    MS_TRY(status);
    *facts = found;
    return MS_OK;
}
