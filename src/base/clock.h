/* The clocks. */
#ifndef MGW_BASE_CLOCK_H
#define MGW_BASE_CLOCK_H

#include <time.h>

/* Seconds that only go forward, the same for all processes of a host. */
static inline double mgw_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/*
 * The same, but without time in which this process was stopped, or had no core: for waits, in which
 * it must be read at least once a second. Between two readings, whoever makes them, no more than a
 * second and a half goes by on it. Threads: any.
 */
double mgw_awake_s(void);

/* How long this thread has kept a core busy. */
static inline double mgw_busy_s(void)
{
    struct timespec busy;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &busy);
    return (double)busy.tv_sec + (double)busy.tv_nsec * 1e-9;
}

#endif
