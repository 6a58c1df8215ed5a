/* clock.h - monotonic time in seconds and nanoseconds. */
#ifndef MS_BASE_CLOCK_H
#define MS_BASE_CLOCK_H

#include <stdint.h>

int64_t ms_clock_ns(void); /* CLOCK_MONOTONIC */
static inline double ms_clock_s(void) {
    return (double)ms_clock_ns() * 1e-9;
}
double ms_wall_time_s(void); /* seconds since 1970 */
void ms_sleep_ms(int64_t milliseconds);

#endif
