/* The library's own threads inside another program. */
#ifndef MGW_BASE_THREAD_H
#define MGW_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Memory for the stack is only committed on use. */
enum { MGW_THREAD_STACK = 1 << 20 };

/* At least as much as the program's threads have, and enough where these have very little. */
static inline int mgw_thread_stack(pthread_attr_t *out)
{
    size_t bytes = 0;
    int code = pthread_getattr_default_np(out);
    if (code)
        return code;
    pthread_attr_getstacksize(out, &bytes);
    code = bytes < MGW_THREAD_STACK ? pthread_attr_setstacksize(out, MGW_THREAD_STACK) : 0;
    if (code)
        pthread_attr_destroy(out);
    return code;
}

/*
 * Starts a thread that blocks all signals: these are for the program. Returns like pthread_create.
 */
static inline int mgw_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    pthread_attr_t attributes;
    int code = mgw_thread_stack(&attributes);
    if (code)
        return code;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

#endif
