/*
 * fuzz_indexed.c - any two byte strings are a .idx/.bin pair or refused. The input's first two
 * bytes are the length of the .idx. Of what is accepted every sequence can be read, sequences make
 * up the stream, and documents make up the sequences.
 */
#include "format_laws.h"

#include "format/indexed.h"

static void walk(const ms_indexed *data) {
    int64_t next_token = 0, next_sequence = 0;
    for (int64_t i = 0; i < ms_indexed_sequence_count(data); i++) {
        int64_t first = -1, count = -1;
        hold(ms_indexed_sequence(data, i, &first, &count) == MS_OK, "every sequence is there");
        hold(first == next_token && count >= 0, "sequences follow one another");
        next_token = first + count;
        int32_t tokens[16];
        int64_t part = count < 16 ? count : 16;
        ms_status status = ms_indexed_read(data, next_token - part, part, 0, tokens);
        hold(status == MS_OK || status == MS_ERR_UNSUPPORTED || status == MS_ERR_RANGE,
             "every sequence can be read");
    }
    hold(next_token == ms_indexed_token_count(data), "sequences make up the stream");
    for (int64_t i = 0; i < ms_indexed_document_count(data); i++) {
        int64_t first = -1, count = -1;
        hold(ms_indexed_document(data, i, &first, &count) == MS_OK, "every document is there");
        hold(first == next_sequence && count >= 0, "documents follow one another");
        next_sequence = first + count;
    }
    hold(ms_indexed_document_count(data) == 0 || next_sequence == ms_indexed_sequence_count(data),
         "documents make up the sequences");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    size_t before = live_bytes();
    size_t idx_bytes = (size_t)data[0] | (size_t)data[1] << 8;
    idx_bytes = idx_bytes < size - 2 ? idx_bytes : size - 2;
    uint8_t *idx = exact_copy(data + 2, idx_bytes);
    uint8_t *bin = exact_copy(data + 2 + idx_bytes, size - 2 - idx_bytes);
    ms_indexed *pair = NULL;
    ms_status status =
        ms_indexed_open_memory(idx, idx_bytes, bin, size - 2 - idx_bytes, "fuzz", &pair);
    if (status == MS_OK) {
        walk(pair);
        ms_indexed_close(pair);
    } else {
        hold_refusal(status);
    }
    free(idx);
    free(bin);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
