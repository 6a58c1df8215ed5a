/*
 * comm.h - the library's own view of communicators: the public interface and what tests and the
 * engine need besides.
 */
#ifndef MS_COMM_COMM_H
#define MS_COMM_COMM_H

#include <mindspeed/comm.h>

#include "base/types.h"

/* What a process's communication has done since the start. */
typedef struct ms_comm_counters {
    uint64_t operations; /* finished */
    uint64_t bytes_read; /* from peers */
    uint64_t wait_ns;    /* spent by callers in ms_request_wait and blocking operations */
    uint64_t sleeps;     /* times a thread went to sleep for lack of work */
} ms_comm_counters;
ms_comm_counters ms_comm_counters_get(const ms_comm *comm);

/* Advances whatever this rank can advance, without blocking. */
void ms_comm_progress(ms_comm *comm);

/* How ms_comm_create_loop_seeded disturbs what ranks see of each other. */
typedef struct ms_loop_schedule {
    uint64_t seed;    /* 0: no disturbance */
    int delay_max;    /* a frame or stream position becomes visible up to so many polls late */
    int stream_bytes; /* a stream grows in pieces of 1 .. stream_bytes bytes; 0: at once */
    int staged;       /* 1: memory outside ms_comm_alloc goes through the staging ring, as in shm */
} ms_loop_schedule;
/* As ms_comm_create_loop, with a seeded schedule: the same seed and calls give the same events. */
ms_status ms_comm_create_loop_seeded(const ms_comm_options *options, int size,
                                     const ms_loop_schedule *schedule, ms_comm **comms);

#endif
