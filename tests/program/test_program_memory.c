// labels: multi
// timeout: 60
/*
 * test_program_memory.c - the plan's bytes are the bytes held, steps allocate nothing, and what a
 * slot saves follows the type and the recomputation policy.
 */
#include <malloc.h>
#include <pthread.h>

#include "engine/parity.h"

static ms_model_spec char_gpt(void) {
    return (ms_model_spec){.family = MS_FAMILY_GPT2,
                           .layers = 4,
                           .hidden = 128,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_size = 32,
                           .ffn = 512,
                           .positions = 64,
                           .vocabulary = 65,
                           .tied = true,
                           .activation = MS_GELU_TANH,
                           .norm_epsilon = 1e-5,
                           .init_std = 0.02,
                           .rope_scaling = {.factor = 1},
                           .bos_id = -1,
                           .eos_id = -1};
}

static ms_model_spec small_llama(void) {
    return (ms_model_spec){.family = MS_FAMILY_LLAMA,
                           .layers = 2,
                           .hidden = 32,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_size = 8,
                           .ffn = 72,
                           .positions = 32,
                           .vocabulary = 61,
                           .activation = MS_SILU,
                           .norm_epsilon = 1e-6,
                           .rope_theta = 10000,
                           .init_std = 0.02,
                           .rope_scaling = {.factor = 1},
                           .bos_id = -1,
                           .eos_id = -1};
}

static test_setup char_setup(ms_dtype compute) {
    test_setup setup = test_setup_of(char_gpt());
    setup.compute = compute;
    setup.micro_batch_size = 3;
    setup.micro_batches = 4;
    return setup;
}

typedef struct batch_memory {
    int32_t *tokens, *targets;
    int64_t *samples;
    ms_micro_batch *batches;
} batch_memory;

static batch_memory batch_of(const test_setup *setup, const test_rank *rank) {
    int64_t micro_batches = rank->program->request.micro_batches;
    int64_t sequences = micro_batches * setup->micro_batch_size;
    size_t tokens = (size_t)(sequences * setup->sequence);
    batch_memory memory = {.tokens = calloc(tokens, sizeof(int32_t)),
                           .targets = calloc(tokens, sizeof(int32_t)),
                           .samples = calloc((size_t)sequences, sizeof(int64_t)),
                           .batches = calloc((size_t)micro_batches, sizeof(ms_micro_batch))};
    parity_fill(setup, 0, rank->program->replica * sequences, sequences, memory.tokens,
                memory.targets, memory.samples);
    for (int64_t m = 0; m < micro_batches; m++) {
        int64_t at = m * setup->micro_batch_size;
        memory.batches[m] =
            (ms_micro_batch){memory.tokens + at * setup->sequence,
                             memory.targets + at * setup->sequence, memory.samples + at};
    }
    return memory;
}

static void batch_free(batch_memory *memory) {
    free(memory->tokens);
    free(memory->targets);
    free(memory->samples);
    free(memory->batches);
}

static ms_status steps(const test_setup *setup, const test_rank *rank, const batch_memory *memory,
                       int64_t first, int64_t count) {
    for (int64_t step = first; step < first + count; step++) {
        ms_step_input input = {.micro_batches = memory->batches,
                               .target_tokens =
                                   setup->micro_batches * setup->micro_batch_size * setup->sequence,
                               .step = step,
                               .learning_rate = 1e-3,
                               .apply = true};
        ms_step_result result;
        MS_TRY(ms_engine_step(rank->engine, &input, &result));
        double loss;
        MS_TRY(ms_engine_evaluate(rank->engine, &memory->batches[0], &loss));
    }
    return MS_OK;
}

static size_t plan_live(void) {
    return ms_memory_counters_get().live_bytes[MS_MEMORY_PLAN];
}

static void check_planned(const test_setup *setup, const char *what) {
    size_t before = plan_live();
    test_rank rank = {0};
    assert_ok(test_rank_open(&rank, setup, 0, NULL));
    size_t planned = rank.program->memory.total_bytes, sum = rank.program->memory.constant_bytes;
    size_t held = plan_live() - before;
    for (int region = 0; region < MS_REGION_COUNT; region++) {
        sum += rank.program->memory.region_bytes[region];
    }
    if (planned != held || planned != ms_engine_memory_bytes(rank.engine) || planned != sum) {
        fail_msg("%s: %zu bytes planned, %zu summed, %zu held, the engine says %zu", what, planned,
                 sum, held, ms_engine_memory_bytes(rank.engine));
    }
    batch_memory memory = batch_of(setup, &rank);
    assert_ok(ms_engine_initialize(rank.engine, 1));
    assert_ok(steps(setup, &rank, &memory, 0, 2));
    assert_int_equal(plan_live() - before, planned);
    batch_free(&memory);
    test_rank_close(&rank);
    assert_int_equal(plan_live(), before);
}

static void planned_bytes_are_the_bytes_held(void **state) {
    (void)state;
    static const ms_dtype types[] = {MS_F32, MS_BF16, MS_F64};
    for (size_t t = 0; t < 3; t++) {
        test_setup setup = char_setup(types[t]);
        setup.variant = types[t] == MS_F64 ? "ref" : NULL;
        setup.spec.layers = types[t] == MS_F64 ? 1 : 4;
        check_planned(&setup, ms_dtype_name(types[t]));
        setup.recompute = MS_RECOMPUTE_FULL;
        setup.reduction_groups = 1;
        check_planned(&setup, "full recomputation, one level of gradients");
    }
    test_setup llama = test_setup_of(small_llama()); /* with tables of angles */
    llama.compute = MS_F32;
    check_planned(&llama, "llama");
}

/* The lines printed are for people; their figures are the plan's parts, and the parts are the
 * total. */
static void parts_are_the_total(void **state) {
    (void)state;
    test_setup setup = char_setup(MS_BF16);
    test_rank rank = {0};
    assert_ok(test_rank_open(&rank, &setup, 0, NULL));
    const ms_memory_plan *memory = &rank.program->memory;
    size_t parameters = (size_t)ms_model_parameter_elements(rank.model);
    size_t named = memory->weight_bytes + memory->master_bytes + memory->gradient_bytes +
                   memory->optimizer_bytes + memory->packed_bytes + memory->cache_bytes +
                   memory->other_bytes;
    size_t regions =
        memory->region_bytes[MS_REGION_SHARED] + memory->region_bytes[MS_REGION_PRIVATE];
    assert_true(named <= regions && regions - named < 64 * 1024); /* paddings to cache lines */
    assert_true(memory->weight_bytes >= 2 * parameters);
    assert_true(memory->optimizer_bytes >= 8 * parameters);
    assert_true(memory->master_bytes >= 4 * (parameters - 128 * 64));
    assert_int_equal(memory->region_bytes[MS_REGION_SAVED],
                     memory->saved_slot_bytes * (size_t)memory->saved_slots);
    ms_text text = {0};
    assert_ok(ms_program_print_memory(rank.program, &text));
    assert_non_null(strstr(text.bytes, "saved for the backward"));
    assert_non_null(strstr(text.bytes, "bytes/parameter"));
    ms_text_release(&text);
    test_rank_close(&rank);
}

static void saved_bytes(ms_dtype compute, ms_recompute_policy policy, size_t *bytes) {
    test_setup setup = char_setup(compute);
    setup.recompute = policy;
    test_rank rank = {0};
    assert_ok(test_rank_open(&rank, &setup, 0, NULL));
    *bytes = rank.program->memory.saved_slot_bytes;
    test_rank_close(&rank);
}

static void saved_bytes_follow_type_and_policy(void **state) {
    (void)state;
    size_t fp32[3], bf16[3];
    static const ms_recompute_policy policies[] = {MS_RECOMPUTE_NONE, MS_RECOMPUTE_SELECTIVE,
                                                   MS_RECOMPUTE_FULL};
    for (int i = 0; i < 3; i++) {
        saved_bytes(MS_F32, policies[i], &fp32[i]);
        saved_bytes(MS_BF16, policies[i], &bf16[i]);
        printf("saved a slot: fp32 %zu, bf16 %zu bytes\n", fp32[i], bf16[i]);
    }
    assert_true((double)bf16[0] <= 0.55 * (double)fp32[0]);
    assert_true(fp32[0] > fp32[1] && fp32[1] > fp32[2]);
    assert_true(bf16[0] > bf16[1] && bf16[1] > bf16[2]);
    /* Full: a layer keeps its input, and the head what the loss reads. */
    size_t rows = 3 * 64, layer_input = rows * 128 * 4;
    assert_true(fp32[2] >= 4 * layer_input && fp32[2] < 8 * layer_input);
}

/* Ours are counted by the library, oneDNN's and libc's by malloc itself. */
static size_t malloc_live(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    static const ms_dtype types[] = {MS_F32, MS_BF16};
    for (int t = 0; t < 2; t++) {
        test_setup setup = char_setup(types[t]);
        setup.spec.layers = 2;
        setup.micro_batch_size = 1;
        setup.spec.dropout = 0.1;
        setup.recompute = t == 0 ? MS_RECOMPUTE_NONE : MS_RECOMPUTE_SELECTIVE;
        test_rank rank = {0};
        assert_ok(test_rank_open(&rank, &setup, 0, NULL));
        assert_ok(ms_engine_initialize(rank.engine, 1));
        batch_memory memory = batch_of(&setup, &rank);
        assert_ok(steps(&setup, &rank, &memory, 0, 1));
        uint64_t calls = ms_memory_counters_get().calls;
        size_t live = malloc_live();
        assert_ok(steps(&setup, &rank, &memory, 1, 100));
        assert_int_equal(ms_memory_counters_get().calls, calls);
        if (malloc_live() > live) {
            fail_msg("%zu bytes of malloc more after 100 steps of %s", malloc_live() - live,
                     ms_dtype_name(types[t]));
        }
        batch_free(&memory);
        test_rank_close(&rank);
    }
}

typedef struct rank_job {
    const test_setup *setup;
    ms_comm *comm;
    int index;
    size_t before; /* of the plan's memory, both ranks */
    ms_status status;
    const char *fault;
} rank_job;

static ms_status two_ranks(rank_job *job, test_rank *rank, batch_memory *memory) {
    MS_TRY(test_rank_open(rank, job->setup, job->index, job->comm));
    MS_TRY(ms_engine_initialize(rank->engine, 1));
    *memory = batch_of(job->setup, rank);
    int64_t planned = (int64_t)rank->program->memory.total_bytes, all = 0;
    MS_TRY(ms_comm_all_reduce(job->comm, &planned, &all, 1, MS_I64, MS_REDUCE_SUM, NULL));
    if (plan_live() - job->before != (size_t)all) {
        job->fault = "the ranks together hold other bytes than they planned";
    }
    MS_TRY(steps(job->setup, rank, memory, 0, 1));
    MS_TRY(ms_comm_barrier(job->comm, NULL));
    uint64_t calls = ms_memory_counters_get().calls;
    MS_TRY(ms_comm_barrier(job->comm, NULL));
    MS_TRY(steps(job->setup, rank, memory, 1, 20));
    MS_TRY(ms_comm_barrier(job->comm, NULL));
    if (ms_memory_counters_get().calls != calls) {
        job->fault = "steps allocate";
    }
    return ms_comm_barrier(job->comm, NULL);
}

static void *two_ranks_thread(void *context) {
    rank_job *job = context;
    test_rank rank = {0};
    batch_memory memory = {0};
    ms_thread_team_set(1);
    job->status = two_ranks(job, &rank, &memory);
    if (job->status != MS_OK) {
        fprintf(stderr, "rank %d: %s\n", job->index, ms_error_detail());
        ms_comm_abort(job->comm, "a rank of the test failed");
    }
    batch_free(&memory);
    test_rank_close(&rank);
    return NULL;
}

static void ranks_hold_what_they_planned(void **state) {
    (void)state;
    static const ms_axis axes[] = {MS_AXIS_DATA, MS_AXIS_TENSOR, MS_AXIS_PIPELINE};
    for (size_t a = 0; a < 3; a++) {
        test_setup setup = char_setup(MS_F32);
        setup.spec.layers = 2;
        setup.micro_batch_size = 1;
        setup.mesh.size[axes[a]] = 2;
        setup.zero = 1;
        setup.sequence_parallel = true;
        ms_comm *comms[2];
        ms_comm_options options = MS_COMM_OPTIONS_INIT;
        options.operation_timeout_s = 20;
        assert_ok(ms_comm_create_loop(&options, 2, comms));
        size_t before = plan_live();
        rank_job jobs[2];
        pthread_t threads[2];
        for (int r = 0; r < 2; r++) {
            jobs[r] = (rank_job){.setup = &setup, .comm = comms[r], .index = r, .before = before};
            assert_int_equal(pthread_create(&threads[r], NULL, two_ranks_thread, &jobs[r]), 0);
        }
        for (int r = 0; r < 2; r++) {
            pthread_join(threads[r], NULL);
            ms_comm_destroy(comms[r]);
        }
        for (int r = 0; r < 2; r++) {
            assert_int_equal(jobs[r].status, MS_OK);
            if (jobs[r].fault != NULL) {
                fail_msg("axis %d, rank %d: %s", (int)axes[a], r, jobs[r].fault);
            }
        }
        assert_int_equal(plan_live(), before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_the_bytes_held),
        cmocka_unit_test(parts_are_the_total),
        cmocka_unit_test(saved_bytes_follow_type_and_policy),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(ranks_hold_what_they_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
