/*
 * Meetings: how ranks wait for each other, asleep where cores are few, and find out who is missing.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm.h"

/* Between two checks that ranks are alive. */
static const struct timespec look = {.tv_nsec = 50 * 1000 * 1000};

static void sleep_on(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT, value, &look, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/*
 * Whether the kernel has marked the rank's mutex because its holder died. It only tells the first
 * that asks. After that the mutex is useless, so the finder records the death for the others.
 */
static bool has_died(shm_rank *rank)
{
    if (atomic_load(&rank->presence) == SHM_DIED)
        return true;
    int code = pthread_mutex_trylock(&rank->alive);
    if (code == EBUSY)
        return false;
    if (code == EOWNERDEAD)
        atomic_store(&rank->presence, SHM_DIED);
    if (code == 0 || code == EOWNERDEAD) /* otherwise another rank found it just before */
        pthread_mutex_unlock(&rank->alive);
    return code != 0;
}

/* Meetings are counted modulo 2^32; no rank is ever more than one ahead. */
static bool has_come(shm_rank *rank, uint32_t meeting)
{
    return (int32_t)(atomic_load_explicit(&rank->arrived, memory_order_acquire) - meeting) >= 0;
}

static bool is_so(shm_rank *rank, shm_presence presence)
{
    uint32_t now = atomic_load(&rank->presence);
    if (presence == SHM_DIED)
        return now == SHM_DIED || (now == SHM_JOINED && has_died(rank));
    return now == presence;
}

/* A rank that has not come to this meeting and has the given presence; -1: none. A rank that has
 * come may have continued and left since. */
static int find_missing(shm *s, uint32_t meeting, shm_presence presence)
{
    for (unsigned r = 0; r < s->size; r++) {
        shm_rank *rank = &s->segment->ranks[r];
        if (r != s->rank && !has_come(rank, meeting) && is_so(rank, presence))
            return (int)r;
    }
    return -1;
}

/* Fails if a rank will never come to this meeting. Dead ranks are checked first: others may have
 * left or failed because of them. */
static mgw_status look_around(shm *s, uint32_t meeting, const char *what, unsigned *culprit,
                              mgw_error *error)
{
    int r = find_missing(s, meeting, SHM_DIED);
    if (r >= 0) {
        *culprit = (unsigned)r;
        return mgw_fail(error, MGW_ERR_PEER, "%s: rank %d has died", what, r);
    }
    r = find_missing(s, meeting, SHM_LEFT);
    if (r >= 0) {
        *culprit = (unsigned)r;
        return mgw_fail(error, MGW_ERR_PEER, "%s: rank %d has left", what, r);
    }
    r = find_missing(s, meeting, SHM_FAILED);
    if (r < 0)
        return MGW_OK;
    *culprit = atomic_load(&s->segment->ranks[r].blamed);
    return mgw_fail(error, MGW_ERR_PEER, "%s: rank %d has failed, for rank %u", what, r, *culprit);
}

mgw_status shm_check(shm *s, mgw_error *error)
{
    for (unsigned r = 0; r < s->size; r++) {
        shm_rank *rank = &s->segment->ranks[r];
        uint32_t presence = atomic_load(&rank->presence);
        if (r != s->rank && (presence == SHM_JOINED || presence == SHM_DIED) && has_died(rank))
            return mgw_fail(error, MGW_ERR_PEER, "rank %u has died", r);
    }
    for (unsigned r = 0; r < s->size; r++) {
        shm_rank *rank = &s->segment->ranks[r];
        if (r != s->rank && atomic_load(&rank->presence) == SHM_FAILED)
            return mgw_fail(error, MGW_ERR_PEER, "rank %u has failed, for rank %u", r,
                            atomic_load(&rank->blamed));
    }
    return MGW_OK;
}

static mgw_status compare_words(const shm *s, uint32_t meeting, mgw_word own, unsigned *culprit,
                                mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (unsigned r = 0; !status && r < s->size; r++) {
        *culprit = r;
        status = mgw_word_compare(own, s->rank, s->segment->ranks[r].calls[meeting % 2], r, error);
    }
    return status;
}

enum { SPINS = 4000, YIELDS = 40 };

static bool wait_awake(shm *s, shm_rank *rank, uint32_t meeting)
{
    for (int i = 0; s->spin && i < SPINS; i++) {
        if (has_come(rank, meeting))
            return true;
#if defined __x86_64__ || defined __i386__
        __builtin_ia32_pause();
#endif
    }
    for (int i = 0; i < YIELDS; i++) { /* more ranks than cores: let the others run */
        if (has_come(rank, meeting))
            return true;
        sched_yield();
    }
    return false;
}

/* ---- Status of a rank ---- */

void shm_say(void *state, const char *doing)
{
    const shm *s = state;
    uint64_t words[SHM_WORDS] = {0};
    memcpy(words, doing, strnlen(doing, sizeof words - 1));
    for (size_t i = 0; i < SHM_WORDS; i++)
        atomic_store_explicit(&s->segment->ranks[s->rank].doing[i], words[i], memory_order_relaxed);
}

/* The text may be changing: then it mixes both, but is null-terminated. */
static mgw_status fail_late(const shm *s, unsigned r, const char *what, mgw_error *error)
{
    uint64_t words[SHM_WORDS + 1] = {0};
    const char *doing = (const char *)words;
    for (size_t i = 0; i < SHM_WORDS; i++)
        words[i] = atomic_load_explicit(&s->segment->ranks[r].doing[i], memory_order_relaxed);
    return mgw_fail(error, MGW_ERR_TIMEOUT, "%s: rank %u did not come within %.3g s%s%s%s", what, r,
                    s->timeout_s, *doing ? " (" : "", doing, *doing ? ")" : "");
}

static mgw_status wait_for(shm *s, unsigned r, uint32_t meeting, const char *what, double *begun_s,
                           unsigned *culprit, mgw_error *error)
{
    shm_rank *rank = &s->segment->ranks[r];
    if (wait_awake(s, rank, meeting))
        return MGW_OK;
    if (*begun_s == 0) /* one timeout for the whole meeting */
        *begun_s = mgw_awake_s();
    while (!has_come(rank, meeting)) {
        uint32_t seen = atomic_load(&rank->arrived);
        atomic_fetch_add(&rank->sleepers, 1);
        if (!has_come(rank, meeting))
            sleep_on(&rank->arrived, seen);
        atomic_fetch_sub(&rank->sleepers, 1);
        if (has_come(rank, meeting))
            break;
        mgw_status status = look_around(s, meeting, what, culprit, error);
        if (status)
            return status;
        *culprit = r;
        if (mgw_awake_s() - *begun_s > s->timeout_s)
            return fail_late(s, r, what, error);
    }
    return MGW_OK;
}

void shm_wake_sleepers(shm_rank *rank)
{
    if (atomic_load(&rank->sleepers))
        wake(&rank->arrived);
}

void shm_give_up(shm *s, unsigned culprit)
{
    shm_rank *own = &s->segment->ranks[s->rank];
    s->failed = true;
    atomic_store(&own->blamed, culprit);
    atomic_store(&own->presence, SHM_FAILED);
    shm_wake_sleepers(own);
}

mgw_status shm_meet(shm *s, mgw_word word, mgw_error *error)
{
    const char *what = mgw_word_name(word);
    if (s->failed)
        return mgw_fail(error, MGW_ERR_PEER, "%s: the transport failed before; close it", what);
    uint32_t meeting = ++s->meetings;
    shm_rank *own = &s->segment->ranks[s->rank];
    own->calls[meeting % 2] = word;
    if (atomic_load_explicit(&own->doing[0], memory_order_relaxed))
        shm_say(s, "");
    atomic_store(&own->arrived, meeting); /* sequentially consistent: before reading sleepers */
    shm_wake_sleepers(own);
    mgw_status status = MGW_OK;
    unsigned culprit = 0;
    double begun_s = 0;
    for (unsigned r = 0; !status && r < s->size; r++)
        if (r != s->rank)
            status = wait_for(s, r, meeting, what, &begun_s, &culprit, error);
    if (!status)
        status = compare_words(s, meeting, word, &culprit, error);
    if (status)
        shm_give_up(s, culprit);
    return status;
}
