/*
 * test_fit.c - what does not fit is refused with bytes, limit and a fix; and the fix, applied word
 * for word, fits on every rank with exactly the bytes that were named.
 */
#include "engine/engine_support.h"
#include "plan/fit.h"

#define RANKS_MAX 64

static ms_model_spec gpt2(void) {
    return (ms_model_spec){.family = MS_FAMILY_GPT2,
                           .layers = 4,
                           .hidden = 48,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_size = 12,
                           .ffn = 192,
                           .positions = 48,
                           .vocabulary = 97,
                           .bias = true,
                           .tied = true,
                           .activation = MS_GELU_TANH,
                           .norm_epsilon = 1e-5,
                           .init_std = 0.02,
                           .rope_scaling = {.factor = 1},
                           .bos_id = -1,
                           .eos_id = -1};
}

static test_setup setup_of(void) {
    test_setup setup = test_setup_of(gpt2());
    setup.compute = MS_F32;
    setup.micro_batch_size = 4;
    setup.micro_batches = 8;
    setup.zero = 1;
    return setup;
}

/* A program of one rank and what it hangs on; no engine, so nothing is allocated. */
typedef struct planned {
    ms_model *model;
    ms_device *device;
    ms_layout layout;
    ms_program *program;
} planned;

static void plan_open(planned *plan, const test_setup *setup, int64_t index) {
    *plan = (planned){0};
    assert_ok(ms_model_create(&setup->spec, &plan->model));
    ms_device_options options = {.name = "cpu", .threads = 1, .isa_max = MS_ISA_COUNT};
    assert_ok(ms_device_open(&options, &plan->device));
    plan->layout = (ms_layout){.mesh = setup->mesh,
                               .rank = index,
                               .at = ms_mesh_coordinates(&setup->mesh, index),
                               .zero = setup->zero,
                               .sequence_parallel = setup->sequence_parallel,
                               .recompute = setup->recompute};
    test_split_layers(&plan->layout, setup->spec.layers, setup->mesh.size[MS_AXIS_PIPELINE]);
    ms_program_request request = {.model = plan->model,
                                  .layout = &plan->layout,
                                  .mode = MS_MODE_TRAIN,
                                  .micro_batch_size = setup->micro_batch_size,
                                  .sequence = setup->sequence,
                                  .compute = setup->compute,
                                  .optimizer = &setup->optimizer,
                                  .schedule = setup->schedule,
                                  .bucket_bytes = setup->bucket_bytes,
                                  .seed = setup->seed,
                                  .device = plan->device};
    int64_t replicas = setup->mesh.size[MS_AXIS_DATA];
    assert_ok(ms_reduction_make(setup->micro_batches, replicas, setup->reduction_groups,
                                &request.reduction));
    request.micro_batches = setup->micro_batches / replicas;
    assert_ok(ms_program_create(&request, &plan->program));
}

static void plan_close(planned *plan) {
    ms_program_destroy(plan->program);
    ms_device_close(plan->device);
    ms_model_destroy(plan->model);
}

static size_t most_bytes(const test_setup *setup, int64_t *neediest) {
    size_t most = 0;
    for (int64_t rank = 0; rank < ms_mesh_ranks(&setup->mesh); rank++) {
        planned plan;
        plan_open(&plan, setup, rank);
        if (plan.program->memory.total_bytes > most) {
            most = plan.program->memory.total_bytes;
            *neediest = rank;
        }
        plan_close(&plan);
    }
    return most;
}

/* As the command line would: each word of the fix is understood, or the test fails. */
static test_setup apply(const test_setup *setup, const char *change) {
    test_setup changed = *setup;
    char words[160];
    snprintf(words, sizeof words, "%s", change);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        int number;
        char policy[16];
        if (strcmp(word, "--set") == 0) {
            continue;
        }
        if (strcmp(word, "--ranks") == 0) {
            int64_t each = ms_mesh_ranks(&setup->mesh) / setup->mesh.size[MS_AXIS_DATA];
            int64_t ranks = strtol(strtok(NULL, " "), NULL, 10);
            assert_int_equal(ranks % each, 0);
            changed.mesh.size[MS_AXIS_DATA] = ranks / each;
        } else if (sscanf(word, "parallel.zero=%d", &number) == 1) {
            changed.zero = number;
        } else if (sscanf(word, "train.micro_batch_size=%d", &number) == 1) {
            changed.micro_batches = changed.micro_batches * changed.micro_batch_size / number;
            changed.micro_batch_size = number;
        } else if (sscanf(word, "parallel.recompute=%15s", policy) == 1) {
            changed.recompute = strcmp(policy, "full") == 0        ? MS_RECOMPUTE_FULL
                                : strcmp(policy, "selective") == 0 ? MS_RECOMPUTE_SELECTIVE
                                                                   : MS_RECOMPUTE_NONE;
            assert_true(changed.recompute != MS_RECOMPUTE_NONE);
        } else {
            fail_msg("the fix says \"%s\"", word);
        }
    }
    return changed;
}

/* The sentence's numbers, and the fix carried out. False: it says that there is none. */
static bool check_refusal(const test_setup *setup, const planned *plan, size_t limit) {
    size_t needed = 0, allowed = 0, then = 0;
    assert_int_equal(ms_plan_check_fit(plan->program, limit, RANKS_MAX), MS_ERR_MEMORY_LIMIT);
    char sentence[2048];
    snprintf(sentence, sizeof sentence, "%s", ms_error_detail());
    assert_true(strlen(sentence) < MS_FIT_SENTENCE_BYTES);
    const char *at = strstr(sentence, "needs "), *allows = strstr(sentence, "allows ");
    assert_non_null(at);
    assert_non_null(allows);
    assert_int_equal(sscanf(at, "needs %zu bytes", &needed), 1);
    assert_int_equal(sscanf(allows, "allows %zu", &allowed), 1);
    assert_int_equal(needed, plan->program->memory.total_bytes);
    assert_int_equal(allowed, limit);
    char *fix = strstr(sentence, "cheapest fix: ");
    if (fix == NULL) {
        assert_non_null(strstr(sentence, "nothing tried fits"));
        return false;
    }
    char *end = strstr(fix, " (then ");
    assert_non_null(end);
    assert_int_equal(sscanf(end, " (then %zu bytes", &then), 1);
    *end = '\0';
    test_setup changed = apply(setup, fix + strlen("cheapest fix: "));
    int64_t neediest = 0;
    size_t most = most_bytes(&changed, &neediest);
    if (most > limit || most != then) {
        fail_msg("limit %zu, %s: %zu bytes were promised, rank %d needs %zu", limit, fix, then,
                 (int)neediest, most);
    }
    return true;
}

static int check_limits(const test_setup *setup) {
    int64_t neediest = 0;
    size_t most = most_bytes(setup, &neediest);
    planned plan;
    plan_open(&plan, setup, neediest);
    assert_ok(ms_plan_check_fit(plan.program, 0, RANKS_MAX));
    assert_ok(ms_plan_check_fit(plan.program, most, RANKS_MAX));
    int fixed = 0;
    size_t limit = most - 1;
    for (; limit > most / 64 && check_refusal(setup, &plan, limit); limit = limit * 3 / 4) {
        fixed++;
    }
    assert_false(check_refusal(setup, &plan, 1000)); /* the settings alone need more */
    plan_close(&plan);
    return fixed;
}

static void the_fix_fits(void **state) {
    (void)state;
    test_setup setup = setup_of();
    assert_true(check_limits(&setup) >= 4);
    setup.mesh.size[MS_AXIS_DATA] = 2;
    assert_true(check_limits(&setup) >= 3);
    setup.compute = MS_BF16;
    setup.recompute = MS_RECOMPUTE_SELECTIVE;
    assert_true(check_limits(&setup) >= 3);
}

static void the_fix_fits_all_stages(void **state) {
    (void)state;
    test_setup setup = setup_of();
    setup.mesh.size[MS_AXIS_PIPELINE] = 2;
    assert_true(check_limits(&setup) >= 3);
    setup.mesh.size[MS_AXIS_TENSOR] = 2;
    setup.sequence_parallel = true;
    assert_true(check_limits(&setup) >= 3);
}

/* Asked-for groups of the gradient's sum stay: one group cannot be had from two replicas. */
static void the_fix_keeps_the_reduction(void **state) {
    (void)state;
    test_setup setup = setup_of();
    setup.reduction_groups = 1;
    planned plan;
    plan_open(&plan, &setup, 0);
    for (size_t limit = plan.program->memory.total_bytes - 1; limit > 50000;
         limit = limit * 3 / 4) {
        ms_fix fix;
        assert_ok(ms_plan_cheapest_fix(&plan.program->request, limit, RANKS_MAX, &fix));
        assert_null(strstr(fix.change, "--ranks"));
        if (fix.change[0] != '\0') {
            assert_true(check_refusal(&setup, &plan, limit));
        }
    }
    plan_close(&plan);
}

/* No more ranks than allowed are proposed, and no change that changes nothing. */
static void bounds_of_the_fix(void **state) {
    (void)state;
    test_setup setup = setup_of();
    setup.mesh.size[MS_AXIS_DATA] = 2;
    planned plan;
    plan_open(&plan, &setup, 0);
    ms_fix fix;
    size_t needed = plan.program->memory.total_bytes;
    assert_ok(ms_plan_cheapest_fix(&plan.program->request, needed / 2, 2, &fix));
    assert_null(strstr(fix.change, "--ranks"));
    assert_ok(ms_plan_cheapest_fix(&plan.program->request, needed, RANKS_MAX, &fix));
    assert_true(fix.change[0] != '\0' && fix.cost[0] != '\0' && fix.total_bytes <= needed);
    assert_ok(ms_plan_cheapest_fix(&plan.program->request, 1, RANKS_MAX, &fix));
    assert_string_equal(fix.change, "");
    plan_close(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fix_fits),
        cmocka_unit_test(the_fix_fits_all_stages),
        cmocka_unit_test(the_fix_keeps_the_reduction),
        cmocka_unit_test(bounds_of_the_fix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
