/* The process id, cached and updated after every fork. */
#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static _Atomic pid_t known; /* 0: unknown */

static void ask(void)
{
    atomic_store_explicit(&known, getpid(), memory_order_relaxed);
}

static void begin(void)
{
    if (!pthread_atfork(NULL, NULL, ask))
        ask();
}

pid_t mgw_process(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pid_t process = atomic_load_explicit(&known, memory_order_relaxed);
    if (process)
        return process;
    pthread_once(&once, begin);
    process = atomic_load_explicit(&known, memory_order_relaxed);
    return process ? process : getpid(); /* no memory for a handler: a call each time */
}
