/*
 * futex.c - the two futex calls.
 *
 * Where it stands: under exchange.c, the only place of a rank where a thread sleeps for the
 * network. Not the private kind: the word lies in a memfd that other processes map.
 * FUTEX_WAIT_BITSET because its time limit is absolute on CLOCK_MONOTONIC, so a signal in between
 * does not lengthen the wait.
 */
#define _GNU_SOURCE 1

#include "net/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void ms__futex_wait(const _Atomic uint32_t *word, uint32_t expected, int64_t until_ns) {
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void ms__futex_wake_all(const _Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
