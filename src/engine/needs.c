/* The forward pass: when it needs which parameter, and what it waits for them. */
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

/* When it came to a parameter for the first time, and what it waited there. */
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
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "need: tensor %u: there is no such tensor", id);
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
    record->stall_s = needs->stalled_s;
    record->compute_s -= needs->stalled_s;
    pthread_mutex_lock(&p->lock); /* gathers that go on write their times */
    mgw_tuner_observe(engine->tuner, record);
    pthread_mutex_unlock(&p->lock);
}
