/* Handles Ctrl-C with a thread that waits for it. */
#include "job/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

/*
 * A separate thread waits for signals. A handler would run on the stack of a computing thread, and
 * kernels of oneDNN use the stack pointer for other purposes: the signal frame would overwrite our
 * memory.
 */
static atomic_int interrupted; /* the signal, or 0 */
static atomic_bool orderly;    /* end after the current step */
static atomic_bool ended;      /* nothing left to interrupt */

/* A terminal and a launcher may both forward the same Ctrl-C. */
static const double same_s = 1;

static sigset_t end_set(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

static void *await_end(void *unused)
{
    (void)unused;
    sigset_t set = end_set();
    int told = 0;
    double first_s = 0;
    while (!sigwait(&set, &told) && !atomic_load(&ended)) {
        int none = 0;
        bool first = atomic_compare_exchange_strong(&interrupted, &none, told);
        if (first)
            first_s = mgw_now_s();
        if (!atomic_load(&orderly) || (!first && mgw_now_s() - first_s > same_s)) {
            signal(told, SIG_DFL);
            pthread_sigmask(SIG_UNBLOCK, &set, NULL);
            raise(told);
        }
    }
    return NULL;
}

mgw_status job_watch(pthread_t *watch, mgw_error *error)
{
    sigset_t set = end_set();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return mgw_thread_start(watch, await_end, NULL)
               ? mgw_fail(error, MGW_ERR_IO, "cannot start a thread")
               : MGW_OK;
}

void job_end_in_order(void)
{
    atomic_store(&orderly, true);
}

void job_unwatch(pthread_t watch)
{
    atomic_store(&ended, true);
    pthread_kill(watch, SIGINT);
    pthread_join(watch, NULL);
}

int job_interrupted(void)
{
    return interrupted;
}
