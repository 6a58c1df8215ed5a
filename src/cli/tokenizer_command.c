/*
 * tokenizer_command.c - `mindspeed tokenizer train|encode|decode|info`.
 *
 * Main path: [main.c] -> this file -> format/tokenizer.h. A TOKENIZER is `byte`, a directory or a
 * file, as data.tokenizer takes it. encode and decode are each other's inverse on the command line
 * as well: decode writes the bytes and nothing else.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "format/json.h"
#include "format/jsonl.h"

#define SPECIAL_TOKENS_MAX 64
#define INPUT_BYTES_MAX ((size_t)1 << 32)
#define VOCABULARY_DEFAULT 8192

static const char usage[] =
    "usage: mindspeed tokenizer train FILE... --output DIRECTORY [OPTIONS]\n"
    "       mindspeed tokenizer encode TOKENIZER [TEXT | --file FILE] [OPTIONS]\n"
    "       mindspeed tokenizer decode TOKENIZER [ID...] [--skip-special] [--json]\n"
    "       mindspeed tokenizer info TOKENIZER [--json]\n\n"
    "TOKENIZER is byte, the path of a tokenizer.json, its directory, or a .tiktoken file.\n"
    "  train     a vocabulary from text or .jsonl files, as DIRECTORY/tokenizer.json\n"
    "    --kind K          bpe (byte-level, default), char or byte\n"
    "    --vocabulary N    tokens, of bpe (default 8192)\n"
    "    --min-count N     of a pair to be merged (default 2)\n"
    "    --pattern REGEX   that cuts text into words (default GPT-2's)\n"
    "    --special TOKEN   may be repeated (default <|endoftext|>; \"\" for none)\n"
    "    --text-key KEY    of the text in an object of a .jsonl file (default text)\n"
    "  encode    ids of a text; without TEXT and --file, of the standard input\n"
    "    --special-text    special tokens written in the text become their ids\n"
    "    --bos, --eos      the tokens that begin and end a text, if the tokenizer has them\n"
    "  decode    bytes of ids; without IDs, of those on the standard input\n"
    "    --skip-special    leaves special tokens out\n"
    "  info      kind, size and special tokens\n"
    "  --json    one object instead of lines for people\n";

typedef struct tokenizer_arguments {
    const char *action, *output, *file, *kind, *pattern, *text_key;
    const char *special[SPECIAL_TOKENS_MAX];
    const char *const *rest; /* what follows the action */
    int rest_count, special_count;
    bool special_given, json, help;
    unsigned encode_flags, decode_flags;
    long long vocabulary, count_min;
} tokenizer_arguments;

static bool add_special(tokenizer_arguments *arguments, const char *token) {
    arguments->special_given = true;
    if (token[0] == '\0') {
        return true;
    }
    if (arguments->special_count == SPECIAL_TOKENS_MAX) {
        ms_cli_usage_error("tokenizer", "at most %d special tokens", SPECIAL_TOKENS_MAX);
        return false;
    }
    arguments->special[arguments->special_count++] = token;
    return true;
}

static bool parse_option(int option, tokenizer_arguments *arguments) {
    switch (option) {
    case 'o':
        arguments->output = optarg;
        return true;
    case 'K':
        arguments->kind = optarg;
        return true;
    case 'v':
        return ms_cli_int("tokenizer", "--vocabulary", optarg, 256, MS_TOKENIZER_VOCABULARY_MAX,
                          &arguments->vocabulary);
    case 'm':
        return ms_cli_int("tokenizer", "--min-count", optarg, 1, INT64_MAX, &arguments->count_min);
    case 'p':
        arguments->pattern = optarg;
        return true;
    case 's':
        return add_special(arguments, optarg);
    case 'k':
        arguments->text_key = optarg;
        return true;
    case 'f':
        arguments->file = optarg;
        return true;
    case 'S':
        arguments->encode_flags |= MS_ENCODE_SPECIAL;
        return true;
    case 'B':
        arguments->encode_flags |= MS_ENCODE_BOS;
        return true;
    case 'E':
        arguments->encode_flags |= MS_ENCODE_EOS;
        return true;
    case 'x':
        arguments->decode_flags |= MS_DECODE_SKIP_SPECIAL;
        return true;
    case 'j':
        arguments->json = true;
        return true;
    case 'h':
        arguments->help = true;
        return true;
    default:
        ms_cli_usage_error("tokenizer", "unknown option or missing value");
        return false;
    }
}

static int parse(int argc, char **argv, tokenizer_arguments *arguments) {
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"kind", required_argument, NULL, 'K'},
                                            {"vocabulary", required_argument, NULL, 'v'},
                                            {"min-count", required_argument, NULL, 'm'},
                                            {"pattern", required_argument, NULL, 'p'},
                                            {"special", required_argument, NULL, 's'},
                                            {"text-key", required_argument, NULL, 'k'},
                                            {"file", required_argument, NULL, 'f'},
                                            {"special-text", no_argument, NULL, 'S'},
                                            {"bos", no_argument, NULL, 'B'},
                                            {"eos", no_argument, NULL, 'E'},
                                            {"skip-special", no_argument, NULL, 'x'},
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
        return ms_cli_usage_error("tokenizer", "say what to do: train, encode, decode or info");
    }
    arguments->action = argv[optind];
    arguments->rest = (const char *const *)(argv + optind + 1);
    arguments->rest_count = argc - optind - 1;
    return MS_EXIT_OK;
}

static int check(const tokenizer_arguments *arguments) {
    const char *action = arguments->action;
    bool train = strcmp(action, "train") == 0, encode = strcmp(action, "encode") == 0;
    bool decode = strcmp(action, "decode") == 0, info = strcmp(action, "info") == 0;
    if (!train && !encode && !decode && !info) {
        return ms_cli_usage_error("tokenizer", "\"%s\" is not train, encode, decode or info",
                                  action);
    }
    if (arguments->rest_count < 1) {
        return ms_cli_usage_error("tokenizer", "%s needs %s", action,
                                  train ? "input files" : "a TOKENIZER");
    }
    int rest_max = info ? 1 : encode ? (arguments->file != NULL ? 1 : 2) : INT32_MAX;
    if (arguments->rest_count > rest_max) {
        return ms_cli_usage_error("tokenizer", "%s takes no \"%s\"", action,
                                  arguments->rest[rest_max]);
    }
    if ((arguments->output != NULL) != train) {
        return ms_cli_usage_error(
            "tokenizer", train ? "%s needs --output DIRECTORY" : "%s takes no --output", action);
    }
    bool of_train = arguments->kind != NULL || arguments->vocabulary != 0 ||
                    arguments->count_min != 0 || arguments->pattern != NULL ||
                    arguments->special_given || arguments->text_key != NULL;
    bool of_encode = arguments->encode_flags != 0 || arguments->file != NULL;
    if ((of_train && !train) || (of_encode && !encode) ||
        (arguments->decode_flags != 0 && !decode)) {
        return ms_cli_usage_error("tokenizer", "an option does not belong to %s", action);
    }
    return MS_EXIT_OK;
}

/* ---- shared ---- */

static int finish_output(ms_status status) {
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return ms_cli_fail(ms_fail(MS_ERR_IO, "cannot write to the standard output"));
    }
    return MS_EXIT_OK;
}

static ms_status load(const char *name, ms_tokenizer **tokenizer) {
    if (strcmp(name, "char") == 0) {
        return ms_fail(MS_ERR_ARGUMENT, "a char tokenizer belongs to a text: name the directory "
                                        "where one is stored");
    }
    return ms_data_tokenizer_named(name, NULL, 0, NULL, tokenizer);
}

static ms_status read_input(ms_text *text) {
    char buffer[65536];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
        MS_TRY(ms_text_append(text, buffer, got));
        if (text->length > INPUT_BYTES_MAX) {
            return ms_fail(MS_ERR_RANGE, "more than %zu bytes on the standard input",
                           INPUT_BYTES_MAX);
        }
    }
    return ferror(stdin) ? ms_fail(MS_ERR_IO, "standard input: %s", strerror(errno)) : MS_OK;
}

/* JSON is UTF-8: each byte that is not becomes U+FFFD. */
static ms_status append_json_bytes(ms_text *json, const char *bytes, size_t length) {
    ms_text clean = {0};
    ms_status status = MS_OK;
    for (size_t at = 0; at < length && status == MS_OK;) {
        size_t valid = ms_utf8_valid_prefix(bytes + at, length - at);
        status = ms_text_append(&clean, bytes + at, valid);
        at += valid;
        if (at < length && status == MS_OK) {
            status = ms_text_append_z(&clean, "\xef\xbf\xbd");
            at++;
        }
    }
    if (status == MS_OK) {
        status = ms_json_append_string(json, clean.bytes != NULL ? clean.bytes : "", clean.length);
    }
    ms_text_release(&clean);
    return status;
}

/* ---- train ---- */

static ms_status add_file(ms_tokenizer_trainer *trainer, const char *path) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_status status = map.bytes > 0
                           ? ms_tokenizer_trainer_add(trainer, (const char *)map.data, map.bytes)
                           : MS_OK;
    if (status != MS_OK) {
        ms_error_prefix("%s", path);
    }
    ms_file_map_close(&map);
    return status;
}

static ms_status add_objects(ms_tokenizer_trainer *trainer, const char *path, const char *key) {
    ms_jsonl_reader *reader;
    MS_TRY(ms_jsonl_reader_open(path, NULL, &reader));
    const char *text = NULL;
    size_t length = 0;
    ms_status status;
    while ((status = ms_jsonl_reader_next_text(reader, key, &text, &length)) == MS_OK &&
           text != NULL) {
        status = ms_tokenizer_trainer_add(trainer, text, length);
        if (status != MS_OK) {
            ms_error_prefix("%s:%" PRId64, path, ms_jsonl_reader_line(reader));
            break;
        }
    }
    ms_jsonl_reader_close(reader);
    return status;
}

static bool is_jsonl(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot != NULL &&
           (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0 || strcmp(dot, ".json") == 0);
}

static void show_progress(int64_t done, int64_t total, void *context) {
    *(bool *)context = true;
    fprintf(stderr, "\r%" PRId64 " of %" PRId64 " tokens \033[K", done, total);
    fflush(stderr);
}

static ms_status train_bpe(const tokenizer_arguments *arguments, ms_tokenizer **tokenizer) {
    static const char *const usual[] = {"<|endoftext|>"};
    bool given = arguments->special_given;
    ms_tokenizer_train_options options = {
        .vocabulary_size = arguments->vocabulary > 0 ? arguments->vocabulary : VOCABULARY_DEFAULT,
        .pair_count_min = arguments->count_min,
        .pattern = arguments->pattern,
        .special_tokens = given ? arguments->special : usual,
        .special_token_count = given ? arguments->special_count : 1};
    ms_tokenizer_trainer *trainer;
    MS_TRY(ms_tokenizer_trainer_create(&options, &trainer));
    const char *key = arguments->text_key != NULL ? arguments->text_key : "text";
    ms_status status = MS_OK;
    for (int i = 0; i < arguments->rest_count && status == MS_OK; i++) {
        const char *path = arguments->rest[i];
        status = is_jsonl(path) ? add_objects(trainer, path, key) : add_file(trainer, path);
    }
    bool shown = false;
    if (status == MS_OK) {
        status = ms_tokenizer_trainer_finish(trainer, isatty(STDERR_FILENO) ? show_progress : NULL,
                                             &shown, tokenizer);
    }
    if (shown) {
        fputc('\n', stderr);
    }
    ms_tokenizer_trainer_destroy(trainer);
    return status;
}

static int train(const tokenizer_arguments *arguments) {
    const char *kind = arguments->kind != NULL ? arguments->kind : "bpe";
    bool bpe = strcmp(kind, "bpe") == 0;
    if (!bpe && strcmp(kind, "char") != 0 && strcmp(kind, "byte") != 0) {
        return ms_cli_usage_error("tokenizer", "--kind takes bpe, char or byte, not \"%s\"", kind);
    }
    double begun_s = ms_clock_s();
    ms_tokenizer *tokenizer = NULL;
    ms_status status = bpe ? train_bpe(arguments, &tokenizer)
                           : ms_data_tokenizer_named(kind, arguments->rest, arguments->rest_count,
                                                     arguments->text_key, &tokenizer);
    if (status == MS_OK) {
        status = ms_directory_make(arguments->output);
    }
    if (status == MS_OK) {
        status = ms_tokenizer_save(tokenizer, arguments->output);
    }
    if (status == MS_OK) {
        double seconds = ms_clock_s() - begun_s;
        int64_t size = ms_tokenizer_vocabulary_size(tokenizer);
        if (arguments->json) {
            printf("{\"kind\": \"%s\", \"vocabulary\": %" PRId64 ", \"seconds\": %.6f}\n", kind,
                   size, seconds);
        } else {
            char time[32];
            printf("%s/tokenizer.json: %" PRId64 " tokens, in %s\n", arguments->output, size,
                   ms_format_duration(seconds, time, sizeof time));
        }
    }
    ms_tokenizer_destroy(tokenizer);
    return finish_output(status);
}

/* ---- encode ---- */

static ms_status get_text(const tokenizer_arguments *arguments, ms_text *text) {
    if (arguments->file != NULL) {
        return ms_file_read(arguments->file, INPUT_BYTES_MAX, text);
    }
    if (arguments->rest_count > 1) {
        return ms_text_append_z(text, arguments->rest[1]);
    }
    return read_input(text);
}

static void print_ids(const ms_tokens *tokens, size_t bytes, bool json) {
    printf("%s", json ? "{\"ids\": [" : "");
    for (size_t i = 0; i < tokens->count; i++) {
        printf("%s%" PRId32, i == 0 ? "" : json ? ", " : " ", tokens->ids[i]);
    }
    if (json) {
        printf("], \"count\": %zu, \"bytes\": %zu}", tokens->count, bytes);
    }
    printf("\n");
}

static ms_status encode_text(const tokenizer_arguments *arguments, const ms_tokenizer *tokenizer,
                             ms_text *text, ms_tokens *tokens) {
    MS_TRY(get_text(arguments, text));
    ms_tokenizer_scratch *scratch;
    MS_TRY(ms_tokenizer_scratch_create(tokenizer, &scratch));
    ms_status status =
        ms_tokenizer_encode(tokenizer, scratch, text->bytes != NULL ? text->bytes : "",
                            text->length, arguments->encode_flags, tokens);
    ms_tokenizer_scratch_destroy(scratch);
    if (status != MS_OK && arguments->file != NULL) {
        ms_error_prefix("%s", arguments->file);
    }
    return status;
}

static int encode(const tokenizer_arguments *arguments) {
    ms_tokenizer *tokenizer = NULL;
    ms_text text = {0};
    ms_tokens tokens = {0};
    ms_status status = load(arguments->rest[0], &tokenizer);
    if (status == MS_OK) {
        status = encode_text(arguments, tokenizer, &text, &tokens);
    }
    if (status == MS_OK) {
        print_ids(&tokens, text.length, arguments->json);
    }
    ms_tokens_release(&tokens);
    ms_text_release(&text);
    ms_tokenizer_destroy(tokenizer);
    return finish_output(status);
}

/* ---- decode ---- */

static ms_status parse_ids(const char *list, ms_tokens *tokens) {
    for (const char *at = list; *(at += strspn(at, " \t\r\n,[]")) != '\0';) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX ||
            strchr(" \t\r\n,[]", *end) == NULL) {
            return ms_fail(MS_ERR_ARGUMENT, "\"%.*s\" is not a token id",
                           (int)ms_min_i64((int64_t)strcspn(at, " \t\r\n,[]"), 40), at);
        }
        MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + 1,
                                sizeof *tokens->ids, MS_MEMORY_CALLER));
        tokens->ids[tokens->count++] = (int32_t)id;
        at = end;
    }
    return MS_OK;
}

static ms_status get_ids(const tokenizer_arguments *arguments, ms_tokens *tokens) {
    for (int i = 1; i < arguments->rest_count; i++) {
        MS_TRY(parse_ids(arguments->rest[i], tokens));
    }
    if (arguments->rest_count > 1) {
        return MS_OK;
    }
    ms_text text = {0};
    ms_status status = read_input(&text);
    if (status == MS_OK && text.length > 0) {
        status = strlen(text.bytes) == text.length
                     ? parse_ids(text.bytes, tokens)
                     : ms_fail(MS_ERR_ARGUMENT, "the standard input holds bytes, not ids");
    }
    ms_text_release(&text);
    return status;
}

static ms_status print_text(const ms_text *text, size_t id_count, bool json) {
    if (!json) {
        fwrite(text->bytes != NULL ? text->bytes : "", 1, text->length, stdout);
        if (isatty(STDOUT_FILENO)) {
            fputc('\n', stdout);
        }
        return MS_OK;
    }
    ms_text out = {0};
    ms_status status = append_json_bytes(&out, text->bytes, text->length);
    if (status == MS_OK) {
        printf("{\"text\": %s, \"bytes\": %zu, \"count\": %zu}\n", out.bytes, text->length,
               id_count);
    }
    ms_text_release(&out);
    return status;
}

static int decode(const tokenizer_arguments *arguments) {
    ms_tokenizer *tokenizer = NULL;
    ms_text text = {0};
    ms_tokens tokens = {0};
    ms_status status = load(arguments->rest[0], &tokenizer);
    if (status == MS_OK) {
        status = get_ids(arguments, &tokens);
    }
    if (status == MS_OK) {
        status = ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, arguments->decode_flags,
                                     &text);
    }
    if (status == MS_OK) {
        status = print_text(&text, tokens.count, arguments->json);
    }
    ms_tokens_release(&tokens);
    ms_text_release(&text);
    ms_tokenizer_destroy(tokenizer);
    return finish_output(status);
}

/* ---- info ---- */

static ms_status describe(const ms_tokenizer *tokenizer, const char *path, bool json,
                          ms_text *out) {
    static const char *const kinds[] = {[MS_TOKENIZER_CHAR] = "char",
                                        [MS_TOKENIZER_BYTE] = "byte",
                                        [MS_TOKENIZER_BYTE_BPE] = "byte_bpe",
                                        [MS_TOKENIZER_CODE_POINT_BPE] = "code_point_bpe"};
    const char *kind = kinds[ms_tokenizer_kind_get(tokenizer)];
    int64_t size = ms_tokenizer_vocabulary_size(tokenizer);
    int32_t bos = ms_tokenizer_bos(tokenizer), eos = ms_tokenizer_eos(tokenizer);
    int32_t pad = ms_tokenizer_pad(tokenizer);
    if (json) {
        MS_TRY(ms_text_printf(out,
                              "{\"kind\": \"%s\", \"vocabulary\": %" PRId64 ", \"bos\": %" PRId32
                              ", \"eos\": %" PRId32 ", \"pad\": %" PRId32 ", \"special\": {",
                              kind, size, bos, eos, pad));
    } else {
        MS_TRY(ms_text_printf(out, "%s: %s, %" PRId64 " tokens\n", path, kind, size));
        MS_TRY(ms_text_printf(out,
                              "begin %" PRId32 ", end %" PRId32 ", pad %" PRId32 " (-1: none)\n",
                              bos, eos, pad));
    }
    bool first = true;
    for (int32_t id = 0; id < size; id++) {
        const char *bytes;
        size_t length;
        if (!ms_tokenizer_is_special(tokenizer, id) ||
            ms_tokenizer_id_bytes(tokenizer, id, &bytes, &length) != MS_OK) {
            continue;
        }
        MS_TRY(ms_text_append_z(out, !json ? "special " : first ? "" : ", "));
        first = false;
        MS_TRY(append_json_bytes(out, bytes, length));
        MS_TRY(ms_text_printf(out, json ? ": %" PRId32 : " %" PRId32 "\n", id));
    }
    return json ? ms_text_append_z(out, "}}\n") : MS_OK;
}

static int info(const tokenizer_arguments *arguments) {
    ms_tokenizer *tokenizer = NULL;
    ms_text out = {0};
    ms_status status = load(arguments->rest[0], &tokenizer);
    if (status == MS_OK) {
        status = describe(tokenizer, arguments->rest[0], arguments->json, &out);
    }
    if (status == MS_OK) {
        fputs(out.bytes, stdout);
    }
    ms_text_release(&out);
    ms_tokenizer_destroy(tokenizer);
    return finish_output(status);
}

int ms_command_tokenizer(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(const tokenizer_arguments *arguments);
    } actions[] = {{"train", train}, {"encode", encode}, {"decode", decode}, {"info", info}};
    tokenizer_arguments arguments = {0};
    int status = parse(argc, argv, &arguments);
    if (status == MS_EXIT_OK && arguments.help) {
        fputs(usage, stdout);
        return finish_output(MS_OK);
    }
    if (status == MS_EXIT_OK) {
        status = check(&arguments);
    }
    if (status != MS_EXIT_OK) {
        return status;
    }
    int at = 0;
    while (strcmp(arguments.action, actions[at].name) != 0) { /* check() knows the names */
        at++;
    }
    return actions[at].run(&arguments);
}
