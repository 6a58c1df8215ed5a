/*
 * data.c - `mindspeed data build|info|merge`.
 *
 * Main path: [main.c] -> this file -> data/dataset_build.h. Data files are text, .jsonl or
 * Megatron's pairs PREFIX.bin and PREFIX.idx.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "data/dataset_build.h"
#include "format/json.h"

static const char usage[] =
    "usage: mindspeed data build FILE... --output PREFIX [OPTIONS]\n"
    "       mindspeed data info PATH [--scan] [--text-key KEY] [--json]\n"
    "       mindspeed data merge PREFIX... --output PREFIX [--json]\n\n"
    "  build     text or .jsonl files to PREFIX.bin, PREFIX.idx (Megatron's) and "
    "PREFIX.tokenizer/\n"
    "    --tokenizer NAME  char (the characters of the files, default), byte, or the path of a\n"
    "                      tokenizer.json, its directory, or a .tiktoken file\n"
    "    --documents KIND  what a document is in text: file (default), paragraphs (each ends\n"
    "                      with an empty line) or lines; a .jsonl file has one a line\n"
    "    --text-key KEY    of the text in an object of a .jsonl file (default text)\n"
    "    --append-eod      the tokenizer's end-of-text token after each document\n"
    "    --dtype T         uint16 or int32 (default: the smaller that holds all ids)\n"
    "    --threads N       (default: all cores); the files do not depend on it\n"
    "  info      what a text, a .jsonl file or a pair holds\n"
    "    --scan            reads all tokens of a pair, for the smallest and the largest id\n"
    "  merge     joins pairs in the order given\n"
    "  --json    one object instead of lines for people\n";

typedef struct data_arguments {
    const char *action, *output, *tokenizer, *text_key;
    const char *const *paths;
    int path_count;
    ms_documents documents;
    bool append_eod, dtype_given, scan, json, help;
    ms_dtype dtype;
    long long threads;
} data_arguments;

static bool parse_documents(const char *text, ms_documents *documents) {
    static const char *const names[] = {[MS_DOCUMENTS_FILE] = "file",
                                        [MS_DOCUMENTS_PARAGRAPHS] = "paragraphs",
                                        [MS_DOCUMENTS_LINES] = "lines"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *documents = (ms_documents)i;
            return true;
        }
    }
    ms_cli_usage_error("data", "--documents takes file, paragraphs or lines, not \"%s\"", text);
    return false;
}

static bool parse_option(int option, data_arguments *arguments) {
    switch (option) {
    case 'o':
        arguments->output = optarg;
        return true;
    case 't':
        arguments->tokenizer = optarg;
        return true;
    case 'k':
        arguments->text_key = optarg;
        return true;
    case 'd':
        return parse_documents(optarg, &arguments->documents);
    case 'e':
        arguments->append_eod = true;
        return true;
    case 'y':
        arguments->dtype_given = true;
        if (ms_dtype_parse(optarg, &arguments->dtype) != MS_OK ||
            (arguments->dtype != MS_U16 && arguments->dtype != MS_I32)) {
            ms_cli_usage_error("data", "--dtype takes uint16 or int32, not \"%s\"", optarg);
            return false;
        }
        return true;
    case 'n':
        return ms_cli_int("data", "--threads", optarg, 1, 4096, &arguments->threads);
    case 's':
        arguments->scan = true;
        return true;
    case 'j':
        arguments->json = true;
        return true;
    case 'h':
        arguments->help = true;
        return true;
    default:
        ms_cli_usage_error("data", "unknown option or missing value");
        return false;
    }
}

static int parse(int argc, char **argv, data_arguments *arguments) {
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"tokenizer", required_argument, NULL, 't'},
                                            {"text-key", required_argument, NULL, 'k'},
                                            {"documents", required_argument, NULL, 'd'},
                                            {"append-eod", no_argument, NULL, 'e'},
                                            {"dtype", required_argument, NULL, 'y'},
                                            {"threads", required_argument, NULL, 'n'},
                                            {"scan", no_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "ho:", options, NULL)) != -1;) {
        if (!parse_option(option, arguments)) {
            return MS_EXIT_USAGE;
        }
    }
    if (arguments->help) {
        return MS_EXIT_OK;
    }
    if (optind >= argc) {
        return ms_cli_usage_error("data", "say what to do: build, info or merge");
    }
    arguments->action = argv[optind];
    arguments->paths = (const char *const *)(argv + optind + 1);
    arguments->path_count = argc - optind - 1;
    return MS_EXIT_OK;
}

/* Whether an option was given that the action has no use for. */
static int check(const data_arguments *arguments) {
    const char *action = arguments->action;
    bool build = strcmp(action, "build") == 0, info = strcmp(action, "info") == 0;
    if (!build && !info && strcmp(action, "merge") != 0) {
        return ms_cli_usage_error("data", "\"%s\" is not build, info or merge", action);
    }
    if (arguments->path_count < 1 || (info && arguments->path_count != 1)) {
        return ms_cli_usage_error("data", "%s needs %s", action, info ? "one PATH" : "input files");
    }
    if ((arguments->output == NULL) != info) {
        return ms_cli_usage_error(
            "data", info ? "%s takes no --output" : "%s needs --output PREFIX", action);
    }
    if (!build &&
        (arguments->tokenizer != NULL || arguments->append_eod || arguments->dtype_given ||
         arguments->threads != 0 || arguments->documents != MS_DOCUMENTS_FILE)) {
        return ms_cli_usage_error("data", "%s takes none of build's options", action);
    }
    return MS_EXIT_OK;
}

/* What was printed reached its reader, or the exit status says so. */
static int finish_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return ms_cli_fail(ms_fail(MS_ERR_IO, "cannot write to the standard output"));
    }
    return MS_EXIT_OK;
}

/* ---- build ---- */

static void show_progress(const ms_build_progress *progress, void *context) {
    enum { WIDTH = 24 };
    *(bool *)context = true;
    double share = progress->bytes_total > 0
                       ? (double)progress->bytes_done / (double)progress->bytes_total
                       : 1;
    char bar[WIDTH + 1], rate[32], left[32];
    for (int i = 0; i < WIDTH; i++) {
        bar[i] = (double)i < share * WIDTH ? '#' : '.';
    }
    bar[WIDTH] = '\0';
    double seconds = progress->seconds > 1e-9 ? progress->seconds : 1e-9;
    ms_format_bytes((uint64_t)((double)progress->bytes_done / seconds), rate, sizeof rate);
    ms_format_duration(share > 0 ? seconds / share - seconds : 0, left, sizeof left);
    fprintf(stderr, "\r[%s] %3.0f %%, %s/s, %" PRId64 " documents, %s left \033[K", bar,
            100 * share, rate, progress->documents, left);
    fflush(stderr);
}

static void print_json_string(const char *key, const char *value) {
    ms_text text = {0};
    if (ms_json_append_string(&text, value, strlen(value)) == MS_OK) {
        printf("\"%s\": %s, ", key, text.bytes);
    }
    ms_text_release(&text);
}

static int print_result(const data_arguments *arguments, const ms_build_result *result) {
    double seconds = result->seconds > 1e-9 ? result->seconds : 1e-9;
    if (arguments->json) {
        printf("{");
        print_json_string("output", arguments->output);
        printf("\"documents\": %" PRId64 ", \"tokens\": %" PRId64 ", \"empty_documents\": %" PRId64
               ", \"dtype\": \"%s\", \"input_bytes\": %" PRIu64
               ", \"seconds\": %.6f, \"tokens_per_s\": %.1f}\n",
               result->documents, result->tokens, result->empty_documents,
               ms_dtype_name(result->dtype), result->input_bytes, result->seconds,
               (double)result->tokens / seconds);
        return finish_output();
    }
    char documents[32], tokens[32], time[32], bytes[32], rate[32];
    printf("%s.bin, %s.idx: %s documents, %s tokens (%s)", arguments->output, arguments->output,
           ms_format_count(result->documents, documents, sizeof documents),
           ms_format_count(result->tokens, tokens, sizeof tokens), ms_dtype_name(result->dtype));
    if (result->empty_documents > 0) {
        printf(", %" PRId64 " empty documents left out", result->empty_documents);
    }
    printf("; %s in %s, %s/s\n", ms_format_bytes(result->input_bytes, bytes, sizeof bytes),
           ms_format_duration(result->seconds, time, sizeof time),
           ms_format_bytes((uint64_t)((double)result->input_bytes / seconds), rate, sizeof rate));
    return finish_output();
}

static int build(const data_arguments *arguments) {
    ms_tokenizer *tokenizer = NULL;
    const char *name = arguments->tokenizer != NULL ? arguments->tokenizer : "char";
    ms_status status = ms_data_tokenizer_named(name, arguments->paths, arguments->path_count,
                                               arguments->text_key, &tokenizer);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    bool shown = false;
    ms_build_options options = {.inputs = arguments->paths,
                                .input_count = arguments->path_count,
                                .output = arguments->output,
                                .tokenizer = tokenizer,
                                .text_key = arguments->text_key,
                                .documents = arguments->documents,
                                .append_eod = arguments->append_eod,
                                .dtype_given = arguments->dtype_given,
                                .dtype = arguments->dtype,
                                .threads = arguments->threads > 0 ? (int)arguments->threads
                                                                  : ms_cpu_count(),
                                .progress = isatty(STDERR_FILENO) ? show_progress : NULL,
                                .context = &shown};
    ms_build_result result;
    status = ms_dataset_build(&options, &result);
    if (shown) {
        fputc('\n', stderr);
    }
    ms_tokenizer_destroy(tokenizer);
    return status == MS_OK ? print_result(arguments, &result) : ms_cli_fail(status);
}

static int merge(const data_arguments *arguments) {
    ms_build_result result;
    ms_status status =
        ms_dataset_merge(arguments->paths, arguments->path_count, arguments->output, &result);
    return status == MS_OK ? print_result(arguments, &result) : ms_cli_fail(status);
}

/* ---- info ---- */

static void print_indexed(const ms_data_facts *facts, bool scan, bool json) {
    if (json) {
        printf("\"dtype\": \"%s\", \"documents\": %" PRId64 ", \"sequences\": %" PRId64
               ", \"tokens\": %" PRId64 ", \"document_tokens_min\": %" PRId64
               ", \"document_tokens_max\": %" PRId64,
               ms_dtype_name(facts->dtype), facts->documents, facts->sequences, facts->tokens,
               facts->document_tokens_min, facts->document_tokens_max);
        if (scan) {
            printf(", \"id_min\": %" PRId32 ", \"id_max\": %" PRId32, facts->id_min, facts->id_max);
        }
        return;
    }
    char tokens[32], documents[32], sequences[32];
    printf("%s tokens (%s), %s documents of %" PRId64 " to %" PRId64 " tokens, %s sequences",
           ms_format_count(facts->tokens, tokens, sizeof tokens), ms_dtype_name(facts->dtype),
           ms_format_count(facts->documents, documents, sizeof documents),
           facts->document_tokens_min, facts->document_tokens_max,
           ms_format_count(facts->sequences, sequences, sizeof sequences));
    if (scan) {
        printf(", ids %" PRId32 " to %" PRId32, facts->id_min, facts->id_max);
    }
}

static void print_text(const ms_data_facts *facts, bool json) {
    bool jsonl = strcmp(facts->kind, "jsonl") == 0;
    int64_t count = jsonl ? facts->documents : facts->lines;
    if (json) {
        printf("\"%s\": %" PRId64 ", \"characters\": %" PRId64
               ", \"distinct_characters\": %" PRId64,
               jsonl ? "documents" : "lines", count, facts->characters, facts->distinct_characters);
        return;
    }
    char counted[32], characters[32], distinct[32];
    printf("%s %s, %s characters, %s of them distinct",
           ms_format_count(count, counted, sizeof counted), jsonl ? "documents" : "lines",
           ms_format_count(facts->characters, characters, sizeof characters),
           ms_format_count(facts->distinct_characters, distinct, sizeof distinct));
}

static int info(const data_arguments *arguments) {
    ms_data_facts facts;
    const char *path = arguments->paths[0];
    ms_status status = ms_data_inspect(path, arguments->text_key, arguments->scan, &facts);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    if (arguments->json) {
        printf("{");
        print_json_string("path", path);
        printf("\"kind\": \"%s\", \"bytes\": %" PRIu64 ", ", facts.kind, facts.bytes);
    } else {
        char bytes[32];
        printf("%s: %s, %s, ", path, facts.kind, ms_format_bytes(facts.bytes, bytes, sizeof bytes));
    }
    if (strcmp(facts.kind, "indexed") == 0) {
        print_indexed(&facts, arguments->scan, arguments->json);
    } else {
        print_text(&facts, arguments->json);
    }
    printf(arguments->json ? "}\n" : "\n");
    return finish_output();
}

int ms_command_data(int argc, char **argv) {
    data_arguments arguments = {0};
    int status = parse(argc, argv, &arguments);
    if (status == MS_EXIT_OK && arguments.help) {
        fputs(usage, stdout);
        return finish_output();
    }
    if (status == MS_EXIT_OK) {
        status = check(&arguments);
    }
    if (status != MS_EXIT_OK) {
        return status;
    }
    if (strcmp(arguments.action, "info") == 0) {
        return info(&arguments);
    }
    return strcmp(arguments.action, "merge") == 0 ? merge(&arguments) : build(&arguments);
}
