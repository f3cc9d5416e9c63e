/* Work that runs ahead of the caller: operations and updates while it computes, gathers while it
 * begins the next step; and the caller's waits for it, each as short as possible. */
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"

static void lock(engine_parameters *p)
{
    pthread_mutex_lock(&p->lock);
}

static void unlock(engine_parameters *p)
{
    pthread_mutex_unlock(&p->lock);
}

/* Called with the lock held, which is released meanwhile. Sleeps only briefly, so that the caller
 * can check its state. */
static bool sleep_for_news(engine_parameters *p)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 100 * 1000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return !pthread_cond_clockwait(&p->news, &p->lock, CLOCK_MONOTONIC, &until);
}

/* Wakes the communication thread, which sleeps on `work`. */
static void wake(mgw_engine *engine)
{
    engine->parameters->posts++;
    sem_post(&engine->thread.work);
}

void engine_call(mgw_engine *engine)
{
    engine->parameters->posts++; /* `posts` is read by the woken thread */
    sem_post(&engine->thread.go);
    sem_post(&engine->thread.work);
}

/* ---- Updates, on either thread ---- */

/* The oldest averaged operation whose update the callback has not begun. */
static bool take_update(engine_parameters *p, size_t *operation)
{
    bool any = p->update && p->taken < p->averaged;
    if (any)
        *operation = p->now.averages[p->taken++];
    return any;
}

/* Marks an operation as updated. Sets *may_start if another gather may start. */
static mgw_status say(mgw_engine *engine, size_t index, bool *may_start, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    size_t count = 0;
    const mgw_operation *o = &mgw_flow_operations(engine->flow, &count)[index];
    if (engine->place->updated) {
        mgw_status status = engine->place->updated(engine, index, error);
        if (status)
            return status;
    }
    for (size_t i = o->first; i < o->first + o->count; i++)
        *may_start |= mgw_flow_updated(engine->flow, (unsigned)i);
    lock(p);
    p->is_said[index] = true;
    p->said++;
    pthread_cond_broadcast(&p->news);
    unlock(p);
    return MGW_OK;
}

static mgw_status update(mgw_engine *engine, size_t index, bool *may_start, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    const mgw_shard *shards = p->now.by_operation + p->now.begins[index];
    size_t count = p->now.begins[index + 1] - p->now.begins[index];
    mgw_error inner = {0};
    mgw_status status = MGW_OK;
    if (engine->place->averaged)
        status = engine->place->averaged(engine, index, error);
    if (status)
        return status;
    status = p->update(p->update_context, shards, count, &inner);
    if (status)
        return mgw_fail(error, status, "rank %u: update of operation %zu: %s", engine->rank,
                        index + 1, inner.message[0] ? inner.message : "it failed");
    return say(engine, index, may_start, error);
}

/* ---- The communication thread's side ---- */

/* Takes the next operation, and the start of its step: that of a gather may be the previous one. */
static bool take_operation(mgw_engine *engine, size_t *operation, double *begun_s)
{
    engine_parameters *p = engine->parameters;
    size_t count = 0;
    lock(p);
    bool any = mgw_flow_next(engine->flow, operation);
    p->sends = any;
    if (any) {
        bool gathers = mgw_flow_operations(engine->flow, &count)[*operation].kind == MGW_ALL_GATHER;
        bool before = gathers && !mgw_flow_averaged(engine->flow);
        p->step = mgw_flow_step(engine->flow) - before;
        *begun_s = p->begun_s[p->step % 2];
    }
    unlock(p);
    return any;
}

static mgw_status perform(mgw_engine *engine, size_t index, double begun_s, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    size_t count = 0;
    engine_span span = {0};
    bool averages = mgw_flow_operations(engine->flow, &count)[index].kind != MGW_ALL_GATHER;
    mgw_status status = engine_perform(engine, index, begun_s, &span, error);
    if (!status && engine->place->over)
        engine->place->over(engine, index);
    /* Before the caller is notified, since it could then begin the next step. */
    if (!status && averages && p->averaged + 1 == p->now.average_count)
        status = engine_at_place(engine, engine->place->end, error);
    if (status)
        return status;
    lock(p);
    engine_note(engine, index, &span);
    p->spans[p->step % 2][index] =
        (engine_span){begun_s + span.start_s, begun_s + span.end_s, span.busy_s};
    p->sends = false;
    if (averages)
        p->averaged++;
    pthread_cond_broadcast(&p->news);
    unlock(p);
    return MGW_OK;
}

/* Takes an update for the communication thread; not on a GPU, where updates must be ordered after
 * the caller's stream. */
static bool take_update_beside(mgw_engine *engine, size_t *operation)
{
    engine_parameters *p = engine->parameters;
    lock(p);
    bool any = !engine->device && take_update(p, operation);
    unlock(p);
    return any;
}

/* Does one thing that is due; sending has priority. */
static bool go_on(mgw_engine *engine)
{
    engine_parameters *p = engine->parameters;
    size_t operation = 0;
    double begun_s = 0;
    bool may_start = false;
    mgw_error error = {0};
    mgw_status status = MGW_OK;
    if (!p->started || p->status || atomic_load(&engine->thread.closing))
        return false;
    if (take_operation(engine, &operation, &begun_s))
        status = perform(engine, operation, begun_s, &error);
    else if (take_update_beside(engine, &operation))
        status = update(engine, operation, &may_start, &error);
    else
        return false;
    if (status) {
        lock(p);
        engine_explain(engine, &error);
        p->status = status;
        p->error = error;
        pthread_cond_broadcast(&p->news);
        unlock(p);
    }
    return true;
}

/* Tells other workers which tensor is missing here, if the caller waits. */
static void tell_if_late(mgw_engine *engine)
{
    engine_parameters *p = engine->parameters;
    if (!p->started || p->status || !atomic_load(&engine->thread.waiting))
        return;
    lock(p);
    engine_say_missing(engine);
    unlock(p);
}

void engine_attend(mgw_engine *engine)
{
    engine_thread *thread = &engine->thread;
    mgw_error ignored;
    while (sem_trywait(&thread->go)) {
        if (go_on(engine))
            continue;
        if (engine_sleep_on(&thread->work, 20 * 1000 * 1000))
            engine->parameters->had++;
        else if (engine->transport && engine_at_place(engine, engine->place->watch, &ignored))
            continue; /* a failure is reported by the next operation or task */
        else
            tell_if_late(engine);
    }
    while (thread->task && go_on(engine))
        continue;
}

void engine_take_posts(mgw_engine *engine)
{
    engine_parameters *p = engine->parameters;
    while (p->had < p->posts)
        p->had += engine_sleep_on(&engine->thread.work, 20 * 1000 * 1000);
}

/* ---- The caller's side ---- */

/* Without a communication thread, the caller does its work at once. */
static void go_on_alone(mgw_engine *engine)
{
    while (!engine->thread.threaded && go_on(engine))
        continue;
}

/* With the lock held. */
static mgw_status check_thread(mgw_engine *engine, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    if (!p->status)
        return MGW_OK;
    engine->failed = true;
    return mgw_fail(error, p->status, "%s", p->error.message);
}

mgw_status engine_check_call(const mgw_engine *engine, const char *call, mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (engine->parameters && engine->started && !engine->failed)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                    !engine->parameters ? "the engine does not keep parameters"
                    : engine->failed    ? "the engine failed before; close it"
                                        : "the engine is not started");
}

/* With the lock held, between steps. */
static mgw_status check_said(const mgw_engine *engine, const char *call, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    for (size_t i = 0; i < p->averaged; i++)
        if (!p->is_said[p->now.averages[i]])
            return mgw_fail(
                error, MGW_ERR_ARGUMENT,
                "%s: rank %u: operation %zu (from '%.60s') is averaged, but its "
                "update was not reported: call mgw_engine_update",
                call, engine->rank, p->now.averages[i] + 1,
                mgw_names_get(engine->arena.names, operations[p->now.averages[i]].first));
    return MGW_OK;
}

mgw_status engine_check_updates(mgw_engine *engine, const char *call, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    if (!p)
        return MGW_OK;
    lock(p);
    mgw_status status = check_thread(engine, error);
    if (!status)
        status = check_said(engine, call, error);
    unlock(p);
    return status;
}

mgw_status engine_begin_flow(mgw_engine *engine, double now_s, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    if (!p)
        return mgw_flow_begin(engine->flow, now_s, error);
    lock(p);
    mgw_status status = mgw_flow_begin(engine->flow, now_s, error);
    p->begun_s[mgw_flow_step(engine->flow) % 2] = now_s;
    p->averaged = p->taken = p->said = 0;
    for (size_t i = 0; i < p->now.operation_count; i++)
        p->is_said[i] = false;
    unlock(p);
    engine_begin_needs(engine);
    return status;
}

/* With the lock held: the step is over when everything is averaged and, if there is a callback,
 * updated. */
static bool is_over(const engine_parameters *p)
{
    size_t all = p->now.average_count;
    return p->averaged == all && (!p->update || p->said == all);
}

/* With the lock held, which is released only while something is done: news in between is not
 * missed. Returns whether something was done. */
static bool help(mgw_engine *engine, mgw_status *status, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    size_t operation = 0;
    bool may_start = false;
    bool updates = take_update(p, &operation);
    if (!updates && engine->thread.threaded)
        return false;
    unlock(p);
    bool helps = updates || go_on(engine);
    if (updates)
        *status = update(engine, operation, &may_start, error);
    if (may_start)
        wake(engine);
    lock(p);
    return helps;
}

/*
 * With the lock held: pauses until something happens; fails after the timeout.
 */
static mgw_status pause_step(mgw_engine *engine, double since_s, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    bool news = false;
    if (engine->thread.threaded) {
        news = sleep_for_news(p);
    } else {
        unlock(p);
        news = engine_sleep_on(&engine->thread.work, 100 * 1000 * 1000);
        p->had += news;
        lock(p);
    }
    bool waits = !news && !p->status && !p->sends && p->taken == p->said;
    mgw_status status = waits ? engine_check_patience(engine, since_s, error) : MGW_OK;
    if (status)
        engine_explain(engine, error);
    return status;
}

mgw_status engine_await_step(mgw_engine *engine, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    double since_s = mgw_awake_s();
    size_t seen = 0;
    mgw_status status = MGW_OK;
    lock(p);
    while (!status && !p->status && !is_over(p)) {
        if (seen != p->averaged + p->said) {
            seen = p->averaged + p->said;
            since_s = mgw_awake_s();
        }
        if (!help(engine, &status, error))
            status = pause_step(engine, since_s, error);
    }
    if (!status)
        status = check_thread(engine, error);
    p->posts += status ? 0 : p->now.average_count; /* by ready, which may still be about to post */
    unlock(p);
    go_on_alone(engine);
    if (!status && !engine->thread.threaded)
        engine_take_posts(engine);
    return status;
}

mgw_status mgw_engine_update(mgw_engine *engine, size_t operation, mgw_error *error)
{
    mgw_status status = engine_check_call(engine, "update", error);
    if (status)
        return status;
    engine_parameters *p = engine->parameters;
    bool all = operation == MGW_NO_OPERATION;
    bool averages = all;
    for (size_t i = 0; i < p->averaged; i++)
        averages |= p->now.averages[i] == operation;
    if (p->update || engine->in_step || !averages || (!all && p->is_said[operation]))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "update: operation %zu: %s", operation + 1,
                        p->update         ? "the callback of mgw_engine_on_update updates it"
                        : engine->in_step ? "only after mgw_engine_wait"
                        : !averages       ? "it is not averaged"
                                          : "it was already updated");
    bool may_start = false;
    for (size_t i = 0; !status && i < p->averaged; i++) {
        size_t index = p->now.averages[i];
        if ((all && !p->is_said[index]) || index == operation)
            status = say(engine, index, &may_start, error);
    }
    engine->failed = status != MGW_OK;
    if (may_start)
        wake(engine);
    go_on_alone(engine);
    if (status)
        return status;
    lock(p);
    status = check_thread(engine, error);
    unlock(p);
    return status;
}

mgw_status mgw_engine_drain(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_check_call(engine, "drain", error);
    if (status)
        return status;
    engine_parameters *p = engine->parameters;
    lock(p);
    if (!engine->in_step)
        status = check_said(engine, "drain", error);
    while (!status && !p->status && !mgw_flow_gathered(engine->flow, !engine->in_step))
        sleep_for_news(p);
    if (!status)
        status = check_thread(engine, error);
    unlock(p);
    return status ? status : engine_at_place(engine, engine->place->drain, error);
}

mgw_status engine_await_gather(mgw_engine *engine, unsigned id, bool *waited, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    lock(p);
    *waited = mgw_flow_need(engine->flow, id) != MGW_NO_OPERATION;
    while (!p->status && mgw_flow_need(engine->flow, id) != MGW_NO_OPERATION)
        sleep_for_news(p);
    mgw_status status = check_thread(engine, error);
    unlock(p);
    return status;
}
