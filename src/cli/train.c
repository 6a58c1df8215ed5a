/*
 * train.c - `mindspeed train CONFIG`: with --ranks N it starts itself N times (cluster/launcher) and waits; each of those,
 * and a plain run, trains.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mindspeed/train.h>

#include "base/text.h"
#include "base/thread.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cluster/launcher.h"
#include "net/rendezvous.h"

static const char usage[] =
    "usage: mindspeed train [CONFIG] [--ranks N] [--set section.key=value]... [--dry-run] [--json]\n\n"
    "Trains the model that CONFIG describes, or resumes it from the newest checkpoint of checkpoint.dir.\n"
    "  --ranks N     N processes on this machine (default 1)\n"
    "  --set K=V     overrides a key of the configuration; may be repeated (see mindspeed help)\n"
    "  --dry-run     print the plan and its memory, train nothing\n"
    "  --json        print one object with the run's figures, nothing else, to stdout\n"
    "SIGTERM, SIGINT and SIGUSR1 save after the present update and end with exit status 3.\n";

typedef struct train_arguments {
    const char *config_path;
    ms_cli_assignments assignments;
    long long ranks;
    bool dry_run, json, help;
} train_arguments;

static int parse(int argc, char **argv, train_arguments *arguments) {
    static const struct option options[] = {{"ranks", required_argument, NULL, 'r'},
                                            {"set", required_argument, NULL, 's'},
                                            {"dry-run", no_argument, NULL, 'd'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            if (!ms_cli_int("train", "--ranks", optarg, 1, MS_COMM_RANKS_MAX, &arguments->ranks)) {
                return MS_EXIT_USAGE;
            }
            break;
        case 's':
            if (!ms_cli_assign(&arguments->assignments, optarg)) {
                return ms_cli_usage_error("train", "more than %d --set", MS_CLI_ASSIGNMENTS_MAX);
            }
            break;
        case 'd':
            arguments->dry_run = true;
            break;
        case 'j':
            arguments->json = true;
            break;
        case 'h':
            arguments->help = true;
            break;
        default:
            return ms_cli_usage_error("train", "unknown option or missing value: %s",
                                      argv[optind - 1]);
        }
    }
    if (optind < argc) {
        arguments->config_path = argv[optind++];
    }
    return optind < argc ? ms_cli_usage_error("train", "more than one CONFIG: %s", argv[optind])
                         : MS_EXIT_OK;
}

static void *wait_for_signals(void *context) {
    const sigset_t *signals = context;
    for (int number; sigwait(signals, &number) == 0;) {
        ms_train_stop();
    }
    return NULL;
}

/*
 * A thread of its own waits for the signals, and all others block them. A handler would run on the stack of whatever
 * thread computes, and oneDNN's generated matrix kernels use the stack pointer as an ordinary register: the signal's frame
 * then lands in the heap (seen as corrupted malloc chunks at the next free).
 */
static ms_status catch_signals(void) {
    static sigset_t signals;
    static ms_thread thread;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot block signals");
    }
    return ms_thread_start(&thread, "signals", wait_for_signals, &signals);
}

static int launch(const train_arguments *arguments, int argc, char **argv) {
    /* The ranks get the same command line: argv here begins at "train". */
    const char **again = calloc((size_t)argc + 2, sizeof *again);
    if (again == NULL) {
        fprintf(stderr, "mindspeed: error: out of memory\n");
        return MS_EXIT_FAILURE;
    }
    again[0] = "mindspeed";
    for (int i = 0; i < argc; i++) {
        again[i + 1] = argv[i];
    }
    ms_launch_options options = MS_LAUNCH_OPTIONS_INIT;
    options.ranks = (int)arguments->ranks;
    options.argv = again;
    options.stop_status = MS_EXIT_STOPPED;
    options.peer_status = MS_EXIT_PEER;
    int exit_status = MS_EXIT_FAILURE;
    ms_status status = ms_launch_ranks(&options, &exit_status);
    free(again);
    bool killed = exit_status > 128;
    if (status == MS_ERR_PEER && !killed) {
        return exit_status; /* the ranks have said why */
    }
    if (status != MS_OK) {
        int failed = ms_cli_fail(status);
        return status == MS_ERR_PEER ? exit_status : failed;
    }
    return exit_status;
}

static void print_json(const ms_train_summary *summary) {
    ms_text text = {0};
    ms_text_printf(&text,
                   "{\"steps\": %" PRId64 ", \"tokens\": %" PRId64 ", \"resumed_from_step\": %" PRId64
                   ", \"memory_bytes\": %" PRIu64 ", \"stopped\": %s, \"tokens_per_s\": %.6g",
                   summary->steps, summary->tokens, summary->resumed_from_step,
                   summary->memory_bytes, summary->stopped ? "true" : "false",
                   summary->tokens_per_s);
    if (isfinite(summary->loss)) {
        ms_text_printf(&text, ", \"loss\": %.17g", summary->loss);
    }
    if (isfinite(summary->val_loss)) {
        ms_text_printf(&text, ", \"val_loss\": %.17g", summary->val_loss);
    }
    printf("%s}\n", text.bytes != NULL ? text.bytes : "{");
    ms_text_release(&text);
}

static void print_summary(const ms_train_summary *summary) {
    char tokens[32];
    printf("%s at step %" PRId64 ", %s tokens", summary->stopped ? "stopped" : "done",
           summary->steps, ms_format_count(summary->tokens, tokens, sizeof tokens));
    if (isfinite(summary->loss)) {
        printf(", loss %.4f", summary->loss);
    }
    if (isfinite(summary->val_loss)) {
        printf(", validation loss %.4f", summary->val_loss);
    }
    if (summary->tokens_per_s > 0) {
        printf(", %.0f tokens/s", summary->tokens_per_s);
    }
    printf("\n");
}

/*
 * One line for one failure. What every rank finds (in the configuration, say), and what ends all ranks' communication,
 * is printed by rank 0; that a rank was killed is printed by the launcher, which knows how.
 */
static bool prints_error(ms_status status, int rank) {
    if (rank < 0) {
        return true;
    }
    return rank == 0 && status != MS_ERR_PEER;
}

/* This process's rank in the job it was launched for, or -1. */
static int launched_rank(void) {
    bool launched = false;
    ms_rendezvous rendezvous;
    return ms_rendezvous_read(&launched, &rendezvous) == MS_OK && launched ? rendezvous.rank : -1;
}

static int run(const train_arguments *arguments) {
    int rank = launched_rank();
    ms_train_options options = MS_TRAIN_OPTIONS_INIT;
    options.config_path = arguments->config_path;
    options.assignments = arguments->assignments.values;
    options.assignment_count = arguments->assignments.count;
    options.dry_run = arguments->dry_run;
    options.quiet = arguments->json;
    ms_train_summary summary;
    ms_status status = catch_signals();
    if (status == MS_OK) {
        status = ms_train(&options, &summary);
    }
    if (status != MS_OK) {
        bool consequence = rank >= 0 && (status == MS_ERR_PEER || status == MS_ERR_ABORTED);
        int failed = prints_error(status, rank) ? ms_cli_fail(status) : MS_EXIT_FAILURE;
        return consequence ? MS_EXIT_PEER : failed;
    }
    if (rank <= 0 && !arguments->dry_run) {
        if (arguments->json) {
            print_json(&summary);
        } else {
            print_summary(&summary);
        }
    }
    return summary.stopped ? MS_EXIT_STOPPED : MS_EXIT_OK;
}

int ms_command_train(int argc, char **argv) {
    train_arguments arguments = {.ranks = 1};
    int status = parse(argc, argv, &arguments);
    if (status != MS_EXIT_OK) {
        return status;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    bool launched = launched_rank() >= 0;
    return arguments.ranks > 1 && !launched ? launch(&arguments, argc, argv) : run(&arguments);
}
