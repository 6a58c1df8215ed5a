/*
 * fuzz_events.c - any bytes are an event file up to where they are damaged. Since checksums keep
 * mutations out, the input is read twice: as it is, and with right checksums put into its frames.
 */
#include "format_laws.h"

#include "base/hash.h"
#include "format/events.h"

static void walk(const uint8_t *bytes, size_t size) {
    ms_events_reader *reader = NULL;
    hold(ms_events_reader_open_memory(bytes, size, "fuzz", &reader) == MS_OK,
         "bytes can be opened");
    for (bool more = true; more;) {
        ms_event event;
        ms_status status = ms_events_reader_next(reader, &event, &more);
        if (status != MS_OK) {
            hold_refusal(status);
            break;
        }
        size_t position = 0, length = 0;
        for (bool another = more; another;) {
            ms_event_value value;
            status = ms_event_next_value(reader, &event, &position, &value, &another);
            if (status != MS_OK) {
                hold_refusal(status);
                break;
            }
            length += another ? value.tag_length : 0;
        }
        hold(length <= size, "tags lie in the file");
    }
    ms_events_reader_close(reader);
}

static void put_crc(uint8_t *bytes, size_t length) {
    uint32_t crc = ms_crc32c(bytes, length);
    crc = (crc >> 15 | crc << 17) + 0xa282ead8u;
    memcpy(bytes + length, &crc, sizeof crc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    walk(copy, size);
    for (size_t at = 0; size - at >= 16;) {
        uint64_t length;
        memcpy(&length, copy + at, sizeof length);
        put_crc(copy + at, 8);
        if (length > size - at - 16) {
            break;
        }
        put_crc(copy + at + 12, (size_t)length);
        at += 16 + (size_t)length;
    }
    walk(copy, size);
    free(copy);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
