// labels: cli
// timeout: 60
/* test_data_command.c - `mindspeed data` and `mindspeed tokenizer`: figures, errors, exit statuses.
 */
#include "cli/command_run.h"

#include <jansson.h>

#define FIXTURE(name) "tests/data/fixtures/" name

static char dir[MS_TEST_PATH_BYTES];

static int set_up(void **state) {
    (void)state;
    test_dir_make(dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

/* The one object that a command printed. */
static json_t *object_of(const command_result *result) {
    check_command_works(result);
    json_error_t error;
    json_t *object = json_loads(result->out, 0, &error);
    if (!json_is_object(object)) {
        fail_msg("\"%s\" is not an object: %s", result->out, error.text);
    }
    return object;
}

static int64_t integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) {
        fail_msg("no whole number \"%s\"", key);
    }
    return json_integer_value(value);
}

static void check_string(const json_t *object, const char *key, const char *wanted) {
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    assert_string_equal(value, wanted);
}

static void test_build_info_merge(void **state) {
    (void)state;
    char out[MS_TEST_PATH_BYTES], joined[MS_TEST_PATH_BYTES];
    test_path(dir, "out", out);
    test_path(dir, "joined", joined);
    json_t *built = object_of(command_run(NULL, "data", "build", FIXTURE("paragraphs.txt"),
                                          "--output", out, "--tokenizer", "byte", "--documents",
                                          "paragraphs", "--threads", "2", "--json", NULL));
    check_string(built, "output", out);
    check_string(built, "dtype", "uint16");
    assert_int_equal(integer_of(built, "documents"), 4);
    assert_int_equal(integer_of(built, "tokens"), 45);
    assert_int_equal(integer_of(built, "input_bytes"), 45);
    assert_true(json_is_real(json_object_get(built, "tokens_per_s")));
    json_decref(built);

    json_t *info = object_of(command_run(NULL, "data", "info", out, "--scan", "--json", NULL));
    check_string(info, "kind", "indexed");
    assert_int_equal(integer_of(info, "documents"), 4);
    assert_int_equal(integer_of(info, "sequences"), 4);
    assert_int_equal(integer_of(info, "bytes"), 90);
    assert_int_equal(integer_of(info, "id_min"), 10);
    assert_int_equal(integer_of(info, "id_max"), 'w');
    assert_int_equal(integer_of(info, "document_tokens_min"), 5);
    json_decref(info);

    json_t *merged =
        object_of(command_run(NULL, "data", "merge", out, out, "--output", joined, "--json", NULL));
    assert_int_equal(integer_of(merged, "documents"), 8);
    assert_int_equal(integer_of(merged, "tokens"), 90);
    json_decref(merged);

    const command_result *lines = command_run(NULL, "data", "info", joined, NULL);
    check_command_works(lines);
    assert_non_null(strstr(lines->out, "joined: indexed, 180 B, 90 tokens (uint16), 8 documents"));
}

static void test_info_of_text(void **state) {
    (void)state;
    json_t *info =
        object_of(command_run(NULL, "data", "info", FIXTURE("paragraphs.txt"), "--json", NULL));
    check_string(info, "kind", "text");
    assert_int_equal(integer_of(info, "lines"), 12);
    assert_int_equal(integer_of(info, "characters"), 45);
    json_decref(info);
    info = object_of(command_run(NULL, "data", "info", FIXTURE("documents.jsonl"), "--json", NULL));
    check_string(info, "kind", "jsonl");
    assert_int_equal(integer_of(info, "documents"), 4);
    json_decref(info);
}

static void test_errors_of_data(void **state) {
    (void)state;
    char out[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_path(dir, "bad", out);
    check_command_fails(command_run(NULL, "data", "build", "nowhere.txt", "--output", out, NULL), 1,
                        "nowhere.txt: no such file");
    check_command_fails(
        command_run(NULL, "data", "build", FIXTURE("not_utf8.txt"), "--output", out, NULL), 1,
        "not_utf8.txt: not UTF-8 at byte 18");
    check_command_fails(command_run(NULL, "data", "build", FIXTURE("missing_key.jsonl"), "--output",
                                    out, "--tokenizer", "byte", NULL),
                        1, "missing_key.jsonl:2");
    check_command_fails(command_run(NULL, "data", "build", FIXTURE("paragraphs.txt"), "--output",
                                    out, "--append-eod", NULL),
                        1, "no end-of-text token");
    check_command_fails(command_run(NULL, "data", "info", "nowhere", NULL), 1, "nowhere");
    check_command_fails(command_run(NULL, "data", "merge", "nowhere", "--output", out, NULL), 1,
                        "nowhere");
    assert_false(ms_path_exists(test_path(dir, "bad.bin", path)));
    assert_false(ms_path_exists(test_path(dir, "bad.bin.partial", path)));
}

static void test_wrong_usage(void **state) {
    (void)state;
    check_command_fails(command_run(NULL, "data", NULL), 2, "build, info or merge");
    check_command_fails(command_run(NULL, "data", "bild", "x", NULL), 2, "\"bild\" is not");
    check_command_fails(command_run(NULL, "data", "build", "x", NULL), 2, "--output");
    check_command_fails(command_run(NULL, "data", "build", "--output", "x", NULL), 2,
                        "input files");
    check_command_fails(command_run(NULL, "data", "info", "a", "b", NULL), 2, "one PATH");
    check_command_fails(command_run(NULL, "data", "info", "a", "--output", "b", NULL), 2,
                        "no --output");
    check_command_fails(
        command_run(NULL, "data", "merge", "a", "--output", "b", "--append-eod", NULL), 2,
        "build's options");
    check_command_fails(command_run(NULL, "data", "build", "x", "--threads", "0", NULL), 2,
                        "--threads");
    check_command_fails(command_run(NULL, "data", "build", "x", "--documents", "words", NULL), 2,
                        "\"words\"");
    check_command_fails(command_run(NULL, "data", "build", "x", "--dtype", "fp32", NULL), 2,
                        "fp32");
    check_command_fails(command_run(NULL, "data", "--no-such", NULL), 2, "unknown option");
    check_command_fails(command_run(NULL, "tokenizer", NULL), 2, "train, encode, decode or info");
    check_command_fails(command_run(NULL, "tokenizer", "learn", NULL), 2, "\"learn\" is not");
    check_command_fails(command_run(NULL, "tokenizer", "encode", NULL), 2, "a TOKENIZER");
    check_command_fails(command_run(NULL, "tokenizer", "encode", "byte", "a", "b", NULL), 2,
                        "\"b\"");
    check_command_fails(command_run(NULL, "tokenizer", "train", "x", NULL), 2, "--output");
    check_command_fails(command_run(NULL, "tokenizer", "decode", "byte", "--eos", NULL), 2,
                        "does not belong to decode");
    check_command_fails(
        command_run(NULL, "tokenizer", "train", "x", "--output", "y", "--kind", "word", NULL), 2,
        "\"word\"");
}

static void test_help(void **state) {
    (void)state;
    const command_result *result = command_run(NULL, "data", "--help", NULL);
    check_command_works(result);
    assert_non_null(strstr(result->out, "usage: mindspeed data build"));
    result = command_run(NULL, "tokenizer", "train", "--help", NULL);
    check_command_works(result);
    assert_non_null(strstr(result->out, "usage: mindspeed tokenizer train"));
}

static void test_output_that_cannot_be_written(void **state) {
    (void)state;
    char line[2 * MS_TEST_PATH_BYTES];
    snprintf(line, sizeof line, "%s tokenizer info byte > /dev/full 2> /dev/null", command_path());
    int status = system(line);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void test_train_encode_decode(void **state) {
    (void)state;
    char out[MS_TEST_PATH_BYTES], ids[4096];
    test_path(dir, "tokenizer", out);
    json_t *trained =
        object_of(command_run(NULL, "tokenizer", "train", FIXTURE("documents.jsonl"),
                              FIXTURE("paragraphs.txt"), "--output", out, "--vocabulary", "264",
                              "--special", "<end>", "--special", "<pad>", "--json", NULL));
    assert_int_equal(integer_of(trained, "vocabulary"), 264);
    json_decref(trained);
    json_t *info = object_of(command_run(NULL, "tokenizer", "info", out, "--json", NULL));
    check_string(info, "kind", "byte_bpe");
    assert_int_equal(integer_of(json_object_get(info, "special"), "<end>"), 262);
    json_decref(info);

    static const char text[] = "  Of two\n\nlines, \xc3\xbc"
                               "ber <end> \xf0\x9f\x98\x80\n";
    const command_result *result = command_run(text, "tokenizer", "encode", out, NULL);
    check_command_works(result);
    snprintf(ids, sizeof ids, "%s", result->out);
    result = command_run(ids, "tokenizer", "decode", out, NULL);
    check_command_works(result);
    assert_string_equal(result->out, text);

    json_t *encoded = object_of(
        command_run(NULL, "tokenizer", "encode", out, "a<end>", "--special-text", "--json", NULL));
    const json_t *list = json_object_get(encoded, "ids");
    assert_int_equal(json_array_size(list), 2);
    assert_int_equal(json_integer_value(json_array_get(list, 1)), 262);
    assert_int_equal(integer_of(encoded, "count"), 2);
    assert_int_equal(integer_of(encoded, "bytes"), 6);
    json_decref(encoded);
    result = command_run(NULL, "tokenizer", "decode", out, "262", "--skip-special", NULL);
    check_command_works(result);
    assert_string_equal(result->out, "");
}

static void test_byte_tokenizer(void **state) {
    (void)state;
    json_t *encoded = object_of(command_run(NULL, "tokenizer", "encode", "byte", "--file",
                                            FIXTURE("not_utf8.txt"), "--json", NULL));
    assert_int_equal(integer_of(encoded, "count"), 25);
    json_decref(encoded);
    json_t *decoded =
        object_of(/* half a character: JSON holds U+FFFD */
                  command_run(NULL, "tokenizer", "decode", "byte", "104,105 195", "--json", NULL));
    check_string(decoded, "text", "hi\xef\xbf\xbd");
    assert_int_equal(integer_of(decoded, "bytes"), 3);
    json_decref(decoded);
}

static void test_errors_of_tokenizer(void **state) {
    (void)state;
    check_command_fails(command_run(NULL, "tokenizer", "decode", "byte", "1", "2x", NULL), 1,
                        "\"2x\" is not a token id");
    check_command_fails(command_run(NULL, "tokenizer", "decode", "byte", "256", NULL), 1,
                        "token id 256");
    check_command_fails(command_run("a\xff", "tokenizer", "decode", "byte", NULL), 1, "token id");
    check_command_fails(command_run(NULL, "tokenizer", "info", "nowhere", NULL), 1, "\"nowhere\"");
    check_command_fails(command_run(NULL, "tokenizer", "encode", "char", "x", NULL), 1,
                        "char tokenizer belongs to a text");
    check_command_fails(
        command_run(NULL, "tokenizer", "encode", "byte", "--file", "nowhere.txt", NULL), 1,
        "nowhere.txt");
    check_command_fails(
        command_run(NULL, "tokenizer", "train", FIXTURE("not_utf8.txt"), "--output", dir, NULL), 1,
        "not_utf8.txt: text is not UTF-8 at byte 18");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_info_merge),
        cmocka_unit_test(test_info_of_text),
        cmocka_unit_test(test_errors_of_data),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_output_that_cannot_be_written),
        cmocka_unit_test(test_train_encode_decode),
        cmocka_unit_test(test_byte_tokenizer),
        cmocka_unit_test(test_errors_of_tokenizer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
