/*
 * Threads that reduce together. Reductions follow each other closely while a message is in flight,
 * so a thread that has finished its part spins for a while before it sleeps.
 */
#include "transport/crew.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "transport/reduce.h"

static const double awake_s = 300e-6;

enum { SOURCES_MAX = 64 };

typedef struct sum {
    const void *const *source;
    size_t sources;
    char *target;
    size_t count;
    mgw_dtype dtype;
    mgw_op op;
} sum;

typedef struct crew_hand {
    crew *crew;
    pthread_t thread;
    unsigned part;
} crew_hand;

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t called;
    _Atomic uint32_t calls; /* for all threads; the fields below are written before */
    _Atomic unsigned busy;  /* threads that have not finished their part */
    sum sum;
    bool ends;
    unsigned hands; /* threads besides the caller */
    crew_hand hand[];
};

static void add_up(const sum *s, unsigned part, unsigned parts)
{
    const void *from[SOURCES_MAX];
    size_t first = 0;
    size_t length = 0;
    mgw_transport_block(s->count, parts, part, &first, &length);
    size_t at = first * mgw_dtype_bytes(s->dtype);
    for (size_t i = 0; i < s->sources; i++)
        from[i] = (const char *)s->source[i] + at;
    void *to = s->target + at;
    mgw_reduce(from, s->sources, &to, 1, length, s->dtype, s->op);
}

/* ---- Calls ---- */

/* Yields now and then: another thread may need the core. */
static void relax(unsigned *turns)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#endif
    if (++*turns % 1024 == 0)
        sched_yield();
}

static void call(crew *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_fetch_add(&c->calls, 1);
    pthread_cond_broadcast(&c->called);
    pthread_mutex_unlock(&c->lock);
}

static void await_call(crew *c, uint32_t heard)
{
    double begun_s = mgw_now_s();
    unsigned turns = 0;
    while (atomic_load(&c->calls) == heard && mgw_now_s() - begun_s < awake_s)
        relax(&turns);
    if (atomic_load(&c->calls) != heard)
        return;
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->calls) == heard)
        pthread_cond_wait(&c->called, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void *lend_a_hand(void *argument)
{
    const crew_hand *hand = argument;
    crew *c = hand->crew;
    for (uint32_t heard = 0;; heard++) {
        await_call(c, heard);
        if (c->ends)
            return NULL;
        add_up(&c->sum, hand->part, c->hands + 1);
        atomic_fetch_sub(&c->busy, 1);
    }
}

void crew_reduce(crew *c, const void *const *source, size_t sources, void *target, size_t count,
                 mgw_dtype dtype, mgw_op op)
{
    const sum whole = {source, sources, target, count, dtype, op};
    if (!c) {
        add_up(&whole, 0, 1);
        return;
    }
    c->sum = whole;
    atomic_store(&c->busy, c->hands);
    call(c);
    add_up(&whole, 0, c->hands + 1);
    unsigned turns = 0;
    while (atomic_load(&c->busy))
        relax(&turns);
}

/* ---- Life ---- */

void crew_close(crew *c)
{
    if (!c)
        return;
    c->ends = true;
    call(c);
    for (unsigned i = 0; i < c->hands; i++)
        pthread_join(c->hand[i].thread, NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->called);
    free(c);
}

/* Starts as many as possible. */
static void start_hands(crew *c, unsigned wanted)
{
    unsigned started = 0;
    while (started < wanted) {
        crew_hand *hand = &c->hand[started];
        *hand = (crew_hand){.crew = c, .part = started + 1};
        if (mgw_thread_start(&hand->thread, lend_a_hand, hand))
            break;
        started++;
    }
    c->hands = started; /* no call has been made yet */
}

mgw_status crew_open(unsigned threads, crew **out, mgw_error *error)
{
    crew *c = calloc(1, sizeof *c + threads * sizeof *c->hand);
    if (!c)
        return mgw_fail_memory(error, "crew");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->called, NULL);
    start_hands(c, threads - 1);
    *out = c;
    return MGW_OK;
}
