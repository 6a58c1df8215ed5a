// labels: unit prop
// Learning rates against closed forms, resumes, clipping, hyper-parameters, the section's checks.
#include "support/test_support.h"

#include <math.h>

#include "optim/optim.h"

static const ms_config_section *const sections[] = {&ms_optimizer_section};

static ms_status load(const char *yaml, ms_config **config) {
    ms_config_source source = {.path = "run.yaml", .text = yaml};
    return ms_config_load(&source, sections, 1, config);
}

static ms_optimizer_config parse(const char *yaml) {
    ms_config *config = NULL;
    assert_ok(load(yaml, &config));
    ms_optimizer_config values =
        *(const ms_optimizer_config *)ms_config_values(config, "optimizer");
    ms_config_destroy(config);
    return values;
}

static void assert_near(double value, double wanted) {
    if (fabs(value - wanted) > 1e-15 * fmax(1e-3, fabs(wanted))) {
        fail_msg("%.17g instead of %.17g", value, wanted);
    }
}

static void test_defaults(void **state) {
    (void)state;
    ms_optimizer_config config = parse("{}");
    assert_int_equal(config.name, MS_OPTIMIZER_ADAMW);
    assert_true(config.lr == 1e-3 && config.min_lr == 1e-4);
    assert_int_equal(config.warmup_steps, 100);
    assert_int_equal(config.warmup_tokens, 0);
    assert_true(config.decay_steps == MS_AUTO);
    assert_int_equal(config.decay_tokens, 0);
    assert_int_equal(config.decay, MS_DECAY_COSINE);
    assert_true(config.beta1 == 0.9 && config.beta2 == 0.99 && config.eps == 1e-8);
    assert_true(config.weight_decay == 0.1 && config.clip_grad == 1.0);
    assert_true(config.momentum == 0.9 && !config.nesterov && config.wsd_fraction == 0.2);
    assert_ok(ms_optimizer_config_check(&config));
}

/* nanoGPT's rule, written out again with its own names. */
static double nanogpt(double lr, double min_lr, int64_t warmup, int64_t decay_iterations,
                      int64_t iteration) {
    if (iteration < warmup) {
        return lr * (double)(iteration + 1) / (double)(warmup + 1);
    }
    if (iteration > decay_iterations) {
        return min_lr;
    }
    double ratio = (double)(iteration - warmup) / (double)(decay_iterations - warmup);
    return min_lr + 0.5 * (1.0 + cos(3.14159265358979323846 * ratio)) * (lr - min_lr);
}

static void test_cosine(void **state) {
    (void)state;
    ms_optimizer_config config = parse("{}");
    for (int64_t step = 0; step < 2500; step++) {
        assert_near(ms_learning_rate(&config, step, 2000, step * 768),
                    nanogpt(1e-3, 1e-4, 100, 2000, step));
    }
    assert_true(ms_learning_rate(&config, 100, 2000, 0) == 1e-3); /* exactly, at the top */
    assert_true(ms_learning_rate(&config, 2000, 2000, 0) == 1e-4);
    assert_true(ms_learning_rate(&config, INT64_MAX, 2000, 0) == 1e-4);
    assert_near(ms_learning_rate(&config, 0, 2000, 0), 1e-3 / 101);
    assert_near(ms_learning_rate(&config, 1050, 2000, 0), 5.5e-4);
    /* decay_steps counts, not the length of the run. */
    config.decay_steps = 600000;
    assert_near(ms_learning_rate(&config, 300000, 2000, 0),
                nanogpt(1e-3, 1e-4, 100, 600000, 300000));
    config.warmup_steps = 0;
    assert_true(ms_learning_rate(&config, 0, 2000, 0) == 1e-3);
}

static void test_other_shapes(void **state) {
    (void)state;
    ms_optimizer_config config = parse("optimizer: {decay: linear, warmup_steps: 10}\n");
    assert_near(ms_learning_rate(&config, 4, 110, 0), 1e-3 * 5 / 11);
    assert_true(ms_learning_rate(&config, 10, 110, 0) == 1e-3);
    assert_near(ms_learning_rate(&config, 35, 110, 0), 1e-3 - 9e-4 / 4);
    assert_near(ms_learning_rate(&config, 60, 110, 0), 5.5e-4);
    assert_true(ms_learning_rate(&config, 110, 110, 0) == 1e-4);

    config = parse("optimizer: {decay: constant, warmup_steps: 10, min_lr: 1}\n");
    assert_ok(ms_optimizer_config_check(&config)); /* min_lr plays no part */
    assert_near(ms_learning_rate(&config, 9, 110, 0), 1e-3 * 10 / 11);
    for (int64_t step = 10; step < 300; step++) {
        assert_true(ms_learning_rate(&config, step, 110, 0) == 1e-3);
    }

    /* The last fifth of 1000 updates falls; the warm-up does not shift it. */
    config = parse("optimizer: {decay: wsd, warmup_steps: 100, wsd_fraction: 0.2}\n");
    for (int64_t step = 100; step <= 800; step++) {
        assert_true(ms_learning_rate(&config, step, 1000, 0) == 1e-3);
    }
    assert_near(ms_learning_rate(&config, 850, 1000, 0), 1e-3 - 9e-4 / 4);
    assert_near(ms_learning_rate(&config, 900, 1000, 0), 5.5e-4);
    assert_true(ms_learning_rate(&config, 1000, 1000, 0) == 1e-4);
    config.wsd_fraction = 1; /* as linear: it falls as soon as it has risen */
    assert_near(ms_learning_rate(&config, 550, 1000, 0), 5.5e-4);
}

static void test_by_tokens(void **state) {
    (void)state;
    ms_optimizer_config config =
        parse("optimizer: {warmup_tokens: 1_000_000, decay_tokens: 101_000_000}\n");
    assert_ok(ms_optimizer_config_check(&config));
    for (int64_t tokens = 0; tokens < 120000000; tokens += 49152) {
        int64_t step = tokens / 7; /* steps do not count, whatever they are */
        assert_near(ms_learning_rate(&config, step, 10, tokens),
                    nanogpt(1e-3, 1e-4, 1000000, 101000000, tokens));
    }
    /* Warm-up by tokens, decay by updates: the decay counts from the start of the run. */
    config = parse("optimizer: {warmup_tokens: 1000, decay: linear}\n");
    assert_near(ms_learning_rate(&config, 3, 100, 499), 1e-3 * 500 / 1001);
    assert_near(ms_learning_rate(&config, 50, 100, 1000), 5.5e-4);
    /* Warm-up by updates, decay by tokens. */
    config = parse("optimizer: {warmup_steps: 10, decay_tokens: 1000, decay: linear}\n");
    assert_near(ms_learning_rate(&config, 4, 100, 999), 1e-3 * 5 / 11);
    assert_near(ms_learning_rate(&config, 10, 100, 500), 5.5e-4);
    assert_true(ms_learning_rate(&config, 10, 100, 1000) == 1e-4);
    /* 64-bit counts. */
    config = parse("optimizer: {warmup_tokens: 1, decay_tokens: 9e18}\n");
    assert_near(ms_learning_rate(&config, 0, 1, 4500000000000000000), 5.5e-4);
}

/* Runs that end within the warm-up, or have no steps at all, stay finite and within bounds. */
static void test_short_runs(void **state) {
    (void)state;
    static const char *const shapes[] = {"{}", "optimizer: {decay: linear}\n",
                                         "optimizer: {decay: wsd}\n",
                                         "optimizer: {decay: constant}\n"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ms_optimizer_config config = parse(shapes[i]);
        for (int64_t total = 0; total <= 150; total += 10) {
            for (int64_t step = 0; step <= 200; step++) {
                double lr = ms_learning_rate(&config, step, total, 0);
                assert_true(lr > 0 && lr <= 1e-3);
                assert_true(step < 100 || lr >= 1e-4);
            }
        }
    }
}

/*
 * A resumed run goes on with the same learning rates: they are asked for in any order, from a
 * config that was read anew (written out and read back), and are the same bits.
 */
static void test_resume_keeps_the_learning_rate(void **state) {
    (void)state;
    static const char *const texts[] = {
        "optimizer: {lr: 6e-4, min_lr: 6e-5, warmup_steps: 50}\n",
        "optimizer: {lr: 6e-4, min_lr: 6e-5, decay: wsd, warmup_tokens: 30000}\n",
        "optimizer: {lr: 0.1, min_lr: 0.0, decay: linear, name: sgd, decay_tokens: 200000}\n",
    };
    enum { STEPS = 400, TOKENS = 512 };
    uint64_t seed = test_seed();
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        double straight[STEPS];
        ms_optimizer_config config = parse(texts[t]);
        for (int64_t step = 0; step < STEPS; step++) {
            straight[step] = ms_learning_rate(&config, step, STEPS, step * TOKENS);
        }
        ms_config *stored = NULL;
        ms_text yaml = {0};
        assert_ok(load(texts[t], &stored));
        assert_ok(ms_config_emit(stored, &yaml));
        ms_optimizer_config again = parse(yaml.bytes);
        ms_text_release(&yaml);
        ms_config_destroy(stored);
        for (int round = 0; round < 500; round++) {
            int64_t step = (int64_t)test_random_below(&seed, STEPS);
            double lr = ms_learning_rate(&again, step, STEPS, step * TOKENS);
            assert_memory_equal(&lr, &straight[step], sizeof lr);
        }
    }
}

static void test_clip_scale(void **state) {
    (void)state;
    assert_true(ms_clip_scale(1.0, 0.0) == 1);
    assert_true(ms_clip_scale(1.0, 0.5) == 1);
    assert_near(ms_clip_scale(1.0, 4.0), 1.0 / (4.0 + 1e-6));
    assert_near(ms_clip_scale(2.5, 10.0), 2.5 / (10.0 + 1e-6));
    assert_true(ms_clip_scale(1.0, 1.0) < 1); /* as PyTorch: 1 / (1 + 1e-6) */
    assert_true(ms_clip_scale(1.0, 1e300) > 0);
    assert_true(ms_clip_scale(0.0, 1e30) == 1);
    /* Never 1, never NaN, for a norm that is no number. */
    assert_true(ms_clip_scale(1.0, NAN) == 0);
    assert_true(ms_clip_scale(1.0, INFINITY) == 0);
    assert_true(ms_clip_scale(1e12, NAN) == 0);
}

static void test_hyper(void **state) {
    (void)state;
    double hyper[MS_HYPER_COUNT + 1];
    hyper[MS_HYPER_COUNT] = -5;
    ms_optimizer_config config = parse("optimizer: {beta1: 0.8, beta2: 0.95, eps: 1e-6}\n");
    ms_optimizer_hyper(&config, 0, 3e-4, 0.25, true, hyper);
    static const double wanted[MS_HYPER_COUNT] = {
        [MS_HYPER_LEARNING_RATE] = 3e-4, [MS_HYPER_WEIGHT_DECAY] = 0.1, [MS_HYPER_BETA1] = 0.8,
        [MS_HYPER_BETA2] = 0.95,         [MS_HYPER_EPSILON] = 1e-6,     [MS_HYPER_STEP] = 1,
        [MS_HYPER_GRADIENT_SCALE] = 0.25};
    assert_memory_equal(hyper, wanted, sizeof wanted);
    ms_optimizer_hyper(&config, 41, 3e-4, 1, false, hyper);
    assert_true(hyper[MS_HYPER_WEIGHT_DECAY] == 0);
    assert_true(hyper[MS_HYPER_STEP] == 42);
    config = parse("optimizer: {name: sgd, momentum: 0.7}\n");
    ms_optimizer_hyper(&config, 0, 1, 1, true, hyper);
    assert_true(hyper[MS_HYPER_BETA1] == 0.7);
    assert_true(hyper[MS_HYPER_COUNT] == -5);
}

static void test_state_tensors(void **state) {
    (void)state;
    ms_optimizer_config config = parse("{}");
    assert_int_equal(ms_optimizer_slot(&config), MS_SLOT_ADAMW);
    assert_int_equal(ms_optimizer_state_count(&config), 2);
    assert_string_equal(ms_optimizer_state_name(&config, 0), "exp_avg");
    assert_string_equal(ms_optimizer_state_name(&config, 1), "exp_avg_sq");
    config = parse("optimizer: {name: sgd}\n");
    assert_int_equal(ms_optimizer_slot(&config), MS_SLOT_SGD);
    assert_int_equal(ms_optimizer_state_count(&config), 1);
    assert_string_equal(ms_optimizer_state_name(&config, 0), "momentum_buffer");
    config.momentum = 0;
    assert_int_equal(ms_optimizer_state_count(&config), 0);
}

static void test_section_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"optimizer: {lr: -1e-3}\n", "lr"},
        {"optimizer: {beta1: 1.0}\n", "beta1"},
        {"optimizer: {decay: cosin}\n", "cosine"},
        {"optimizer: {warmup: 5}\n", "warmup"},
        {"optimizer: {name: adam}\n", "adamw"},
        {"optimizer: {eps: x}\n", "eps"},
        {"optimizer: {decay_steps: 0}\n", "decay_steps"},
        {"optimizer: {lr: nan}\n", "lr"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_config *config = NULL;
        assert_fails(MS_ERR_CONFIG, cases[i].sentence, load(cases[i].text, &config));
    }
}

static void test_check_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"optimizer: {lr: 5e-5}\n", "optimizer.min_lr 0.0001 is above optimizer.lr 5e-05"},
        {"optimizer: {decay: wsd, wsd_fraction: 0}\n", "wsd_fraction"},
        {"optimizer: {decay_steps: 100}\n",
         "decay_steps 100 must be above optimizer.warmup_steps 100"},
        {"optimizer: {decay_tokens: 7, warmup_tokens: 8}\n",
         "decay_tokens 7 must be above optimizer.warmup_tokens 8"},
        {"optimizer: {name: sgd, nesterov: true, momentum: 0}\n", "momentum above 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_optimizer_config config = parse(cases[i].text);
        assert_fails(MS_ERR_CONFIG, cases[i].sentence, ms_optimizer_config_check(&config));
    }
    static const char *const good[] = {
        "optimizer: {lr: 5e-5, decay: constant}\n",
        "optimizer: {lr: 5e-5, min_lr: 5e-5}\n",
        "optimizer: {decay_steps: 101}\n",
        "optimizer: {decay_steps: 5, warmup_tokens: 100}\n",
        "optimizer: {decay_tokens: 7, warmup_steps: 100}\n",
        "optimizer: {nesterov: true, momentum: 0}\n", /* adamw does not look */
        "optimizer: {name: sgd, nesterov: true}\n",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ms_optimizer_config config = parse(good[i]);
        assert_ok(ms_optimizer_config_check(&config));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_by_tokens),
        cmocka_unit_test(test_short_runs),
        cmocka_unit_test(test_resume_keeps_the_learning_rate),
        cmocka_unit_test(test_clip_scale),
        cmocka_unit_test(test_hyper),
        cmocka_unit_test(test_state_tensors),
        cmocka_unit_test(test_section_refusals),
        cmocka_unit_test(test_check_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
