/* A simulated worker: runs steps, with a driver that starts the operations of its flow. */
#include <math.h>
#include <stdlib.h>

#include "simulation/world.h"

/* ---- The driver ---- */

static const mgw_operation *operation_of(worker *me, size_t index, size_t *count)
{
    return &mgw_flow_operations(me->flow, count)[index];
}

static uint64_t bytes_of(const world *w, const mgw_operation *o)
{
    uint64_t bytes = 0;
    for (size_t i = o->first; i < o->first + o->count; i++)
        bytes += w->s->bytes[i];
    bool wide = is_gather(o) && w->s->options.parameter_ratio > 1;
    return wide ? 2 * bytes : bytes;
}

static void start_operation(world *w, worker *me, size_t index)
{
    size_t count = 0;
    const mgw_operation *o = operation_of(me, index, &count);
    CHECK(w, index == me->turn, "worker %u: operation %zu, but %zu is next", rank_of(w, me), index,
          me->turn);
    sim_note(w, "worker %u starts operation %zu of step %llu", rank_of(w, me), index,
             (unsigned long long)me->turn_step);
    collective *c = sim_meet(w, me, (int)index, me->turn_step, o);
    me->open++;
    w->result->gathers += is_gather(o);
    sim_contribute(w, me, c);
    if (++me->turn == count) {
        me->turn = 0;
        me->turn_step++;
    }
    sim_post(w, me, c, bytes_of(w, o));
}

static bool is_faulty(const world *w, const worker *me, sim_fault fault)
{
    return w->s->fault == fault && rank_of(w, me) == w->s->fault_worker && !w->result->faulted &&
           mgw_flow_step(me->flow) >= w->s->fault_step;
}

/* The driver: what the flow hands out is started. */
static void drive(world *w, worker *me)
{
    size_t index = 0;
    if (me->gone || (me->open && !w->s->overlaps))
        return;
    while ((w->s->overlaps || !me->open) && mgw_flow_next(me->flow, &index)) {
        size_t other = 0;
        CHECK(w, index == me->turn, "worker %u is given operation %zu, but %zu is next",
              rank_of(w, me), index, me->turn);
        if (is_faulty(w, me, SIM_SWAP) && mgw_flow_next(me->flow, &other)) {
            w->result->faulted = true;
            me->turn = other;
            start_operation(w, me, other);
            me->turn = index;
            start_operation(w, me, index);
            continue;
        }
        start_operation(w, me, index);
        if (is_faulty(w, me, SIM_TWICE)) {
            w->result->faulted = true;
            me->turn = index;
            start_operation(w, me, index);
        }
    }
}

/* ---- Steps ---- */

void sim_adopt(world *w, worker *me, const mgw_operation *operations, size_t count)
{
    sim_note(w, "worker %u adopts %zu operations", rank_of(w, me), count);
    CHECK(w, !mgw_flow_adopt(me->flow, operations, count, &w->error), "worker %u: %s",
          rank_of(w, me), w->error.message);
}

/* A number between 0 and 1. */
static double share_of(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

static double any_share(world *w)
{
    return share_of(sim_chance(w));
}

/* Of a whole step: the sum of uniform numbers is near enough to normal. The same in every job of
 * this seed, whatever its plans, so that plans can be compared. */
static double draw_pace(const world *w, const worker *me)
{
    const scenario *s = w->s;
    uint64_t state = sim_mix(s->seed + sim_mix(rank_of(w, me) + sim_mix(mgw_flow_step(me->flow))));
    double pace = 1;
    for (int i = 0; s->noise > 0 && i < 12; i++)
        pace += s->noise * (share_of(sim_mix(state += 0x9e3779b97f4a7c15u)) - 0.5);
    bool stalls = s->hiccup && sim_mix(~state) % s->hiccup == 0;
    return stalls ? 3 * pace : fmax(pace, 0.1);
}

static double pace(world *w, const worker *me)
{
    const scenario *s = w->s;
    double drift = s->drift_step && mgw_flow_step(me->flow) >= s->drift_step ? s->compute_drift : 1;
    drift *= me->pace * sim_wander(s, mgw_flow_step(me->flow));
    return s->jitter > 0 ? drift * (1 + s->jitter * any_share(w)) : drift;
}

static bool has_gathers(const worker *me)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(me->flow, &count);
    for (size_t m = 0; m < count; m++)
        if (is_gather(&operations[m]))
            return true;
    return false;
}

static bool is_policy_wanted(const scenario *s, uint64_t step)
{
    return s->policy_step == step && step > 1;
}

/* Before this step a tuner's look is due, or a new policy was asked for. */
static bool is_look_due(const world *w, const worker *me, uint64_t step)
{
    return !w->s->plan_count && !me->looked &&
           (is_policy_wanted(w->s, step) || mgw_tuner_due(me->tuner));
}

static bool start_look(world *w, worker *me, uint64_t step)
{
    const scenario *s = w->s;
    if (!is_look_due(w, me, step))
        return false;
    if (is_policy_wanted(s, step))
        fail_checked(w, me, mgw_tuner_set_policy(me->tuner, s->new_policy, &w->error));
    collective *c = sim_meet(w, me, LOOK, step, &(mgw_operation){.count = 0});
    size_t sums = 0;
    size_t maxima = 0;
    mgw_tuner_row_size(me->tuner, &sums, &maxima);
    double *row = sim_room(w, sums + maxima, sizeof *row);
    mgw_tuner_row(me->tuner, row);
    if (!c->row) {
        c->row = row;
        c->sums = sums;
        c->maxima = maxima;
    } else {
        bool same = c->sums == sums && c->maxima == maxima;
        for (size_t i = 0; same && i < sums + maxima; i++)
            c->row[i] = i < sums ? c->row[i] + row[i] : fmax(c->row[i], row[i]);
        free(row);
        CHECK(w, same, "worker %u: rows of another size", rank_of(w, me));
    }
    sim_note(w, "worker %u looks before step %llu", rank_of(w, me), (unsigned long long)step);
    me->looked = true;
    me->phase = LOOKING;
    sim_post(w, me, c, (sums + maxima) * sizeof *row);
    return true;
}

/* A plan that is the one before would be early unnoticed. */
static bool may_be_early(const scenario *s, const sim_plan *plan)
{
    bool same = plan[-1].count == plan->count;
    for (size_t m = 0; same && m < plan->count; m++)
        same = is_same(&plan[-1].operations[m], &plan->operations[m]);
    return !same && plan->step <= s->steps;
}

/* Before this step another plan begins. */
static const sim_plan *plan_for(const world *w, const worker *me, uint64_t step)
{
    bool early = w->s->fault == SIM_ADOPT_EARLY && rank_of(w, me) == w->s->fault_worker;
    for (size_t i = 0; i < w->s->plan_count; i++) {
        const sim_plan *plan = &w->s->plans[i];
        bool faulty =
            early && i == 1 && plan->step == step + 1 && step > 1 && may_be_early(w->s, plan);
        w->result->faulted |= faulty;
        if (faulty || (plan->step == step && !(early && i == 1 && w->result->faulted)))
            return plan;
    }
    return NULL;
}

/* Another candidate's, of a trial: by counting alone, so that operations are compared as they are
 * started. Once all of the step before is over. */
static void take_turn(world *w, worker *me)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(me->tuner, &count);
    sim_adopt(w, me, operations, count);
    me->turns = false;
    w->result->turns++;
}

/* A step has the time that is predicted if the one before it was the same. */
static void show_step(world *w, worker *me, uint64_t step)
{
    if (w->watch && step > 0 && !me->shown && (me->gathers_on || !has_gathers(me)))
        w->watch(w->context, rank_of(w, me), step, me->flow, me->tuner, me->ended_s);
    me->shown = true;
}

static void forward(world *w, worker *me);
static void begin(world *w, worker *me);

/* Optimizer state moves to its new owners. */
static void move(world *w, worker *me)
{
    me->phase = MOVING;
    sim_push(w, w->now_s + w->s->move_s, COMPUTE, rank_of(w, me), 0);
}

static void begin(world *w, worker *me)
{
    const scenario *s = w->s;
    uint64_t step = mgw_flow_step(me->flow) + 1;
    size_t open = mgw_flow_turn(me->flow) != MGW_NO_OPERATION || me->open;
    const sim_plan *plan = plan_for(w, me, step);
    if (me->updates) {
        me->phase = BETWEEN;
        return;
    }
    show_step(w, me, step - 1);
    if (me->tuner && !me->looked && step <= s->steps && !is_look_due(w, me, step))
        me->turns |= mgw_tuner_turn(me->tuner);
    if (open && (plan || s->drains || step > s->steps || me->turns || is_look_due(w, me, step))) {
        me->phase = DRAINING;
        return;
    }
    if (step > s->steps) {
        CHECK(w, me->turn == 0 && me->turn_step == step, "worker %u: something is left over",
              rank_of(w, me));
        me->phase = OVER;
        return;
    }
    if (plan)
        sim_adopt(w, me, plan->operations, plan->count);
    if (start_look(w, me, step))
        return;
    if (me->turns) {
        take_turn(w, me);
        if (s->move_s > 0) {
            move(w, me);
            return;
        }
    }
    fail_checked(w, me, mgw_flow_begin(me->flow, w->now_s, &w->error));
    sim_note(w, "worker %u begins step %llu", rank_of(w, me), (unsigned long long)step);
    me->looked = false;
    me->shown = false;
    me->gathers_on = open;
    me->stalled_s = 0;
    me->late_s = me->ended_s > 0 ? w->now_s - me->ended_s : 0;
    me->position = 0;
    me->swap =
        s->shuffles && s->tensors > 1 ? (unsigned)(sim_chance(w) % (2 * s->tensors)) : SIM_NOBODY;
    me->pace = draw_pace(w, me);
    me->phase = FORWARD;
    forward(w, me);
}

/* Up to the next tensor: it must be there, as it was updated after the step before. */
static void forward(world *w, worker *me)
{
    const scenario *s = w->s;
    uint64_t step = mgw_flow_step(me->flow);
    double seconds = 0;
    bool at_once = !has_gathers(me) && s->jitter == 0;
    while (me->position < s->tensors) {
        size_t id = s->tensors - 1 - me->position;
        if (me->phase != NEEDING) {
            me->stall_at_s = w->now_s;
            me->need_s[id] = w->now_s + seconds - mgw_flow_begun_s(me->flow) - me->stalled_s;
        }
        if (mgw_flow_need(me->flow, (unsigned)id) != MGW_NO_OPERATION) {
            sim_note(w, "worker %u needs tensor %zu", rank_of(w, me), id);
            me->phase = NEEDING;
            return;
        }
        CHECK(w, me->parameter[id] == w->known[step * s->tensors + id],
              "worker %u: the parameters of tensor %zu are not those of step %llu", rank_of(w, me),
              id, (unsigned long long)step);
        if (me->phase == NEEDING)
            me->stalled_s += w->now_s - me->stall_at_s;
        me->phase = FORWARD;
        seconds += s->forward_s[me->position++] * pace(w, me);
        if (!at_once)
            break;
    }
    sim_push(w, w->now_s + seconds, COMPUTE, rank_of(w, me), 0);
}

static size_t nth_ready(const world *w, const worker *me, size_t position)
{
    if (me->swap < w->s->tensors - 1)
        return position == me->swap ? position + 1 : position == me->swap + 1 ? me->swap : position;
    return position;
}

static void push_backward(world *w, worker *me)
{
    double seconds = w->s->backward_s[me->position] * pace(w, me);
    sim_push(w, w->now_s + seconds, COMPUTE, rank_of(w, me), 0);
}

static void end_step(world *w, worker *me);

/* A gradient is there. */
static void arrive(world *w, worker *me)
{
    size_t id = nth_ready(w, me, me->position);
    uint64_t step = mgw_flow_step(me->flow);
    me->gradient[id] = sim_gradient(w, rank_of(w, me), id, step);
    me->ready_in[id] = step;
    bool wakes = mgw_flow_ready(me->flow, (unsigned)id, w->now_s);
    sim_note(w, "worker %u has tensor %zu%s", rank_of(w, me), id, wakes ? ", and may start" : "");
    bool last = me->position + 1 == w->s->tensors;
    bool alone = last && !me->open && !me->updates; /* an update would wake it, too */
    if (wakes && alone && is_faulty(w, me, SIM_DROP_WAKE)) {
        w->result->faulted = true;
        wakes = false;
    }
    if (wakes)
        drive(w, me);
    me->computed_s = w->now_s;
    if (++me->position < w->s->tensors) {
        push_backward(w, me);
    } else {
        me->phase = ENDING;
        end_step(w, me);
    }
}

void sim_compute(world *w, worker *me)
{
    if (me->phase == FORWARD && me->position < w->s->tensors) {
        forward(w, me);
    } else if (me->phase == FORWARD) {
        me->phase = BACKWARD;
        me->position = 0;
        push_backward(w, me);
    } else if (me->phase == BACKWARD) {
        arrive(w, me);
    } else {
        begin(w, me);
    }
}

static void observe(world *w, worker *me)
{
    const scenario *s = w->s;
    double begun_s = mgw_flow_begun_s(me->flow);
    uint64_t step = mgw_flow_step(me->flow);
    const double *ready_s = mgw_flow_ready_times(me->flow);
    int sampled = s->options.sampled;
    for (size_t i = 0; i < s->tensors; i++)
        me->timed_s[i] =
            !sampled || (step + i) % (unsigned)sampled == 0 ? ready_s[i] - me->stalled_s : 0;
    bool times = !sampled && !s->options.whole_steps;
    bool gathers = s->options.parameter_ratio > 0;
    mgw_tuner_count(me->tuner);
    mgw_tuner_observe(me->tuner,
                      &(mgw_step_record){.late_s = me->late_s,
                                         .compute_s = me->computed_s - begun_s - me->stalled_s,
                                         .iteration_s = w->now_s - begun_s,
                                         .ready_s = me->timed_s,
                                         .took_s = times ? me->took_s : NULL,
                                         .need_s = gathers ? me->need_s : NULL,
                                         .stall_s = me->stalled_s,
                                         .busy_s = me->took_s + 2 * s->tensors,
                                         .period_s = w->now_s - me->ended_s});
}

/* The step is over, if all gradients are averaged. */
static void end_step(world *w, worker *me)
{
    const scenario *s = w->s;
    uint64_t step = mgw_flow_step(me->flow);
    unsigned id = 0;
    if (!mgw_flow_averaged(me->flow))
        return;
    CHECK(w, !mgw_flow_trouble(me->flow, &id), "worker %u: tensor %u was not due", rank_of(w, me),
          id);
    for (size_t i = 0; i < s->tensors; i++) {
        CHECK(w, me->averaged_in[i] == step, "worker %u: step %llu ends without tensor %zu",
              rank_of(w, me), (unsigned long long)step, i);
        if (s->updates[i] != SIM_EARLY)
            sim_push(w, w->now_s + s->update_s, UPDATE, rank_of(w, me), i);
        me->updates += s->updates[i] == SIM_AT_END;
    }
    sim_note(w, "worker %u has averaged step %llu", rank_of(w, me), (unsigned long long)step);
    if (me->tuner)
        observe(w, me);
    me->ended_s = w->now_s;
    begin(w, me);
}

void sim_take_update(world *w, worker *me, size_t id)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(me->flow, &count);
    bool scattered = false;
    for (size_t m = 0; m < count; m++)
        scattered |= operations[m].kind == MGW_REDUCE_SCATTER && operations[m].first <= id &&
                     id < operations[m].first + operations[m].count;
    if (!scattered || owner_of(w, id) == rank_of(w, me))
        me->parameter[id] += me->gradient[id];
    me->updated_in[id] = me->averaged_in[id];
    if (mgw_flow_updated(me->flow, (unsigned)id))
        drive(w, me);
    me->updates -= w->s->updates[id] != SIM_LATE;
    if (me->phase == BETWEEN)
        begin(w, me);
}

/* ---- What comes back ---- */

static void take_averages(world *w, worker *me, const collective *c)
{
    const scenario *s = w->s;
    const mgw_operation *o = &c->operation;
    for (size_t i = o->first; i < o->first + o->count; i++) {
        int64_t value = c->values[i - o->first];
        if (is_gather(o)) {
            me->parameter[i] = value;
            continue;
        }
        bool mine = o->kind == MGW_ALL_REDUCE || owner_of(w, i) == rank_of(w, me);
        CHECK(w, value == w->sums[c->step * s->tensors + i],
              "worker %u: tensor %zu of step %llu has a wrong sum", rank_of(w, me), i,
              (unsigned long long)c->step);
        CHECK(w, me->averaged_in[i] < c->step, "worker %u: tensor %zu is averaged twice",
              rank_of(w, me), i);
        me->gradient[i] = mine ? value : INT64_MIN / 2; /* a value that must not be used */
        me->averaged_in[i] = c->step;
        if (s->updates[i] == SIM_EARLY) {
            me->updates++;
            sim_push(w, w->now_s + s->update_s, UPDATE, rank_of(w, me), i);
        }
    }
}

/* Either all workers change to another plan or none; its operations are compared when they start.
 */
static void follow(world *w, worker *me, collective *c)
{
    bool changed = false;
    size_t count = 0;
    fail_checked(w, me, mgw_tuner_follow(me->tuner, c->word, &changed, &w->error));
    CHECK(w, !c->followed || c->changes == changed, "worker %u: a new plan or not?",
          rank_of(w, me));
    c->followed = true;
    c->changes = changed;
    w->result->plans += changed;
    const mgw_operation *operations = mgw_tuner_operations(me->tuner, &count);
    if (changed)
        sim_adopt(w, me, operations, count);
    if (changed && w->s->move_s > 0)
        move(w, me);
    else
        begin(w, me);
}

void sim_deliver(world *w, worker *me, size_t k)
{
    collective *c = &w->collectives[k];
    CHECK(w, k == me->delivered, "worker %u: collective %zu is over before %zu", rank_of(w, me), k,
          me->delivered);
    me->delivered++;
    if (c->index == LOOK) {
        follow(w, me, c);
        return;
    }
    sim_note(w, "worker %u: operation %d of step %llu is over", rank_of(w, me), c->index,
             (unsigned long long)c->step);
    double free_s = k ? w->collectives[k - 1].end_s : 0; /* of the channel, from the one before */
    me->took_s[c->index] = w->now_s - fmax(me->posted_s[k], free_s);
    take_averages(w, me, c);
    me->open--;
    mgw_flow_done(me->flow, (size_t)c->index, c->start_s, c->end_s);
    drive(w, me);
    if (me->phase == NEEDING)
        forward(w, me);
    else if (me->phase == ENDING)
        end_step(w, me);
    else if (me->phase == DRAINING)
        begin(w, me);
}
