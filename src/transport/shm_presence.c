/* Shows whether a rank is alive: a thread of the library holds a mutex that the kernel marks when
 * the thread ends, however the process ends. It is not one of the program's threads, so any of
 * these may open, use and close the transport. A forked child does not have this thread, so it is
 * no worker. */
#include "base/status.h"
#include "base/thread.h"
#include "transport/shm.h"

static void *hold(void *argument)
{
    shm_keeper *keeper = argument;
    pthread_mutex_lock(keeper->alive);
    sem_post(&keeper->holds);
    while (sem_wait(&keeper->leaves))
        continue;
    pthread_mutex_unlock(keeper->alive);
    return NULL;
}

mgw_status shm_appear(shm *s, mgw_error *error)
{
    shm_rank *own = &s->segment->ranks[s->rank];
    shm_keeper *keeper = &s->keeper;
    if (sem_init(&keeper->holds, 0, 0) || sem_init(&keeper->leaves, 0, 0))
        return mgw_fail(error, MGW_ERR_NO_MEMORY, "shm: cannot make a semaphore");
    keeper->alive = &own->alive;
    if (mgw_thread_start(&keeper->thread, hold, keeper))
        return mgw_fail(error, MGW_ERR_NO_MEMORY, "shm: cannot start a thread");
    while (sem_wait(&keeper->holds))
        continue;
    keeper->runs = true;
    atomic_store(&own->presence, SHM_JOINED);
    return MGW_OK;
}

void shm_disappear(shm *s)
{
    shm_keeper *keeper = &s->keeper;
    uint32_t joined = SHM_JOINED;
    if (!keeper->runs)
        return;
    atomic_compare_exchange_strong(&s->segment->ranks[s->rank].presence, &joined, SHM_LEFT);
    shm_wake_sleepers(&s->segment->ranks[s->rank]);
    sem_post(&keeper->leaves);
    pthread_join(keeper->thread, NULL);
    sem_destroy(&keeper->holds);
    sem_destroy(&keeper->leaves);
    keeper->runs = false;
}
