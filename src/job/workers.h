/* One start of a job's workers, by a process of its own. */
#ifndef MGW_JOB_WORKERS_H
#define MGW_JOB_WORKERS_H

#include <signal.h>

#include "job/launch.h"

/* How a start ended. */
typedef struct workers_end {
    mgw_error error; /* a failure of ours; its status is MGW_OK: none */
    int exit_status; /* of the first worker that failed, or 0 */
    unsigned lost;   /* workers that failed by themselves, not because of others or of us */
    char cause[160]; /* "rank 1 was killed by signal 9 (Killed)", or empty */
} workers_end;

/* How signals were before the launcher, for the workers. */
typedef struct workers_signals {
    sigset_t mask;
    void (*pipe)(int);
    void (*child)(int);
} workers_signals;

/*
 * Starts the workers and sees them and their output through, in a process between the launcher and
 * them: if the launcher is killed, it ends everything; if it is killed itself, the launcher does.
 * Signals of the launcher are blocked. Does not return; *end is written to `report`. *left, in
 * memory that both share, is how many workers there are, where these go on when one of them is
 * lost.
 */
void workers_run(const job_options *job, unsigned restart, const workers_signals *outer, int parent,
                 int report, _Atomic unsigned *left) __attribute__((noreturn));

#endif
