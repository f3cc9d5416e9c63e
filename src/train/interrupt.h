/* Ctrl-C: the first ends training in good order, a later one at once. */
#ifndef MGW_TRAIN_INTERRUPT_H
#define MGW_TRAIN_INTERRUPT_H

#include <pthread.h>
#include <stdbool.h>

#include <mgwfbp/status.h>

/* From here on SIGINT and SIGTERM are kept in mind. Before any other thread is there: they all
 * leave it to the one that this starts. */
MGW_CHECKED mgw_status train_watch(pthread_t *watch, mgw_error *error);
void train_stop_watching(pthread_t watch);

/* Whether this worker was asked to end, in good order. Threads: any. */
bool train_is_interrupted(void);

#endif
