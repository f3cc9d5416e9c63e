/* One start of a job's workers, in a separate process. */
#ifndef MGW_JOB_WORKERS_H
#define MGW_JOB_WORKERS_H

#include <signal.h>

#include "job/launch.h"

/* How a start ended. */
typedef struct workers_end {
    mgw_error error; /* our own failure; status MGW_OK: none */
    int exit_status; /* of the first worker that failed, or 0 */
    unsigned lost; /* number of workers that failed by themselves, not because of others or of us */
    char cause[160]; /* "rank 1 was killed by signal 9 (Killed)", or empty */
} workers_end;

/* The signal state before the launcher changed it, for the workers. */
typedef struct workers_signals {
    sigset_t mask;
    void (*pipe)(int);
    void (*child)(int);
} workers_signals;

/*
 * Runs the workers and handles their output, in a process between them and the launcher: if the
 * launcher is killed, this process ends everything; if this process is killed, the launcher does.
 * Signals of the launcher are blocked. Does not return; writes a workers_end to `report`. *left, in
 * memory shared with the launcher, is the number of workers if they re-form when one is lost.
 */
void workers_run(const job_options *job, unsigned restart, const workers_signals *outer, int parent,
                 int report, _Atomic unsigned *left) __attribute__((noreturn));

#endif
