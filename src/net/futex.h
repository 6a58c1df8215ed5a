/* futex.h - sleeping on a word in memory that processes share. */
#ifndef MS_NET_FUTEX_H
#define MS_NET_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleeps while *word == expected, at most until the time on ms_clock_ns; may return early. */
void ms__futex_wait(const _Atomic uint32_t *word, uint32_t expected, int64_t until_ns);
void ms__futex_wake_all(const _Atomic uint32_t *word);

/* A hint to the processor inside a short spin. */
static inline void ms__spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
