/* generate.c - `mindspeed generate CHECKPOINT --prompt TEXT`. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mindspeed/generate.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "format/json.h"

static const char usage[] =
    "usage: mindspeed generate CHECKPOINT [--prompt TEXT | --ids 1,2,3] [OPTIONS]\n\n"
    "CHECKPOINT is a run's directory, one of its checkpoints, or a Hugging Face model directory.\n"
    "  --prompt TEXT       text to go on from (default: a new line)\n"
    "  --ids LIST          token ids instead of text; ids are printed\n"
    "  --tokens N          tokens to write (default 200)\n"
    "  --temperature X     0 takes the most likely token (default 0.8)\n"
    "  --top-k K, --top-p P, --seed S, --threads N\n"
    "  --compute fp32|bf16 (default fp32)\n"
    "  --json              one object: text, ids, tokens_per_s\n";

typedef struct generate_arguments {
    const char *path, *prompt, *ids;
    long long tokens, top_k, seed, threads;
    double temperature, top_p;
    bool bf16, json, help;
} generate_arguments;

static bool parse_option(int option, generate_arguments *arguments) {
    const char *name = "generate";
    switch (option) {
    case 'p':
        arguments->prompt = optarg;
        return true;
    case 'i':
        arguments->ids = optarg;
        return true;
    case 'n':
        return ms_cli_int(name, "--tokens", optarg, 0, 1 << 30, &arguments->tokens);
    case 't':
        return ms_cli_real(name, "--temperature", optarg, 0, 1000, &arguments->temperature);
    case 'k':
        return ms_cli_int(name, "--top-k", optarg, 0, 1 << 30, &arguments->top_k);
    case 'P':
        return ms_cli_real(name, "--top-p", optarg, 1e-9, 1, &arguments->top_p);
    case 's':
        return ms_cli_int(name, "--seed", optarg, 0, INT64_MAX, &arguments->seed);
    case 'T':
        return ms_cli_int(name, "--threads", optarg, 1, 4096, &arguments->threads);
    case 'c':
        arguments->bf16 = strcmp(optarg, "bf16") == 0;
        if (!arguments->bf16 && strcmp(optarg, "fp32") != 0) {
            ms_cli_usage_error(name, "--compute takes fp32 or bf16, not \"%s\"", optarg);
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

static int parse(int argc, char **argv, generate_arguments *arguments) {
    static const struct option options[] = {
        {"prompt", required_argument, NULL, 'p'}, {"ids", required_argument, NULL, 'i'},
        {"tokens", required_argument, NULL, 'n'}, {"temperature", required_argument, NULL, 't'},
        {"top-k", required_argument, NULL, 'k'},  {"top-p", required_argument, NULL, 'P'},
        {"seed", required_argument, NULL, 's'},   {"threads", required_argument, NULL, 'T'},
        {"compute", required_argument, NULL, 'c'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
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
    if (optind != argc - 1) {
        return ms_cli_usage_error("generate", "give one CHECKPOINT");
    }
    arguments->path = argv[optind];
    return MS_EXIT_OK;
}

static ms_status feed_ids(ms_generator *generator, const char *list) {
    for (const char *at = list; *at != '\0';) {
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || id < 0 || id > INT32_MAX) {
            return ms_fail(MS_ERR_ARGUMENT, "--ids takes numbers with commas between, not \"%s\"", at);
        }
        int32_t token = (int32_t)id;
        MS_TRY(ms_generator_feed(generator, &token, 1, NULL));
        at = *end == ',' ? end + 1 : end;
    }
    return MS_OK;
}

static ms_status begin(ms_generator *generator, const generate_arguments *arguments) {
    if (arguments->ids != NULL) {
        return feed_ids(generator, arguments->ids);
    }
    const char *prompt = arguments->prompt != NULL ? arguments->prompt : "\n";
    MS_TRY(ms_generator_prompt(generator, prompt, strlen(prompt)));
    if (arguments->prompt != NULL && !arguments->json) {
        fputs(prompt, stdout);
    }
    return MS_OK;
}

static ms_status write_token(ms_generator *generator, const generate_arguments *arguments,
                             int32_t id, ms_text *text, ms_text *ids) {
    MS_TRY(ms_text_printf(ids, "%s%" PRId32, ids->length > 0 ? "," : "", id));
    if (arguments->ids != NULL) {
        if (!arguments->json) {
            printf("%" PRId32 "\n", id);
        }
        return MS_OK;
    }
    const char *bytes;
    size_t length;
    MS_TRY(ms_generator_bytes(generator, id, &bytes, &length));
    if (arguments->json) {
        return ms_text_append(text, bytes, length);
    }
    fwrite(bytes, 1, length, stdout);
    fflush(stdout);
    return MS_OK;
}

static ms_status print_json(const ms_text *text, const ms_text *ids, double tokens_per_s) {
    ms_text out = {0};
    size_t valid = ms_utf8_valid_prefix(text->bytes != NULL ? text->bytes : "", text->length);
    ms_status status = ms_text_append_z(&out, "{\"text\": ");
    if (status == MS_OK) {
        status = ms_json_append_string(&out, text->bytes != NULL ? text->bytes : "", valid);
    }
    if (status == MS_OK) {
        status = ms_text_printf(&out, ", \"ids\": [%s], \"tokens_per_s\": %.6g}",
                                ids->bytes != NULL ? ids->bytes : "", tokens_per_s);
    }
    if (status == MS_OK) {
        puts(out.bytes);
    }
    ms_text_release(&out);
    return status;
}

static ms_status write_all(ms_generator *generator, const generate_arguments *arguments) {
    ms_text text = {0}, ids = {0};
    MS_TRY(begin(generator, arguments));
    double start = ms_clock_s();
    int64_t room = ms_generator_capacity(generator) - ms_generator_length(generator);
    int64_t written = 0;
    ms_status status = MS_OK;
    for (; written < arguments->tokens && written < room && status == MS_OK; written++) {
        int32_t id = -1;
        status = ms_generator_next(generator, &id);
        if (status != MS_OK || ms_generator_is_end(generator, id)) {
            break;
        }
        status = write_token(generator, arguments, id, &text, &ids);
    }
    double seconds = ms_clock_s() - start;
    if (status == MS_OK && arguments->json) {
        status = print_json(&text, &ids, seconds > 0 ? (double)written / seconds : 0);
    } else if (arguments->ids == NULL) {
        printf("\n");
    }
    ms_text_release(&text);
    ms_text_release(&ids);
    return status;
}

int ms_command_generate(int argc, char **argv) {
    generate_arguments arguments = {.tokens = 200, .temperature = 0.8, .top_p = 1};
    int parsed = parse(argc, argv, &arguments);
    if (parsed != MS_EXIT_OK) {
        return parsed;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    ms_generate_options options = MS_GENERATE_OPTIONS_INIT;
    options.temperature = arguments.temperature;
    options.top_k = arguments.top_k;
    options.top_p = arguments.top_p;
    options.seed = (uint64_t)arguments.seed;
    options.threads = (int)arguments.threads;
    options.bf16 = arguments.bf16;
    ms_generator *generator;
    ms_status status = ms_generator_open(arguments.path, &options, &generator);
    if (status == MS_OK) {
        status = write_all(generator, &arguments);
        ms_generator_close(generator);
    }
    return status == MS_OK ? MS_EXIT_OK : ms_cli_fail(status);
}
