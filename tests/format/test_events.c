// labels: unit
/* TensorBoard's event files: its own read, ours read back, damage found. */
#include "format_support.h"

#include <math.h>

#include "base/hash.h"
#include "format/events.h"

typedef struct totals {
    int events, scalars;
    int64_t last_step;
    double sum;
    char version[32];
} totals;

static totals read_all(ms_events_reader *reader, const char *wanted_tag) {
    totals found = {0};
    for (;;) {
        ms_event event;
        bool more = false;
        assert_ok(ms_events_reader_next(reader, &event, &more));
        if (!more) {
            return found;
        }
        found.events++;
        found.last_step = event.step;
        if (event.file_version != NULL) {
            snprintf(found.version, sizeof found.version, "%.*s", (int)event.file_version_length,
                     event.file_version);
        }
        for (size_t position = 0;;) {
            ms_event_value value;
            assert_ok(ms_event_next_value(reader, &event, &position, &value, &more));
            if (!more) {
                break;
            }
            if (value.is_scalar && value.tag_length == strlen(wanted_tag) &&
                memcmp(value.tag, wanted_tag, value.tag_length) == 0) {
                found.scalars++;
                found.sum += (double)value.value;
            }
        }
    }
}

static void ours(void **state) {
    (void)state;
    char *folder = make_folder();
    ms_events_writer *writer = NULL, *second = NULL;
    assert_ok(ms_events_writer_create(folder, &writer));
    assert_ok(ms_events_writer_create(folder, &second)); /* another in the same second */
    assert_string_not_equal(ms_events_writer_path(writer), ms_events_writer_path(second));
    assert_non_null(strstr(ms_events_writer_path(writer), "/events.out.tfevents."));
    for (int64_t step = 0; step < 300; step++) {
        assert_ok(ms_events_writer_scalar(writer, "loss", step, 1.7e9 + (double)step, 0.5f));
        assert_ok(ms_events_writer_scalar(writer, "lr", step, 1.7e9 + (double)step, 1e-3f));
    }
    assert_ok(ms_events_writer_scalar(writer, "loss", ((int64_t)1 << 40) + 5, 1.7e9, NAN));
    assert_fails(ms_events_writer_scalar(writer, "", 0, 0.0, 0.0f), MS_ERR_ARGUMENT, "tag");
    assert_fails(ms_events_writer_scalar(writer, "\xff", 0, 0.0, 0.0f), MS_ERR_ARGUMENT, "UTF-8");
    char path[MS_PATH_BYTES];
    snprintf(path, sizeof path, "%s", ms_events_writer_path(writer));
    ms_events_writer_destroy(writer);
    ms_events_writer_destroy(second);
    ms_events_reader *reader = NULL;
    assert_ok(ms_events_reader_open(path, &reader));
    totals found = read_all(reader, "loss");
    assert_int_equal(found.events, 602);
    assert_int_equal(found.scalars, 301);
    assert_int_equal(found.last_step, ((int64_t)1 << 40) + 5);
    assert_string_equal(found.version, "brain.Event:2");
    assert_false(ms_events_reader_is_truncated(reader));
    ms_events_reader_close(reader);
    assert_fails(ms_events_writer_create(in_folder(folder, "absent"), &writer), MS_ERR_IO,
                 "cannot create");
    remove_folder(folder);
}

/* A record known to the byte: that of a file made by another program begins like this. */
static void bytes_of_a_record(void **state) {
    (void)state;
    assert_int_equal(ms_crc32c("123456789", 9), 0xe3069283u);
    char *folder = make_folder();
    ms_events_writer *writer = NULL;
    assert_ok(ms_events_writer_create(folder, &writer));
    assert_ok(ms_events_writer_scalar(writer, "a", 3, 0.0, 1.0f));
    ms_text file = {0};
    assert_ok(ms_file_read(ms_events_writer_path(writer), 1000, &file));
    ms_events_writer_destroy(writer);
    /* 24 bytes: wall time (9) and "brain.Event:2" (15), framed by 12 and 4. */
    assert_memory_equal(file.bytes, "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09", 13);
    assert_memory_equal(file.bytes + 21,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    /* 9 wall time, 2 step, 2 + 2 + 3 + 5 summary, value, tag, float. */
    static const uint8_t event[] = {0x09, 0,    0, 0,    0, 0,   0,    0, 0, 0x10, 3,   0x2a,
                                    10,   0x0a, 8, 0x0a, 1, 'a', 0x15, 0, 0, 0x80, 0x3f};
    assert_int_equal(file.length, 40 + 16 + sizeof event);
    assert_int_equal(file.bytes[40], sizeof event);
    assert_memory_equal(file.bytes + 52, event, sizeof event);
    ms_text_release(&file);
    remove_folder(folder);
}

static void damages(void **state) {
    (void)state;
    char *folder = make_folder();
    ms_events_writer *writer = NULL;
    assert_ok(ms_events_writer_create(folder, &writer));
    assert_ok(ms_events_writer_scalar(writer, "loss", 1, 2.0, 3.0f));
    ms_text file = {0};
    assert_ok(ms_file_read(ms_events_writer_path(writer), 1000, &file));
    ms_events_writer_destroy(writer);
    ms_events_reader *reader = NULL;
    ms_event event;
    bool more = false;
    for (size_t length = 0; length < file.length;
         length++) { /* cut anywhere: whole records, no error */
        char *copy = malloc(length + 1);
        memcpy(copy, file.bytes, length);
        assert_ok(ms_events_reader_open_memory(copy, length, "cut", &reader));
        totals found = read_all(reader, "loss");
        assert_int_equal(found.events, length >= 40 ? 1 : 0);
        assert_int_equal(ms_events_reader_is_truncated(reader), length != 0 && length != 40);
        ms_events_reader_close(reader);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * 40; bit++) { /* of the first record: always found */
        file.bytes[bit / 8] ^= (char)(1 << (bit % 8));
        assert_ok(ms_events_reader_open_memory(file.bytes, file.length, "flip", &reader));
        assert_fails(ms_events_reader_next(reader, &event, &more), MS_ERR_CHECKSUM, "flip: byte ");
        ms_events_reader_close(reader);
        file.bytes[bit / 8] ^= (char)(1 << (bit % 8));
    }
    ms_text_release(&file);
    remove_folder(folder);
}

static void real_files(void **state) {
    (void)state;
    ms_events_reader *reader = NULL;
    assert_ok(ms_events_reader_open(shared_path("tensorboard/events.out.tfevents.1749575901.small"),
                                    &reader));
    totals found = read_all(reader, "train_loss_logs");
    assert_string_equal(found.version, "brain.Event:2");
    assert_true(found.scalars > 10);
    assert_true(found.sum / found.scalars > 0.1 && found.sum / found.scalars < 10.0);
    assert_false(ms_events_reader_is_truncated(reader));
    print_message("small: %d events, %d scalars\n", found.events, found.scalars);
    ms_events_reader_close(reader);
    assert_ok(ms_events_reader_open(shared_path("tensorboard/events.out.tfevents.1585769947.cvp"),
                                    &reader));
    found = read_all(reader, "epoch_loss");
    assert_true(found.events > 3);
    print_message("cvp: %d events, %d scalars\n", found.events, found.scalars);
    ms_events_reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ours),
        cmocka_unit_test(bytes_of_a_record),
        cmocka_unit_test(damages),
        cmocka_unit_test(real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
