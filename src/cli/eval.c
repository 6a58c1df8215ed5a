/* eval.c - `mindspeed eval CHECKPOINT --data FILE`: loss and perplexity over a data set. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "train/loaded_model.h"

static const char usage[] =
    "usage: mindspeed eval CHECKPOINT --data PATH [OPTIONS]\n\n"
    "Mean loss (nats per token) and perplexity over PATH: text, .jsonl or a .bin/.idx prefix.\n"
    "  --sequence T        tokens of one sequence (default: the model's positions)\n"
    "  --batch B           sequences at once (default 8)\n"
    "  --from X            begin at this fraction of the data (0.9: the validation part of data.split 0.9)\n"
    "  --limit N           at most N sequences\n"
    "  --tokenizer NAME    when the directory has none: char, byte or a path\n"
    "  --compute fp32|bf16|fp64  --threads N  --json\n";

typedef struct eval_arguments {
    const char *path, *data, *tokenizer;
    long long sequence, batch, limit, threads;
    double from;
    ms_dtype compute;
    bool json, help;
} eval_arguments;

static bool parse_option(int option, eval_arguments *arguments) {
    const char *name = "eval";
    switch (option) {
    case 'd':
        arguments->data = optarg;
        return true;
    case 'k':
        arguments->tokenizer = optarg;
        return true;
    case 's':
        return ms_cli_int(name, "--sequence", optarg, 1, 1 << 24, &arguments->sequence);
    case 'b':
        return ms_cli_int(name, "--batch", optarg, 1, 1 << 20, &arguments->batch);
    case 'l':
        return ms_cli_int(name, "--limit", optarg, 1, INT64_MAX, &arguments->limit);
    case 'T':
        return ms_cli_int(name, "--threads", optarg, 1, 4096, &arguments->threads);
    case 'f':
        return ms_cli_real(name, "--from", optarg, 0, 0.9999, &arguments->from);
    case 'c':
        if (ms_dtype_parse(optarg, &arguments->compute) != MS_OK ||
            (arguments->compute != MS_F32 && arguments->compute != MS_BF16 &&
             arguments->compute != MS_F64)) {
            ms_cli_usage_error(name, "--compute takes fp32, bf16 or fp64, not \"%s\"", optarg);
            return false;
        }
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

static int parse(int argc, char **argv, eval_arguments *arguments) {
    static const struct option options[] = {
        {"data", required_argument, NULL, 'd'},    {"tokenizer", required_argument, NULL, 'k'},
        {"sequence", required_argument, NULL, 's'}, {"batch", required_argument, NULL, 'b'},
        {"limit", required_argument, NULL, 'l'},   {"threads", required_argument, NULL, 'T'},
        {"from", required_argument, NULL, 'f'},    {"compute", required_argument, NULL, 'c'},
        {"json", no_argument, NULL, 'j'},          {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (!parse_option(option, arguments)) {
            return MS_EXIT_USAGE;
        }
    }
    if (arguments->help) {
        return MS_EXIT_OK;
    }
    if (optind != argc - 1 || arguments->data == NULL) {
        return ms_cli_usage_error("eval", "give one CHECKPOINT and --data");
    }
    arguments->path = argv[optind];
    return MS_EXIT_OK;
}

typedef struct eval_figures {
    double loss, seconds;
    int64_t sequences, tokens;
} eval_figures;

static ms_status fill_batch(const ms_dataset *dataset, int64_t first, int64_t count, int64_t batch,
                            int64_t T, int32_t *tokens, int32_t *targets) {
    for (int64_t b = 0; b < batch; b++) {
        if (b < count) {
            MS_TRY(ms_dataset_sample(dataset, first + b, tokens + b * T, targets + b * T));
            continue;
        }
        for (int64_t t = 0; t < T; t++) {
            tokens[b * T + t] = 0;
            targets[b * T + t] = MS_IGNORED_TARGET;
        }
    }
    return MS_OK;
}

static ms_status evaluate(ms_loaded_model *loaded, const ms_dataset *dataset, int64_t limit,
                          eval_figures *figures) {
    int64_t T = loaded->program->request.sequence, batch = loaded->program->request.micro_batch_size;
    int32_t *tokens = NULL, *targets = NULL;
    int64_t *samples = NULL;
    double total = 0, start = ms_clock_s();
    int64_t count = ms_dataset_count(dataset);
    count = limit > 0 ? ms_min_i64(count, limit) : count;
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)(batch * T), MS_MEMORY_CALLER, &tokens), done);
    MS_TRY_GOTO(MS_NEW((size_t)(batch * T), MS_MEMORY_CALLER, &targets), done);
    MS_TRY_GOTO(MS_NEW((size_t)batch, MS_MEMORY_CALLER, &samples), done);
    for (int64_t first = 0; first < count; first += batch) {
        double sum;
        MS_TRY_GOTO(fill_batch(dataset, first, ms_min_i64(batch, count - first), batch, T, tokens,
                               targets), done);
        ms_micro_batch micro_batch = {tokens, targets, samples};
        MS_TRY_GOTO(ms_engine_evaluate(loaded->engine, &micro_batch, &sum), done);
        total += sum;
    }
    *figures = (eval_figures){.sequences = count, .tokens = count * T,
                              .loss = total / (double)(count * T),
                              .seconds = ms_clock_s() - start};
done:
    ms_free(tokens);
    ms_free(targets);
    ms_free(samples);
    return status;
}

static ms_status open_dataset(const eval_arguments *arguments, ms_loaded_model *loaded,
                              ms_dataset **dataset) {
    ms_config_entry entry = {.path = arguments->data, .weight = 1};
    ms_config_list list = {.count = 1, .entries = &entry};
    ms_data_config config = {.train = &list, .tokenizer = arguments->tokenizer, .split = 1,
                             .text_key = "text", .eod = true};
    bool part = arguments->from > 0;
    config.split = part ? arguments->from : 1;
    if (loaded->tokenizer == NULL) {
        MS_TRY(ms_data_tokenizer(&config, NULL, &loaded->tokenizer));
    }
    ms_dataset_options options = {.config = &config,
                                  .sequence = loaded->program->request.sequence,
                                  .split = part ? MS_SPLIT_VALID : MS_SPLIT_TRAIN,
                                  .tokenizer = loaded->tokenizer,
                                  .vocabulary_size = loaded->model->spec.vocabulary};
    return ms_dataset_open(&options, dataset);
}

static ms_status run(const eval_arguments *arguments, eval_figures *figures) {
    ms_load_request request = {.mode = MS_MODE_EVALUATE,
                               .batch = arguments->batch,
                               .sequence = arguments->sequence,
                               .compute = arguments->compute,
                               .threads = (int)arguments->threads};
    ms_loaded_model loaded;
    MS_TRY(ms_loaded_model_open(arguments->path, &request, &loaded));
    ms_dataset *dataset = NULL;
    ms_status status = open_dataset(arguments, &loaded, &dataset);
    if (status == MS_OK) {
        status = evaluate(&loaded, dataset, arguments->limit, figures);
    }
    ms_dataset_close(dataset);
    ms_loaded_model_close(&loaded);
    return status;
}

int ms_command_eval(int argc, char **argv) {
    eval_arguments arguments = {.batch = 8, .compute = MS_F32};
    int parsed = parse(argc, argv, &arguments);
    if (parsed != MS_EXIT_OK) {
        return parsed;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    eval_figures figures;
    ms_status status = run(&arguments, &figures);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    printf(arguments.json ? "{\"loss\": %.17g, \"perplexity\": %.17g, \"sequences\": %" PRId64
                            ", \"tokens\": %" PRId64 ", \"seconds\": %.3f}\n"
                          : "loss %.6f  perplexity %.3f  over %" PRId64 " sequences, %" PRId64
                            " tokens, %.1f s\n",
           figures.loss, exp(figures.loss), figures.sequences, figures.tokens, figures.seconds);
    return MS_EXIT_OK;
}
