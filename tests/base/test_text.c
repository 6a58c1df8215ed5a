// labels: unit
// Texts: growth, figures for people, nearest names, UTF-8, numbers.
#include "support/test_support.h"

#include <locale.h>
#include <math.h>

#include "base/text.h"

static void test_append_and_printf(void **state) {
    (void)state;
    ms_text text = {0};
    assert_ok(ms_text_append(&text, "a\0b", 3));
    assert_int_equal(text.length, 3);
    assert_ok(ms_text_printf(&text, "-%d-%s", 42, "x"));
    assert_memory_equal(text.bytes, "a\0b-42-x", 9);
    ms_text_clear(&text);
    assert_string_equal(text.bytes, "");
    for (int i = 0; i < 2000; i++) {
        assert_ok(ms_text_printf(&text, "%d,", i));
        assert_ok(ms_text_append_z(&text, ";"));
        assert_int_equal(text.bytes[text.length], '\0');
    }
    assert_non_null(strstr(text.bytes, ";1999,;"));
    assert_fails(MS_ERR_MEMORY, "text of", ms_text_append(&text, "", SIZE_MAX));
    ms_text_release(&text);
    assert_null(text.bytes);
    ms_text_clear(&text);
    ms_text_release(&text);
}

static void test_failed_growth_keeps_the_text(void **state) {
    (void)state;
    ms_text text = {0};
    assert_ok(ms_text_append_z(&text, "kept"));
    char more[100] = {0};
    ms_memory_fail_at(1);
    assert_int_equal(ms_text_append(&text, more, sizeof more), MS_ERR_MEMORY);
    ms_memory_fail_at(1);
    assert_int_equal(ms_text_printf(&text, "%100d", 1), MS_ERR_MEMORY);
    ms_memory_fail_at(0);
    assert_string_equal(text.bytes, "kept");
    assert_int_equal(text.length, 4);
    ms_text_release(&text);
}

static void test_figures_for_people(void **state) {
    (void)state;
    char buffer[32];
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {512, "512 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {12897484, "12.3 MiB"},
                 {1048575, "1.0 MiB"},
                 {UINT64_C(1) << 30, "1.0 GiB"},
                 {UINT64_MAX, "16.0 EiB"}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_string_equal(ms_format_bytes(sizes[i].bytes, buffer, sizeof buffer), sizes[i].text);
    }
    static const struct {
        double seconds;
        const char *text;
    } durations[] = {{0.0, "0 ms"},           {0.3451, "345 ms"}, {12.34, "12.3 s"},
                     {59.96, "1:00"},         {123.4, "2:03"},    {3723.0, "1:02:03"},
                     {359999.6, "100:00:00"}, {-1.0, "0.0 s"},    {NAN, "unknown"},
                     {INFINITY, "unknown"},   {0.9996, "1.0 s"}};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        assert_string_equal(ms_format_duration(durations[i].seconds, buffer, sizeof buffer),
                            durations[i].text);
    }
    static const struct {
        int64_t count;
        const char *text;
    } counts[] = {{0, "0"},
                  {999, "999"},
                  {1000, "1,000"},
                  {-1000, "-1,000"},
                  {-999, "-999"},
                  {12345678, "12,345,678"},
                  {INT64_MAX, "9,223,372,036,854,775,807"},
                  {INT64_MIN, "-9,223,372,036,854,775,808"}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        assert_string_equal(ms_format_count(counts[i].count, buffer, sizeof buffer),
                            counts[i].text);
    }
}

static void test_real_numbers_come_back(void **state) {
    (void)state;
    char buffer[40];
    assert_string_equal(ms_format_f64(0.1, buffer, sizeof buffer), "0.1");
    assert_string_equal(ms_format_f64(10.0, buffer, sizeof buffer), "10");
    assert_string_equal(ms_format_f64(-123456.0, buffer, sizeof buffer), "-123456");
    assert_string_equal(ms_format_f64(1e300, buffer, sizeof buffer), "1e+300");
    assert_string_equal(ms_format_f64(1e-8, buffer, sizeof buffer), "1e-08");
    assert_string_equal(ms_format_f64(-0.0, buffer, sizeof buffer), "-0");
    uint64_t random = test_seed();
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = test_random(&random);
        double value, back;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) {
            continue;
        }
        ms_format_f64(value, buffer, sizeof buffer);
        assert_true(strlen(buffer) < 32);
        assert_true(ms_parse_f64(buffer, &back));
        assert_memory_equal(&back, &value, sizeof value);
    }
}

static void test_numbers_ignore_the_locale(void **state) {
    (void)state;
    /* A locale with a decimal comma, where the machine has one. */
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL &&
        setlocale(LC_NUMERIC, "fr_FR.UTF-8") == NULL) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    char buffer[40];
    double value = 0.0;
    ms_format_f64(0.5, buffer, sizeof buffer);
    bool parsed = ms_parse_f64("1.25", &value);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(buffer, "0.5");
    assert_true(parsed && value == 1.25);
}

static void test_nearest_names(void **state) {
    (void)state;
    static const char *const names[] = {
        "steps",  "global_batch_size", "micro_batch_size", "seed", "lr",
        "min_lr", "warmup_steps",      "dropout"};
    static const struct {
        const char *wanted;
        int index;
    } cases[] = {{"stpes", 0},      {"step", 0},
                 {"STEPS", 0},      {"micro-batch-size", 2},
                 {"batch_size", 1}, {"mirco_batch_size", 2},
                 {"sed", 3},        {"rl", 4},
                 {"warmup", 6},     {"droput", 7},
                 {"qqqqqqqq", -1},  {"", -1},
                 {"x", -1},         {"optimizer", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int got = ms_nearest_name(cases[i].wanted, names, 8);
        if (got != cases[i].index) {
            fail_msg("\"%s\" is near %d, not %d", cases[i].wanted, got, cases[i].index);
        }
    }
    char big[200];
    memset(big, 'a', sizeof big);
    big[sizeof big - 1] = '\0';
    assert_int_equal(ms_nearest_name(big, names, 8), -1);
    const char *const big_names[] = {big};
    assert_int_equal(ms_nearest_name("aaaa", big_names, 1), -1);
    assert_int_equal(ms_nearest_name("steps", names, 0), -1);
}

static void test_utf8_round_trip_of_every_code_point(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        if (code >= 0xd800 && code <= 0xdfff) {
            continue;
        }
        char bytes[4];
        uint32_t back = 0;
        int length = ms_utf8_encode(code, bytes);
        assert_true(length == (code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4));
        assert_int_equal(ms_utf8_valid_prefix(bytes, (size_t)length), length);
        assert_int_equal(ms_utf8_decode(bytes, (size_t)length, &back), length);
        assert_int_equal(back, code);
        for (int cut = 1; cut < length; cut++) {
            assert_int_equal(ms_utf8_valid_prefix(bytes, (size_t)cut), 0);
        }
    }
    char bytes[4];
    assert_int_equal(ms_utf8_encode(0xd800, bytes), 3);
    assert_memory_equal(bytes, "\xef\xbf\xbd", 3);
    assert_int_equal(ms_utf8_encode(0x110000, bytes), 3);
}

static void test_utf8_refuses_what_is_not(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xc0\x80",     "\xc1\xbf",         "\xe0\x80\x80",     "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "\xc3(",        "\xe2\x82(",        "\xf0\x9f\x98("};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[64];
        /* At several places, so that the fast path over ASCII is left at each offset. */
        for (size_t before = 0; before < 20; before++) {
            memset(text, 'a', before);
            snprintf(text + before, sizeof text - before, "%stail", bad[i]);
            assert_int_equal(ms_utf8_valid_prefix(text, strlen(text)), before);
        }
        uint32_t code = 0;
        assert_int_equal(ms_utf8_decode(bad[i], strlen(bad[i]), &code), 1);
        assert_int_equal(code, 0xfffd);
    }
    uint32_t code = 7;
    assert_int_equal(ms_utf8_decode("", 0, &code), 0);
    /* Against decode-and-encode, over random bytes. */
    uint64_t random = test_seed();
    for (int i = 0; i < 20000; i++) {
        char bytes[12];
        for (size_t k = 0; k < sizeof bytes; k++) {
            static const unsigned char telling[] = {0x41, 0x80, 0xbf, 0xc3, 0xe2, 0xf0, 0x9f, 0xed};
            bytes[k] = (char)telling[test_random_below(&random, sizeof telling)];
        }
        size_t valid = ms_utf8_valid_prefix(bytes, sizeof bytes);
        size_t at = 0;
        while (at < sizeof bytes) {
            char again[4];
            int step = ms_utf8_decode(bytes + at, sizeof bytes - at, &code);
            int length = ms_utf8_encode(code, again);
            if (step != length || memcmp(again, bytes + at, (size_t)length) != 0) {
                break;
            }
            at += (size_t)step;
        }
        assert_int_equal(at, valid);
    }
}

static void test_parse_numbers(void **state) {
    (void)state;
    int64_t integer = 77;
    double real = 77.0;
    static const char *const bad_integers[] = {"",
                                               " 1",
                                               "1 ",
                                               "1x",
                                               "0x10",
                                               "--1",
                                               "+-1",
                                               "-",
                                               "1.0",
                                               "1e3",
                                               "9223372036854775808",
                                               "-9223372036854775809"};
    for (size_t i = 0; i < sizeof bad_integers / sizeof bad_integers[0]; i++) {
        if (ms_parse_i64(bad_integers[i], &integer)) {
            fail_msg("\"%s\" was taken for an integer", bad_integers[i]);
        }
    }
    assert_int_equal(integer, 77);
    assert_true(ms_parse_i64("-9223372036854775808", &integer) && integer == INT64_MIN);
    assert_true(ms_parse_i64("9223372036854775807", &integer) && integer == INT64_MAX);
    assert_true(ms_parse_i64("+007", &integer) && integer == 7);
    static const char *const bad_reals[] = {"",       " 1",  "1 ", "0x1p3", "1e",   "1e999",
                                            "-1e999", "1,5", "a",  ".",     "1.2.3"};
    for (size_t i = 0; i < sizeof bad_reals / sizeof bad_reals[0]; i++) {
        if (ms_parse_f64(bad_reals[i], &real)) {
            fail_msg("\"%s\" was taken for a number", bad_reals[i]);
        }
    }
    assert_true(real == 77.0);
    assert_true(ms_parse_f64("-1.5e-3", &real) && real == -1.5e-3);
    assert_true(ms_parse_f64("4.9e-324", &real) && real > 0.0);
    assert_true(ms_parse_f64("inf", &real) && isinf(real));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_printf),
        cmocka_unit_test(test_failed_growth_keeps_the_text),
        cmocka_unit_test(test_figures_for_people),
        cmocka_unit_test(test_real_numbers_come_back),
        cmocka_unit_test(test_numbers_ignore_the_locale),
        cmocka_unit_test(test_nearest_names),
        cmocka_unit_test(test_utf8_round_trip_of_every_code_point),
        cmocka_unit_test(test_utf8_refuses_what_is_not),
        cmocka_unit_test(test_parse_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
