// labels: unit
/* JSON Lines: metrics that read back to the bit, corpora in ranges, errors by line. */
#include "format_support.h"

#include <math.h>

#include "base/random.h"
#include "format/jsonl.h"

static void writes(void **state) {
    (void)state;
    char *folder = make_folder();
    const char *path = in_folder(folder, "metrics.jsonl");
    ms_jsonl_writer *writer = NULL;
    assert_ok(ms_jsonl_writer_create(path, false, &writer));
    ms_jsonl_int(writer, "step", INT64_MIN);
    ms_jsonl_real(writer, "loss", 1.0 / 3.0);
    ms_jsonl_real(writer, "grad_norm", NAN);
    ms_jsonl_real(writer, "lr", INFINITY);
    ms_jsonl_bool(writer, "saved", true);
    ms_jsonl_string(writer, "note", "a \"b\"\n");
    ms_jsonl_string(writer, "none", NULL);
    assert_ok(ms_jsonl_end(writer));
    assert_ok(ms_jsonl_end(writer));
    assert_ok(ms_jsonl_writer_sync(writer));
    ms_text text = {0};
    assert_ok(ms_file_read(path, 10000, &text)); /* there while the writer is still open */
    assert_string_equal(text.bytes,
                        "{\"step\":-9223372036854775808,\"loss\":0.3333333333333333,"
                        "\"grad_norm\":null,\"lr\":null,\"saved\":true,\"note\":\"a \\\"b\\\"\\n\","
                        "\"none\":null}\n{}\n");
    ms_jsonl_string(writer, "bad", "\xff");
    ms_jsonl_int(writer, "step", 1);
    assert_fails(ms_jsonl_end(writer), MS_ERR_ARGUMENT, "the value of \"bad\" is not UTF-8");
    ms_jsonl_int(writer, "step", 2);
    assert_ok(ms_jsonl_end(writer));
    ms_jsonl_writer_destroy(writer);
    ms_text_clear(&text);
    assert_ok(ms_file_read(path, 10000, &text));
    assert_non_null(strstr(text.bytes, "{}\n{\"step\":2}\n"));
    ms_text_release(&text);
    assert_fails(ms_jsonl_writer_create(in_folder(folder, "a/b"), true, &writer), MS_ERR_IO,
                 "a/b: cannot open for writing");
    remove_folder(folder);
}

static void numbers_round_trip(void **state) {
    (void)state;
    char *folder = make_folder();
    const char *path = in_folder(folder, "metrics.jsonl");
    ms_jsonl_writer *writer = NULL;
    enum { COUNT = 2000 };
    static double numbers[COUNT];
    ms_random_key key = ms_random_key_make(1, "numbers");
    assert_ok(ms_jsonl_writer_create(path, false, &writer));
    for (uint64_t i = 0; i < COUNT; i++) {
        ms_random_block block = ms_random_at(key, 0, i);
        uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
        memcpy(&numbers[i], &bits, sizeof bits);
        numbers[i] = isfinite(numbers[i]) ? numbers[i] : -0.0;
        ms_jsonl_real(writer, "x", numbers[i]);
        assert_ok(ms_jsonl_end(writer));
    }
    ms_jsonl_writer_destroy(writer);
    ms_jsonl_reader *reader = NULL;
    assert_ok(ms_jsonl_reader_open(path, NULL, &reader));
    for (int i = 0; i < COUNT; i++) {
        json_t *object = NULL;
        assert_ok(ms_jsonl_reader_next(reader, &object));
        double value = json_real_value(json_object_get(object, "x"));
        assert_memory_equal(&value, &numbers[i], sizeof value);
    }
    ms_jsonl_reader_close(reader);
    remove_folder(folder);
}

static void appends(void **state) {
    (void)state;
    char *folder = make_folder();
    const char *path = in_folder(folder, "metrics.jsonl");
    static const char *const before[] = {"", "{\"step\":1}\n", "{\"step\":1}\n{\"st", "{\"ste"};
    static const char *const after[] = {"{\"step\":2}\n", "{\"step\":1}\n{\"step\":2}\n",
                                        "{\"step\":1}\n{\"step\":2}\n", "{\"step\":2}\n"};
    for (int i = 0; i < 4; i++) {
        write_file(path, before[i], strlen(before[i]));
        ms_jsonl_writer *writer = NULL;
        assert_ok(ms_jsonl_writer_create(path, true, &writer));
        ms_jsonl_int(writer, "step", 2);
        assert_ok(ms_jsonl_end(writer));
        ms_jsonl_writer_destroy(writer);
        ms_text text = {0};
        assert_ok(ms_file_read(path, 10000, &text));
        assert_string_equal(text.bytes, after[i]);
        ms_text_release(&text);
    }
    /* A partial line longer than the block that is searched at once. */
    ms_text text = {0};
    assert_ok(ms_text_append_z(&text, "{\"step\":1}\n"));
    for (int i = 0; i < 10000; i++) {
        assert_ok(ms_text_append_z(&text, "x"));
    }
    write_file(path, text.bytes, text.length);
    ms_jsonl_writer *writer = NULL;
    assert_ok(ms_jsonl_writer_create(path, true, &writer));
    ms_jsonl_writer_destroy(writer);
    ms_text_clear(&text);
    assert_ok(ms_file_read(path, 100000, &text));
    assert_string_equal(text.bytes, "{\"step\":1}\n");
    ms_text_release(&text);
    remove_folder(folder);
}

static ms_jsonl_reader *open_text(const char *text, const ms_jsonl_options *options) {
    ms_jsonl_reader *reader = NULL;
    assert_ok(ms_jsonl_reader_open_memory(text, strlen(text), "corpus.jsonl", options, &reader));
    return reader;
}

static void reads_texts(void **state) {
    (void)state;
    ms_jsonl_reader *reader = open_text("\xef\xbb\xbf{\"text\": \"one\", \"id\": 1}\r\n\n  \t\n"
                                        "{\"text\": \"t\\u0000wo\\ud83d\\ude00\"}",
                                        NULL);
    const char *text = NULL;
    size_t length = 0;
    assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
    assert_string_equal(text, "one");
    assert_int_equal(ms_jsonl_reader_line(reader), 1);
    assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
    assert_int_equal(length, 8);
    assert_memory_equal(text, "t\0wo\xf0\x9f\x98\x80", 8);
    assert_int_equal(ms_jsonl_reader_line(reader), 4);
    assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
    assert_null(text);
    assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
    assert_null(text);
    assert_int_equal(ms_jsonl_reader_offset(reader), ms_jsonl_reader_bytes(reader));
    ms_jsonl_reader_close(reader);
    reader = open_text("", NULL);
    assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
    assert_null(text);
    ms_jsonl_reader_close(reader);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        ms_status status;
        const char *message;
    } cases[] = {
        {"{\"text\": \"a\"}\n\n{\"text\": b}\n", MS_ERR_FORMAT,
         "corpus.jsonl:3: not valid JSON at column 10"},
        {"{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", MS_ERR_FORMAT, "corpus.jsonl:2: no key \"text\""},
        {"{\"text\": \"a\"}\n{\"text\": 7}\n", MS_ERR_FORMAT,
         "corpus.jsonl:2: no string under the key \"text\""},
        {"{\"text\": \"a\"}\n[1]\n", MS_ERR_FORMAT, "corpus.jsonl:2: the line must be an object"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", MS_ERR_FORMAT,
         "corpus.jsonl:2: not valid JSON"},
        {"{\"text\": \"a\"}\n{\"text\": \"\\ud800\"}\n", MS_ERR_FORMAT, "corpus.jsonl:2:"},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"", MS_ERR_FORMAT, "corpus.jsonl:2: not valid JSON"},
        {"{\"text\": \"a\"}\n{\"text\": \"01234567890123456789\"}\n", MS_ERR_RANGE,
         "corpus.jsonl:2: a line of 32 bytes, allowed are 30"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_jsonl_options options = {.line_bytes_max = 30};
        ms_jsonl_reader *reader = open_text(cases[i].text, &options);
        const char *text = NULL;
        size_t length = 0;
        assert_ok(ms_jsonl_reader_next_text(reader, "text", &text, &length));
        ms_status status = ms_jsonl_reader_next_text(reader, "text", &text, &length);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].message) == NULL) {
            fail_msg("case %zu: %s: \"%s\"", i, ms_status_name(status), ms_error_detail());
        }
        ms_jsonl_reader_close(reader);
    }
    ms_jsonl_options options = {.allow_truncated_last = true};
    ms_jsonl_reader *reader = open_text("{\"a\": 1}\n{\"a\": ", &options);
    json_t *object = NULL;
    assert_ok(ms_jsonl_reader_next(reader, &object));
    assert_non_null(object);
    assert_ok(ms_jsonl_reader_next(reader, &object));
    assert_null(object);
    ms_jsonl_reader_close(reader);
    reader = open_text("{\"a\": \n{\"a\": 1}\n", &options); /* only the last line is forgiven */
    assert_fails(ms_jsonl_reader_next(reader, &object), MS_ERR_FORMAT, "corpus.jsonl:1:");
    ms_jsonl_reader_close(reader);
}

/* However a file is cut into ranges, each line is seen once, in order. */
static void ranges(void **state) {
    (void)state;
    static const char text[] = "\xef\xbb\xbf{\"n\": 0}\n{\"n\": 1}\n\n{\"n\": 2}\r\n{\"n\": 3, "
                               "\"x\": \"long long\"}\n{\"n\": 4}";
    size_t length = strlen(text);
    for (size_t first = 1; first < length; first++) {
        for (size_t second = first + 1; second < length; second++) {
            size_t cuts[] = {0, first, second, length};
            json_int_t next = 0;
            for (int part = 0; part < 3; part++) {
                ms_jsonl_options options = {.begin = cuts[part], .end = cuts[part + 1]};
                ms_jsonl_reader *reader = open_text(text, &options);
                for (json_t *object = NULL;;) {
                    assert_ok(ms_jsonl_reader_next(reader, &object));
                    if (object == NULL) {
                        break;
                    }
                    assert_int_equal(json_integer_value(json_object_get(object, "n")), next++);
                }
                ms_jsonl_reader_close(reader);
            }
            assert_int_equal(next, 5);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes),   cmocka_unit_test(numbers_round_trip),
        cmocka_unit_test(appends),  cmocka_unit_test(reads_texts),
        cmocka_unit_test(refusals), cmocka_unit_test(ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
