/*
 * The model that times a plan. Operations travel over a chain of channels: one, if a collective is
 * one thing; or a cluster's levels, from the inside out, if these work at the same time. Then an
 * all-reduce is a reduce-scatter on each inner channel, an all-reduce on the outermost, and an
 * all-gather on each on the way back; a half goes one way only.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/* Whether an earlier operation must have averaged its tensors: for gathers, and after updates. */
static bool needs_averages(const mgw_operation *operation)
{
    return operation->release == MGW_AFTER_UPDATE || !mgw_collective_averages(operation->kind);
}

#define NOT_AVERAGED (-1.0)

/*
 * Stages 0..top lead out, those up to 2 top lead back; stage s is on channel s or 2 top - s. Each
 * stage serves operations in plan order. A channel serves whatever is there first; of its two
 * stages, the one with the earlier operation.
 */
typedef struct travel {
    const mgw_problem *problem;
    const mgw_cost *costs;
    size_t top;
    mgw_plan *plan;
    size_t *stage;                         /* by operation: where it is */
    double *since_s;                       /* and since when; not settled until it starts */
    double *averaged_s;                    /* by tensor; null if no operation asks for it */
    size_t next[2 * MGW_CHANNELS_MAX - 1]; /* by stage: the operation that it serves next */
    double free_s[MGW_CHANNELS_MAX];
} travel;

static size_t first_stage(const travel *t, const mgw_operation *o)
{
    return mgw_collective_averages(o->kind) ? 0 : t->top;
}

static size_t last_stage(const travel *t, const mgw_operation *o)
{
    return mgw_collective_averages(o->kind) && o->kind != MGW_ALL_REDUCE ? t->top : 2 * t->top;
}

static mgw_status travel_init(travel *t, mgw_error *error)
{
    size_t n = t->problem->n;
    size_t count = t->plan->operation_count;
    bool asks = false;
    for (size_t m = 0; m < count; m++)
        asks |= needs_averages(&t->plan->operations[m]);
    t->stage = malloc((count ? count : 1) * sizeof *t->stage);
    t->since_s = calloc(count ? count : 1, sizeof *t->since_s);
    t->averaged_s = asks ? malloc(n * sizeof *t->averaged_s) : NULL;
    if (!t->stage || !t->since_s || (asks && !t->averaged_s))
        return mgw_fail_memory(error, "plan");
    for (size_t m = 0; m < count; m++)
        t->stage[m] = first_stage(t, &t->plan->operations[m]);
    for (size_t i = 0; asks && i < n; i++)
        t->averaged_s[i] = NOT_AVERAGED;
    return MGW_OK;
}

static void travel_fini(travel *t)
{
    free(t->stage);
    free(t->since_s);
    free(t->averaged_s);
}

/* When the operation's data is ready; NOT_AVERAGED if that is not known yet. */
static double find_ready(const travel *t, const mgw_operation *o)
{
    size_t last = o->first + o->count;
    if (!t->averaged_s || !needs_averages(o))
        return t->problem->ready_s[last];
    double ready_s = o->release == MGW_AFTER_UPDATE ? t->problem->ready_s[t->problem->n] : 0;
    for (size_t i = o->first; i < last; i++) {
        if (t->averaged_s[i] == NOT_AVERAGED)
            return NOT_AVERAGED;
        ready_s = mgw_later(ready_s, t->averaged_s[i]);
    }
    return ready_s;
}

static void count_bytes(const mgw_problem *problem, mgw_operation *o)
{
    uint64_t bytes = mgw_problem_bytes(problem, o->kind, o->release, o->first, o->first + o->count);
    o->bytes = o->wire == MGW_F32 ? bytes : mgw_wire_bytes(o->wire, bytes / sizeof(float));
}

/* How long a stage takes. Its message is cast on the way out. */
static double stage_seconds(const travel *t, const mgw_operation *o, size_t stage)
{
    const mgw_cost *cost = &t->costs[stage <= t->top ? stage : 2 * t->top - stage];
    mgw_collective kind = o->kind != MGW_ALL_REDUCE || stage == t->top ? o->kind
                          : stage < t->top                             ? MGW_REDUCE_SCATTER
                                                                       : MGW_ALL_GATHER;
    if (o->wire == MGW_F32 || !mgw_collective_averages(kind))
        return mgw_cost_seconds(cost, kind, o->bytes);
    return mgw_wire_seconds(
        cost, kind, o->wire,
        mgw_problem_bytes(t->problem, o->kind, o->release, o->first, o->first + o->count));
}

/* The operation that a stage serves next; none, if that is not there yet. */
static mgw_operation *head_of(travel *t, size_t stage, double *start_s)
{
    size_t *m = &t->next[stage];
    size_t count = t->plan->operation_count;
    mgw_operation *list = t->plan->operations;
    while (*m < count && (stage < first_stage(t, &list[*m]) || stage > last_stage(t, &list[*m])))
        ++*m;
    if (*m == count || t->stage[*m] != stage)
        return NULL;
    mgw_operation *o = &list[*m];
    if (stage == first_stage(t, o)) {
        o->ready_s = find_ready(t, o);
        if (o->ready_s == NOT_AVERAGED)
            return NULL;
        t->since_s[*m] = o->release == MGW_AFTER_BACKWARD
                             ? mgw_later(o->ready_s, t->problem->ready_s[t->problem->n])
                             : o->ready_s;
    }
    *start_s = mgw_later(t->since_s[*m], t->free_s[stage <= t->top ? stage : 2 * t->top - stage]);
    return o;
}

/* Serves what can start first, of equals the first in the plan. False: nothing is left that can. */
static bool serve(travel *t)
{
    mgw_operation *served = NULL;
    size_t stage = 0;
    double start_s = INFINITY;
    for (size_t s = 0; s <= 2 * t->top; s++) {
        double at_s = 0;
        mgw_operation *o = head_of(t, s, &at_s);
        if (o && (!served || at_s < start_s || (at_s == start_s && o < served))) {
            served = o;
            stage = s;
            start_s = at_s;
        }
    }
    if (!served)
        return false;
    size_t m = t->next[stage]++;
    if (stage == first_stage(t, served)) {
        served->start_s = start_s;
        count_bytes(t->problem, served);
    }
    double end_s = start_s + stage_seconds(t, served, stage);
    t->free_s[stage <= t->top ? stage : 2 * t->top - stage] = end_s;
    t->since_s[m] = end_s;
    t->stage[m] = stage + 1;
    if (stage == last_stage(t, served)) {
        served->end_s = end_s;
        for (size_t i = served->first; t->averaged_s && i < served->first + served->count; i++)
            if (mgw_collective_averages(served->kind))
                t->averaged_s[i] = end_s;
    }
    return true;
}

/* An operation that never started waits for averages that nobody computes. */
static mgw_status check_end(const travel *t, mgw_error *error)
{
    const mgw_plan *plan = t->plan;
    double end_s = 0;
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *o = &plan->operations[m];
        if (t->stage[m] == first_stage(t, o))
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "operation %zu, %s: earlier operations do not average its tensors", m,
                            mgw_collective_name(o->kind));
        end_s = mgw_later(end_s, o->end_s);
    }
    if (!isfinite(end_s))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s on %s: the predicted time is not finite",
                        plan->model, plan->cluster);
    return MGW_OK;
}

static mgw_status time_operations(travel *t, mgw_error *error)
{
    mgw_status status = travel_init(t, error);
    while (!status && serve(t))
        continue;
    return status ? status : check_end(t, error);
}

mgw_status mgw_channels_time(const mgw_problem *problem, const mgw_cost *costs, size_t count,
                             mgw_plan *plan, mgw_error *error)
{
    travel t = {.problem = problem, .costs = costs, .top = count - 1, .plan = plan};
    mgw_status status = time_operations(&t, error);
    travel_fini(&t);
    plan->alone_s = plan->compute_s = plan->iteration_s = problem->ready_s[problem->n];
    for (size_t m = 0; !status && m < plan->operation_count; m++)
        plan->iteration_s = mgw_later(plan->iteration_s, plan->operations[m].end_s);
    free(plan->stalls);
    plan->stalls = NULL;
    plan->stall_count = 0;
    if (!status && plan->overlaps_forward)
        status = mgw_plan_time_forward(problem, plan, error);
    plan->exposed_s = plan->iteration_s - plan->compute_s;
    return status;
}
