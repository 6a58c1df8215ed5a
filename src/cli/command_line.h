/*
 * command_line.h - what the commands share: exit statuses, one way to print an error, collecting --set.
 */
#ifndef MS_CLI_COMMAND_LINE_H
#define MS_CLI_COMMAND_LINE_H

#include <mindspeed/status.h>

#include <stdbool.h>

/* Exit statuses, documented in docs/commands.md. */
enum {
    MS_EXIT_OK = 0,
    MS_EXIT_FAILURE = 1,
    MS_EXIT_USAGE = 2,
    MS_EXIT_STOPPED = 3, /* a signal asked a run to stop; its state is saved */
    MS_EXIT_PEER = 4,    /* of a rank, seen by its launcher only: another rank failed first */
};

/* Prints "mindspeed: error: <sentence>" on one line of stderr; returns the exit status. */
int ms_cli_fail(ms_status status);
/* A wrong command line: the sentence and where to look; returns MS_EXIT_USAGE. */
int ms_cli_usage_error(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The values of a repeated option, such as --set. */
#define MS_CLI_ASSIGNMENTS_MAX 256
typedef struct ms_cli_assignments {
    const char *values[MS_CLI_ASSIGNMENTS_MAX];
    int count;
} ms_cli_assignments;
/* false when there are too many. */
bool ms_cli_assign(ms_cli_assignments *assignments, const char *value);

/* A whole number of an option within [minimum, maximum]; false (with the error printed) otherwise. */
bool ms_cli_int(const char *command, const char *option, const char *text, long long minimum,
                long long maximum, long long *value);
bool ms_cli_real(const char *command, const char *option, const char *text, double minimum,
                 double maximum, double *value);

#endif
