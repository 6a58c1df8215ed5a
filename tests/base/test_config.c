// labels: unit
// Configuration: every kind of value and every refusal, with the exact text of its message.
#include "support/test_support.h"

#include <math.h>

#include "base/config.h"

typedef struct train_values {
    int64_t steps;
    int64_t seed;
    int64_t groups;
    double lr;
    bool deterministic;
} train_values;

typedef struct data_values {
    ms_config_list *train;
    ms_config_list *valid;
    const char *tokenizer;
    double split;
} data_values;

typedef struct parallel_values {
    int64_t tensor;
    int64_t pipeline;
    double share;
    int schedule;
    const char *place;
    int64_t fixed;
} parallel_values;

static const char *const schedules[] = {"gpipe", "1f1b", "auto", NULL};

#define AT(type, field) offsetof(type, field)
static const ms_key train_keys[] = {
    {"steps", MS_KEY_INT, AT(train_values, steps), "2000", "steps", 1, 1e9, NULL, false,
     "How many optimiser steps to run."},
    {"seed", MS_KEY_INT, AT(train_values, seed), "1337", "", 0, 0, NULL, false,
     "What all random numbers derive from."},
    {"reduction_groups", MS_KEY_INT, AT(train_values, groups), "auto", "", 1, 4096, NULL, true,
     "Runs of micro-batches whose gradients are added in one fixed order."},
    {"lr", MS_KEY_REAL, AT(train_values, lr), "1e-3", "", 0, 10, NULL, false, "Learning rate."},
    {"deterministic", MS_KEY_BOOL, AT(train_values, deterministic), "true", "", 0, 0, NULL, false,
     "Whether two runs give the same bits."},
};
static const ms_key data_keys[] = {
    {"train", MS_KEY_LIST, AT(data_values, train), NULL, "", 0, 0, NULL, false,
     "What to train on."},
    {"valid", MS_KEY_LIST, AT(data_values, valid), "", "", 0, 0, NULL, false,
     "What to evaluate on."},
    {"tokenizer", MS_KEY_STRING, AT(data_values, tokenizer), "char", "", 0, 0, NULL, false,
     "char, byte, or a file."},
    {"split", MS_KEY_REAL, AT(data_values, split), "0.9", "", 0, 1, NULL, false,
     "Share of the text that is trained on."},
};
static const ms_key parallel_keys[] = {
    {"tensor", MS_KEY_INT, AT(parallel_values, tensor), "1", "ranks", 1, INFINITY, NULL, true,
     "Ranks that share each layer."},
    {"pipeline", MS_KEY_INT, AT(parallel_values, pipeline), "1", "", 1, 64, NULL, true, "Stages."},
    {"share", MS_KEY_REAL, AT(parallel_values, share), "0.5", "", 0, 1, NULL, true, "A share."},
    {"schedule", MS_KEY_ENUM, AT(parallel_values, schedule), "1f1b", "", 0, 0, schedules, true,
     "Order of micro-batches."},
    {"place", MS_KEY_STRING, AT(parallel_values, place), "", "", 0, 0, NULL, true, "A place."},
    {"fixed", MS_KEY_INT, AT(parallel_values, fixed), "7", "", 0, 0, NULL, false, "Never auto."},
};
#define SECTION(name, doc, keys, type, may_be_auto)                                                \
    { name, doc, keys, (int)(sizeof keys / sizeof keys[0]), sizeof(type), may_be_auto }
static const ms_config_section train =
    SECTION("train", "The run.", train_keys, train_values, false);
static const ms_config_section data = SECTION("data", "The text.", data_keys, data_values, false);
static const ms_config_section parallel =
    SECTION("parallel", "The layout.", parallel_keys, parallel_values, true);
static const ms_config_section *const sections[] = {&train, &data, &parallel};
enum { SECTION_COUNT = 3 };

static ms_status load(const char *text, ms_config **config) {
    return ms_config_load(&(ms_config_source){.path = "gpt.yaml", .text = text}, sections,
                          SECTION_COUNT, config);
}

static ms_status load_set(const char *assignment, ms_config **config) {
    const char *const assignments[] = {"data.train=a.txt", assignment};
    return ms_config_load(&(ms_config_source){.assignments = assignments, .assignment_count = 2},
                          sections, SECTION_COUNT, config);
}

static size_t live_bytes(void) {
    ms_memory_counters counters = ms_memory_counters_get();
    size_t sum = 0;
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        sum += counters.live_bytes[tag];
    }
    return sum;
}

static void test_defaults_and_values(void **state) {
    (void)state;
    ms_config *config = NULL;
    assert_ok(load("# a comment\n"
                   "train:\n"
                   "  steps: 1_000\n"
                   "  seed: -3\n"
                   "  lr: 2.5e-4\n"
                   "  deterministic: no\n"
                   "data: {train: corpus.txt, tokenizer: 'a \"b\"'}\n"
                   "parallel:\n"
                   "  tensor: auto\n"
                   "  schedule: gpipe\n",
                   &config));
    const train_values *t = ms_config_values(config, "train");
    const data_values *d = ms_config_values(config, "data");
    const parallel_values *p = ms_config_values(config, "parallel");
    assert_int_equal(t->steps, 1000);
    assert_int_equal(t->seed, -3);
    assert_true(t->groups == MS_AUTO);
    assert_true(t->lr == 2.5e-4);
    assert_false(t->deterministic);
    assert_int_equal(d->train->count, 1);
    assert_string_equal(d->train->entries[0].path, "corpus.txt");
    assert_true(d->train->entries[0].weight == 1.0);
    assert_null(d->valid);
    assert_string_equal(d->tokenizer, "a \"b\"");
    assert_true(d->split == 0.9);
    assert_true(p->tensor == MS_AUTO);
    assert_int_equal(p->pipeline, 1);
    assert_int_equal(p->schedule, 0);
    assert_null(p->place);
    assert_null(ms_config_values(config, "model"));
    assert_true(ms_config_is_set(config, "train", "steps"));
    assert_false(ms_config_is_set(config, "train", "reduction_groups"));
    assert_false(ms_config_is_set(config, "train", "none"));
    assert_string_equal(ms_config_where(config, "train", "steps"), "gpt.yaml:3");
    assert_string_equal(ms_config_where(config, "data", "train"), "gpt.yaml:7");
    assert_string_equal(ms_config_where(config, "parallel", "schedule"), "gpt.yaml:10");
    assert_string_equal(ms_config_where(config, "data", "split"), "default");
    /* The one place that resolves auto. */
    parallel_values *resolved = ms_config_values_mutable(config, "parallel");
    resolved->tensor = 4;
    resolved->place = ms_config_strdup(config, "here");
    ms_text yaml = {0};
    assert_ok(ms_config_emit(config, &yaml));
    assert_string_equal(yaml.bytes, "train:\n"
                                    "  steps: 1000\n"
                                    "  seed: -3\n"
                                    "  reduction_groups: auto\n"
                                    "  lr: 0.00025\n"
                                    "  deterministic: false\n"
                                    "data:\n"
                                    "  train: corpus.txt\n"
                                    "  valid: []\n"
                                    "  tokenizer: \"a \\\"b\\\"\"\n"
                                    "  split: 0.9\n"
                                    "parallel:\n"
                                    "  tensor: 4\n"
                                    "  pipeline: 1\n"
                                    "  share: 0.5\n"
                                    "  schedule: gpipe\n"
                                    "  place: here\n"
                                    "  fixed: 7\n");
    ms_text_release(&yaml);
    ms_config_destroy(config);
    ms_config_destroy(NULL);
}

static void test_section_auto(void **state) {
    (void)state;
    ms_config *config = NULL;
    assert_ok(load("data: {train: a}\nparallel: auto\n", &config));
    const parallel_values *p = ms_config_values(config, "parallel");
    assert_true(p->tensor == MS_AUTO && p->pipeline == MS_AUTO && p->share == MS_AUTO_REAL);
    assert_int_equal(p->schedule, 2);
    assert_string_equal(p->place, "auto");
    assert_int_equal(p->fixed, 7);
    assert_string_equal(ms_config_where(config, "parallel", "tensor"), "gpt.yaml:2");
    ms_config_destroy(config);
    config = NULL;
    assert_ok(load_set("parallel=auto", &config));
    p = ms_config_values(config, "parallel");
    assert_true(p->tensor == MS_AUTO);
    assert_string_equal(ms_config_where(config, "parallel", "tensor"), "--set");
    ms_config_destroy(config);
}

static void test_lists(void **state) {
    (void)state;
    static const char *const texts[] = {
        "data:\n  train: [a.txt, {path: 'b c', weight: 2.5}, d]\n",
        "data:\n  train:\n    - a.txt\n    - path: b c\n      weight: 2.5\n    - d\n",
        "data: {train: [a.txt, {weight: 25e-1, path: b c}, {path: d}]}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ms_config *config = NULL;
        assert_ok(load(texts[i], &config));
        const data_values *d = ms_config_values(config, "data");
        assert_int_equal(d->train->count, 3);
        assert_string_equal(d->train->entries[0].path, "a.txt");
        assert_string_equal(d->train->entries[1].path, "b c");
        assert_true(d->train->entries[1].weight == 2.5);
        assert_string_equal(d->train->entries[2].path, "d");
        assert_true(d->train->entries[2].weight == 1.0);
        ms_config_destroy(config);
    }
    ms_config *config = NULL;
    assert_ok(load("data: {train: {path: x, weight: 3}, valid: []}\n", &config));
    const data_values *d = ms_config_values(config, "data");
    assert_int_equal(d->train->count, 1);
    assert_true(d->train->entries[0].weight == 3.0);
    assert_null(d->valid);
    ms_config_destroy(config);
    config = NULL;
    assert_ok(load_set("data.train=[x, {path: y, weight: 4}]", &config));
    d = ms_config_values(config, "data");
    assert_int_equal(d->train->count, 2);
    assert_string_equal(d->train->entries[1].path, "y");
    ms_config_destroy(config);
}

/* The whole sentence of every refusal of a file. */
static const struct {
    const char *text, *message;
} refused_files[] = {
    {"train:\n  stpes: 3\n", "gpt.yaml:2: train.stpes: unknown key; did you mean \"steps\"?"},
    {"train:\n  qqqqqqqqq: 3\n", "gpt.yaml:2: train.qqqqqqqqq: unknown key"},
    {"train: {tokenizer: x}\n",
     "gpt.yaml:1: train.tokenizer: unknown key; did you mean \"data.tokenizer\"?"},
    {"\n\ntrian:\n  steps: 3\n", "gpt.yaml:3: unknown section \"trian\"; did you mean \"train\"?"},
    {"steps: 3\n", "gpt.yaml:1: unknown section \"steps\"; steps is a key of section train"},
    {"train:\n  steps: abc\n", "gpt.yaml:2: train.steps is \"abc\"; it must be a whole number "
                               "from 1 to 1000000000 (steps)"},
    {"train:\n  seed: 1\n  steps: 0\n", "gpt.yaml:3: train.steps is \"0\"; it must be a whole "
                                        "number from 1 to 1000000000 (steps)"},
    {"train:\n  steps:\n", "gpt.yaml:2: train.steps has no value; it must be a whole number "
                           "from 1 to 1000000000 (steps)"},
    {"train: {lr: .nan}\n", "gpt.yaml:1: train.lr is \".nan\"; it must be a number from 0 to 10"},
    {"train: {lr: 1e400}\n", "gpt.yaml:1: train.lr is \"1e400\"; it must be a number from 0 to 10"},
    {"train: {lr: auto}\n", "gpt.yaml:1: train.lr is \"auto\"; it must be a number from 0 to 10"},
    {"train:\n  deterministic: maybe\n",
     "gpt.yaml:2: train.deterministic is \"maybe\"; it must be true or false"},
    {"train:\n  reduction_groups: 5000\n", "gpt.yaml:2: train.reduction_groups is \"5000\"; it "
                                           "must be a whole number from 1 to 4096, or auto"},
    {"parallel:\n  tensor: 0\n", "gpt.yaml:2: parallel.tensor is \"0\"; it must be a whole "
                                 "number of at least 1 (ranks), or auto"},
    {"parallel: {schedule: gipe}\n",
     "gpt.yaml:1: parallel.schedule is \"gipe\"; it must be one of gpipe, 1f1b, auto; did you "
     "mean \"gpipe\"?"},
    {"train:\n  steps: [1]\n", "gpt.yaml:2: train.steps is a list; it must be a whole number "
                               "from 1 to 1000000000 (steps)"},
    {"data:\n  tokenizer: {a: b}\n", "gpt.yaml:2: data.tokenizer is a mapping; it must be a text"},
    {"train:\n  steps: 3\n  seed: 1\n  steps: 3\n",
     "gpt.yaml:4: train.steps is given twice, first at gpt.yaml:2"},
    {"train:\n  steps: 3\ntrain:\n  seed: 1\n",
     "gpt.yaml:3: section train is given twice, first at line 1"},
    {"train: 3\n", "gpt.yaml:1: section train must hold keys, as in \"train: {steps: ...}\""},
    {"train: auto\n", "gpt.yaml:1: section train must hold keys, as in \"train: {steps: ...}\""},
    {"parallel: manual\n", "gpt.yaml:1: section parallel must hold keys or the word auto, as "
                           "in \"parallel: {tensor: ...}\""},
    {"- train\n", "gpt.yaml:1: the file must hold sections, as in \"model:\""},
    {"train: {}\n--- \ntrain: {}\n", "gpt.yaml:2: only one document may stand in a file"},
    {"data:\n  train: [a, {wait: 2}]\n", "gpt.yaml:2: data.train: an entry of the list holds "
                                         "path and weight, not \"wait\""},
    {"data:\n  train:\n    - a\n    - weight: 2\n",
     "gpt.yaml:4: data.train: an entry of the list has no path"},
    {"data:\n  train:\n    - path: a\n      weight: -1\n",
     "gpt.yaml:4: data.train: weight is \"-1\"; it must be a number above 0"},
    {"data: {train: [[a]]}\n",
     "gpt.yaml:1: data.train: an entry of the list must be a text or {path, weight}"},
    {"data: {train: [{path: a, path: b}]}\n", "gpt.yaml:1: data.train: path is given twice"},
    {"data: {train: &x a}\n", "gpt.yaml:1: anchors (&name) and tags (!name) are not supported"},
    {"train:\n  steps: *x\n", "gpt.yaml:2: aliases (*name) are not supported"},
    {"train: {steps: !!int 3}\n", "gpt.yaml:1: anchors (&name) and tags (!name) are not supported"},
    {"train:\n  steps: 3\n",
     "gpt.yaml: data.train is required (What to train on.); write it in the file, or give "
     "--set data.train=... or MS_DATA_TRAIN"},
    {"train: {steps: \"a\\nb\"}\n", "gpt.yaml:1: train.steps is \"a b\"; it must be a whole "
                                    "number from 1 to 1000000000 (steps)"},
    {"data: {train: ''}\n",
     "gpt.yaml:1: data.train is required (What to train on.); write it in the file, or give "
     "--set data.train=... or MS_DATA_TRAIN"},
    {"train:\n  seed: \xff\n", "gpt.yaml: not UTF-8 at byte 15 (line 2)"},
    {"data: {tokenizer: \"a\\0b\"}\n", "gpt.yaml:1: NUL byte at byte 1 (line 1)"},
};

static void test_refusals_of_a_file(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused_files / sizeof refused_files[0]; i++) {
        ms_config *config = NULL;
        size_t before = live_bytes();
        ms_status status = load(refused_files[i].text, &config);
        if (status != MS_ERR_CONFIG || strcmp(ms_error_detail(), refused_files[i].message) != 0) {
            fail_msg("for\n%s\n%s: %s\ninstead of: %s", refused_files[i].text,
                     ms_status_name(status), ms_error_detail(), refused_files[i].message);
        }
        assert_null(config);
        assert_int_equal(live_bytes(), before);
    }
}

/* What the YAML library says is its own; the file and line are ours. */
static void test_syntax_errors_name_the_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *start;
    } cases[] = {{"train:\n\tsteps: 3\n", "gpt.yaml:2: not valid YAML: "},
                 {"train:\n  steps: 3\n seed: 4\n", "gpt.yaml:3: not valid YAML: "},
                 {"train: {steps: 3\n\n", "gpt.yaml:"},
                 {"train: \"abc\n", "gpt.yaml:"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_config *config = NULL;
        assert_fails(MS_ERR_CONFIG, "not valid YAML", load(cases[i].text, &config));
        assert_memory_equal(ms_error_detail(), cases[i].start, strlen(cases[i].start));
    }
}

static void test_refusals_of_assignments(void **state) {
    (void)state;
    static const struct {
        const char *assignment, *message;
    } cases[] = {
        {"train.steps", "--set train.steps: must be written --set section.key=value"},
        {"=3", "--set =3: must be written --set section.key=value"},
        {"train.stpes=3", "--set train.stpes=3: train.stpes: unknown key; did you mean \"steps\"?"},
        {"trian.steps=3",
         "--set trian.steps=3: unknown section \"trian\"; did you mean \"train\"?"},
        {"steps=3", "--set steps=3: unknown section \"steps\"; steps is a key of section train"},
        {"train=auto", "--set train=auto: names no key; write --set train.key=value"},
        {"train.steps=0",
         "--set: train.steps is \"0\"; it must be a whole number from 1 to 1000000000 (steps)"},
        {"train.steps=",
         "--set: train.steps has no value; it must be a whole number from 1 to 1000000000 (steps)"},
        {"data.tokenizer=\xff", "--set: not UTF-8 at byte 0 (line 1)"},
        {"data.valid=[a, [b]]",
         "--set: data.valid: an entry of the list must be a text or {path, weight}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_config *config = NULL;
        ms_status status = load_set(cases[i].assignment, &config);
        if (status != MS_ERR_CONFIG || strcmp(ms_error_detail(), cases[i].message) != 0) {
            fail_msg("%s\n%s: %s\ninstead of: %s", cases[i].assignment, ms_status_name(status),
                     ms_error_detail(), cases[i].message);
        }
        assert_null(config);
    }
    ms_config *config = NULL;
    assert_fails(MS_ERR_CONFIG,
                 "--set: data.valid: not valid YAML: ", load_set("data.valid=[a", &config));
    assert_fails(MS_ERR_CONFIG, "--set: data.tokenizer: not valid YAML: ",
                 load_set("data.tokenizer='a' b", &config));
}

static void test_text_of_assignments_is_taken_as_it_is(void **state) {
    (void)state;
    static const struct {
        const char *assignment, *value;
    } cases[] = {{"data.tokenizer=a: b # c", "a: b # c"},
                 {"data.tokenizer= padded ", "padded"},
                 {"data.tokenizer='x y'", "x y"},
                 {"data.tokenizer=\"\\u00e9\"", "\xc3\xa9"},
                 {"data.tokenizer=[a", "[a"},
                 {"data.tokenizer=a=b", "a=b"},
                 {"data.tokenizer='null'", "null"},
                 {"data.tokenizer=null", NULL},
                 {"data.tokenizer=", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_config *config = NULL;
        assert_ok(load_set(cases[i].assignment, &config));
        const data_values *d = ms_config_values(config, "data");
        if (cases[i].value == NULL) {
            assert_null(d->tokenizer);
        } else {
            assert_string_equal(d->tokenizer, cases[i].value);
        }
        ms_config_destroy(config);
    }
}

/* libfyaml may double a run of quotes: one is right, more are refused, and nothing is lost. */
static void test_runs_of_quotes(void **state) {
    (void)state;
    for (size_t quotes = 0; quotes < 100; quotes++) {
        char text[400] = "data: {train: a, tokenizer: 'word";
        size_t used = strlen(text);
        memset(text + used, '\'', 2 * quotes);
        snprintf(text + used + 2 * quotes, 100, " end'}\n");
        ms_config *config = NULL;
        if (quotes > 1) {
            assert_fails(MS_ERR_CONFIG, "gpt.yaml:1: two quotes in a row", load(text, &config));
            continue;
        }
        assert_ok(load(text, &config));
        const data_values *d = ms_config_values(config, "data");
        assert_string_equal(d->tokenizer, quotes == 0 ? "word end" : "word' end");
        ms_config_destroy(config);
    }
    ms_config *config = NULL;
    assert_ok(load("data: {train: a, tokenizer: \"it''s\"}", &config));
    assert_string_equal(((const data_values *)ms_config_values(config, "data"))->tokenizer,
                        "it''s");
    ms_config_destroy(config);
}

static void test_whole_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-0", 0},
                {"+5", 5},
                {"1_000_000", 1000000},
                {"1e6", 1000000},
                {"1E+6", 1000000},
                {"2.5e3", 2500},
                {"-2.5e3", -2500},
                {"4.0", 4},
                {"4.", 4},
                {"12300e-2", 123},
                {"0.0e5", 0},
                {"0e999", 0},
                {"9223372036854775807", INT64_MAX},
                {"9223372036854775807.0", INT64_MAX},
                {"9007199254740993.0", INT64_C(9007199254740993)},
                {"-9223372036854775807", -INT64_MAX}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char assignment[64];
        ms_config *config = NULL;
        snprintf(assignment, sizeof assignment, "train.seed=%s", good[i].text);
        assert_ok(load_set(assignment, &config));
        assert_int_equal(((const train_values *)ms_config_values(config, "train"))->seed,
                         good[i].value);
        ms_config_destroy(config);
    }
    static const char *const bad[] = {
        "1.5",  "1__0", "_1",  "1_",    "0x10",  "1e19",
        "1e-1", ".",    "e5",  "1e",    "1e5x",  "9223372036854775808",
        "1 0",  "--1",  "inf", "1e5.0", "1,000", "-9223372036854775808",
        "auto"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char assignment[64];
        ms_config *config = NULL;
        snprintf(assignment, sizeof assignment, "train.seed=%s", bad[i]);
        assert_fails(MS_ERR_CONFIG, "it must be a whole number", load_set(assignment, &config));
    }
}

static void test_environment_and_authority(void **state) {
    (void)state;
    const char *const assignments[] = {"train.seed=4", "train.seed=5"};
    const ms_config_source source = {.path = "gpt.yaml",
                                     .text = "data: {train: a}\n"
                                             "train: {steps: 1, seed: 1, lr: 0.1}\n",
                                     .assignments = assignments,
                                     .assignment_count = 2,
                                     .use_environment = true};
    ms_config *config = NULL;
    setenv("MS_TRAIN_SEED", "3", 1);
    setenv("MS_TRAIN_STEPS", "2", 1);
    setenv("MS_PARALLEL", "auto", 1);
    setenv("MS_DATA_VALID", "[x, y]", 1);
    setenv("MS_UNKNOWN_SECTION", "ignored", 1);
    assert_ok(ms_config_load(&source, sections, SECTION_COUNT, &config));
    const train_values *t = ms_config_values(config, "train");
    assert_int_equal(t->seed, 5);
    assert_int_equal(t->steps, 2);
    assert_true(t->lr == 0.1);
    assert_int_equal(((const data_values *)ms_config_values(config, "data"))->valid->count, 2);
    assert_true(((const parallel_values *)ms_config_values(config, "parallel"))->tensor == MS_AUTO);
    assert_string_equal(ms_config_where(config, "train", "seed"), "--set");
    assert_string_equal(ms_config_where(config, "train", "steps"), "MS_TRAIN_STEPS");
    assert_string_equal(ms_config_where(config, "train", "lr"), "gpt.yaml:2");
    assert_string_equal(ms_config_where(config, "parallel", "tensor"), "MS_PARALLEL");
    ms_config_destroy(config);
    config = NULL;
    setenv("MS_TRAIN_STEPS", "many", 1);
    assert_fails(MS_ERR_CONFIG,
                 "MS_TRAIN_STEPS: train.steps is \"many\"; it must be a whole number from 1",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    unsetenv("MS_TRAIN_STEPS");
    setenv("MS_TRAIN_STPES", "3", 1);
    assert_fails(MS_ERR_CONFIG,
                 "MS_TRAIN_STPES: section train has no such key; did you mean MS_TRAIN_STEPS?; "
                 "unset the variable or correct its name",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    unsetenv("MS_TRAIN_STPES");
    setenv("MS_PARALLEL", "yes", 1);
    assert_fails(MS_ERR_CONFIG, "MS_PARALLEL: is \"yes\"; it must be auto",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    assert_null(config);
    /* A fault is one even where --set would have overwritten it. */
    unsetenv("MS_PARALLEL");
    setenv("MS_TRAIN_SEED", "x", 1);
    assert_fails(MS_ERR_CONFIG, "MS_TRAIN_SEED: train.seed is \"x\"",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    /* Without leave the environment is not read. */
    ms_config_source closed = source;
    closed.use_environment = false;
    assert_ok(ms_config_load(&closed, sections, SECTION_COUNT, &config));
    ms_config_destroy(config);
    assert_string_equal(ms_config_environment("MS_TRAIN_SEED"), "x");
    unsetenv("MS_TRAIN_SEED");
    unsetenv("MS_DATA_VALID");
    assert_null(ms_config_environment("MS_TRAIN_SEED"));
    setenv("MS_UNKNOWN_SECTION", "", 1);
    assert_null(ms_config_environment("MS_UNKNOWN_SECTION"));
    unsetenv("MS_UNKNOWN_SECTION");
}

static void test_files_and_bounds(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES], wanted[MS_TEST_PATH_BYTES + 64];
    test_dir_make(dir);
    test_path(dir, "c.yaml", path);
    ms_config *config = NULL;
    ms_config_source source = {.path = path};
    assert_fails(MS_ERR_NOT_FOUND, "c.yaml: cannot open: No such file",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    static const char good[] = "\xef\xbb\xbf"
                               "train:\r\n  steps: 9\r\ndata: {train: a}\r\n";
    test_write_file(path, good,
                    sizeof good - 1); /* a mark at the start and CR LF, as from Windows */
    assert_ok(ms_config_load(&source, sections, SECTION_COUNT, &config));
    assert_int_equal(((const train_values *)ms_config_values(config, "train"))->steps, 9);
    snprintf(wanted, sizeof wanted, "%s:2", path);
    assert_string_equal(ms_config_where(config, "train", "steps"), wanted);
    ms_config_destroy(config);
    config = NULL;
    size_t length = ((size_t)1 << 20) + 1;
    char *big = malloc(length + 1);
    assert_non_null(big);
    memset(big, '#', length);
    big[length] = '\0';
    test_write_file(path, big, length);
    assert_fails(MS_ERR_CONFIG, "1048576 bytes",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    assert_fails(MS_ERR_CONFIG, "is 1048577 bytes; a configuration has at most 1048576",
                 load(big, &config));
    /* Nested without end: refused where the second level of a list begins. */
    memset(big, '[', length - 1);
    big[length - 1] = '\0';
    memcpy(big, "data: {train: ", 14);
    assert_fails(MS_ERR_CONFIG, "gpt.yaml:1: data.train: an entry of the list must be",
                 load(big, &config));
    free(big);
    /* A NUL in a file would hide what follows it. */
    test_write_file(path, "train: {}\n\0data: {}", 19);
    assert_fails(MS_ERR_CONFIG, "c.yaml: NUL byte at byte 10 (line 2)",
                 ms_config_load(&source, sections, SECTION_COUNT, &config));
    test_dir_remove(dir);
    assert_null(config);
    /* No file at all, and an empty one: defaults. */
    const ms_config_section *const two[] = {&train, &parallel};
    assert_ok(ms_config_load(&(ms_config_source){0}, two, 2, &config));
    assert_int_equal(((const train_values *)ms_config_values(config, "train"))->steps, 2000);
    ms_config_destroy(config);
    static const char *const empty[] = {"",      "\n\n",     "# only words\n",
                                        "---\n", "train:\n", "train: ~\n"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        config = NULL;
        assert_ok(ms_config_load(&(ms_config_source){.text = empty[i]}, two, 2, &config));
        assert_int_equal(((const train_values *)ms_config_values(config, "train"))->steps, 2000);
        ms_config_destroy(config);
    }
}

/* Every allocation fails once: always an error, never a leak. */
static void test_every_allocation_may_fail(void **state) {
    (void)state;
    const char *const assignments[] = {"data.valid=[x, {path: y, weight: 2}]", "train.seed=3"};
    const ms_config_source source = {
        .path = "gpt.yaml",
        .text = "train: {steps: 12}\ndata:\n  train: [a, b, c, {path: d}, e, f, g, h, i]\n"
                "  tokenizer: \"a text that is long enough for an allocation of its own\"\n",
        .assignments = assignments,
        .assignment_count = 2};
    size_t before = live_bytes();
    uint64_t n = 1;
    for (;; n++) {
        ms_config *config = NULL;
        ms_text yaml = {0};
        ms_memory_fail_at(n);
        ms_status status = ms_config_load(&source, sections, SECTION_COUNT, &config);
        if (status == MS_OK) {
            status = ms_config_emit(config, &yaml);
        }
        if (status == MS_OK) {
            status = ms_config_reference(sections, SECTION_COUNT, &yaml);
        }
        ms_memory_fail_at(0);
        ms_text_release(&yaml);
        ms_config_destroy(config);
        assert_int_equal(live_bytes(), before);
        if (status == MS_OK) {
            break;
        }
        assert_int_equal(status, MS_ERR_MEMORY);
        assert_non_null(strstr(ms_error_detail(), "out of memory"));
        assert_true(n < 1000);
    }
    assert_true(n > 5); /* it did fail some times */
    /* A refusal that cannot even write its sentence is out of memory, not a crash. */
    for (n = 1; n < 10; n++) {
        ms_config *config = NULL;
        ms_memory_fail_at(n);
        ms_status status = load("train: {steps: 0}\n", &config);
        ms_memory_fail_at(0);
        assert_true(status == MS_ERR_MEMORY || status == MS_ERR_CONFIG);
        assert_int_equal(live_bytes(), before);
    }
}

static void test_faulty_tables_are_bugs(void **state) {
    (void)state;
    ms_config *config = NULL;
    static const ms_key outside[] = {{"a", MS_KEY_INT, 8, "1", "", 0, 0, NULL, false, "."}};
    static const ms_key twice[] = {{"a", MS_KEY_INT, 0, "1", "", 0, 0, NULL, false, "."},
                                   {"a", MS_KEY_INT, 0, "1", "", 0, 0, NULL, false, "."}};
    static const ms_key no_choices[] = {{"a", MS_KEY_ENUM, 0, "x", "", 0, 0, NULL, false, "."}};
    static const ms_key bad_default[] = {{"a", MS_KEY_INT, 0, "x", "", 0, 0, NULL, false, "."}};
    static const ms_key auto_bool[] = {{"a", MS_KEY_BOOL, 0, "no", "", 0, 0, NULL, true, "."}};
    static const ms_key no_range[] = {{"a", MS_KEY_INT, 0, "1", "", 2, 1, NULL, false, "."}};
    static const struct {
        ms_config_section section;
        const char *part;
    } cases[] = {{{"s", "", outside, 1, 8, false}, "s.a lies outside its struct"},
                 {{"s", "", twice, 2, 8, false}, "s.a stands twice"},
                 {{"s", "", no_choices, 1, 8, false}, "s.a has no choices"},
                 {{"s", "", bad_default, 1, 8, false}, "default: s.a is \"x\""},
                 {{"s", "", auto_bool, 1, 8, false}, "cannot be auto"},
                 {{"s", "", no_range, 1, 8, false}, "empty range"},
                 {{"", "", twice, 1, 8, false}, "has no name"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ms_config_section *const one[] = {&cases[i].section};
        assert_fails(MS_ERR_BUG, cases[i].part,
                     ms_config_load(&(ms_config_source){0}, one, 1, &config));
    }
    const ms_config_section *const same[] = {&train, &train};
    assert_fails(MS_ERR_BUG, "section train stands twice",
                 ms_config_load(&(ms_config_source){0}, same, 2, &config));
    assert_fails(MS_ERR_ARGUMENT, "", ms_config_load(&(ms_config_source){0}, NULL, 1, &config));
    /* A struct spoilt after loading is found when it is written. */
    assert_ok(load("data: {train: a}", &config));
    ((parallel_values *)ms_config_values_mutable(config, "parallel"))->schedule = 9;
    ms_text yaml = {0};
    assert_fails(MS_ERR_BUG, "parallel.schedule holds choice 9 of 3",
                 ms_config_emit(config, &yaml));
    ms_text_release(&yaml);
    ms_config_destroy(config);
}

static void test_help(void **state) {
    (void)state;
    ms_text text = {0};
    assert_ok(ms_config_help(sections, SECTION_COUNT, "train.steps", &text));
    assert_string_equal(
        text.bytes, "train.steps\n"
                    "    How many optimiser steps to run.\n"
                    "    value:   a whole number from 1 to 1000000000 (steps)\n"
                    "    default: 2000\n"
                    "    set by:  \"train: {steps: ...}\" in the file, --set train.steps=..., or "
                    "MS_TRAIN_STEPS\n");
    ms_text_clear(&text);
    /* A name of both a section and a key shows both. */
    assert_ok(ms_config_help(sections, SECTION_COUNT, "train", &text));
    assert_memory_equal(text.bytes, "train\n    The run.\n\n  steps             How many", 45);
    assert_non_null(strstr(text.bytes, "\n\ndata.train\n    What to train on.\n"));
    assert_non_null(strstr(text.bytes, "    default: required\n"));
    ms_text_clear(&text);
    assert_ok(ms_config_help(sections, SECTION_COUNT, NULL, &text));
    assert_non_null(strstr(text.bytes, "\n  parallel  The layout.\n"));
    ms_text_clear(&text);
    assert_ok(ms_config_help(sections, SECTION_COUNT, "parallel", &text));
    assert_non_null(strstr(text.bytes, "\"parallel: auto\""));
    assert_fails(MS_ERR_NOT_FOUND, "no key or section \"stpes\"; did you mean \"train.steps\"?",
                 ms_config_help(sections, SECTION_COUNT, "stpes", &text));
    assert_fails(MS_ERR_NOT_FOUND, "no key or section \"paralel\"; did you mean \"parallel\"?",
                 ms_config_help(sections, SECTION_COUNT, "paralel", &text));
    assert_fails(MS_ERR_NOT_FOUND, "no key \"stpes\" in section train; did you mean \"steps\"?",
                 ms_config_help(sections, SECTION_COUNT, "train.stpes", &text));
    assert_fails(MS_ERR_NOT_FOUND, "no section \"trian\"; did you mean \"train\"?",
                 ms_config_help(sections, SECTION_COUNT, "trian.steps", &text));
    assert_fails(MS_ERR_NOT_FOUND, "no key or section \"zzzzzzzzzz\"",
                 ms_config_help(sections, SECTION_COUNT, "zzzzzzzzzz", &text));
    ms_text_release(&text);
}

static void test_reference(void **state) {
    (void)state;
    ms_text text = {0};
    assert_ok(ms_config_reference(sections, SECTION_COUNT, &text));
    for (int s = 0; s < SECTION_COUNT; s++) {
        char wanted[512];
        snprintf(wanted, sizeof wanted, "\n## %s\n\n%s\n", sections[s]->name, sections[s]->doc);
        assert_non_null(strstr(text.bytes, wanted));
        for (int k = 0; k < sections[s]->key_count; k++) {
            snprintf(wanted, sizeof wanted, "\n| `%s` | ", sections[s]->keys[k].name);
            assert_non_null(strstr(text.bytes, wanted));
            assert_non_null(strstr(text.bytes, sections[s]->keys[k].doc));
        }
    }
    assert_non_null(strstr(text.bytes, "\n| `steps` | int | steps | `2000` | a whole number from 1 "
                                       "to 1000000000 (steps) | How many optimiser steps to run. "
                                       "|\n"));
    assert_non_null(strstr(text.bytes, "\n| `train` | list |  | required | "));
    ms_text_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_values),
        cmocka_unit_test(test_section_auto),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refusals_of_a_file),
        cmocka_unit_test(test_syntax_errors_name_the_line),
        cmocka_unit_test(test_refusals_of_assignments),
        cmocka_unit_test(test_text_of_assignments_is_taken_as_it_is),
        cmocka_unit_test(test_runs_of_quotes),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_environment_and_authority),
        cmocka_unit_test(test_files_and_bounds),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_faulty_tables_are_bugs),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
