/* Back-to-back steps of a replay: parameters are updated, and needed in the next forward pass. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "job/numbers.h"
#include "job/replay_steps.h"

/* Untimed steps before the timed ones, whose messages the first one has to wait for; and one after
 * them, whose start is the end of the last. */
enum { BEFORE = 2, BEHIND = 1 };

/* Waits shorter than this do not count: the parameter was complete. */
static const double least_stall_s = 1e-5;

struct job_parameters {
    unsigned *order;  /* order in which the forward pass needs tensors */
    size_t needed;    /* number of needed tensors */
    bool thorough;    /* check every number of the step; otherwise some of each tensor */
    unsigned step;    /* the current step */
    job_sum some;     /* sum added to the sampled elements, */
    job_sum rest;     /*   and to all others, which only thorough steps change */
    double compute_s; /* of the last step, without stalls */
    double *times_s;  /* of the timed steps of a round, then of their computation */
};

static job_stretch numbers_of(const job_replay *r, unsigned tensor, size_t first, size_t count)
{
    return r->parameters->thorough
               ? job_all(first, count)
               : job_some(first, count, r->options.trace->tensors[tensor].count);
}

static mgw_status fail(const job_replay *r, const char *what, unsigned tensor, mgw_error *error)
{
    return mgw_fail(error, MGW_ERR_UNSUPPORTED, "rank %u, step %u: the %s of '%.60s' is wrong",
                    mgw_engine_rank(r->engine), r->parameters->step, what,
                    mgw_trace_tensor_name(r->options.trace, tensor));
}

/* The engine's callback: gradients of these shards are averaged. */
static mgw_status update(void *context, const mgw_shard *shards, size_t count, mgw_error *error)
{
    job_replay *r = context;
    for (const mgw_shard *s = shards; s < shards + count; s++) {
        job_stretch stretch = numbers_of(r, s->tensor, s->first, s->count);
        const float *gradients = mgw_engine_gradient(r->engine, s->tensor);
        if (!job_check(gradients, stretch, mgw_engine_size(r->engine), r->parameters->step))
            return fail(r, "average", s->tensor, error);
        job_add(mgw_engine_parameter(r->engine, s->tensor), gradients, stretch);
    }
    return MGW_OK;
}

/* ---- One step ---- */

static void fill(job_replay *r, unsigned tensor)
{
    job_fill(mgw_engine_gradient(r->engine, tensor),
             numbers_of(r, tensor, 0, r->options.trace->tensors[tensor].count),
             mgw_engine_rank(r->engine), mgw_engine_size(r->engine), r->parameters->step);
}

/* Waits for a parameter, and checks its value. A wait delays everything after it. */
static mgw_status need(job_replay *r, unsigned tensor, mgw_error *error)
{
    const mgw_tensor *t = &r->options.trace->tensors[tensor];
    double asked_s = mgw_now_s();
    mgw_status status = mgw_engine_need(r->engine, tensor, error);
    double had_s = mgw_now_s();
    double due_s = t->forward_start_s > 0 ? t->forward_start_s : 0;
    if (had_s - asked_s > least_stall_s)
        r->stalled_s = had_s - r->begin_s - due_s;
    if (!status && !job_check_sum(mgw_engine_parameter(r->engine, tensor),
                                  job_some(0, t->count, t->count), &r->parameters->some))
        status = fail(r, "parameter", tensor, error);
    return status;
}

/* The forward pass, with the times of the trace. */
static mgw_status run_forward(job_replay *r, const struct timespec *begin, mgw_error *error)
{
    job_parameters *p = r->parameters;
    double at_s = 0;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < p->needed; i++) {
        double due_s = r->options.trace->tensors[p->order[i]].forward_start_s;
        if (due_s > at_s)
            replay_sleep_until(begin, due_s + r->stalled_s);
        at_s = due_s > at_s ? due_s : at_s;
        status = need(r, p->order[i], error);
    }
    return status;
}

static void run_backward(job_replay *r, const struct timespec *begin)
{
    const mgw_trace *trace = r->options.trace;
    job_parameters *p = r->parameters;
    double ready_s = trace->forward_s;
    for (unsigned i = 0; i < trace->tensor_count; i++) {
        ready_s += trace->tensors[i].backward_s;
        if (!p->thorough)
            fill(r, i);
        if (trace->tensors[i].backward_s > 0 || i == 0)
            replay_sleep_until(begin, ready_s + r->stalled_s);
        mgw_engine_ready(r->engine, i);
    }
    p->compute_s = mgw_now_s() - r->begin_s - r->stalled_s;
}

static mgw_status run_step(job_replay *r, mgw_error *error)
{
    job_parameters *p = r->parameters;
    p->step = r->step++;
    r->stalled_s = 0;
    struct timespec begin;
    mgw_status status = mgw_engine_begin(r->engine, error);
    r->begin_s = mgw_now_s();
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (!status)
        status = run_forward(r, &begin, error);
    if (status)
        return status;
    run_backward(r, &begin);
    status = mgw_engine_wait(r->engine, error);
    job_sum_add(&p->some, mgw_engine_size(r->engine), p->step);
    if (p->thorough)
        job_sum_add(&p->rest, mgw_engine_size(r->engine), p->step);
    return status;
}

/* ---- Checking every number ---- */

/* Elements between the sampled ones have another sum. */
static bool check_tensor(const job_replay *r, unsigned tensor)
{
    const float *parameter = mgw_engine_parameter(r->engine, tensor);
    size_t count = r->options.trace->tensors[tensor].count;
    job_stretch some = job_some(0, count, count);
    bool right = job_check_sum(parameter, some, &r->parameters->some);
    for (size_t at = 0; right && some.distance > 1 && at < count; at += some.distance) {
        size_t end = at + some.distance < count ? at + some.distance : count;
        right = job_check_sum(parameter, job_all(at + 1, end - at - 1), &r->parameters->rest);
    }
    return right;
}

static mgw_status check_all(job_replay *r, mgw_error *error)
{
    mgw_status status = mgw_engine_drain(r->engine, error);
    if (!status) /* checking would take cores from workers that still communicate */
        status = mgw_engine_barrier(r->engine, error);
    for (unsigned i = 0; !status && i < r->options.trace->tensor_count; i++)
        if (!check_tensor(r, i))
            status = fail(r, "parameter", i, error);
    return status;
}

mgw_status replay_parameters_step(job_replay *r, mgw_error *error)
{
    r->parameters->thorough = true;
    r->parameters->step = r->step;
    for (unsigned i = 0; i < r->options.trace->tensor_count; i++)
        fill(r, i);
    mgw_status status = mgw_engine_barrier(r->engine, error); /* start at the same time */
    if (!status)
        status = run_step(r, error);
    r->parameters->thorough = false;
    return status ? status : check_all(r, error);
}

/* The time of a round is that of its median step, so that a delay in one step does not count. */
mgw_status replay_parameters_round(job_replay *r, job_outcome *o, unsigned round, mgw_error *error)
{
    unsigned steps = r->options.steps;
    double *steps_s = r->parameters->times_s;
    double *computes_s = steps_s + steps;
    mgw_status status = replay_parameters_step(r, error);
    if (!status)
        status = mgw_engine_barrier(r->engine, error);
    for (unsigned i = 0; !status && i < BEFORE + steps + BEHIND; i++) {
        double last_s = r->begin_s;
        status = run_step(r, error);
        if (i > BEFORE)
            steps_s[i - BEFORE - 1] = r->begin_s - last_s;
        if (i >= BEFORE && i < BEFORE + steps)
            computes_s[i - BEFORE] = r->parameters->compute_s;
    }
    if (status)
        return status;
    o->iteration_s[round] = mgw_median(steps_s, steps);
    o->compute_s[round] = mgw_median(computes_s, steps);
    return check_all(r, error);
}

/* ---- Opening and closing ---- */

typedef struct due {
    double at_s;
    unsigned tensor;
} due;

/* By time of need; ties: the last gradient first. */
static int compare_dues(const void *left, const void *right)
{
    const due *a = left;
    const due *b = right;
    return a->at_s != b->at_s ? (a->at_s > b->at_s) - (a->at_s < b->at_s)
                              : (a->tensor < b->tensor) - (a->tensor > b->tensor);
}

static mgw_status sort_needs(job_replay *r, mgw_error *error)
{
    const mgw_trace *trace = r->options.trace;
    job_parameters *p = r->parameters;
    due *dues = calloc(trace->tensor_count, sizeof *dues);
    p->order = calloc(trace->tensor_count, sizeof *p->order);
    for (unsigned i = 0; dues && i < trace->tensor_count; i++)
        if (trace->tensors[i].forward_start_s != MGW_NEVER_NEEDED)
            dues[p->needed++] = (due){trace->tensors[i].forward_start_s, i};
    if (dues && p->order) {
        qsort(dues, p->needed, sizeof *dues, compare_dues);
        for (size_t i = 0; i < p->needed; i++)
            p->order[i] = dues[i].tensor;
    }
    bool sorted = dues && p->order;
    free(dues);
    return sorted ? MGW_OK : mgw_fail_memory(error, "replay");
}

mgw_status replay_parameters_join(job_replay *r, mgw_error *error)
{
    r->parameters = calloc(1, sizeof *r->parameters);
    if (r->parameters)
        r->parameters->times_s = calloc(2 * (size_t)r->options.steps, sizeof(double));
    mgw_status status = r->parameters && r->parameters->times_s ? sort_needs(r, error)
                                                                : mgw_fail_memory(error, "replay");
    return status ? status : mgw_engine_on_update(r->engine, update, r, error);
}

void replay_parameters_leave(job_replay *r)
{
    if (r->parameters) {
        free(r->parameters->order);
        free(r->parameters->times_s);
    }
    free(r->parameters);
}
