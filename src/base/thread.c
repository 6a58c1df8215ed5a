/*
 * thread.c - OpenMP's team size and named POSIX threads.
 *
 * A started thread has all signals blocked, so that SIGTERM and the like reach the thread that
 * asked for them; the mask must be set before pthread_create, since the new thread inherits it.
 */
#define _GNU_SOURCE 1 /* pthread_setname_np */

#include "base/thread.h"

#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

void ms_thread_team_set(int thread_count) {
    omp_set_dynamic(0); /* the number asked for, not what the load suggests: bits depend on it */
    omp_set_num_threads(thread_count < 1 ? 1 : thread_count);
}

int ms_thread_team_get(void) {
    return omp_get_max_threads();
}

ms_status ms_thread_start(ms_thread *thread, const char *name, void *(*body)(void *),
                          void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t handle;
    int code = pthread_create(&handle, NULL, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot start thread %s: %s", name, strerror(code));
    }
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(handle, short_name); /* for people only: a failure does not matter */
    thread->handle = handle;
    thread->started = 1;
    return MS_OK;
}

void ms_thread_join(ms_thread *thread) {
    if (thread->started) {
        pthread_join(thread->handle, NULL);
        thread->started = 0;
    }
}
