/* Ctrl-C: the first ends the work in good order, a later one at once. */
#ifndef MGW_JOB_INTERRUPT_H
#define MGW_JOB_INTERRUPT_H

#include <pthread.h>

#include <mgwfbp/status.h>

/* From here on SIGINT and SIGTERM are waited for; until work has begun they end this process at
 * once. Before any other thread is there: they all leave it to the one that this starts. */
MGW_CHECKED mgw_status job_watch(pthread_t *watch, mgw_error *error);
void job_unwatch(pthread_t watch);

/* From here on the first of them is kept in mind, and asked for between steps. */
void job_end_in_order(void);

/* The signal by which this process was asked to end in good order, or 0. Threads: any. */
int job_interrupted(void);

#endif
