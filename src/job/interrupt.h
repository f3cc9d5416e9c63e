/* Ctrl-C: the first one ends the work in an orderly way, a later one at once. */
#ifndef MGW_JOB_INTERRUPT_H
#define MGW_JOB_INTERRUPT_H

#include <pthread.h>

#include <mgwfbp/status.h>

/* Starts a thread that waits for SIGINT and SIGTERM; until job_end_in_order, they end this process
 * at once. Call it before other threads are created, so that these block the signals. */
MGW_CHECKED mgw_status job_watch(pthread_t *watch, mgw_error *error);
void job_unwatch(pthread_t watch);

/* From now on, the first signal is only recorded; check job_interrupted between steps. */
void job_end_in_order(void);

/* The signal that asked this process to end in an orderly way, or 0. Threads: any. */
int job_interrupted(void);

#endif
