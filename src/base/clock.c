/* clock.c - time. Deadlines and measurements use the monotonic clock, records the wall clock. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

int64_t ms_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double ms_wall_time_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void ms_sleep_ms(int64_t milliseconds) {
    if (milliseconds <= 0) {
        return;
    }
    struct timespec left = {.tv_sec = milliseconds / 1000,
                            .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
