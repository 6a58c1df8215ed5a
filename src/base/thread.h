/* thread.h - OpenMP team size, and small wrappers over POSIX threads used by net/ and data/. */
#ifndef MS_BASE_THREAD_H
#define MS_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include "base/error.h"

/* Sets the OpenMP team of the calling thread's parallel regions (run.threads); at least 1. */
void ms_thread_team_set(int thread_count);
int ms_thread_team_get(void);

typedef struct ms_thread {
    pthread_t handle;
    int started;
} ms_thread;
/* Starts a thread with all signals blocked, named (at most 15 characters). */
ms_status ms_thread_start(ms_thread *thread, const char *name, void *(*body)(void *),
                          void *context);
void ms_thread_join(ms_thread *thread); /* fine if never started */

#endif
