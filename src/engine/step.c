/* One step: gradients become ready, operations run in plan order, and the caller waits for all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"

static engine_task run_step; /* runs on the communication thread */

/* ---- The caller's side ---- */

static mgw_status check_usable(const mgw_engine *engine, bool in_step, const char *call,
                               mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (engine->failed)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the engine failed before; close it", call);
    if (!engine->started || engine->in_step != in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                        !engine->started ? "the engine is not started"
                        : in_step        ? "no step has begun"
                                         : "the previous step was not waited for");
    return MGW_OK;
}

/* Reports errors of ready(), which is wait-free and returns nothing. */
static mgw_status check_trouble(mgw_engine *engine, const char *what, mgw_error *error)
{
    unsigned id = 0;
    if (!mgw_flow_trouble(engine->flow, &id))
        return MGW_OK;
    engine->failed = true;
    if (id >= engine->arena.count)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "rank %u: there is no tensor %u", engine->rank,
                        id);
    return mgw_fail(error, MGW_ERR_ARGUMENT, "rank %u: tensor %u ('%.80s') %s", engine->rank, id,
                    mgw_names_get(engine->arena.names, id), what);
}

mgw_status mgw_engine_begin(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = check_usable(engine, false, "begin", error);
    if (!status)
        status = check_trouble(engine, "was ready outside of a step", error);
    if (!status)
        status = engine_check_updates(engine, "begin", error);
    /* Here, not at the end of the previous step, so that between steps the plan is the one that was
     * used. */
    if (!status)
        status = engine_take_turn(engine, error);
    if (status)
        return status;
    double now_s = mgw_now_s();
    atomic_store(&engine->thread.waiting, false);
    status = engine_begin_flow(engine, now_s, error);
    if (!status)
        status = engine_at_place(engine, engine->place->begin, error);
    if (status) {
        engine->failed = true;
        return status;
    }
    engine->in_step = true;
    engine->times.forward_s = 0;
    engine->times.late_s = engine->times.end_s > 0 ? now_s - engine->times.end_s : 0;
    if (!engine->parameters) /* with parameters, the thread never stops */
        engine_hand_over(engine, run_step);
    return MGW_OK;
}

void mgw_engine_backward(mgw_engine *engine)
{
    if (engine_is_ours(engine) && engine->in_step && !engine->device)
        engine->times.forward_s = mgw_now_s() - mgw_flow_begun_s(engine->flow);
}

/* The last gradient of an operation hands it to the communication thread, and wakes it. */
static void publish(mgw_engine *engine, unsigned id, double now_s)
{
    size_t operation = mgw_flow_arrive(engine->flow, id, now_s);
    if (operation == MGW_NO_OPERATION)
        return;
    if (engine->place->complete)
        engine->place->complete(engine, operation);
    mgw_flow_release(engine->flow, operation);
    sem_post(&engine->thread.work);
}

/* Whether the tensor is due. Before start there is no flow to record it in. A fork's call is
 * ignored; begin or wait will fail there. */
static bool claim(mgw_engine *engine, unsigned id)
{
    if (!engine_is_ours(engine))
        return false;
    if (engine->started)
        return mgw_flow_claim(engine->flow, id);
    atomic_store(&engine->early, id < UINT32_MAX ? id + 1 : id);
    return false;
}

void mgw_engine_ready(mgw_engine *engine, unsigned id)
{
    if (engine)
        mgw_engine_ready_on(engine, id, engine->stream);
}

void mgw_engine_ready_on(mgw_engine *engine, unsigned id, void *stream)
{
    if (!claim(engine, id))
        return;
    engine_debug_ready(engine, id, stream);
    publish(engine, id, engine->place->mark(engine, id, stream));
}

void mgw_engine_ready_range(mgw_engine *engine, unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        mgw_engine_ready(engine, first + i);
}

/* Copies a gradient to its place before it is ready; from null: zeros. */
static size_t fill(mgw_engine *engine, size_t id, const void *source, void *stream)
{
    size_t bytes = engine_tensor_bytes(&engine->arena.tensors[id]);
    if (bytes)
        engine->place->move(engine, engine_home(engine, id), source, bytes, stream);
    return bytes;
}

static void take_in(mgw_engine *engine, size_t id, const void *source, void *stream)
{
    size_t bytes = fill(engine, id, source, stream);
    atomic_fetch_add_explicit(&engine->arena.copied_bytes, bytes, memory_order_relaxed);
}

void mgw_engine_ready_at(mgw_engine *engine, unsigned id, const void *source, void *stream)
{
    if (!claim(engine, id))
        return;
    take_in(engine, id, source, stream);
    engine_debug_ready(engine, id, stream);
    publish(engine, id, engine->place->mark(engine, id, stream));
}

void mgw_engine_ready_all(mgw_engine *engine, const unsigned *ids, size_t count, const double *at_s,
                          const void *const *sources, void *stream)
{
    for (size_t i = 0; i < count; i++) {
        if (!claim(engine, ids[i]))
            continue;
        if (sources && sources[i])
            take_in(engine, ids[i], sources[i], stream);
        engine_debug_ready(engine, ids[i], stream);
        publish(engine, ids[i], at_s[ids[i]]);
    }
}

unsigned mgw_engine_samples(const mgw_engine *engine, unsigned *share)
{
    bool known = engine_is_ours(engine) && engine->place->samples;
    return known ? engine->place->samples(engine, share) : 0;
}

void mgw_engine_mark(mgw_engine *engine, unsigned id, void *stream)
{
    if (engine_is_ours(engine) && engine->in_step && id < engine->arena.count)
        engine->place->mark(engine, id, stream);
}

static void zero_unused(mgw_engine *engine)
{
    for (unsigned i = 0; i < engine->arena.count; i++)
        if (!mgw_flow_has(engine->flow, i)) {
            fill(engine, i, NULL, engine->stream);
            mgw_engine_ready(engine, i);
        }
}

mgw_status mgw_engine_wait(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = check_usable(engine, true, "wait", error);
    if (status)
        return status;
    if (engine->options.zero_unused)
        zero_unused(engine);
    atomic_store(&engine->thread.waiting, true);
    status = engine->parameters ? engine_await_step(engine, error) : engine_await(engine, error);
    engine->in_step = false;
    mgw_tuner_count(engine->tuner);
    if (!status)
        status = check_trouble(engine, "was ready twice in one step", error);
    if (!status)
        status = engine_at_place(engine, engine->place->join, error);
    if (!status)
        status = engine_debug_end(engine, error);
    engine->failed = status != MGW_OK;
    return status;
}

/* ---- The communication thread's side ---- */

bool engine_sleep_on(sem_t *semaphore, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return !sem_clockwait(semaphore, CLOCK_MONOTONIC, &until);
}

/* The longest wait for this worker's own gradients after the program has called mgw_engine_wait, or
 * after the operation before, which may have waited for others. */
static const double own_s = 30;

mgw_status engine_check_patience(const mgw_engine *engine, double since_s, mgw_error *error)
{
    double timeout_s = fmin(engine->options.transport.timeout_s, own_s);
    if (mgw_awake_s() - since_s <= timeout_s)
        return MGW_OK;
    size_t turn = mgw_flow_turn(engine->flow);
    const char *name = engine_missing_tensor(engine, turn);
    if (!name) /* the last one has just come */
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_TIMEOUT,
                    "rank %u: message %zu: tensor '%.80s' was not ready within %.3g s of waiting",
                    engine->rank, turn + 1, name, timeout_s);
}

static mgw_status check_patience(mgw_engine *engine, double *waiting_s, mgw_error *error)
{
    if (atomic_load(&engine->thread.waiting) && *waiting_s == 0)
        *waiting_s = mgw_awake_s();
    return *waiting_s > 0 ? engine_check_patience(engine, *waiting_s, error) : MGW_OK;
}

/* Sleeps until an operation may start; fails if the caller has waited too long or is closing. */
static mgw_status await_operation(mgw_engine *engine, double *waiting_s, size_t *operation,
                                  mgw_error *error)
{
    engine_thread *thread = &engine->thread;
    mgw_status status = MGW_OK;
    while (!mgw_flow_next(engine->flow, operation)) {
        bool woken = engine_sleep_on(&thread->work, 100 * 1000 * 1000);
        thread->taken += woken;
        if (atomic_load(&thread->closing))
            return mgw_fail(error, MGW_ERR_ARGUMENT, "the engine was closed during a step");
        if (!woken)
            status = check_patience(engine, waiting_s, error);
        if (!woken && !status)
            status = engine_at_place(engine, engine->place->watch, error);
        if (!woken && !status)
            engine_say_missing(engine);
        if (status)
            return status;
    }
    return MGW_OK;
}

mgw_status engine_perform(mgw_engine *engine, size_t index, double begun_s, engine_span *out,
                          mgw_error *error)
{
    size_t count = 0;
    const mgw_operation *operation = &mgw_flow_operations(engine->flow, &count)[index];
    mgw_error inner = {0};
    double busy_s = mgw_busy_s();
    out->start_s = mgw_now_s() - begun_s;
    engine_history_begin(engine, index);
    mgw_status status = engine_send(engine, index, &inner);
    out->end_s = mgw_now_s() - begun_s;
    out->busy_s = mgw_busy_s() - busy_s;
    engine->history.said = NULL;
    if (!status) {
        engine_history_end(engine);
        return MGW_OK;
    }
    bool whole = operation->kind == MGW_ALL_REDUCE;
    return mgw_fail(error, inner.status, "%s %zu of %zu (from '%.60s'): %s",
                    whole ? "message" : mgw_collective_name(operation->kind), index + 1, count,
                    mgw_names_get(engine->arena.names, operation->first), inner.message);
}

void engine_note(mgw_engine *engine, size_t index, const engine_span *span)
{
    engine->times.busy_s[index] = span->busy_s;
    engine->times.took_s[index] = span->end_s - span->start_s;
    mgw_flow_done(engine->flow, index, span->start_s, span->end_s);
}

static mgw_status run_operation(mgw_engine *engine, size_t index, mgw_error *error)
{
    engine_span span = {0};
    mgw_status status = engine_perform(engine, index, mgw_flow_begun_s(engine->flow), &span, error);
    if (!status)
        engine_note(engine, index, &span);
    return status;
}

static mgw_status run_step(mgw_engine *engine, mgw_error *error)
{
    engine_thread *thread = &engine->thread;
    double waiting_s = 0;
    size_t count = 0;
    mgw_status status = MGW_OK;
    mgw_flow_operations(engine->flow, &count);
    thread->taken = 0;
    while (!status && !mgw_flow_averaged(engine->flow)) {
        size_t operation = 0;
        status = await_operation(engine, &waiting_s, &operation, error);
        if (!status)
            status = run_operation(engine, operation, error);
        waiting_s = 0;
    }
    /* Every operation is posted once, perhaps by a thread that is still about to do so: wait for
     * these posts. */
    while (!status && thread->taken < count)
        thread->taken += !sem_wait(&thread->work);
    return status ? status : engine_at_place(engine, engine->place->end, error);
}
