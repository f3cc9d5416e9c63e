/* Threads of our own in somebody else's program. */
#ifndef MGW_BASE_THREAD_H
#define MGW_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Starts one that takes no signals: these are the program's own business. Returns as
 * pthread_create. */
static inline int mgw_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

#endif
