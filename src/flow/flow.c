/*
 * The flow of one worker's steps: tracks reports and decides which operation may start next.
 */
#include <mgwfbp/flow.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/places.h"

enum { NONE = UINT32_MAX };

/* The progress of an operation. */
typedef struct progress {
    _Atomic uint32_t missing; /* missing reports, plus 1 until it is released; 0: it may start */
    uint64_t gathered;        /* number of steps whose all-gather is over */
} progress;

/* The operations of a plan. */
typedef struct schedule {
    size_t count;
    size_t averaging; /* all-reduces and reduce-scatters */
    mgw_operation *operations;
    progress *of;
    mgw_places places;
} schedule;

struct mgw_flow {
    /* ---- Constant ---- */
    size_t tensor_count;

    /* ---- Written by the driver; other threads read them only during a step ---- */
    schedule schedules[2];
    schedule *now;     /* of the current or last step; null before the first */
    schedule *adopted; /* of the next step; null: unchanged */
    uint64_t plans;    /* used so far */
    uint64_t step;
    double begun_s;
    size_t turn;        /* the next operation to hand out, */
    uint64_t turn_step; /*   and its step */
    size_t open;        /* handed out and not finished */
    size_t averaged;    /* averaging operations finished in this step */
    uint64_t due;       /* all-gathers of all steps, including this one, */
    uint64_t gathered;  /*   of which this many are finished */

    /* ---- Reports: any thread ---- */
    double *ready_s;            /* by tensor: written by the reporting thread, read after arrival */
    _Atomic uint32_t *ready_in; /* by tensor: the last step in which it was ready */
    _Atomic uint32_t *update_in; /* by tensor: the last step after which it was updated */
    _Atomic uint32_t incomplete; /* averaging operations that lack a gradient */
    _Atomic uint32_t trouble;    /* id + 1 of a tensor that was not due */
};

/* ---- Creating ---- */

static void schedule_fini(schedule *s)
{
    free(s->operations);
    free(s->of);
    mgw_places_fini(&s->places);
    *s = (schedule){0};
}

void mgw_flow_destroy(mgw_flow *flow)
{
    if (!flow)
        return;
    schedule_fini(&flow->schedules[0]);
    schedule_fini(&flow->schedules[1]);
    free(flow->ready_s);
    free((void *)flow->ready_in);
    free((void *)flow->update_in);
    free(flow);
}

mgw_status mgw_flow_create(size_t tensor_count, mgw_flow **out, mgw_error *error)
{
    if (tensor_count == 0 || tensor_count >= NONE)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "flow: %zu tensors", tensor_count);
    mgw_flow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return mgw_fail_memory(error, "flow");
    flow->tensor_count = tensor_count;
    flow->turn_step = 1;
    flow->ready_s = calloc(tensor_count, sizeof *flow->ready_s);
    flow->ready_in = calloc(tensor_count, sizeof *flow->ready_in);
    flow->update_in = calloc(tensor_count, sizeof *flow->update_in);
    if (!flow->ready_s || !flow->ready_in || !flow->update_in) {
        mgw_flow_destroy(flow);
        return mgw_fail_memory(error, "flow");
    }
    *out = flow;
    return MGW_OK;
}

/* ---- Plans ---- */

static bool is_gather(const mgw_operation *operation)
{
    return operation->kind == MGW_ALL_GATHER;
}

static void arm(progress *p, const mgw_operation *operation)
{
    atomic_store_explicit(&p->missing, (uint32_t)operation->count + 1, memory_order_relaxed);
}

static mgw_status fill(const mgw_flow *flow, const mgw_operation *operations, size_t count,
                       schedule *s, mgw_error *error)
{
    mgw_status status = mgw_places_init(flow->tensor_count, operations, count, &s->places, error);
    if (status)
        return status;
    s->count = count;
    s->operations = malloc(count * sizeof *s->operations);
    s->of = calloc(count, sizeof *s->of);
    if (!s->operations || !s->of)
        return mgw_fail_memory(error, "flow");
    memcpy(s->operations, operations, count * sizeof *operations);
    for (size_t i = 0; i < count; i++) {
        s->averaging += !is_gather(&operations[i]);
        arm(&s->of[i], &operations[i]);
        s->of[i].gathered = flow->step; /* gathers of the previous plan are over by then */
    }
    return MGW_OK;
}

mgw_status mgw_flow_adopt(mgw_flow *flow, const mgw_operation *operations, size_t count,
                          mgw_error *error)
{
    schedule made = {0};
    mgw_status status = fill(flow, operations, count, &made, error);
    if (status) {
        schedule_fini(&made);
        return status;
    }
    flow->adopted = &flow->schedules[flow->now == &flow->schedules[0]];
    schedule_fini(flow->adopted);
    *flow->adopted = made;
    return MGW_OK;
}

/* ---- Steps, on the driver's thread ---- */

mgw_status mgw_flow_begin(mgw_flow *flow, double now_s, mgw_error *error)
{
    if (!flow->now && !flow->adopted)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "flow: no plan is set");
    if (flow->now && !mgw_flow_averaged(flow))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "flow: gradients of step %llu are not averaged yet",
                        (unsigned long long)flow->step);
    if (flow->adopted && flow->now && (flow->open || flow->turn))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "flow: a new plan was set while operations of the previous one are open");
    if (flow->adopted) {
        flow->now = flow->adopted;
        flow->plans++;
    }
    flow->adopted = NULL;
    schedule *s = flow->now;
    for (size_t i = 0; i < s->count; i++)
        if (!is_gather(&s->operations[i]))
            arm(&s->of[i], &s->operations[i]);
    atomic_store_explicit(&flow->incomplete, (uint32_t)s->averaging, memory_order_relaxed);
    flow->averaged = 0;
    flow->due += s->count - s->averaging;
    flow->begun_s = now_s;
    flow->step++;
    return MGW_OK;
}

size_t mgw_flow_turn(const mgw_flow *flow)
{
    return flow->now && flow->turn_step <= flow->step ? flow->turn : MGW_NO_OPERATION;
}

/* Operations that are released after the backward pass wait for its end, even if their updates come
 * earlier. Operations of an earlier step need not wait: its backward pass is over. */
static bool may_start(const mgw_flow *flow, size_t index)
{
    const schedule *s = flow->now;
    if (atomic_load_explicit(&s->of[index].missing, memory_order_acquire))
        return false;
    return s->operations[index].release == MGW_WHEN_READY || flow->turn_step < flow->step ||
           !atomic_load_explicit(&flow->incomplete, memory_order_acquire);
}

bool mgw_flow_next(mgw_flow *flow, size_t *operation)
{
    size_t turn = mgw_flow_turn(flow);
    if (turn == MGW_NO_OPERATION || !may_start(flow, turn))
        return false;
    *operation = turn;
    flow->open++;
    if (++flow->turn == flow->now->count) {
        flow->turn = 0;
        flow->turn_step++;
    }
    return true;
}

void mgw_flow_done(mgw_flow *flow, size_t operation, double start_s, double end_s)
{
    mgw_operation *o = &flow->now->operations[operation];
    progress *p = &flow->now->of[operation];
    o->start_s = start_s;
    o->end_s = end_s;
    flow->open--;
    if (is_gather(o)) { /* its next updates come after the next averages, so it can be armed now */
        p->gathered++;
        flow->gathered++;
        arm(p, o);
    } else {
        flow->averaged++;
    }
}

bool mgw_flow_averaged(const mgw_flow *flow)
{
    return flow->now && flow->averaged == flow->now->averaging;
}

bool mgw_flow_gathered(const mgw_flow *flow, bool all)
{
    size_t own = flow->now && !all ? flow->now->count - flow->now->averaging : 0;
    return flow->gathered + own >= flow->due;
}

size_t mgw_flow_need(const mgw_flow *flow, unsigned id)
{
    if (!flow->now || id >= flow->tensor_count)
        return MGW_NO_OPERATION;
    uint32_t gather = flow->now->places.gathered_by[id];
    bool waits = gather != MGW_NOWHERE && flow->now->of[gather].gathered + 1 < flow->step;
    return waits ? gather : MGW_NO_OPERATION;
}

/* ---- Reports, on any thread ---- */

static bool claim_in(mgw_flow *flow, _Atomic uint32_t *steps, unsigned id, uint32_t step)
{
    bool due = id < flow->tensor_count &&
               atomic_exchange_explicit(&steps[id], step, memory_order_relaxed) != step;
    if (!due)
        atomic_store(&flow->trouble, id < NONE ? id + 1 : id);
    return due;
}

/* Outside a step, every tensor was already ready in the last step, so none is due. */
bool mgw_flow_claim(mgw_flow *flow, unsigned id)
{
    return claim_in(flow, flow->ready_in, id, (uint32_t)flow->step);
}

/* The last report hands the operation, and everything written before, to the driver. */
static bool count_down(progress *p)
{
    return atomic_fetch_sub_explicit(&p->missing, 1, memory_order_acq_rel) == 2;
}

size_t mgw_flow_arrive(mgw_flow *flow, unsigned id, double now_s)
{
    flow->ready_s[id] = now_s - flow->begun_s;
    uint32_t operation = flow->now->places.averaged_by[id];
    return count_down(&flow->now->of[operation]) ? operation : MGW_NO_OPERATION;
}

void mgw_flow_release(mgw_flow *flow, size_t operation)
{
    atomic_store_explicit(&flow->now->of[operation].missing, 0, memory_order_release);
    atomic_fetch_sub_explicit(&flow->incomplete, 1, memory_order_acq_rel);
}

bool mgw_flow_ready(mgw_flow *flow, unsigned id, double now_s)
{
    if (!mgw_flow_claim(flow, id))
        return false;
    size_t operation = mgw_flow_arrive(flow, id, now_s);
    if (operation == MGW_NO_OPERATION)
        return false;
    mgw_flow_release(flow, operation);
    return true;
}

bool mgw_flow_ready_all(mgw_flow *flow, const unsigned *ids, size_t count, const double *at_s)
{
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any |= mgw_flow_ready(flow, ids[i], at_s[ids[i]]);
    return any;
}

/* An update belongs to the step of its gradient, even if the next step has begun. */
bool mgw_flow_updated(mgw_flow *flow, unsigned id)
{
    uint32_t step = id < flow->tensor_count ? atomic_load(&flow->ready_in[id]) : 0;
    if (!claim_in(flow, flow->update_in, id, step))
        return false;
    uint32_t gather = flow->now->places.gathered_by[id];
    if (gather == MGW_NOWHERE || !count_down(&flow->now->of[gather]))
        return false;
    atomic_store_explicit(&flow->now->of[gather].missing, 0, memory_order_release);
    return true;
}

/* ---- Queries ---- */

const mgw_operation *mgw_flow_operations(const mgw_flow *flow, size_t *count)
{
    *count = flow->now ? flow->now->count : 0;
    return flow->now ? flow->now->operations : NULL;
}

uint64_t mgw_flow_plans(const mgw_flow *flow)
{
    return flow->plans;
}

double *mgw_flow_ready_times(mgw_flow *flow)
{
    return flow->ready_s;
}

double mgw_flow_begun_s(const mgw_flow *flow)
{
    return flow->begun_s;
}

uint64_t mgw_flow_step(const mgw_flow *flow)
{
    return flow->step;
}

bool mgw_flow_has(const mgw_flow *flow, unsigned id)
{
    return id < flow->tensor_count && atomic_load(&flow->ready_in[id]) == (uint32_t)flow->step &&
           flow->step;
}

bool mgw_flow_trouble(const mgw_flow *flow, unsigned *id)
{
    uint32_t trouble = atomic_load(&flow->trouble);
    if (trouble)
        *id = trouble - 1;
    return trouble;
}
