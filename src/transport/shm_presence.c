/* That a rank is there, or has died: a thread of its own holds a mutex that the kernel marks when
 * it ends, however the process ends. It is no thread of the program's, so that any of these may
 * open, use and close the transport; and a fork, which has no such thread, is no worker. */
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
    sem_post(&keeper->leaves);
    pthread_join(keeper->thread, NULL);
    sem_destroy(&keeper->holds);
    sem_destroy(&keeper->leaves);
    keeper->runs = false;
}
