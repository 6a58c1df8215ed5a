// labels: prop
// Configuration: what is emitted loads to the same values, for random tables of values.
#include "support/test_support.h"

#include <math.h>

#include "base/config.h"

typedef struct values {
    bool truth;
    int64_t integer;
    int64_t maybe_integer;
    double real;
    double maybe_real;
    const char *text;
    int choice;
    ms_config_list *list;
} values;

static const char *const choices[] = {"one", "two words", "yes", "~", "auto", NULL};
static const ms_key keys[] = {
    {"truth", MS_KEY_BOOL, offsetof(values, truth), "true", "", 0, 0, NULL, false, "."},
    {"integer", MS_KEY_INT, offsetof(values, integer), "1", "", 0, 0, NULL, false, "."},
    {"maybe_integer", MS_KEY_INT, offsetof(values, maybe_integer), "1", "", 0, 0, NULL, true, "."},
    {"real", MS_KEY_REAL, offsetof(values, real), "1", "", 0, 0, NULL, false, "."},
    {"maybe_real", MS_KEY_REAL, offsetof(values, maybe_real), "1", "", 0, 0, NULL, true, "."},
    {"text", MS_KEY_STRING, offsetof(values, text), "x", "", 0, 0, NULL, false, "."},
    {"choice", MS_KEY_ENUM, offsetof(values, choice), "one", "", 0, 0, choices, true, "."},
    {"list", MS_KEY_LIST, offsetof(values, list), "x", "", 0, 0, NULL, false, "."},
};
static const ms_config_section first = {"first", ".", keys, 8, sizeof(values), true};
static const ms_config_section second = {"second", ".", keys, 8, sizeof(values), false};
static const ms_config_section *const sections[] = {&first, &second};

static int64_t random_integer(uint64_t *random) {
    int64_t value = (int64_t)(test_random(random) >> test_random_below(random, 64));
    value = test_random_below(random, 2) == 0 ? value : -value;
    return value == INT64_MIN ? 0 : value; /* the mark of auto */
}

static double random_real(uint64_t *random) {
    double value;
    do {
        uint64_t bits = test_random(random);
        memcpy(&value, &bits, sizeof value);
    } while (!isfinite(value));
    static const double plain[] = {0.0,  -0.0,       1.0,    0.1,
                                   1e-3, 12345678.0, 5e-324, 1.7976931348623157e308};
    return test_random_below(random, 4) == 0 ? plain[test_random_below(random, 8)] : value;
}

/* Words that YAML would take for something else, and random code points of all planes. */
static void random_text(uint64_t *random, char text[256]) {
    static const char *const words[] = {"null",
                                        "~",
                                        "true",
                                        "No",
                                        "on",
                                        "1_000",
                                        "0x10",
                                        ".inf",
                                        "-",
                                        "- a",
                                        "a: b",
                                        "a #b",
                                        "#a",
                                        "{a}",
                                        "[a",
                                        "\"",
                                        "'",
                                        "\\",
                                        "*a",
                                        "&a",
                                        "!a",
                                        "%a",
                                        "@a",
                                        "`a",
                                        "? a",
                                        " a",
                                        "a ",
                                        "a\nb",
                                        "\t",
                                        "|",
                                        ">",
                                        "---",
                                        "...",
                                        "a\r\nb",
                                        "=",
                                        "a,b",
                                        "a]",
                                        "runs/x-1",
                                        "auto",
                                        "\x7f",
                                        "\x01",
                                        "\xc2\x85",
                                        "\xe2\x80\xa8",
                                        "\xef\xbb\xbf",
                                        "\xef\xbf\xbe",
                                        "\xf0\x9f\x98\x80",
                                        "<<",
                                        "y"};
    text[0] = '\0';
    if (test_random_below(random, 3) == 0) {
        snprintf(text, 256, "%s", words[test_random_below(random, sizeof words / sizeof words[0])]);
        return;
    }
    size_t used = 0;
    uint64_t count = test_random_below(random, 20);
    for (uint64_t i = 0; i < count; i++) {
        if (test_random_below(random, 4) == 0) {
            const char *word = words[test_random_below(random, sizeof words / sizeof words[0])];
            memcpy(text + used, word, strlen(word));
            used += strlen(word);
            continue;
        }
        uint64_t limit = test_random_below(random, 2) == 0 ? 0x80 : 0x110000;
        uint32_t code = (uint32_t)(1 + test_random_below(random, limit - 1));
        used += (size_t)ms_utf8_encode(code, text + used);
    }
    text[used] = '\0';
}

static void randomise(ms_config *config, const char *section, uint64_t *random,
                      ms_config_list *list, ms_config_entry *entries) {
    values *v = ms_config_values_mutable(config, section);
    char text[256];
    v->truth = test_random_below(random, 2) == 1;
    v->integer = random_integer(random);
    v->maybe_integer = test_random_below(random, 3) == 0 ? MS_AUTO : random_integer(random);
    v->real = random_real(random);
    v->maybe_real = test_random_below(random, 3) == 0 ? MS_AUTO_REAL : random_real(random);
    random_text(random, text);
    v->text = text[0] != '\0' ? ms_config_strdup(config, text) : NULL;
    v->choice = (int)test_random_below(random, 5);
    list->count = (int)test_random_below(random, 5);
    list->entries = entries;
    v->list = list->count > 0 ? list : NULL;
    for (int i = 0; i < list->count; i++) {
        do {
            random_text(random, text);
        } while (text[0] == '\0');
        entries[i].path = ms_config_strdup(config, text);
        double weight = fabs(random_real(random));
        entries[i].weight = test_random_below(random, 2) == 0 || weight == 0.0 ? 1.0 : weight;
    }
}

static bool same_text(const char *a, const char *b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same(const values *a, const values *b) {
    bool equal = a->truth == b->truth && a->integer == b->integer &&
                 a->maybe_integer == b->maybe_integer && same_bits(a->real, b->real) &&
                 same_bits(a->maybe_real, b->maybe_real) && same_text(a->text, b->text) &&
                 a->choice == b->choice && (a->list == NULL) == (b->list == NULL);
    for (int i = 0; equal && a->list != NULL && i < a->list->count; i++) {
        equal = a->list->count == b->list->count &&
                same_text(a->list->entries[i].path, b->list->entries[i].path) &&
                same_bits(a->list->entries[i].weight, b->list->entries[i].weight);
    }
    return equal;
}

static void test_emitted_loads_to_the_same(void **state) {
    (void)state;
    uint64_t random = test_seed();
    for (int round = 0; round < 3000; round++) {
        uint64_t round_seed = random;
        ms_config *config = NULL, *again = NULL;
        ms_config_list lists[2];
        ms_config_entry entries[2][4];
        ms_text yaml = {0}, yaml_again = {0};
        assert_ok(ms_config_load(&(ms_config_source){0}, sections, 2, &config));
        randomise(config, "first", &random, &lists[0], entries[0]);
        randomise(config, "second", &random, &lists[1], entries[1]);
        assert_ok(ms_config_emit(config, &yaml));
        ms_status status = ms_config_load(
            &(ms_config_source){.path = "emitted", .text = yaml.bytes}, sections, 2, &again);
        if (status != MS_OK ||
            !same(ms_config_values(config, "first"), ms_config_values(again, "first")) ||
            !same(ms_config_values(config, "second"), ms_config_values(again, "second"))) {
            fail_msg("round %d (MS_TEST_SEED=%" PRIu64 "): %s\n%s", round, round_seed,
                     status != MS_OK ? ms_error_detail() : "other values", yaml.bytes);
        }
        assert_ok(ms_config_emit(again, &yaml_again));
        assert_string_equal(yaml.bytes, yaml_again.bytes);
        ms_text_release(&yaml);
        ms_text_release(&yaml_again);
        ms_config_destroy(config);
        ms_config_destroy(again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_emitted_loads_to_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
