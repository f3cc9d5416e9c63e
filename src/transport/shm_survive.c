/* Who continues after a failure: the surviving ranks agree in their existing segment. */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm.h"

/* A rank that is alive and has not come by then is left behind: it hangs, or its program does not
 * want to continue. After that, the deciding rank may itself hang. */
static const double coming_s = 30;
static const double deciding_s = 5;
static const double joining_s = 10;

/* The rank is gone: nobody holds its mutex. Two ranks that check at once may take
 * each other for the holder; they check again. */
static bool is_gone(shm_rank *rank)
{
    uint32_t presence = atomic_load(&rank->presence);
    if (presence == SHM_LEFT || presence == SHM_DIED)
        return true;
    int code = pthread_mutex_trylock(&rank->alive);
    if (code == EBUSY)
        return false;
    if (code == EOWNERDEAD)
        atomic_store(&rank->presence, SHM_DIED);
    if (code == 0 || code == EOWNERDEAD)
        pthread_mutex_unlock(&rank->alive);
    return true;
}

typedef struct seen {
    uint64_t came;   /* to this round */
    unsigned lowest; /* of those who came */
    bool all;        /* nobody who is alive is missing */
} seen;

static seen look(shm *s, unsigned round)
{
    seen now = {.lowest = s->rank, .all = true};
    for (unsigned r = s->size; r-- > 0;) {
        shm_rank *rank = &s->segment->ranks[r];
        if (r != s->rank && is_gone(rank))
            continue;
        if (atomic_load(&rank->wants) > round) {
            now.came |= (uint64_t)1 << r;
            now.lowest = r;
        } else {
            now.all = false;
        }
    }
    return now;
}

/* A rank that was to continue and has since left the old job may have continued or given up: this
 * cannot be known. */
static bool has_moved_on(const shm *s, unsigned round, unsigned *who)
{
    uint64_t before = round ? atomic_load(&s->segment->members[round - 1]) : 0;
    for (unsigned r = 0; r < s->size; r++)
        if (before >> r & 1 && atomic_load(&s->segment->ranks[r].presence) == SHM_LEFT) {
            *who = r;
            return true;
        }
    return false;
}

/* The lowest rank that came decides for all, once. */
mgw_status shm_survive(void *state, unsigned round, mgw_survivors *out, mgw_error *error)
{
    shm *s = state;
    shm_rank *own = &s->segment->ranks[s->rank];
    if (round >= SHM_ROUNDS)
        return mgw_fail(error, MGW_ERR_PEER,
                        "shm: the remaining workers changed %d times while they agreed",
                        SHM_ROUNDS);
    if (!s->failed)
        shm_give_up(s, s->rank);
    atomic_store(&own->wants, round + 1);
    _Atomic uint64_t *decided = &s->segment->members[round];
    double begun_s = mgw_awake_s();
    double most_s = fmin(s->timeout_s, coming_s);
    uint64_t members = 0;
    while (!(members = atomic_load(decided))) {
        seen now = look(s, round);
        double waited_s = mgw_awake_s() - begun_s;
        uint64_t open = 0;
        unsigned who = 0;
        if (has_moved_on(s, round, &who))
            return mgw_fail(error, MGW_ERR_PEER,
                            "shm: rank %u has gone on without rank %u, or has given up", who,
                            s->rank);
        if (now.lowest == s->rank && (now.all || waited_s > most_s))
            atomic_compare_exchange_strong(decided, &open, now.came);
        else if (waited_s > most_s + deciding_s)
            return mgw_fail(error, MGW_ERR_TIMEOUT, "shm: rank %u did not say which ranks continue",
                            now.lowest);
        else
            nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
    }
    if (!(members >> s->rank & 1))
        return mgw_fail(error, MGW_ERR_PEER, "shm: the other workers continued without rank %u",
                        s->rank);
    uint64_t below = members & (((uint64_t)1 << s->rank) - 1);
    *out = (mgw_survivors){.rank = (unsigned)__builtin_popcountll(below),
                           .size = (unsigned)__builtin_popcountll(members),
                           .round = round,
                           .join_s = joining_s};
    return MGW_OK;
}
