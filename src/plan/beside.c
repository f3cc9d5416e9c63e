/* A step in which computation and messages slow each other down while both run, event by event. */
#include "plan/beside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/*
 * The state of a run. work_s is the computation of the current step that is done, in seconds that
 * it takes alone; left_s is what remains of the current message. Messages may be one step behind.
 */
typedef struct walk {
    size_t tensors;
    const mgw_messages *messages;
    mgw_beside beside;
    double now_s;
    double work_s;
    size_t step;
    size_t ready;        /* gradients of that step */
    size_t sent_step;    /* the step of the next message, */
    size_t next;         /*   and its number */
    bool sends;          /* one is in flight: */
    double left_s;       /*   its remaining time, alone */
    mgw_operation *kept; /* those of the last step whose messages have all ended; or null */
} walk;

static mgw_beside at_least_1(mgw_beside beside)
{
    return (mgw_beside){fmax(beside.message, 1), fmax(beside.compute, 1)};
}

/* The number of ready gradients that a message waits for. If it also waits for averages, these are
 * there: messages run in order. */
static size_t awaits(const walk *w, const mgw_operation *o)
{
    return o->release == MGW_WHEN_READY ? o->first + o->count : w->tensors;
}

/* Starts the next message if it is due. */
static void start_next(walk *w)
{
    if (w->sends || w->sent_step > w->step || w->next == w->messages->count)
        return;
    mgw_operation *o = &w->messages->operations[w->next];
    if (w->sent_step == w->step && w->ready < awaits(w, o))
        return;
    o->start_s = w->now_s;
    w->left_s = w->messages->alone_s[w->next++];
    w->sends = true;
}

static void end_message(walk *w)
{
    const mgw_messages *m = w->messages;
    m->operations[w->next - 1].end_s = w->now_s;
    w->sends = false;
    if (w->next < m->count)
        return;
    if (w->kept)
        memcpy(w->kept, m->operations, m->count * sizeof *w->kept);
    w->next = 0;
    w->sent_step++;
}

/* Lets time pass during computation, at most until the current message ends. */
static void pass(walk *w, double seconds)
{
    w->now_s += seconds;
    w->work_s += seconds / (w->sends ? w->beside.compute : 1);
    if (w->sends)
        w->left_s = fmax(w->left_s - seconds / w->beside.message, 0);
}

/* Computes up to a point: given as work to be done, or as a time. */
static void walk_until(walk *w, double target_s, bool of_work)
{
    for (;;) {
        start_next(w);
        double to_go_s = target_s - (of_work ? w->work_s : w->now_s);
        double needs_s = of_work && w->sends ? to_go_s * w->beside.compute : to_go_s;
        double end_s = w->sends ? w->left_s * w->beside.message : INFINITY;
        if (needs_s <= end_s) {
            pass(w, fmax(needs_s, 0));
            return;
        }
        pass(w, end_s);
        end_message(w);
    }
}

/* Lets the current or the next message end while computation waits. False: there is none. */
static bool wait_for_message(walk *w)
{
    start_next(w);
    if (!w->sends)
        return false;
    w->now_s += w->left_s;
    end_message(w);
    return true;
}

mgw_step_times mgw_beside_run(size_t tensors, const double *alone_s, const mgw_messages *messages,
                              mgw_beside beside, double *ready_s)
{
    walk w = {.tensors = tensors, .messages = messages, .beside = at_least_1(beside)};
    for (; w.ready < tensors; w.ready++) {
        walk_until(&w, alone_s[w.ready], true);
        ready_s[w.ready] = w.now_s;
    }
    double compute_s = w.now_s;
    while (wait_for_message(&w))
        continue;
    return (mgw_step_times){compute_s, w.now_s};
}

void mgw_beside_undo(size_t tensors, const double *ready_s, const mgw_messages *messages,
                     mgw_beside beside, double *alone_s)
{
    walk w = {.tensors = tensors, .messages = messages, .beside = at_least_1(beside)};
    for (; w.ready < tensors; w.ready++) {
        walk_until(&w, ready_s[w.ready], false);
        alone_s[w.ready] = w.work_s;
    }
}

/* ---- Steps that overlap the next forward pass ---- */

/* A tensor that the forward pass needs. */
typedef struct need {
    size_t tensor;
    double needed_s;
} need;

/* No two are equal, so every qsort gives the same order. */
static int compare_needs(const void *left, const void *right)
{
    const need *a = left;
    const need *b = right;
    if (a->needed_s != b->needed_s)
        return a->needed_s < b->needed_s ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* A step. Times are on the clock of the run. */
typedef struct lap {
    double forward_s;  /* how long the forward pass computed, */
    double computed_s; /*   and both passes */
    double end_s;      /* when the backward pass ended */
} lap;

/* Steps are run until they repeat. */
typedef struct laps {
    walk walk;
    const mgw_problem *problem;
    need *needs;       /* in order */
    size_t *last;      /* by tensor: its last operation */
    double *ready_s;   /* by tensor, in the current step */
    double *before_s;  /*   and in the one before */
    mgw_stall *stalls; /* of the current step */
    size_t stall_count;
} laps;

static void laps_fini(laps *l)
{
    free(l->needs);
    free(l->last);
    free(l->ready_s);
    free(l->stalls);
    free(l->walk.kept);
}

static mgw_status laps_init(laps *l, const mgw_messages *messages, mgw_error *error)
{
    size_t n = l->problem->n;
    l->walk = (walk){.tensors = n,
                     .messages = messages,
                     .beside = at_least_1(l->problem->given->beside),
                     .kept = malloc(messages->count * sizeof(mgw_operation))};
    l->needs = malloc(n * sizeof *l->needs);
    l->last = calloc(n, sizeof *l->last);
    l->ready_s = calloc(2 * n, sizeof *l->ready_s);
    l->before_s = l->ready_s ? l->ready_s + n : NULL;
    l->stalls = malloc(n * sizeof *l->stalls);
    if (!l->walk.kept || !l->needs || !l->last || !l->ready_s || !l->stalls) {
        laps_fini(l);
        return mgw_fail_memory(error, "plan");
    }
    for (size_t i = 0; i < n; i++)
        l->needs[i] = (need){i, mgw_problem_needed(l->problem, i + 1)};
    qsort(l->needs, n, sizeof *l->needs, compare_needs);
    for (size_t m = 0; m < messages->count; m++) {
        const mgw_operation *o = &messages->operations[m];
        for (size_t i = o->first; i < o->first + o->count; i++)
            l->last[i] = m;
    }
    return MGW_OK;
}

/* Whether the tensor has come back since the step before. */
static bool is_back(const laps *l, size_t tensor)
{
    const walk *w = &l->walk;
    return w->sent_step >= w->step || w->next - w->sends > l->last[tensor];
}

/* Returns how long the forward pass stalled. */
static double wait_for_tensor(laps *l, size_t tensor)
{
    walk *w = &l->walk;
    double begin_s = w->now_s;
    while (!is_back(l, tensor) && wait_for_message(w))
        continue;
    if (w->now_s > begin_s)
        l->stalls[l->stall_count++] = (mgw_stall){tensor, begin_s, w->now_s};
    return w->now_s - begin_s;
}

static lap run_lap(laps *l)
{
    walk *w = &l->walk;
    size_t n = l->problem->n;
    double begin_s = w->now_s;
    memcpy(l->before_s, l->ready_s, n * sizeof *l->ready_s);
    l->stall_count = 0;
    w->work_s = 0;
    w->ready = 0;
    for (size_t i = 0; w->step > 0 && i < n; i++) { /* the first step finds everything there */
        walk_until(w, l->needs[i].needed_s, true);
        begin_s += wait_for_tensor(l, l->needs[i].tensor);
    }
    walk_until(w, l->problem->forward_s, true);
    double forward_s = w->now_s - begin_s;
    for (; w->ready < n; w->ready++) {
        walk_until(w, l->problem->ready_s[w->ready + 1], true);
        l->ready_s[w->ready] = w->now_s;
    }
    w->step++;
    return (lap){forward_s, w->now_s - begin_s, w->now_s};
}

/* The plan's times from the last two steps: operations of the one before, stalls of the current. */
static void take_times(laps *l, const lap *before, double period_s, mgw_plan *plan)
{
    double origin_s = before->end_s - before->computed_s;
    memcpy(plan->operations, l->walk.kept, plan->operation_count * sizeof *plan->operations);
    for (size_t m = 0; m < plan->operation_count; m++) {
        plan->operations[m].start_s -= origin_s;
        plan->operations[m].end_s -= origin_s;
    }
    for (size_t i = 0; i < l->problem->n; i++)
        l->before_s[i] -= origin_s;
    for (size_t i = 0; i < l->stall_count; i++) {
        l->stalls[i].start_s -= origin_s;
        l->stalls[i].end_s -= origin_s;
    }
    free(plan->stalls);
    plan->stalls = l->stall_count ? l->stalls : NULL;
    plan->stall_count = l->stall_count;
    if (l->stall_count)
        l->stalls = NULL; /* the plan's now */
    plan->forward_s = before->forward_s;
    plan->compute_s = before->computed_s;
    plan->iteration_s = period_s;
}

static mgw_status time_laps(const mgw_problem *problem, const mgw_messages *messages,
                            mgw_plan *plan, double *ready_s, mgw_error *error)
{
    enum { LAPS_MAX = 16 };
    laps l = {.problem = problem};
    mgw_status status = laps_init(&l, messages, error);
    if (status)
        return status;
    lap before = run_lap(&l);
    double period_s = 0;
    for (int i = 0; i < LAPS_MAX; i++) {
        lap now = run_lap(&l);
        double last_s = period_s;
        period_s = now.end_s - before.end_s;
        if (i == LAPS_MAX - 1 || (i && fabs(period_s - last_s) <= 1e-12 * period_s)) {
            take_times(&l, &before, period_s, plan);
            break;
        }
        before = now;
    }
    memcpy(ready_s, l.before_s, problem->n * sizeof *ready_s);
    laps_fini(&l);
    return MGW_OK;
}

/* ---- Any plan ---- */

/* When each operation's data is ready: its last gradient, or its last average. */
static mgw_status find_ready(const mgw_problem *problem, const double *ready_s, mgw_plan *plan,
                             mgw_error *error)
{
    double *averaged_s = calloc(problem->n, sizeof *averaged_s);
    if (!averaged_s)
        return mgw_fail_memory(error, "plan");
    for (size_t m = 0; m < plan->operation_count; m++) {
        mgw_operation *o = &plan->operations[m];
        bool averages = mgw_collective_averages(o->kind);
        o->ready_s = o->release == MGW_AFTER_UPDATE ? ready_s[problem->n - 1] : 0;
        for (size_t i = o->first; i < o->first + o->count; i++)
            if (averages && o->release != MGW_AFTER_UPDATE)
                o->ready_s = ready_s[i];
            else
                o->ready_s = mgw_later(o->ready_s, averaged_s[i]);
        for (size_t i = o->first; averages && i < o->first + o->count; i++)
            averaged_s[i] = o->end_s;
    }
    free(averaged_s);
    return MGW_OK;
}

mgw_status mgw_beside_time(const mgw_problem *problem, mgw_plan *plan, double *ready_s,
                           mgw_error *error)
{
    size_t count = plan->operation_count;
    mgw_status status = MGW_OK;
    double *alone_s = malloc((count ? count : 1) * sizeof *alone_s);
    if (!alone_s)
        return mgw_fail_memory(error, "plan");
    for (size_t m = 0; m < count; m++)
        alone_s[m] = plan->operations[m].end_s - plan->operations[m].start_s;
    const mgw_messages messages = {count, plan->operations, alone_s};
    if (plan->overlaps_forward && count) {
        status = time_laps(problem, &messages, plan, ready_s, error);
    } else {
        mgw_step_times took = mgw_beside_run(problem->n, problem->ready_s + 1, &messages,
                                             problem->given->beside, ready_s);
        plan->compute_s = took.compute_s;
        plan->iteration_s = mgw_later(took.compute_s, took.iteration_s);
    }
    if (!status)
        status = find_ready(problem, ready_s, plan, error);
    plan->exposed_s = plan->iteration_s - plan->compute_s;
    free(alone_s);
    return status;
}
