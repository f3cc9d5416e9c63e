/* Internals of the simulation: the world, its workers, and their interaction. */
#ifndef TESTS_SIMULATION_WORLD_H
#define TESTS_SIMULATION_WORLD_H

#include <setjmp.h>

#include "simulation/simulation.h"

typedef enum event_kind { COMPUTE, DELIVER, UPDATE, WATCH, STALL, CHANNEL } event_kind;

typedef struct event {
    double at_s;
    uint64_t tie; /* a seed's order of those at the same time */
    event_kind kind;
    unsigned worker;
    size_t what;
} event;

typedef enum phase {
    BETWEEN,
    LOOKING,
    DRAINING,
    MOVING,
    FORWARD,
    NEEDING,
    BACKWARD,
    ENDING,
    OVER
} phase;

enum { LOOK = -1 }; /* a collective that is none of the plan's */

/* One collective of all workers: the k-th that each of them starts. */
typedef struct collective {
    int index; /* of the plan, or LOOK */
    uint64_t step;
    mgw_operation operation;
    unsigned posted;
    bool *has; /* by worker */
    double start_s;
    double end_s;
    bool over;
    int64_t *values; /* by tensor of the operation */
    double *row;     /* LOOK */
    size_t sums;
    size_t maxima;
    uint64_t *word;
    bool followed;
    bool changes;
} collective;

typedef struct worker {
    mgw_flow *flow;
    mgw_tuner *tuner;
    phase phase;
    double paused_s; /* until then */
    bool gone;       /* dead, or given up */
    bool gave_up;
    unsigned blames;
    size_t position;
    unsigned swap;     /* this step's gradients `swap` and the next change places */
    size_t posted;     /* collectives */
    size_t delivered;  /*   of which are over here */
    size_t open;       /* of the plan's */
    double *posted_s;  /* by collective */
    size_t posted_max; /* room for them */
    bool watches;
    size_t turn; /* what must be handed out next, and of which step */
    uint64_t turn_step;
    size_t updates; /* that the next step waits for */
    bool looked;    /* before this step */
    bool shown;     /* the step before */
    bool turns;     /* another candidate's turn begins with this step */
    double pace;    /* of its computation in this step */
    double computed_s;
    double ended_s;
    double late_s;
    double stalled_s;  /* in this step's forward pass, */
    double stall_at_s; /*   the last time from then on */
    bool gathers_on;   /* gathers of the step before went on when this one began */
    double *took_s;
    /* By tensor. */
    int64_t *gradient;
    int64_t *parameter;
    uint64_t *ready_in;
    uint64_t *averaged_in;
    uint64_t *updated_in;
    double *timed_s;
    double *need_s;
} worker;

typedef struct world {
    const scenario *s;
    sim_result *result;
    sim_watch *watch;
    void *context;
    bool verbose;
    uint64_t random;
    uint64_t delayed; /* events of workers that were paused */
    double now_s;
    event *heap;
    size_t heap_count;
    size_t heap_max;
    collective *collectives;
    size_t collective_count;
    size_t collective_max;
    double free_s;  /* when the channel is */
    int64_t *sums;  /* by step and tensor: what its gradients add up to, */
    int64_t *known; /*   and what its parameters are when that step begins */
    worker *workers;
    mgw_error error;
    jmp_buf broken;
} world;

/* ---- world.c: chance, checks, events ---- */

uint64_t sim_mix(uint64_t z);
uint64_t sim_chance(world *w);

/* Something is wrong: the run is over. */
__attribute__((format(printf, 2, 3), noreturn)) void sim_broken(world *w, const char *format, ...);

#define CHECK(w, condition, ...)                                                                   \
    do {                                                                                           \
        if (!(condition))                                                                          \
            sim_broken(w, __VA_ARGS__);                                                            \
    } while (0)

/* A gradient: a whole number, so that sums are exact. */
int64_t sim_gradient(const world *w, unsigned rank, size_t tensor, uint64_t step);

/* How many times as long all takes in this step. */
double sim_wander(const scenario *s, uint64_t step);

/* For those who read along. */
__attribute__((format(printf, 2, 3))) void sim_note(world *w, const char *format, ...);

void *sim_room(world *w, size_t count, size_t size);

void sim_push(world *w, double at_s, event_kind kind, unsigned rank, size_t what);

/* ---- channel.c: collectives of all workers ---- */

/* This worker's next collective, which must be the same on all workers. */
collective *sim_meet(world *w, worker *me, int index, uint64_t step,
                     const mgw_operation *operation);
void sim_contribute(world *w, worker *me, collective *c);
void sim_post(world *w, worker *me, collective *c, uint64_t bytes);
void sim_finish(world *w, size_t k);
void sim_look_at_wait(world *w, worker *me);

/* ---- worker.c: its steps ---- */

void sim_adopt(world *w, worker *me, const mgw_operation *operations, size_t count);
void sim_compute(world *w, worker *me);
void sim_take_update(world *w, worker *me, size_t id);
void sim_deliver(world *w, worker *me, size_t k);

static inline unsigned rank_of(const world *w, const worker *me)
{
    return (unsigned)(me - w->workers);
}

static inline unsigned owner_of(const world *w, size_t tensor)
{
    return (unsigned)(tensor % w->s->workers);
}

static inline bool is_gather(const mgw_operation *o)
{
    return o->kind == MGW_ALL_GATHER;
}

static inline bool is_same(const mgw_operation *a, const mgw_operation *b)
{
    return a->kind == b->kind && a->release == b->release && a->first == b->first &&
           a->count == b->count;
}

static inline void fail_checked(world *w, worker *me, mgw_status status)
{
    CHECK(w, !status, "worker %u: %s", rank_of(w, me), w->error.message);
}

#endif
