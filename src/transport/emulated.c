/*
 * Emulates a slow network on top of any transport: a collective of M bytes takes at least a + b*M.
 */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/transport.h"

typedef struct emulated {
    mgw_transport *inner;
    mgw_cluster *cluster; /* the source of the costs; null: the transport's name has them */
    mgw_cost cost;
    double end_s;   /* of the last collective */
    double *came_s; /* by rank: when it arrived at the collective */
    double late_s;  /* how late this thread wakes up, on average */
    bool may_hurry;
    bool hurries;
    int policy; /* scheduling policy before it was raised */
    struct sched_param priority;
} emulated;

/* ---- Costs of collectives ---- */

/* The two numbers describe an all-reduce; a reduce-scatter or all-gather costs half. */
static void take_line(mgw_cost *cost, double a_s, double b_s_per_byte)
{
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        double part = kind == MGW_REDUCE_SCATTER || kind == MGW_ALL_GATHER ? 0.5 : 1;
        cost->of[kind] = (mgw_curve){.a_s = part * a_s, .b_s_per_byte = part * b_s_per_byte};
    }
}

static mgw_status learn_costs(emulated *e, const mgw_transport_spec *spec, mgw_error *error)
{
    if (!spec->cluster[0]) {
        take_line(&e->cost, spec->a_s, spec->b_s_per_byte);
        return MGW_OK;
    }
    mgw_error why = {0};
    if (mgw_cluster_load(spec->cluster, &e->cluster, &why))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "transport emulated:%.60s: write emulated:A,B with seconds and seconds per "
                        "byte, or emulated:CLUSTER (%s)",
                        spec->cluster, why.message);
    mgw_cluster_cost(e->cluster, &e->cost);
    return MGW_OK;
}

/* ---- Waiting out the rest ---- */

/*
 * A network does not wait for a processor, but where cores are few a thread that is due does. So
 * its priority is raised where the system allows it. It is not raised during large reductions,
 * which run beside all other work; nor if the inner transport busy-waits, for ranks that then could
 * not run; nor on the main thread, which also computes.
 */
enum { MUCH = 4 * 1024 * 1024 };

static void learn_to_hurry(emulated *e)
{
    e->may_hurry =
        (mgw_transport_capabilities(e->inner) & MGW_WAITS_ASLEEP) && gettid() != getpid();
    e->policy = sched_getscheduler(0);
    sched_getparam(0, &e->priority);
}

static void hurry(emulated *e, bool on)
{
    static const struct sched_param first = {.sched_priority = 1};
    if (!e->may_hurry || e->hurries == on)
        return;
    e->may_hurry = !sched_setscheduler(0, on ? SCHED_RR : e->policy, on ? &first : &e->priority);
    e->hurries = on;
}

/*
 * A sleeping thread wakes up late: by 15 us where cores are busy, by 50 us where they are idle. So
 * the thread wakes up earlier by its average delay and spins for the rest. It wakes no earlier than
 * that: at raised priority, spinning takes time from computation.
 */
static const double late_most_s = 100e-6;

static void sleep_until(emulated *e, double end_s)
{
    double wake_s = end_s - 1.25 * e->late_s;
    if (wake_s > mgw_now_s()) {
        prctl(PR_SET_TIMERSLACK, 1UL); /* this thread; 50 us are too coarse for a start-up */
        struct timespec wake = {.tv_sec = (time_t)wake_s,
                                .tv_nsec = (long)((wake_s - floor(wake_s)) * 1e9)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
            continue;
        e->late_s += (fmin(mgw_now_s() - wake_s, late_most_s) - e->late_s) / 8;
    }
    while (mgw_now_s() < end_s)
        continue;
}

/* ---- Life ---- */

static mgw_status emulated_prepare(const mgw_transport_setup *setup, bool *caller, mgw_error *error)
{
    const mgw_transport_setup inner = mgw_transport_inside(setup);
    return mgw_transport_prepare_as(&inner, caller, error);
}

static void emulated_close(void *state);

static mgw_status emulated_open(const mgw_transport_setup *setup, void **state, mgw_error *error)
{
    emulated *e = calloc(1, sizeof *e);
    if (!e)
        return mgw_fail_memory(error, "emulated");
    const mgw_transport_setup inner = mgw_transport_inside(setup);
    mgw_status status = learn_costs(e, &setup->spec, error);
    if (!status)
        status = mgw_transport_open_as(&inner, &e->inner, error);
    if (!status && !(e->came_s = calloc(mgw_transport_size(e->inner), sizeof *e->came_s)))
        status = mgw_fail_memory(error, "emulated");
    if (status) {
        emulated_close(e);
        return status;
    }
    learn_to_hurry(e);
    *state = e;
    return MGW_OK;
}

static void emulated_place(void *state, unsigned *rank, unsigned *size)
{
    const emulated *e = state;
    *rank = mgw_transport_rank(e->inner);
    *size = mgw_transport_size(e->inner);
}

static void emulated_close(void *state)
{
    emulated *e = state;
    hurry(e, false);
    mgw_transport_close(e->inner);
    mgw_cluster_destroy(e->cluster);
    free(e->came_s);
    free(e);
}

/* ---- Collectives ---- */

/*
 * A collective begins when the last worker has arrived. The workers exchange their arrival times,
 * by the clock of the host they share. The exchange counts towards the emulated time.
 */
static mgw_status begin(emulated *e, const mgw_transport_call *call, double *begin_s,
                        mgw_error *error)
{
    unsigned size = mgw_transport_size(e->inner);
    memset(e->came_s, 0, size * sizeof *e->came_s);
    e->came_s[mgw_transport_rank(e->inner)] = mgw_now_s();
    const mgw_transport_call tell = {.kind = MGW_ALL_REDUCE,
                                     .data = (char *)e->came_s,
                                     .count = size,
                                     .element = sizeof *e->came_s,
                                     .dtype = MGW_F64,
                                     .op = MGW_SUM,
                                     .purpose = call->purpose,
                                     .follows = call->follows};
    mgw_status status = mgw_transport_run(e->inner, &tell, error);
    *begin_s = 0;
    for (unsigned r = 0; r < size; r++)
        *begin_s = fmax(*begin_s, e->came_s[r]);
    *begin_s = fmin(*begin_s, mgw_now_s()); /* clocks of other hosts have other origins */
    if (call->count * call->element > MUCH)
        hurry(e, false);
    return status;
}

static mgw_status emulated_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    return mgw_transport_allocate(((emulated *)state)->inner, bytes, out, error);
}

/* Messages are serialized: there is one channel. */
static mgw_request charge(emulated *e, mgw_collective kind, size_t bytes, double begin_s)
{
    e->end_s = fmax(begin_s, e->end_s) + mgw_cost_seconds(&e->cost, kind, bytes);
    return (mgw_request){.number = 1, .end_s = e->end_s};
}

/* Runs the collective at once; the request waits for the rest of its emulated time. */
static mgw_status emulated_post(void *state, const mgw_transport_call *call, mgw_request *out,
                                mgw_error *error)
{
    emulated *e = state;
    size_t bytes = call->count * call->element;
    double begin_s = 0;
    mgw_status status = begin(e, call, &begin_s, error);
    if (!status)
        status = mgw_transport_run(e->inner, call, error);
    if (!status)
        *out = charge(e, call->kind, bytes, begin_s);
    return status;
}

static mgw_status emulated_test(void *state, const mgw_request *request, bool *done,
                                mgw_error *error)
{
    (void)state, (void)error;
    *done = mgw_now_s() >= request->end_s;
    return MGW_OK;
}

static mgw_status emulated_wait(void *state, const mgw_request *request, mgw_error *error)
{
    emulated *e = state;
    (void)error;
    hurry(e, true);
    sleep_until(e, request->end_s);
    return MGW_OK;
}

static mgw_status emulated_barrier(void *state, mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, &(mgw_transport_call){0}, &begin_s, error);
    if (status)
        return status;
    mgw_request request = charge(e, MGW_ALL_REDUCE, 0, begin_s);
    return emulated_wait(e, &request, error);
}

static mgw_status emulated_survive(void *state, unsigned round, mgw_survivors *out,
                                   mgw_error *error)
{
    return mgw_transport_survive(((emulated *)state)->inner, round, out, error);
}

static void emulated_say(void *state, const char *doing)
{
    mgw_transport_say(((emulated *)state)->inner, doing);
}

const mgw_transport_table mgw_transport_emulated = {
    .capabilities = MGW_MOVES_HALVES | MGW_NAMES_LATE,
    .prepare = emulated_prepare,
    .open = emulated_open,
    .place = emulated_place,
    .close = emulated_close,
    .say = emulated_say,
    .survive = emulated_survive,
    .allocate = emulated_allocate,
    .post = emulated_post,
    .test = emulated_test,
    .wait = emulated_wait,
    .barrier = emulated_barrier,
};
