/* Clocks. */
#ifndef MGW_BASE_CLOCK_H
#define MGW_BASE_CLOCK_H

#include <time.h>

/* Monotonic seconds, the same for all processes of a host. */
static inline double mgw_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/*
 * The same, but without time in which this process was stopped or had no core. For waits, which
 * must read it at least once a second: between two readings, by any thread, it advances by at most
 * a second and a half. Threads: any.
 */
double mgw_awake_s(void);

/* CPU time of this thread. */
static inline double mgw_busy_s(void)
{
    struct timespec busy;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &busy);
    return (double)busy.tv_sec + (double)busy.tv_nsec * 1e-9;
}

#endif
