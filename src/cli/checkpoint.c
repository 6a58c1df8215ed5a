/*
 * checkpoint.c - `mindspeed checkpoint info|check|convert`.
 *
 * Main path: [main.c] -> this file -> checkpoint/. A PATH is a run's directory (info and check take
 * all of its checkpoints, convert the newest good one), one checkpoint, a Hugging Face model
 * directory or one safetensors file.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "format/json.h"
#include "format/safetensors.h"

static const char usage[] =
    "usage: mindspeed checkpoint info PATH [--tensors] [--json]\n"
    "       mindspeed checkpoint check PATH [--json]\n"
    "       mindspeed checkpoint convert PATH NEW_DIRECTORY [--dtype fp32|bf16|fp16] [--full]\n"
    "                                    [--file-mb N]\n\n"
    "PATH is a run's directory, one of its checkpoints, a Hugging Face model directory, or one\n"
    "safetensors file.\n"
    "  info      steps, tensors, parameters, bytes, types and the state of the run\n"
    "    --tensors     each tensor with its type and dims\n"
    "  check     reads everything and compares every 4 MiB block with the manifest\n"
    "  convert   writes a Hugging Face model directory; the source stays as it is\n"
    "    --dtype T     type of the weights (default: as they are)\n"
    "    --full        with the optimizer and the state of the run (default: the weights only)\n"
    "    --file-mb N   split the weights into files of at most N MB; 0: one file (default 5000)\n"
    "  --json    one object instead of lines for people\n";

typedef struct checkpoint_arguments {
    const char *action, *path, *target, *type;
    long long file_mb;
    bool tensors, json, full, help;
} checkpoint_arguments;

static bool parse_option(int option, checkpoint_arguments *arguments) {
    switch (option) {
    case 't':
        arguments->tensors = true;
        return true;
    case 'j':
        arguments->json = true;
        return true;
    case 'f':
        arguments->full = true;
        return true;
    case 'd':
        arguments->type = optarg;
        return true;
    case 'm':
        return ms_cli_int("checkpoint", "--file-mb", optarg, 0, 1000000000, &arguments->file_mb);
    case 'h':
        arguments->help = true;
        return true;
    default:
        ms_cli_usage_error("checkpoint", "unknown option or missing value");
        return false;
    }
}

static int parse(int argc, char **argv, checkpoint_arguments *arguments) {
    static const struct option options[] = {{"tensors", no_argument, NULL, 't'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"full", no_argument, NULL, 'f'},
                                            {"dtype", required_argument, NULL, 'd'},
                                            {"file-mb", required_argument, NULL, 'm'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (!parse_option(option, arguments)) {
            return MS_EXIT_USAGE;
        }
    }
    int count = argc - optind;
    if (arguments->help) {
        return MS_EXIT_OK;
    }
    if (count < 1) {
        return ms_cli_usage_error("checkpoint", "say info, check or convert");
    }
    arguments->action = argv[optind];
    arguments->path = count > 1 ? argv[optind + 1] : NULL;
    arguments->target = count > 2 ? argv[optind + 2] : NULL;
    int wanted = strcmp(arguments->action, "convert") == 0 ? 3 : 2;
    if (count != wanted) {
        return ms_cli_usage_error("checkpoint", "%s takes %s", arguments->action,
                                  wanted == 3 ? "a PATH and a NEW_DIRECTORY" : "one PATH");
    }
    return MS_EXIT_OK;
}

/* A run's directory: it holds checkpoints and is none itself. */
static bool is_run_directory(const char *path) {
    char file[MS_PATH_BYTES];
    int64_t *steps = NULL, count = 0;
    static const char *const own[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (ms_path_join(path, own[i], file, sizeof file) != MS_OK || ms_path_exists(file)) {
            return false;
        }
    }
    if (!ms_path_is_directory(path) || ms_checkpoint_list(path, &steps, &count) != MS_OK) {
        return false;
    }
    ms_free(steps);
    return count > 0;
}

/* ---- info -------------------------------------------------------------------------------------
 */

/* "fp32", or "fp32 and bf16" where weights differ. */
static ms_status append_types(const ms_checkpoint_summary *summary, ms_text *text) {
    bool first = true;
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        if (summary->typed[i] > 0) {
            MS_TRY(ms_text_printf(text, "%s%s", first ? "" : " and ", ms_dtype_name((ms_dtype)i)));
            first = false;
        }
    }
    return first ? ms_text_append_z(text, "none") : MS_OK;
}

static ms_status append_state_json(const ms_train_state *state, ms_text *out) {
    MS_TRY(ms_text_printf(out,
                          "{\"step\": %" PRId64 ", \"samples\": %" PRId64 ", \"tokens\": %" PRId64
                          ", \"skipped_steps\": %" PRId64 ", \"seed\": %" PRIu64
                          ", \"global_batch_size\": %" PRId64 ", \"micro_batch_size\": %" PRId64
                          ", \"sequence\": %" PRId64 ", \"reduction_groups\": %" PRId64
                          ", \"threads\": %" PRId64 ", \"best_val_loss\": ",
                          state->step, state->samples, state->tokens, state->skipped_steps,
                          state->seed, state->global_batch_size, state->micro_batch_size,
                          state->sequence, state->reduction_groups, state->threads));
    MS_TRY(ms_json_append_real(out, state->best_val_loss));
    MS_TRY(ms_text_append_z(out, ", \"isa\": "));
    MS_TRY(ms_json_append_string(out, state->isa, strlen(state->isa)));
    return ms_text_append_z(out, "}");
}

static ms_status append_tensors(const char *path, bool json, ms_text *out) {
    ms_weights *weights = NULL;
    MS_TRY(ms_weights_open(path, &weights));
    ms_status status = MS_OK;
    for (int64_t i = 0; i < ms_weights_count(weights); i++) {
        const ms_safetensors_tensor *tensor = ms_weights_at(weights, i);
        if (json) {
            MS_TRY_GOTO(ms_text_append_z(out, i > 0 ? ", {\"name\": " : "{\"name\": "),
                        close_weights);
            MS_TRY_GOTO(ms_json_append_string(out, tensor->name, strlen(tensor->name)),
                        close_weights);
            MS_TRY_GOTO(ms_text_printf(out, ", \"dtype\": \"%s\", \"dims\": [",
                                       ms_dtype_name(tensor->dtype)),
                        close_weights);
        } else {
            MS_TRY_GOTO(
                ms_text_printf(out, "  %-48s %-5s [", tensor->name, ms_dtype_name(tensor->dtype)),
                close_weights);
        }
        for (int d = 0; d < tensor->rank; d++) {
            MS_TRY_GOTO(ms_text_printf(out, "%s%" PRId64, d > 0 ? ", " : "", tensor->dims[d]),
                        close_weights);
        }
        MS_TRY_GOTO(ms_text_append_z(out, json ? "]}" : "]\n"), close_weights);
    }
close_weights:
    ms_weights_close(weights);
    return status;
}

/* Summary and state of one checkpoint; has_state false where there is none. */
static ms_status read_one(const char *path, ms_checkpoint_summary *summary, ms_train_state *state,
                          bool *has_state) {
    MS_TRY(ms_checkpoint_summarize(path, summary));
    ms_status status =
        ms_path_is_directory(path) ? ms_checkpoint_read_state(path, state) : MS_ERR_NOT_FOUND;
    *has_state = status == MS_OK;
    return status == MS_ERR_NOT_FOUND ? MS_OK : status;
}

static ms_status one_json(const char *path, bool tensors, ms_text *out) {
    ms_checkpoint_summary summary;
    ms_train_state state;
    bool has_state = false;
    MS_TRY(read_one(path, &summary, &state, &has_state));
    MS_TRY(ms_text_append_z(out, "{\"path\": "));
    MS_TRY(ms_json_append_string(out, path, strlen(path)));
    MS_TRY(ms_text_printf(out,
                          ", \"good\": true, \"tensors\": %" PRId64 ", \"parameters\": %" PRId64
                          ", \"weight_bytes\": %" PRIu64 ", \"dtype\": \"",
                          summary.tensors, summary.parameters, summary.weight_bytes));
    MS_TRY(append_types(&summary, out));
    MS_TRY(ms_text_printf(out,
                          "\", \"optimizer_tensors\": %" PRId64 ", \"optimizer_bytes\": %" PRIu64
                          ", \"manifest\": %s",
                          summary.state_tensors, summary.state_bytes,
                          summary.has_manifest ? "true" : "false"));
    if (summary.has_manifest) {
        MS_TRY(ms_text_printf(out, ", \"files\": %" PRId64 ", \"file_bytes\": %" PRIu64,
                              summary.files, summary.file_bytes));
    }
    if (has_state) {
        MS_TRY(ms_text_append_z(out, ", \"state\": "));
        MS_TRY(append_state_json(&state, out));
    }
    if (tensors) {
        MS_TRY(ms_text_append_z(out, ", \"list\": ["));
        MS_TRY(append_tensors(path, true, out));
        MS_TRY(ms_text_append_z(out, "]"));
    }
    return ms_text_append_z(out, "}");
}

static ms_status one_text(const char *path, bool tensors, ms_text *out) {
    ms_checkpoint_summary summary;
    ms_train_state state;
    bool has_state = false;
    char count[40], bytes[40];
    MS_TRY(read_one(path, &summary, &state, &has_state));
    MS_TRY(ms_text_printf(out, "%s\n  weights    %s parameters in %" PRId64 " tensors, %s, ", path,
                          ms_format_count(summary.parameters, count, sizeof count), summary.tensors,
                          ms_format_bytes(summary.weight_bytes, bytes, sizeof bytes)));
    MS_TRY(append_types(&summary, out));
    MS_TRY(ms_text_append_z(out, "\n"));
    if (summary.state_tensors > 0) {
        MS_TRY(ms_text_printf(out, "  optimizer  %" PRId64 " tensors, %s\n", summary.state_tensors,
                              ms_format_bytes(summary.state_bytes, bytes, sizeof bytes)));
    }
    if (has_state) {
        MS_TRY(ms_text_printf(out,
                              "  state      step %" PRId64 ", sample %" PRId64
                              ", %s tokens, seed %" PRIu64 ", batch %" PRId64 " x %" PRId64,
                              state.step, state.samples,
                              ms_format_count(state.tokens, count, sizeof count), state.seed,
                              state.global_batch_size, state.sequence));
        if (!isnan(state.best_val_loss)) {
            MS_TRY(ms_text_printf(out, ", best validation loss %.6g", state.best_val_loss));
        }
        MS_TRY(ms_text_append_z(out, "\n"));
    }
    if (summary.has_manifest) {
        MS_TRY(ms_text_printf(out, "  manifest   %" PRId64 " files, %s\n", summary.files,
                              ms_format_bytes(summary.file_bytes, bytes, sizeof bytes)));
    } else {
        MS_TRY(ms_text_append_z(out, "  manifest   none: a model from elsewhere\n"));
    }
    return tensors ? append_tensors(path, false, out) : MS_OK;
}

/* A checkpoint of a run that cannot be read is shown as such, and the others follow. */
static ms_status one_of_run(const char *path, const checkpoint_arguments *arguments, ms_text *out) {
    ms_text one = {0};
    ms_status status = arguments->json ? one_json(path, arguments->tensors, &one)
                                       : one_text(path, arguments->tensors, &one);
    if (status == MS_OK) {
        status = ms_text_append(out, one.bytes, one.length);
    } else if (arguments->json) {
        status = ms_text_append_z(out, "{\"path\": ");
        if (status == MS_OK) {
            status = ms_json_append_string(out, path, strlen(path));
        }
        if (status == MS_OK) {
            status = ms_text_append_z(out, ", \"good\": false, \"problem\": ");
        }
        if (status == MS_OK) {
            status = ms_json_append_string(out, ms_error_detail(), strlen(ms_error_detail()));
        }
        if (status == MS_OK) {
            status = ms_text_append_z(out, "}");
        }
    } else {
        status = ms_text_printf(out, "%s\n  not good   %s\n", path, ms_error_detail());
    }
    ms_text_release(&one);
    return status;
}

static ms_status info_of_run(const checkpoint_arguments *arguments, ms_text *out) {
    int64_t *steps = NULL, count = 0;
    MS_TRY(ms_checkpoint_list(arguments->path, &steps, &count));
    ms_status status = arguments->json ? ms_text_append_z(out, "{\"checkpoints\": [") : MS_OK;
    for (int64_t i = 0; i < count && status == MS_OK; i++) {
        char path[MS_PATH_BYTES];
        status = ms_checkpoint_step_path(arguments->path, steps[i], path, sizeof path);
        if (status == MS_OK && arguments->json && i > 0) {
            status = ms_text_append_z(out, ", ");
        }
        if (status == MS_OK) {
            status = one_of_run(path, arguments, out);
        }
    }
    ms_free(steps);
    return status == MS_OK && arguments->json ? ms_text_append_z(out, "]}") : status;
}

static int run_info(const checkpoint_arguments *arguments) {
    ms_text out = {0};
    ms_status status;
    if (is_run_directory(arguments->path)) {
        status = info_of_run(arguments, &out);
    } else if (arguments->json) {
        status = one_json(arguments->path, arguments->tensors, &out);
    } else {
        status = one_text(arguments->path, arguments->tensors, &out);
    }
    if (status == MS_OK) {
        printf("%s%s", out.bytes, arguments->json ? "\n" : "");
    }
    ms_text_release(&out);
    return status == MS_OK ? MS_EXIT_OK : ms_cli_fail(status);
}

/* ---- check ------------------------------------------------------------------------------------
 */

/* Adds the verdict on one checkpoint; *good turns false when it is bad. */
static ms_status check_one(const char *path, bool json, ms_text *out, bool *good) {
    ms_text report = {0};
    ms_status verdict = ms_checkpoint_verify(path, &report);
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", verdict != MS_OK ? ms_error_detail() : "");
    const char *problems = report.bytes != NULL ? report.bytes : "";
    ms_status status;
    *good = *good && verdict == MS_OK;
    if (json) {
        MS_TRY_GOTO(ms_text_append_z(out, out->length > 1 ? ", {\"path\": " : "{\"path\": "),
                    release);
        MS_TRY_GOTO(ms_json_append_string(out, path, strlen(path)), release);
        MS_TRY_GOTO(ms_text_printf(
                        out, ", \"good\": %s, \"problem\": ", verdict == MS_OK ? "true" : "false"),
                    release);
        MS_TRY_GOTO(ms_json_append_string(out, sentence, strlen(sentence)), release);
        MS_TRY_GOTO(ms_text_append_z(out, ", \"report\": "), release);
        MS_TRY_GOTO(ms_json_append_string(out, problems, strlen(problems)), release);
        MS_TRY_GOTO(ms_text_append_z(out, "}"), release);
    } else {
        /* What could not be checked at all has left no line in the report. */
        const char *lines = problems[0] != '\0' || verdict == MS_OK ? problems : sentence;
        MS_TRY_GOTO(ms_text_printf(out, "%s%s%s: %s\n", lines, lines == sentence ? "\n" : "", path,
                                   verdict == MS_OK ? "good" : "NOT GOOD"),
                    release);
    }
release:
    ms_text_release(&report);
    return status;
}

static ms_status check_run(const char *dir, bool json, ms_text *out, bool *good) {
    int64_t *steps = NULL, count = 0;
    MS_TRY(ms_checkpoint_list(dir, &steps, &count));
    ms_status status = MS_OK;
    for (int64_t i = 0; i < count && status == MS_OK; i++) {
        char path[MS_PATH_BYTES];
        status = ms_checkpoint_step_path(dir, steps[i], path, sizeof path);
        if (status == MS_OK) {
            status = check_one(path, json, out, good);
        }
    }
    ms_free(steps);
    return status;
}

static int run_check(const checkpoint_arguments *arguments) {
    ms_text out = {0};
    bool good = true;
    ms_status status = arguments->json ? ms_text_append_z(&out, "[") : MS_OK;
    if (status == MS_OK) {
        status = is_run_directory(arguments->path)
                     ? check_run(arguments->path, arguments->json, &out, &good)
                     : check_one(arguments->path, arguments->json, &out, &good);
    }
    if (status == MS_OK && arguments->json) {
        printf("{\"good\": %s, \"checkpoints\": %s]}\n", good ? "true" : "false", out.bytes);
    } else if (status == MS_OK) {
        fputs(out.bytes, stdout);
    }
    ms_text_release(&out);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    return good ? MS_EXIT_OK : MS_EXIT_FAILURE;
}

/* ---- convert ----------------------------------------------------------------------------------
 */

static int run_convert(const checkpoint_arguments *arguments) {
    ms_checkpoint_conversion conversion = {
        .weight_type = MS_DTYPE_COUNT,
        .full = arguments->full,
        .file_bytes_max =
            arguments->file_mb == 0 ? UINT64_MAX : (uint64_t)arguments->file_mb * 1000000,
    };
    if (arguments->type != NULL &&
        (ms_dtype_parse(arguments->type, &conversion.weight_type) != MS_OK ||
         conversion.weight_type > MS_F16)) {
        return ms_cli_usage_error(
            "checkpoint", "--dtype takes fp32, bf16, fp16 or fp64, not \"%s\"", arguments->type);
    }
    char newest[MS_PATH_BYTES];
    const char *from = arguments->path;
    if (is_run_directory(from)) {
        ms_status status = ms_checkpoint_find(from, newest, sizeof newest);
        if (status != MS_OK) {
            return ms_cli_fail(status);
        }
        from = newest;
    }
    ms_status status = ms_checkpoint_convert(from, arguments->target, &conversion);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    ms_checkpoint_summary summary;
    status = ms_checkpoint_summarize(arguments->target, &summary);
    if (status != MS_OK) {
        return ms_cli_fail(status);
    }
    char bytes[40];
    if (arguments->json) {
        printf("{\"tensors\": %" PRId64 ", \"parameters\": %" PRId64 ", \"file_bytes\": %" PRIu64
               "}\n",
               summary.tensors, summary.parameters, summary.file_bytes);
    } else {
        printf("%s: from %s, %" PRId64 " tensors, %s\n", arguments->target, from, summary.tensors,
               ms_format_bytes(summary.file_bytes, bytes, sizeof bytes));
    }
    return MS_EXIT_OK;
}

int ms_command_checkpoint(int argc, char **argv) {
    checkpoint_arguments arguments = {.file_mb = 5000};
    int parsed = parse(argc, argv, &arguments);
    if (parsed != MS_EXIT_OK) {
        return parsed;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    if (strcmp(arguments.action, "info") == 0) {
        return run_info(&arguments);
    }
    if (strcmp(arguments.action, "check") == 0) {
        return run_check(&arguments);
    }
    if (strcmp(arguments.action, "convert") == 0) {
        return run_convert(&arguments);
    }
    return ms_cli_usage_error("checkpoint", "there is no \"%s\"; say info, check or convert",
                              arguments.action);
}
