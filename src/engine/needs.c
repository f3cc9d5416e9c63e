/* The forward pass: when it needs each parameter, and how long it waits. */
#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"

void engine_begin_needs(mgw_engine *engine)
{
    engine_needs *needs = &engine->parameters->needs;
    for (size_t i = 0; i < engine->arena.count; i++)
        needs->need_s[i] = MGW_NEVER_NEEDED;
    needs->stall_count = 0;
    needs->stalled_s = 0;
}

/* Records the first use of a parameter, and the wait for it. */
static void note(engine_needs *needs, unsigned id, double asked_s, double had_s)
{
    if (needs->need_s[id] == MGW_NEVER_NEEDED)
        needs->need_s[id] = asked_s - needs->stalled_s;
    if (had_s <= asked_s)
        return;
    needs->stalls[needs->stall_count++] = (mgw_stall){id, asked_s, had_s};
    needs->stalled_s += had_s - asked_s;
}

mgw_status mgw_engine_need(mgw_engine *engine, unsigned id, mgw_error *error)
{
    mgw_status status = engine_check_call(engine, "need", error);
    if (!status && id >= engine->arena.count)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "need: there is no tensor %u", id);
    if (status || !engine->in_step)
        return status ? status : mgw_engine_drain(engine, error);
    double begun_s = mgw_flow_begun_s(engine->flow);
    double asked_s = mgw_now_s() - begun_s;
    bool waited = false;
    status = engine_await_gather(engine, id, &waited, error);
    if (!status && engine->place->need)
        status = engine->place->need(engine, id, error);
    note(&engine->parameters->needs, id, asked_s, waited ? mgw_now_s() - begun_s : asked_s);
    return status;
}

static double stalled_before_s(const engine_needs *needs, double when_s)
{
    double sum_s = 0;
    for (size_t k = 0; k < needs->stall_count && needs->stalls[k].start_s < when_s; k++)
        sum_s += needs->stalls[k].end_s - needs->stalls[k].start_s;
    return sum_s;
}

void engine_observe(mgw_engine *engine, mgw_step_record *record)
{
    engine_parameters *p = engine->parameters;
    if (!p) {
        mgw_tuner_observe(engine->tuner, record);
        return;
    }
    engine_needs *needs = &p->needs;
    for (size_t i = 0; needs->stall_count && i < engine->arena.count; i++)
        needs->ready_s[i] = record->ready_s[i] - stalled_before_s(needs, record->ready_s[i]);
    if (needs->stall_count)
        record->ready_s = needs->ready_s;
    record->need_s = needs->need_s;
    record->forward_s -= stalled_before_s(needs, record->forward_s);
    record->stall_s = needs->stalled_s;
    needs->step_s = record->iteration_s;
    record->compute_s -= needs->stalled_s;
    pthread_mutex_lock(&p->lock); /* running gathers write their times */
    mgw_tuner_observe(engine->tuner, record);
    pthread_mutex_unlock(&p->lock);
}

/* ---- As a timeline ---- */

static void add(mgw_timeline *timeline, mgw_span span)
{
    timeline->spans[timeline->span_count++] = span;
}

double engine_add_stalls(const mgw_engine *engine, mgw_timeline *timeline)
{
    const engine_needs *needs = &engine->parameters->needs;
    double now_s = 0;
    for (size_t i = 0; i < needs->stall_count; i++) {
        const mgw_stall *stall = &needs->stalls[i];
        add(timeline,
            (mgw_span){.kind = MGW_SPAN_FORWARD, .start_s = now_s, .end_s = stall->start_s});
        add(timeline, (mgw_span){.kind = MGW_SPAN_STALL,
                                 .start_s = stall->start_s,
                                 .end_s = stall->end_s,
                                 .first = stall->tensor,
                                 .count = 1});
        now_s = stall->end_s;
    }
    return now_s;
}

static double after_s(double when_s, double begun_s)
{
    return when_s > begun_s ? when_s - begun_s : 0;
}

void engine_add_gathers(const mgw_engine *engine, mgw_timeline *timeline)
{
    engine_parameters *p = engine->parameters;
    uint64_t step = mgw_flow_step(engine->flow);
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    double begun_s = mgw_flow_begun_s(engine->flow);
    if (count > p->now.average_count)
        timeline->period_s = p->needs.step_s;
    pthread_mutex_lock(&p->lock); /* those of this step may be running */
    for (size_t m = p->now.average_count; step > p->first_step && m < count; m++) {
        const engine_span *span = &p->spans[(step - 1) % 2][m];
        uint64_t bytes = 0;
        for (int d = 0; d < DTYPES; d++) {
            size_t begin = 0;
            size_t length = 0;
            mgw_layout_slice(engine->arena.layout, operations[m].first, operations[m].count,
                             (mgw_dtype)d, &begin, &length);
            bytes += length * mgw_dtype_bytes(mgw_engine_parameter_dtype(engine, (mgw_dtype)d));
        }
        add(timeline, (mgw_span){.kind = MGW_SPAN_ALL_GATHER,
                                 .start_s = after_s(span->start_s, begun_s),
                                 .end_s = after_s(span->end_s, begun_s),
                                 .ready_s = after_s(span->start_s, begun_s),
                                 .first = operations[m].first,
                                 .count = operations[m].count,
                                 .bytes = bytes});
    }
    pthread_mutex_unlock(&p->lock);
}
