/* bench.c - `mindspeed bench kernels|step`: which benchmark, and its help. */
#include "cli/bench.h"

#include <stdio.h>
#include <string.h>

#include "cli/command_line.h"
#include "cli/commands.h"

int ms_command_bench(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "step") == 0) {
        return ms_bench_step(argc - 1, argv + 1);
    }
    if (argc >= 2 && strcmp(argv[1], "kernels") == 0) {
        return ms_bench_kernels(argc - 1, argv + 1);
    }
    bool help = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    fprintf(help ? stdout : stderr,
            "usage: mindspeed bench step    speed of whole training steps\n"
            "       mindspeed bench kernels speed of each kernel, with its share of the machine's peak\n");
    return help ? MS_EXIT_OK : MS_EXIT_USAGE;
}
