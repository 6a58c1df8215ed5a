// labels: multi
/*
 * test_blame.c - a loss or norm that is not finite ends the step on every rank with one sentence
 * that names where it began, whichever rank that was, and no weight is touched.
 */
#include <pthread.h>

#include "engine/parity.h"

#define BLAME_RANKS_MAX 4

typedef struct blame_case {
    const char *what;
    int64_t data, tensor, pipeline;
    int zero;
    ms_dtype compute;
    int spoiled_rank;       /* -1: all */
    const char *tensors[2]; /* set to */
    double values[2];
    const char *part; /* of the sentence, on every rank */
} blame_case;

/* What overflows in fp32: 1e25 x 1e25. */
static const blame_case blame_cases[] = {
    {"a weight",
     1,
     1,
     1,
     0,
     MS_F32,
     0,
     {"transformer.h.1.ln_2.weight"},
     {INFINITY},
     "weight transformer.h.1.ln_2.weight is not finite; no update"},
    {"a weight of rank 1",
     2,
     1,
     1,
     1,
     MS_F32,
     1,
     {"transformer.h.0.attn.c_attn.weight"},
     {NAN},
     "weight transformer.h.0.attn.c_attn.weight is not finite"},
    {"a weight of the last stage",
     1,
     1,
     2,
     0,
     MS_F32,
     1,
     {"transformer.ln_f.weight"},
     {NAN},
     "weight transformer.ln_f.weight is not finite"},
    {"a product",
     1,
     1,
     1,
     0,
     MS_F32,
     0,
     {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"},
     {1e25, 1e25},
     "layer 1: the output of matmul is not finite; no update"},
    {"a product on rank 1",
     2,
     1,
     1,
     0,
     MS_F32,
     1,
     {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"},
     {1e25, 1e25},
     "layer 1: the output of matmul is not finite"},
    {"a product on rank 1, ZeRO, bf16",
     2,
     1,
     1,
     1,
     MS_BF16,
     1,
     {"transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight"},
     {1e25, 1e25},
     "layer 0: the output of matmul is not finite"},
    {"gradients, divided layers",
     1,
     2,
     1,
     1,
     MS_F32,
     -1,
     {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"},
     {1e25, 1e25},
     "the gradient of transformer."},
};

typedef struct blame_job {
    const blame_case *test;
    const test_setup *setup;
    ms_comm *comm;
    int index;
    ms_status status;
    bool touched;
    char sentence[1024];
} blame_job;

static void spoil(const ms_engine_piece *piece, double value) {
    for (int64_t i = 0; i < piece->local_count; i++) {
        if (piece->dtype == MS_BF16) {
            ((uint16_t *)piece->data)[i] = ms_f32_to_bf16((float)value);
        } else {
            ((float *)piece->data)[i] = (float)value;
        }
    }
}

/* Bytes of all weights one after the other. */
static void *weights_of(ms_engine *engine, size_t *bytes) {
    ms_engine_piece pieces[256];
    int64_t count = ms_engine_pieces(engine, MS_PIECES_WEIGHTS, pieces, 256);
    char *copy = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t piece = (size_t)pieces[i].local_count * ms_dtype_bytes(pieces[i].dtype);
        copy = realloc(copy, *bytes + piece);
        memcpy(copy + *bytes, pieces[i].data, piece);
        *bytes += piece;
    }
    return copy;
}

static ms_status spoiled_step(blame_job *job, test_rank *rank) {
    const test_setup *setup = job->setup;
    int64_t micro_batches = rank->program->request.micro_batches;
    int32_t tokens[64], targets[64];
    int64_t samples[8];
    MS_TRY(ms_engine_initialize(rank->engine, 1));
    ms_engine_piece pieces[256];
    int64_t count = ms_engine_pieces(rank->engine, MS_PIECES_WEIGHTS, pieces, 256);
    for (int64_t i = 0;
         i < count && (job->test->spoiled_rank < 0 || job->test->spoiled_rank == job->index); i++) {
        for (int t = 0; t < 2 && job->test->tensors[t] != NULL; t++) {
            if (strcmp(pieces[i].tensor->name, job->test->tensors[t]) == 0) {
                spoil(&pieces[i], job->test->values[t]);
            }
        }
    }
    ms_engine_weights_changed(rank->engine);
    parity_fill(setup, 0, rank->program->replica * micro_batches, micro_batches, tokens, targets,
                samples);
    ms_micro_batch batches[4];
    for (int64_t m = 0; m < micro_batches; m++) {
        batches[m] = (ms_micro_batch){tokens + m * setup->sequence, targets + m * setup->sequence,
                                      samples + m};
    }
    ms_step_input input = {.micro_batches = batches,
                           .target_tokens = setup->micro_batches * setup->sequence,
                           .learning_rate = 1e-3,
                           .apply = true};
    ms_step_result result;
    size_t bytes, bytes_after;
    char *before = weights_of(rank->engine, &bytes);
    ms_status status = ms_engine_step(rank->engine, &input, &result);
    char *after = weights_of(rank->engine, &bytes_after);
    job->touched = bytes != bytes_after || memcmp(before, after, bytes) != 0;
    free(before);
    free(after);
    return status;
}

static void *blame_rank(void *context) {
    blame_job *job = context;
    test_rank rank = {0};
    ms_thread_team_set(1);
    job->status = test_rank_open(&rank, job->setup, job->index, job->comm);
    if (job->status == MS_OK) {
        job->status = spoiled_step(job, &rank);
    }
    snprintf(job->sentence, sizeof job->sentence, "%s", ms_error_detail());
    test_rank_close(&rank);
    return NULL;
}

static test_setup setup_of(const blame_case *test) {
    ms_model_spec spec = {.family = MS_FAMILY_GPT2,
                          .layers = 2,
                          .hidden = 16,
                          .heads = 2,
                          .kv_heads = 2,
                          .head_size = 8,
                          .ffn = 32,
                          .positions = 8,
                          .vocabulary = 19,
                          .bias = true,
                          .tied = true,
                          .activation = MS_RELU,
                          .norm_epsilon = 1e-5,
                          .init_std = 0.05,
                          .rope_scaling = {.factor = 1},
                          .bos_id = -1,
                          .eos_id = -1};
    test_setup setup = test_setup_of(spec);
    setup.micro_batch_size = 1;
    setup.micro_batches = 4;
    setup.compute = test->compute;
    setup.zero = test->zero;
    setup.mesh.size[MS_AXIS_DATA] = test->data;
    setup.mesh.size[MS_AXIS_TENSOR] = test->tensor;
    setup.mesh.size[MS_AXIS_PIPELINE] = test->pipeline;
    return setup;
}

static void run_case(const blame_case *test) {
    test_setup setup = setup_of(test);
    int ranks = (int)ms_mesh_ranks(&setup.mesh);
    ms_comm *comms[BLAME_RANKS_MAX] = {NULL};
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.operation_timeout_s = 20;
    assert_ok(ms_comm_create_loop(&options, ranks, comms));
    blame_job jobs[BLAME_RANKS_MAX] = {0};
    pthread_t threads[BLAME_RANKS_MAX];
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (blame_job){.test = test, .setup = &setup, .comm = comms[r], .index = r};
        assert_int_equal(pthread_create(&threads[r], NULL, blame_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int r = 0; r < ranks; r++) {
        ms_comm_destroy(comms[r]);
        if (jobs[r].status != MS_ERR_NUMERIC || strstr(jobs[r].sentence, test->part) == NULL) {
            fail_msg("%s, rank %d: %s: %s", test->what, r, ms_status_name(jobs[r].status),
                     jobs[r].sentence);
        }
        assert_string_equal(jobs[r].sentence, jobs[0].sentence);
        assert_false(jobs[r].touched);
    }
}

static void the_sentence_names_the_beginning(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof blame_cases / sizeof blame_cases[0]; i++) {
        run_case(&blame_cases[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_sentence_names_the_beginning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
