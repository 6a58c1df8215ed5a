/* help.c - `mindspeed help [KEY]`, `mindspeed version`. */
#include <stdio.h>
#include <string.h>

#include <mindspeed/version.h>

#include "base/config.h"
#include "base/cpu.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "train/train_config.h"

static int print_text(ms_status status, ms_text *text) {
    if (status == MS_OK) {
        fputs(text->bytes != NULL ? text->bytes : "", stdout);
    }
    ms_text_release(text);
    return status == MS_OK ? MS_EXIT_OK : ms_cli_fail(status);
}

int ms_command_help(int argc, char **argv) {
    int count;
    const ms_config_section *const *sections = ms_train_sections(&count);
    ms_text text = {0};
    if (argc > 1 && strcmp(argv[1], "--reference") == 0) {
        return print_text(ms_config_reference(sections, count, &text), &text);
    }
    if (argc == 1) {
        ms_cli_print_commands();
        printf("\n");
    }
    return print_text(ms_config_help(sections, count, argc > 1 ? argv[1] : NULL, &text), &text);
}

int ms_command_version(int argc, char **argv) {
    (void)argc;
    (void)argv;
    printf("mindspeed %s\nprocessor %s, %d cores here, kernels %s%s%s\n", ms_version(),
           ms_cpu_name(), ms_cpu_count(), ms_isa_name(ms_cpu_isa()),
           ms_cpu_has_avx512_bf16() ? ", avx512-bf16" : "", ms_cpu_has_amx_bf16() ? ", amx-bf16" : "");
    return MS_EXIT_OK;
}
