// labels: unit
/* Typed getters of JSON documents and the writing of strings and numbers. */
#include "format_support.h"

#include <math.h>

#include "format/json.h"

static ms_json parse(const char *text) {
    ms_json json = {0};
    assert_ok(ms_json_parse(text, strlen(text), "config.json", &json));
    return json;
}

static void values(void **state) {
    (void)state;
    ms_json json = parse("{\"layers\": 12, \"eps\": 1e-5, \"tied\": true, \"name\": \"gpt2\", "
                         "\"steps\": 1e6, \"rope\": {\"factor\": 8.0, \"a.b\": 1}, \"none\": null, "
                         "\"x.y\": 3}");
    int64_t integer = 0;
    double real = 0.0;
    bool flag = false;
    const char *string = NULL;
    assert_ok(ms_json_get_int(&json, "layers", 0, 1, 100, &integer));
    assert_int_equal(integer, 12);
    assert_ok(ms_json_get_int(&json, "steps", 0, 1, INT64_MAX, &integer));
    assert_int_equal(integer, 1000000);
    assert_ok(ms_json_get_int(&json, "absent", 7, 1, 5, &integer)); /* a default needs no range */
    assert_int_equal(integer, 7);
    assert_ok(ms_json_get_int(&json, "none", 8, 1, 5, &integer));
    assert_int_equal(integer, 8);
    assert_ok(ms_json_get_int(&json, "rope.factor", 0, 1, 100, &integer));
    assert_int_equal(integer, 8);
    assert_ok(ms_json_get_int(&json, "rope.a.b", 0, 1, 100, &integer));
    assert_int_equal(integer, 1);
    assert_ok(ms_json_get_int(&json, "x.y", 0, 1, 100, &integer));
    assert_int_equal(integer, 3);
    assert_ok(ms_json_get_real(&json, "eps", 0.0, 0.0, 1.0, &real));
    assert_true(real == 1e-5);
    assert_ok(ms_json_get_real(&json, "layers", 0.0, 0.0, 100.0, &real));
    assert_true(real == 12.0);
    assert_ok(ms_json_get_bool(&json, "tied", false, &flag));
    assert_true(flag);
    assert_ok(ms_json_get_string(&json, "name", NULL, &string));
    assert_string_equal(string, "gpt2");
    assert_ok(ms_json_get_string(&json, "absent", NULL, &string));
    assert_null(string);
    assert_true(ms_json_has(&json, "tied"));
    assert_false(ms_json_has(&json, "none"));
    ms_json_close(&json);
}

static void wrong_values(void **state) {
    (void)state;
    ms_json json = parse("{\"layers\": 12, \"eps\": \"small\", \"half\": 0.5, \"list\": [1], "
                         "\"object\": {}, \"big\": 9.3e18}");
    int64_t integer = -5;
    double real = -5.0;
    bool flag = false;
    const char *string = NULL;
    assert_fails(ms_json_get_int(&json, "layers", 0, 1, 8, &integer), MS_ERR_RANGE,
                 "config.json: \"layers\" is 12, allowed are 1 to 8");
    assert_fails(ms_json_get_int(&json, "half", 0, 0, 8, &integer), MS_ERR_FORMAT,
                 "config.json: \"half\" is 0.5, expected an integer");
    assert_fails(ms_json_get_int(&json, "big", 0, 0, INT64_MAX, &integer), MS_ERR_FORMAT,
                 "expected an integer");
    assert_fails(ms_json_need_int(&json, "absent", 0, 8, &integer), MS_ERR_NOT_FOUND,
                 "config.json: \"absent\" is missing, expected an integer");
    assert_fails(ms_json_get_real(&json, "eps", 0.0, 0.0, 1.0, &real), MS_ERR_FORMAT,
                 "\"eps\" is \"small\", expected a number");
    assert_fails(ms_json_get_real(&json, "layers", 0.0, 0.0, 1.0, &real), MS_ERR_RANGE,
                 "\"layers\" is 12, allowed are 0 to 1");
    assert_fails(ms_json_need_real(&json, "absent", 0.0, 1.0, &real), MS_ERR_NOT_FOUND, "missing");
    assert_fails(ms_json_get_bool(&json, "layers", false, &flag), MS_ERR_FORMAT, "true or false");
    assert_fails(ms_json_need_string(&json, "list", &string), MS_ERR_FORMAT,
                 "\"list\" is a list, expected a string");
    assert_fails(ms_json_need_string(&json, "object", &string), MS_ERR_FORMAT, "is an object");
    assert_fails(ms_json_need_string(&json, "absent", &string), MS_ERR_NOT_FOUND, "missing");
    assert_int_equal(integer, -5);
    assert_true(real == -5.0);
    ms_json_close(&json);
}

static void bad_documents(void **state) {
    (void)state;
    ms_json json = {0};
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "not valid JSON at line 1"},
        {"{\"a\": 1,\n \"b\" 2}", "config.json: not valid JSON at line 2, column 6"},
        {"[1]", "must be an object"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": \"x\\u0000y\"}", "u0000"},
        {"{\"a\": 1} x", "end of file expected"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
        {"{\"a\": \"\xff\"}", "unable to decode byte 0xff"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(ms_json_parse(cases[i].text, strlen(cases[i].text), "config.json", &json),
                     MS_ERR_FORMAT, cases[i].message);
    }
    assert_null(json.root);
    char deep[6000];
    memset(deep, '[', sizeof deep);
    assert_fails(ms_json_parse(deep, sizeof deep, "config.json", &json), MS_ERR_FORMAT, "depth");
    char *folder = make_folder();
    const char *path = in_folder(folder, "config.json");
    write_file(path, "{\"a\": 1}", 8);
    assert_ok(ms_json_open(path, 8, &json));
    ms_json_close(&json);
    assert_fails(ms_json_open(path, 7, &json), MS_ERR_RANGE, "config.json");
    remove_folder(folder);
}

static void written_values(void **state) {
    (void)state;
    static const double numbers[] = {0.0,
                                     -0.0,
                                     1.0,
                                     0.1,
                                     1e300,
                                     5e-324,
                                     1.0 / 3.0,
                                     -2.5e-7,
                                     1.7976931348623157e308,
                                     123456789012345680.0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ms_text text = {0};
        assert_ok(ms_json_append_real(&text, numbers[i]));
        json_t *value = json_loadb(text.bytes, text.length, JSON_DECODE_ANY, NULL);
        assert_true(json_is_real(value));
        double back = json_real_value(value);
        assert_memory_equal(&back, &numbers[i], sizeof back);
        json_decref(value);
        ms_text_release(&text);
    }
    ms_text text = {0};
    assert_ok(ms_json_append_real(&text, NAN));
    assert_ok(ms_json_append_real(&text, -INFINITY));
    assert_string_equal(text.bytes, "nullnull");
    ms_text_clear(&text);
    static const char raw[] = "a\"b\\c\n\t\x01\x7f ü";
    assert_ok(ms_json_append_string(&text, raw, strlen(raw)));
    json_t *value = json_loadb(text.bytes, text.length, JSON_DECODE_ANY, NULL);
    assert_string_equal(json_string_value(value), raw);
    json_decref(value);
    ms_text_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(bad_documents),
        cmocka_unit_test(written_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
