/* command_line.c - see command_line.h. */
#include "cli/command_line.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"

int ms_cli_fail(ms_status status) {
    const char *detail = ms_error_detail();
    fflush(stdout);
    fprintf(stderr, "mindspeed: error: %s\n", detail[0] != '\0' ? detail : ms_status_text(status));
    return status == MS_INTERRUPTED ? MS_EXIT_STOPPED : MS_EXIT_FAILURE;
}

int ms_cli_usage_error(const char *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "mindspeed: error: %s: ", command);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (see mindspeed %s --help)\n", command);
    va_end(arguments);
    return MS_EXIT_USAGE;
}

bool ms_cli_assign(ms_cli_assignments *assignments, const char *value) {
    if (assignments->count == MS_CLI_ASSIGNMENTS_MAX) {
        return false;
    }
    assignments->values[assignments->count++] = value;
    return true;
}

bool ms_cli_int(const char *command, const char *option, const char *text, long long minimum,
                long long maximum, long long *value) {
    int64_t parsed;
    if (!ms_parse_i64(text, &parsed) || parsed < minimum || parsed > maximum) {
        ms_cli_usage_error(command, "%s takes a whole number from %lld to %lld, not \"%s\"", option,
                           minimum, maximum, text);
        return false;
    }
    *value = parsed;
    return true;
}

bool ms_cli_real(const char *command, const char *option, const char *text, double minimum,
                 double maximum, double *value) {
    double parsed;
    if (!ms_parse_f64(text, &parsed) || !(parsed >= minimum && parsed <= maximum)) {
        ms_cli_usage_error(command, "%s takes a number from %g to %g, not \"%s\"", option, minimum,
                           maximum, text);
        return false;
    }
    *value = parsed;
    return true;
}
