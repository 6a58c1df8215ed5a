/*
 * fuzz_jsonl.c - any bytes are lines of JSON up to the first that is not. Read whole and in two
 * ranges cut anywhere: the objects are as many.
 */
#include "format_laws.h"

#include "format/jsonl.h"

/* Objects of a range; -1 when a line was refused. */
static int64_t count(const uint8_t *bytes, size_t size, uint64_t begin, uint64_t end) {
    ms_jsonl_options options = {.line_bytes_max = 4096, .begin = begin, .end = end};
    ms_jsonl_reader *reader = NULL;
    int64_t objects = 0;
    hold(ms_jsonl_reader_open_memory(bytes, size, "fuzz", &options, &reader) == MS_OK,
         "bytes can be opened");
    for (;;) {
        json_t *object = NULL;
        ms_status status = ms_jsonl_reader_next(reader, &object);
        if (status != MS_OK) {
            hold_refusal(status);
            objects = -1;
        }
        if (status != MS_OK || object == NULL) {
            break;
        }
        objects++;
        hold(ms_jsonl_reader_line(reader) >= objects, "lines are counted from 1");
    }
    ms_jsonl_reader_close(reader);
    return objects;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    int64_t whole = count(copy, size, 0, 0);
    for (uint64_t cut = 1; cut < size; cut += size / 7 + 1) {
        int64_t first = count(copy, size, 0, cut), second = count(copy, size, cut, size);
        hold(whole < 0 || whole == first + second, "ranges see each line once");
        hold(whole >= 0 || first < 0 || second < 0, "a bad line is bad in its range");
    }
    const char *text = NULL;
    size_t length = 0;
    ms_jsonl_reader *reader = NULL;
    hold(ms_jsonl_reader_open_memory(copy, size, "fuzz", NULL, &reader) == MS_OK,
         "bytes can be opened");
    ms_status status;
    do {
        status = ms_jsonl_reader_next_text(reader, "text", &text, &length);
    } while (status == MS_OK && text != NULL);
    ms_jsonl_reader_close(reader);
    free(copy);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
