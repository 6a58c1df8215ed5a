/*
 * ranks.h - N processes of this test as the ranks of a job over shm. Ranks are forked (nothing here
 * uses OpenMP or threads before), run a body and end with its status.
 */
#ifndef TESTS_COMM_RANKS_H
#define TESTS_COMM_RANKS_H

#define RANKS_MAX 8

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "net/rendezvous.h"

extern char **environ;

/* The exit status of a rank; 0 is good. */
typedef int (*ranks_body)(ms_comm *comm);

typedef struct ranks_job {
    int size;
    pid_t pids[RANKS_MAX];
    int statuses[RANKS_MAX]; /* of waitpid */
    double ended_s[RANKS_MAX];
    ms_rendezvous_offer offer;
} ranks_job;

/* Options of ranks_start's ranks; tests may change them before. */
static ms_comm_options ranks_options = MS_COMM_OPTIONS_INIT;

static inline void ranks_child(ranks_job *job, int rank, ranks_body body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char **variables;
    if (ms_rendezvous_environment(&job->offer, rank, environ, &variables) != MS_OK) {
        _exit(100);
    }
    environ = variables;
    close(job->offer.lifeline_write);
    ms_comm *comm;
    ms_status status = ms_comm_create(&ranks_options, &comm);
    if (status != MS_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, ms_status_name(status), ms_error_detail());
        _exit(101);
    }
    /* what the other ranks need is not needed here any more */
    for (int other = 0; other < job->size; other++) {
        if (other != rank) {
            close(job->offer.receive[other]);
        }
    }
    int result = body(comm);
    ms_comm_destroy(comm);
    fflush(NULL);
    _exit(result);
}

static inline bool ranks_start(ranks_job *job, int size, ranks_body body) {
    memset(job, 0, sizeof *job);
    job->size = size;
    if (ms_rendezvous_offer_make(size, 4711, 0, &job->offer) != MS_OK) {
        return false;
    }
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        job->pids[rank] = fork();
        if (job->pids[rank] == 0) {
            ranks_child(job, rank, body);
        }
    }
    ms_rendezvous_offer_handed_over(&job->offer);
    return true;
}

/* Reaps all, for at most limit_s; kills what is left then. True when all ended by themselves. */
static inline bool ranks_wait(ranks_job *job, double limit_s) {
    double start_s = ms_clock_s();
    int left = job->size;
    bool good = true;
    while (left > 0) {
        for (int rank = 0; rank < job->size; rank++) {
            if (job->pids[rank] > 0 &&
                waitpid(job->pids[rank], &job->statuses[rank], WNOHANG) == job->pids[rank]) {
                job->pids[rank] = 0;
                job->ended_s[rank] = ms_clock_s();
                left--;
            }
        }
        if (left > 0 && good && ms_clock_s() - start_s > limit_s) {
            good = false;
            fprintf(stderr, "%d ranks still run after %g s\n", left, limit_s);
            for (int rank = 0; rank < job->size; rank++) {
                if (job->pids[rank] > 0) {
                    kill(job->pids[rank], SIGKILL);
                }
            }
        }
        if (left > 0) {
            ms_sleep_ms(1);
        }
    }
    ms_rendezvous_offer_close(&job->offer);
    return good;
}

/* All ranks ended with status 0. */
static inline bool ranks_run(int size, ranks_body body, double limit_s) {
    ranks_job job;
    if (!ranks_start(&job, size, body) || !ranks_wait(&job, limit_s)) {
        return false;
    }
    bool good = true;
    for (int rank = 0; rank < size; rank++) {
        if (!WIFEXITED(job.statuses[rank]) || WEXITSTATUS(job.statuses[rank]) != 0) {
            fprintf(stderr, "rank %d ended with status 0x%x\n", rank, (unsigned)job.statuses[rank]);
            good = false;
        }
    }
    return good;
}

/* Entries of a directory, such as /dev/shm or /proc/self/fd. */
static inline int count_entries(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

#endif
