/* A slow network around any transport: every collective of M bytes lasts at least a + b*M. */
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
    double a_s;
    double b_s_per_byte;
    double *came_s; /* by rank: when it came to the collective */
    double late_s;  /* how late this thread wakes up, on average */
    bool may_hurry;
    bool hurries;
    int policy; /* of scheduling, before it hurried */
    struct sched_param priority;
} emulated;

/* "emulated:A,B" or "emulated:A,B:INNER". */
static mgw_status parse_name(const char *name, emulated *e, const char **inner, mgw_error *error)
{
    const char *rest = strchr(name, ':');
    char *end = NULL;
    if (rest) {
        e->a_s = strtod(rest + 1, &end);
        if (end != rest + 1 && *end == ',') {
            rest = end + 1;
            e->b_s_per_byte = strtod(rest, &end);
            bool whole = end != rest && (*end == '\0' || *end == ':');
            if (whole && e->a_s >= 0 && e->b_s_per_byte >= 0 && isfinite(e->a_s) &&
                isfinite(e->b_s_per_byte)) {
                *inner = *end ? end + 1 : NULL;
                return MGW_OK;
            }
        }
    }
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "transport '%.60s': write emulated:A,B with seconds and seconds per byte, as in "
        "emulated:9.08e-4,7.4e-10",
        name);
}

/* ---- Waiting out the rest ---- */

/*
 * A network waits for no processor, but a thread that is due to go on does where cores are few: so
 * it goes before others, where the system lets it. Not while it adds up much, which goes on beside
 * everything else; not if the transport inside waits awake, for others that then could not run;
 * and not the main thread, which computes, too.
 */
enum { MUCH = 4 * 1024 * 1024 };

static void learn_to_hurry(emulated *e)
{
    e->may_hurry = mgw_transport_waits_asleep(e->inner) && gettid() != getpid();
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
 * A sleeper wakes late, by 15 us where cores are busy and by 50 us where they sleep, too: so it
 * gets up as much earlier as it was late before, and waits for the last bit awake. No earlier than
 * that: who goes before others takes the time from their computation.
 */
static const double late_most_s = 100e-6;

static void sleep_until(emulated *e, double end_s)
{
    double wake_s = end_s - 1.25 * e->late_s;
    if (wake_s > mgw_now_s()) {
        prctl(PR_SET_TIMERSLACK, 1UL); /* of this thread; 50 us are too coarse for a start-up */
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

/* What the name says, with the options for the transport inside. */
static mgw_status read_options(const mgw_transport_options *options, emulated *e,
                               mgw_transport_options *inner, mgw_error *error)
{
    *inner = *options;
    mgw_status status = parse_name(options->name, e, &inner->name, error);
    if (!status && !inner->name)
        inner->name = mgw_transport_default(options);
    if (!status && !strncmp(inner->name, "emulated", 8))
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "transport '%.60s': one emulation is enough",
                          options->name);
    if (!status && !strncmp(inner->name, "nccl", 4))
        status = mgw_fail(error, MGW_ERR_ARGUMENT,
                          "transport '%.60s': what goes on on a GPU cannot be made to last",
                          options->name);
    return status;
}

static mgw_status emulated_prepare(const mgw_transport_options *options, bool *caller,
                                   mgw_error *error)
{
    emulated e;
    mgw_transport_options inner;
    mgw_status status = read_options(options, &e, &inner, error);
    return status ? status : mgw_transport_prepare(&inner, caller, error);
}

static mgw_status emulated_open(const mgw_transport_options *options, void **state,
                                mgw_error *error)
{
    emulated *e = calloc(1, sizeof *e);
    if (!e)
        return mgw_fail_memory(error, "emulated");
    mgw_transport_options inner;
    mgw_status status = read_options(options, e, &inner, error);
    if (!status)
        status = mgw_transport_open(&inner, &e->inner, error);
    if (!status && !(e->came_s = calloc(mgw_transport_size(e->inner), sizeof *e->came_s))) {
        mgw_transport_close(e->inner);
        status = mgw_fail_memory(error, "emulated");
    }
    if (status) {
        free(e->came_s);
        free(e);
    } else {
        learn_to_hurry(e);
        *state = e;
    }
    return status;
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
    free(e->came_s);
    free(e);
}

/* ---- Collectives ---- */

/*
 * A collective begins when the last worker has come. The workers tell each other when they came,
 * by the clock of the host they share; what telling takes is part of the time that is waited out.
 */
static mgw_status begin(emulated *e, size_t bytes, double *begin_s, mgw_error *error)
{
    unsigned size = mgw_transport_size(e->inner);
    memset(e->came_s, 0, size * sizeof *e->came_s);
    e->came_s[mgw_transport_rank(e->inner)] = mgw_now_s();
    mgw_status status =
        mgw_transport_all_reduce(e->inner, e->came_s, size, MGW_F64, MGW_SUM, error);
    *begin_s = 0;
    for (unsigned r = 0; r < size; r++)
        *begin_s = fmax(*begin_s, e->came_s[r]);
    *begin_s = fmin(*begin_s, mgw_now_s()); /* on other hosts clocks have other beginnings */
    if (bytes > MUCH)
        hurry(e, false);
    return status;
}

static mgw_status finish(emulated *e, double begin_s, double lasts_s, mgw_status status)
{
    if (status)
        return status;
    hurry(e, true);
    sleep_until(e, begin_s + lasts_s);
    return MGW_OK;
}

static double time_of(const emulated *e, size_t bytes)
{
    return e->a_s + e->b_s_per_byte * (double)bytes;
}

static mgw_status emulated_allocate(void *state, size_t bytes, void **out, mgw_error *error)
{
    return mgw_transport_allocate(((emulated *)state)->inner, bytes, out, error);
}

static mgw_status emulated_all_reduce(void *state, void *data, size_t count, mgw_dtype dtype,
                                      mgw_op op, mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, count * mgw_dtype_bytes(dtype), &begin_s, error);
    if (!status)
        status = mgw_transport_all_reduce(e->inner, data, count, dtype, op, error);
    return finish(e, begin_s, time_of(e, count * mgw_dtype_bytes(dtype)), status);
}

/* The halves of an all-reduce take half of its time each. */
static mgw_status emulated_reduce_scatter(void *state, void *data, size_t count, mgw_dtype dtype,
                                          mgw_op op, mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, count * mgw_dtype_bytes(dtype), &begin_s, error);
    if (!status)
        status = mgw_transport_reduce_scatter(e->inner, data, count, dtype, op, error);
    return finish(e, begin_s, time_of(e, count * mgw_dtype_bytes(dtype)) / 2, status);
}

static mgw_status emulated_all_gather(void *state, void *data, size_t count, mgw_dtype dtype,
                                      mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, count * mgw_dtype_bytes(dtype), &begin_s, error);
    if (!status)
        status = mgw_transport_all_gather(e->inner, data, count, dtype, error);
    return finish(e, begin_s, time_of(e, count * mgw_dtype_bytes(dtype)) / 2, status);
}

static mgw_status emulated_reduce(void *state, void *data, size_t count, mgw_dtype dtype, mgw_op op,
                                  unsigned root, mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, count * mgw_dtype_bytes(dtype), &begin_s, error);
    if (!status)
        status = mgw_transport_reduce(e->inner, data, count, dtype, op, root, error);
    return finish(e, begin_s, time_of(e, count * mgw_dtype_bytes(dtype)), status);
}

static mgw_status emulated_broadcast(void *state, void *data, size_t bytes, unsigned root,
                                     mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, bytes, &begin_s, error);
    if (!status)
        status = mgw_transport_broadcast(e->inner, data, bytes, root, error);
    return finish(e, begin_s, time_of(e, bytes), status);
}

static mgw_status emulated_barrier(void *state, mgw_error *error)
{
    emulated *e = state;
    double begin_s = 0;
    mgw_status status = begin(e, 0, &begin_s, error);
    return finish(e, begin_s, e->a_s, status);
}

const mgw_transport_table mgw_transport_emulated = {
    .name = "emulated",
    .prepare = emulated_prepare,
    .open = emulated_open,
    .place = emulated_place,
    .close = emulated_close,
    .allocate = emulated_allocate,
    .all_reduce = emulated_all_reduce,
    .reduce_scatter = emulated_reduce_scatter,
    .all_gather = emulated_all_gather,
    .reduce = emulated_reduce,
    .broadcast = emulated_broadcast,
    .barrier = emulated_barrier,
};
