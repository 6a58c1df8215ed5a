// labels: unit prop
// Section `parallel`: defaults, refusals with their arithmetic, layouts for every legal
// combination.
#include "support/test_support.h"

#include "layout/parallel.h"

static const ms_config_section *const sections[] = {&ms_parallel_section};

static ms_status load(const char *yaml, ms_config **config) {
    ms_config_source source = {.path = "run.yaml", .text = yaml};
    return ms_config_load(&source, sections, 1, config);
}

static ms_parallel_config parse(const char *yaml) {
    ms_config *config = NULL;
    assert_ok(load(yaml, &config));
    ms_parallel_config values = *(const ms_parallel_config *)ms_config_values(config, "parallel");
    ms_config_destroy(config);
    return values;
}

static void test_defaults(void **state) {
    (void)state;
    static const char *const texts[] = {"{}", "parallel: auto\n", "parallel: {data: auto}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ms_parallel_config config = parse(texts[i]);
        assert_true(config.data == MS_AUTO);
        assert_int_equal(config.tensor, 1);
        assert_int_equal(config.pipeline, 1);
        assert_int_equal(config.context, 1);
        assert_int_equal(config.expert, 1);
        assert_int_equal(config.zero, 1);
        assert_int_equal(config.virtual_stages, 1);
        assert_int_equal(config.recompute, MS_RECOMPUTE_NONE);
        assert_true(config.sequence_parallel);
        assert_string_equal(ms_parallel_schedule(&config), "1f1b");
        assert_ok(ms_parallel_check(&config));
    }
    ms_parallel_config config =
        parse("parallel: {tensor: 2, pipeline: 4, zero: 0, schedule: gpipe, "
              "recompute: full, sequence_parallel: false, data: 3}\n");
    assert_string_equal(ms_parallel_schedule(&config), "gpipe");
    assert_int_equal(config.recompute, MS_RECOMPUTE_FULL);
    assert_int_equal(config.data, 3);
    assert_false(config.sequence_parallel);
}

static void test_config_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"parallel: {tenor: 2}\n", "tensor"},   {"parallel: {tensor: 0}\n", "tensor"},
        {"parallel: {zero: 4}\n", "zero"},      {"parallel: {schedule: 1f1x}\n", "1f1b"},
        {"parallel: {data: -1}\n", "data"},     {"parallel: {tensor: auto}\n", "tensor"},
        {"parallel: {pipeline: 257}\n", "256"}, {"parallel: {recompute: half}\n", "recompute"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_config *config = NULL;
        assert_fails(MS_ERR_CONFIG, cases[i].sentence, load(cases[i].text, &config));
        assert_non_null(strstr(ms_error_detail(), "run.yaml:1"));
    }
}

/* What the keys can say and this version does not run: refused with reason and way out. */
static void test_not_built_yet(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"parallel: {zero: 2}\n", "parallel.zero 2: dividing gradients among replicas is not "
                                  "built yet; set parallel.zero=1"},
        {"parallel: {zero: 3}\n", "parallel.zero 3: dividing gradients and weights"},
        {"parallel: {context: 2}\n", "set parallel.context=1"},
        {"parallel: {expert: 8}\n", "parallel.expert 8"},
        {"parallel: {virtual_stages: 2}\n", "set parallel.virtual_stages=1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_parallel_config config = parse(cases[i].text);
        assert_fails(MS_ERR_CONFIG, cases[i].sentence, ms_parallel_check(&config));
        ms_layout layout = {.rank = 99};
        assert_fails(MS_ERR_CONFIG, cases[i].sentence, ms_layout_make(&config, 8, 0, 8, &layout));
        assert_int_equal(layout.rank, 99);
    }
}

static void test_arithmetic_is_shown(void **state) {
    (void)state;
    ms_parallel_config config = parse("parallel: {tensor: 2, pipeline: 2}\n");
    ms_layout layout;
    assert_fails(MS_ERR_CONFIG,
                 "parallel.tensor 2 x parallel.pipeline 2 = 4 does not divide 6 ranks; "
                 "use --ranks 8",
                 ms_layout_make(&config, 6, 0, 4, &layout));
    assert_fails(MS_ERR_CONFIG, "= 4 does not divide 1 ranks; use --ranks 4",
                 ms_layout_make(&config, 1, 0, 4, &layout));
    config.data = 3;
    assert_fails(MS_ERR_CONFIG,
                 "parallel.data 3 x parallel.tensor 2 x parallel.pipeline 2 = 12 ranks, but there "
                 "are 8; set parallel.data=auto or use --ranks 12",
                 ms_layout_make(&config, 8, 0, 4, &layout));
    config.data = MS_AUTO;
    assert_fails(MS_ERR_CONFIG, "parallel.pipeline 2: each stage needs a layer, the model has 1",
                 ms_layout_make(&config, 4, 0, 1, &layout));
    assert_fails(MS_ERR_CONFIG, "not 0", ms_layout_make(&config, 0, 0, 4, &layout));
    assert_fails(MS_ERR_CONFIG, "1 to 65536 ranks", ms_layout_make(&config, 65540, 0, 4, &layout));
    assert_fails(MS_ERR_ARGUMENT, "rank 4 is not one of 4",
                 ms_layout_make(&config, 4, 4, 4, &layout));
    assert_fails(MS_ERR_ARGUMENT, "rank -1", ms_layout_make(&config, 4, -1, 4, &layout));
    config.tensor = MS_RANKS_MAX;
    config.pipeline = 256;
    assert_fails(MS_ERR_CONFIG, "more than 65536 ranks",
                 ms_layout_make(&config, 4, 0, 256, &layout));
    /* Context's place in the arithmetic, before it is built. */
    config = parse("parallel: {tensor: 2, context: 3}\n");
    int64_t data = -1;
    assert_fails(MS_ERR_CONFIG, "x parallel.context 3 = 6 does not divide 8 ranks; use --ranks 12",
                 ms_parallel_resolve(&config, 8, &data));
    assert_int_equal(data, -1);
    assert_ok(ms_parallel_resolve(&config, 12, &data));
    assert_int_equal(data, 2);
}

static void check_layouts(const ms_parallel_config *config, int64_t ranks, int64_t layers) {
    for (int64_t rank = 0; rank < ranks; rank++) {
        ms_layout layout;
        assert_ok(ms_layout_make(config, ranks, rank, layers, &layout));
        assert_ok(ms_mesh_check(&layout.mesh));
        assert_int_equal(ms_mesh_ranks(&layout.mesh), ranks);
        assert_int_equal(layout.mesh.size[MS_AXIS_TENSOR], config->tensor);
        assert_int_equal(layout.mesh.size[MS_AXIS_PIPELINE], config->pipeline);
        assert_int_equal(layout.rank, rank);
        assert_int_equal(ms_mesh_rank(&layout.mesh, &layout.at), rank);
        int64_t next = 0;
        for (int64_t s = 0; s < config->pipeline; s++) {
            assert_int_equal(layout.stage_layers[s].start, next);
            assert_true(layout.stage_layers[s].count >= 1);
            next += layout.stage_layers[s].count;
        }
        assert_int_equal(next, layers);
    }
}

static void test_all_layouts(void **state) {
    (void)state;
    int64_t made = 0, refused = 0;
    for (int64_t ranks = 1; ranks <= 24; ranks++) {
        for (int64_t tensor = 1; tensor <= 6; tensor++) {
            for (int64_t pipeline = 1; pipeline <= 6; pipeline++) {
                ms_parallel_config config = parse("{}");
                config.tensor = tensor;
                config.pipeline = pipeline;
                if (ranks % (tensor * pipeline) == 0) {
                    check_layouts(&config, ranks, 7);
                    config.data = ranks / tensor / pipeline;
                    check_layouts(&config, ranks, pipeline);
                    made++;
                } else {
                    ms_layout layout;
                    assert_fails(MS_ERR_CONFIG, "does not divide",
                                 ms_layout_make(&config, ranks, 0, 7, &layout));
                    refused++;
                }
            }
        }
    }
    assert_true(made > 50 && refused > 50);
}

static void test_dealing_layers(void **state) {
    (void)state;
    ms_segment stages[MS_STAGES_MAX];
    assert_ok(ms_layers_deal(10, 4, stages));
    static const ms_segment wanted[] = {{0, 3}, {3, 3}, {6, 2}, {8, 2}};
    assert_memory_equal(stages, wanted, sizeof wanted);
    assert_ok(ms_layers_deal(256, 256, stages));
    assert_int_equal(stages[255].start, 255);
    stages[0].start = 42;
    assert_fails(MS_ERR_CONFIG,
                 "parallel.pipeline 4: each stage needs a layer, the model has 3; "
                 "use 1 to 3",
                 ms_layers_deal(3, 4, stages));
    assert_fails(MS_ERR_CONFIG, "use 1 to 256", ms_layers_deal(1000, 257, stages));
    assert_fails(MS_ERR_CONFIG, "use 1 to 3", ms_layers_deal(3, 0, stages));
    assert_fails(MS_ERR_CONFIG, "the model has 0", ms_layers_deal(0, 1, stages));
    assert_int_equal(stages[0].start, 42);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_config_refusals),
        cmocka_unit_test(test_not_built_yet), cmocka_unit_test(test_arithmetic_is_shown),
        cmocka_unit_test(test_all_layouts),   cmocka_unit_test(test_dealing_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
