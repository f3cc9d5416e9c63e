/* The one clock: seconds that only go forward, the same for all processes of a host. */
#ifndef MGW_BASE_CLOCK_H
#define MGW_BASE_CLOCK_H

#include <time.h>

static inline double mgw_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
