/*
 * launcher.h - N processes of this program on this machine, as the ranks of one job.
 *
 * Call before any thread or OpenMP region exists. The calling process does nothing else meanwhile:
 * it starts the ranks, forwards signals, reaps, and says honestly how the job ended.
 */
#ifndef MS_CLUSTER_LAUNCHER_H
#define MS_CLUSTER_LAUNCHER_H

#include <stdint.h>

#include "base/error.h"

typedef struct ms_launch_options {
    int ranks;               /* 1 .. 64 */
    const char *const *argv; /* of each rank, NULL-terminated; argv[0] is only its name */
    const char *program;     /* NULL: this program again (/proc/self/exe) */
    uint64_t job;            /* 0: a number of its own */
    int stop_status; /* a rank's exit status that means "stopped on request": no failure; 0: none */
    int peer_status; /* ... that means "ended because another rank failed": not the cause; 0: none
                      */
    int report_ms;   /* after a rank failed, the others have so long to end by themselves */
    int kill_ms;     /* after SIGTERM, until SIGKILL */
} ms_launch_options;

#define MS_LAUNCH_OPTIONS_INIT                                                                     \
    { .ranks = 1, .report_ms = 300, .kill_ms = 1000 }

/*
 * Runs the job to its end. *exit_status is what the caller should exit with: 0 when every rank did,
 * the stop status when a rank ended with it and none failed, else that of the rank that failed (128
 * + signal when a signal ended it). Of several that fail within report_ms, one that a signal ended
 * is taken for the cause, then one that exited with a status of its own, then one with the peer
 * status; then the first.
 *
 * MS_OK: no rank failed. MS_ERR_PEER: a rank failed, by name: "rank 1 was killed by signal 9",
 * "rank 0 exited with status 3"; *exit_status is written then, too. Any other status: nothing was
 * started. SIGTERM, SIGINT, SIGHUP and SIGUSR1 go to all ranks; the third SIGTERM or SIGINT kills
 * them. No rank outlives this process, however it ends.
 */
ms_status ms_launch_ranks(const ms_launch_options *options, int *exit_status);

#endif
