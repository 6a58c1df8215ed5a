/*
 * main.c - the command `mindspeed`: a table of subcommands, one file each.
 *
 * Main path of training: [main] -> train.c -> train/run.c -> train/loop.c -> engine/step.c.
 */
#include <stdio.h>
#include <string.h>

#include <mindspeed/version.h>

#include "base/text.h"
#include "cli/command_line.h"
#include "cli/commands.h"

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} subcommand;

static const subcommand subcommands[] = {
    {"train", ms_command_train, "train or resume a model from a configuration file"},
    {"generate", ms_command_generate, "write text with a trained model"},
    {"eval", ms_command_eval, "loss and perplexity of a model on data"},
    {"data", ms_command_data, "build, inspect and merge training files"},
    {"tokenizer", ms_command_tokenizer, "train tokenizers, encode and decode text"},
    {"checkpoint", ms_command_checkpoint, "inspect, check and convert checkpoints"},
    {"bench", ms_command_bench, "speed of kernels and of training steps on this machine"},
    {"help", ms_command_help, "what a command or a configuration key means"},
    {"version", ms_command_version, "the version and what this machine offers"},
};
enum { SUBCOMMAND_COUNT = sizeof subcommands / sizeof subcommands[0] };

void ms_cli_print_commands(void) {
    printf("usage: mindspeed COMMAND [ARGUMENTS]\n\n");
    for (int i = 0; i < SUBCOMMAND_COUNT; i++) {
        printf("  %-12s%s\n", subcommands[i].name, subcommands[i].doc);
    }
    printf("\nmindspeed COMMAND --help says more; mindspeed help KEY explains a configuration key.\n"
           "Exit status: 0 success, 1 failure, 2 wrong usage, 3 stopped on request (state saved).\n");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        ms_cli_print_commands();
        return MS_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mindspeed %s\n", ms_version());
        return MS_EXIT_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        ms_cli_print_commands();
        return MS_EXIT_OK;
    }
    const char *names[SUBCOMMAND_COUNT];
    for (int i = 0; i < SUBCOMMAND_COUNT; i++) {
        names[i] = subcommands[i].name;
        if (strcmp(argv[1], names[i]) == 0) {
            return subcommands[i].run(argc - 1, argv + 1);
        }
    }
    int nearest = ms_nearest_name(argv[1], names, SUBCOMMAND_COUNT);
    if (nearest >= 0) {
        fprintf(stderr, "mindspeed: error: there is no command \"%s\"; did you mean \"%s\"?\n",
                argv[1], names[nearest]);
    } else {
        fprintf(stderr, "mindspeed: error: there is no command \"%s\" (see mindspeed --help)\n",
                argv[1]);
    }
    return MS_EXIT_USAGE;
}
