/*
 * bench_step.c - `mindspeed bench step`: whole training steps of a model on random tokens: forward, backward, reduction,
 * clipping off, AdamW. The same program and engine as training; median of the steps after two warm-up ones.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "cli/command_line.h"
#include "cluster/launcher.h"
#include "engine/engine.h"
#include "net/rendezvous.h"
#include "train/train_config.h"

static const char usage[] =
    "usage: mindspeed bench step [OPTIONS]\n\n"
    "  --model gpt2-124m|char-6x384|CONFIG   (default char-6x384; a CONFIG's `model` section)\n"
    "  --batch B --sequence T                of each rank (default 8 x 256)\n"
    "  --compute fp32|bf16|fp64  --threads K --ranks N  --steps S\n"
    "  --recompute none|selective|full  --zero 0|1  --micro-batches M\n"
    "  --breakdown                           time of each operator, from one more step\n"
    "  --json                                one object with named figures\n";

typedef struct step_arguments {
    const char *model;
    long long batch, sequence, threads, ranks, steps, zero, micro_batches;
    ms_dtype compute;
    ms_recompute_policy recompute;
    bool json, help, breakdown;
} step_arguments;

typedef struct step_bench {
    const step_arguments *arguments;
    ms_comm *comm;
    ms_device *device;
    ms_model *model;
    ms_layout layout;
    ms_optimizer_config optimizer;
    ms_program *program;
    ms_engine *engine;
    int32_t *tokens, *targets;
    int64_t *samples;
    ms_micro_batch *batches;
    double *seconds;
} step_bench;

static bool parse_choice(const char *option, const char *text, const char *const *names, int *index) {
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index = i;
            return true;
        }
    }
    ms_cli_usage_error("bench step", "%s does not take \"%s\"", option, text);
    return false;
}

static bool parse_option(int option, step_arguments *arguments) {
    static const char *const computes[] = {"fp64", "fp32", "bf16", NULL};
    static const char *const recomputes[] = {"none", "selective", "full", NULL};
    const char *name = "bench step";
    int index = 0;
    switch (option) {
    case 'm':
        arguments->model = optarg;
        return true;
    case 'b':
        return ms_cli_int(name, "--batch", optarg, 1, 1 << 20, &arguments->batch);
    case 't':
        return ms_cli_int(name, "--sequence", optarg, 1, 1 << 24, &arguments->sequence);
    case 'k':
        return ms_cli_int(name, "--threads", optarg, 1, 4096, &arguments->threads);
    case 'n':
        return ms_cli_int(name, "--ranks", optarg, 1, MS_COMM_RANKS_MAX, &arguments->ranks);
    case 's':
        return ms_cli_int(name, "--steps", optarg, 1, 1 << 20, &arguments->steps);
    case 'z':
        return ms_cli_int(name, "--zero", optarg, 0, 1, &arguments->zero);
    case 'M':
        return ms_cli_int(name, "--micro-batches", optarg, 1, 1 << 20, &arguments->micro_batches);
    case 'c':
        if (!parse_choice("--compute", optarg, computes, &index)) {
            return false;
        }
        arguments->compute = (ms_dtype[]){MS_F64, MS_F32, MS_BF16}[index];
        return true;
    case 'r':
        if (!parse_choice("--recompute", optarg, recomputes, &index)) {
            return false;
        }
        arguments->recompute = (ms_recompute_policy)index;
        return true;
    case 'B':
        arguments->breakdown = true;
        return true;
    case 'j':
        arguments->json = true;
        return true;
    case 'h':
        arguments->help = true;
        return true;
    default:
        ms_cli_usage_error(name, "unknown option or missing value");
        return false;
    }
}

static int parse(int argc, char **argv, step_arguments *arguments) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},     {"batch", required_argument, NULL, 'b'},
        {"sequence", required_argument, NULL, 't'},  {"threads", required_argument, NULL, 'k'},
        {"ranks", required_argument, NULL, 'n'},     {"steps", required_argument, NULL, 's'},
        {"compute", required_argument, NULL, 'c'},   {"recompute", required_argument, NULL, 'r'},
        {"zero", required_argument, NULL, 'z'},      {"micro-batches", required_argument, NULL, 'M'},
        {"breakdown", no_argument, NULL, 'B'},       {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},            {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (!parse_option(option, arguments)) {
            return MS_EXIT_USAGE;
        }
    }
    return optind < argc ? ms_cli_usage_error("bench step", "unknown argument %s", argv[optind])
                         : MS_EXIT_OK;
}

static ms_status make_spec(const step_arguments *arguments, ms_model_spec *spec) {
    ms_model_spec gpt2 = {.family = MS_FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12,
                          .kv_heads = 12, .head_size = 64, .ffn = 3072, .positions = 1024,
                          .vocabulary = 50257, .bias = true, .tied = true,
                          .activation = MS_GELU_TANH, .norm_epsilon = 1e-5, .init_std = 0.02,
                          .rope_scaling = {.factor = 1}, .bos_id = -1, .eos_id = -1};
    if (strcmp(arguments->model, "gpt2-124m") == 0) {
        *spec = gpt2;
        return MS_OK;
    }
    if (strcmp(arguments->model, "char-6x384") == 0) {
        gpt2.layers = 6;
        gpt2.hidden = 384;
        gpt2.heads = gpt2.kv_heads = 6;
        gpt2.ffn = 1536;
        gpt2.positions = 256;
        gpt2.vocabulary = 256;
        *spec = gpt2;
        return MS_OK;
    }
    int count;
    const ms_config_section *const *sections = ms_train_sections(&count);
    ms_config_source source = {.path = arguments->model};
    ms_config *config;
    MS_TRY(ms_config_load(&source, sections, count, &config));
    ms_status status = ms_model_spec_from_config(ms_config_values(config, "model"), 256, spec);
    ms_config_destroy(config);
    return status;
}

static ms_status open_program(step_bench *bench) {
    const step_arguments *arguments = bench->arguments;
    int64_t ranks = ms_comm_size(bench->comm);
    bench->layout = (ms_layout){.mesh = {.size = {[MS_AXIS_TENSOR] = 1, [MS_AXIS_CONTEXT] = 1,
                                                  [MS_AXIS_EXPERT] = 1, [MS_AXIS_DATA] = ranks,
                                                  [MS_AXIS_PIPELINE] = 1}},
                                .rank = ms_comm_rank(bench->comm),
                                .zero = (int)arguments->zero,
                                .recompute = arguments->recompute};
    bench->layout.at = ms_mesh_coordinates(&bench->layout.mesh, bench->layout.rank);
    bench->layout.stage_layers[0] = (ms_segment){0, bench->model->spec.layers};
    bench->optimizer = (ms_optimizer_config){.name = MS_OPTIMIZER_ADAMW, .lr = 3e-4,
                                             .decay = MS_DECAY_CONSTANT, .beta1 = 0.9,
                                             .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    ms_program_request request = {.model = bench->model,
                                  .layout = &bench->layout,
                                  .mode = MS_MODE_TRAIN,
                                  .micro_batch_size = arguments->batch,
                                  .sequence = arguments->sequence,
                                  .micro_batches = arguments->micro_batches,
                                  .compute = arguments->compute,
                                  .optimizer = &bench->optimizer,
                                  .schedule = "1f1b",
                                  .bucket_bytes = (size_t)25 << 20,
                                  .device = bench->device};
    MS_TRY(ms_reduction_make(ranks * arguments->micro_batches, ranks, ranks, &request.reduction));
    MS_TRY(ms_program_create(&request, &bench->program));
    ms_engine_options options = {.program = bench->program, .comm = bench->comm, .overlap = true};
    MS_TRY(ms_engine_create(&options, &bench->engine));
    return ms_engine_initialize(bench->engine, 1);
}

static ms_status make_batches(step_bench *bench) {
    const step_arguments *arguments = bench->arguments;
    int64_t sequences = arguments->batch * arguments->micro_batches;
    size_t tokens = (size_t)(sequences * arguments->sequence);
    MS_TRY(MS_NEW(tokens, MS_MEMORY_PROCESS, &bench->tokens));
    MS_TRY(MS_NEW(tokens, MS_MEMORY_PROCESS, &bench->targets));
    MS_TRY(MS_NEW((size_t)sequences, MS_MEMORY_PROCESS, &bench->samples));
    MS_TRY(MS_NEW((size_t)arguments->micro_batches, MS_MEMORY_PROCESS, &bench->batches));
    MS_TRY(MS_NEW((size_t)arguments->steps, MS_MEMORY_PROCESS, &bench->seconds));
    ms_random_key key = ms_random_key_make((uint64_t)bench->layout.rank, "bench");
    uint32_t vocabulary = (uint32_t)bench->model->spec.vocabulary;
    for (size_t i = 0; i < tokens; i++) {
        ms_random_block block = ms_random_at(key, 0, i);
        bench->tokens[i] = (int32_t)(block.word[0] % vocabulary);
        bench->targets[i] = (int32_t)(block.word[1] % vocabulary);
    }
    for (int64_t m = 0; m < arguments->micro_batches; m++) {
        int64_t at = m * arguments->batch;
        bench->batches[m] = (ms_micro_batch){bench->tokens + at * arguments->sequence,
                                             bench->targets + at * arguments->sequence,
                                             bench->samples + at};
    }
    return MS_OK;
}

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static ms_status run_step(step_bench *bench, int64_t step, ms_step_result *result) {
    const step_arguments *arguments = bench->arguments;
    ms_step_input input = {.micro_batches = bench->batches,
                           .target_tokens = arguments->batch * arguments->micro_batches *
                                            arguments->sequence * ms_comm_size(bench->comm),
                           .step = step,
                           .learning_rate = bench->optimizer.lr,
                           .apply = true};
    return ms_engine_step(bench->engine, &input, result);
}

static ms_status print_breakdown(step_bench *bench) {
    ms_text text = {0};
    ms_step_result result;
    ms_engine_profile_begin(bench->engine);
    MS_TRY(run_step(bench, bench->arguments->steps + 2, &result));
    ms_status status = ms_engine_profile_end(bench->engine, &text);
    if (status == MS_OK && bench->layout.rank == 0) {
        fputs(text.bytes != NULL ? text.bytes : "", stdout);
    }
    ms_text_release(&text);
    return status;
}

static ms_status measure(step_bench *bench) {
    const step_arguments *arguments = bench->arguments;
    ms_step_result result = {0};
    for (int64_t step = 0; step < 2; step++) {
        MS_TRY(run_step(bench, step, &result));
    }
    for (int64_t step = 0; step < arguments->steps; step++) {
        MS_TRY(ms_comm_barrier(bench->comm, NULL));
        double start = ms_clock_s();
        MS_TRY(run_step(bench, step + 2, &result));
        bench->seconds[step] = ms_clock_s() - start;
    }
    qsort(bench->seconds, (size_t)arguments->steps, sizeof *bench->seconds, by_value);
    if (bench->layout.rank == 0) {
        double median = bench->seconds[arguments->steps / 2];
        int64_t ranks = ms_comm_size(bench->comm);
        double tokens = (double)(arguments->batch * arguments->micro_batches *
                                 arguments->sequence * ranks);
        struct rusage rusage;
        getrusage(RUSAGE_SELF, &rusage);
        const char *form =
            arguments->json
                ? "{\"model\": \"%s\", \"batch\": %lld, \"sequence\": %lld, \"ranks\": %lld, "
                  "\"threads\": %lld, \"compute\": \"%s\", \"step_ms\": %.3f, \"tokens_per_s\": %.3f, "
                  "\"gflops\": %.2f, \"memory_bytes\": %zu, \"peak_rss_mib\": %.1f, \"loss\": %.6f}\n"
                : "%s  batch %lld x %lld  ranks %lld  threads %lld  %s  step %.1f ms  %.1f tokens/s  "
                  "%.1f GFLOP/s  memory %zu  peak RSS %.0f MiB  loss %.4f\n";
        printf(form, arguments->model, arguments->batch, arguments->sequence, (long long)ranks,
               arguments->threads, ms_dtype_name(arguments->compute), median * 1e3,
               tokens / median, bench->program->flops * (double)(arguments->micro_batches * ranks) / median / 1e9,
               bench->program->memory.total_bytes, (double)rusage.ru_maxrss / 1024, result.loss);
    }
    return arguments->breakdown ? print_breakdown(bench) : MS_OK;
}

static ms_status run_all(step_bench *bench) {
    const step_arguments *arguments = bench->arguments;
    ms_model_spec spec;
    MS_TRY(make_spec(arguments, &spec));
    MS_TRY(ms_model_create(&spec, &bench->model));
    MS_TRY(ms_comm_create(NULL, &bench->comm));
    ms_thread_team_set((int)arguments->threads);
    ms_device_options device = {.name = "cpu", .threads = (int)arguments->threads,
                                .isa_max = MS_ISA_COUNT,
                                .variant = arguments->compute == MS_F64
                                               ? "ref"
                                               : ms_config_environment("MS_KERNEL")};
    MS_TRY(ms_device_open(&device, &bench->device));
    MS_TRY(open_program(bench));
    MS_TRY(make_batches(bench));
    return measure(bench);
}

static int run(const step_arguments *arguments) {
    step_bench bench = {.arguments = arguments};
    ms_status status = run_all(&bench);
    ms_engine_destroy(bench.engine);
    ms_program_destroy(bench.program);
    ms_comm_destroy(bench.comm);
    ms_device_close(bench.device);
    ms_model_destroy(bench.model);
    ms_free(bench.tokens);
    ms_free(bench.targets);
    ms_free(bench.samples);
    ms_free(bench.batches);
    ms_free(bench.seconds);
    return status == MS_OK ? MS_EXIT_OK : ms_cli_fail(status);
}

static int launch(const step_arguments *arguments, int argc, char **argv) {
    const char *again[64] = {"mindspeed", "bench"};
    for (int i = 0; i < argc && i < 60; i++) {
        again[i + 2] = argv[i];
    }
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    options.ranks = (int)arguments->ranks;
    options.argv = again;
    int exit_status = MS_EXIT_FAILURE;
    ms_status status = ms_launch_ranks(&options, &exit_status);
    return status == MS_OK ? exit_status : ms_cli_fail(status);
}

int ms_bench_step(int argc, char **argv) {
    step_arguments arguments = {.model = "char-6x384", .batch = 8, .sequence = 256, .threads = 1,
                                .ranks = 1, .steps = 5, .zero = 1, .micro_batches = 1,
                                .compute = MS_F32};
    int parsed = parse(argc, argv, &arguments);
    if (parsed != MS_EXIT_OK) {
        return parsed;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    bool launched = false;
    ms_rendezvous rendezvous;
    if (ms_rendezvous_read(&launched, &rendezvous) != MS_OK) {
        return ms_cli_fail(MS_ERR_CONFIG);
    }
    return arguments.ranks > 1 && !launched ? launch(&arguments, argc, argv) : run(&arguments);
}
