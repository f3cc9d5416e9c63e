/* Gradients in the host's memory: they are there when they are said to be, and so are averages. */
#include <string.h>

#include "base/clock.h"
#include "engine/place.h"

static mgw_status nothing(mgw_engine *engine, mgw_error *error)
{
    (void)engine, (void)error;
    return MGW_OK;
}

static void leave_alone(mgw_engine *engine)
{
    (void)engine;
}

static void enter(const mgw_engine *engine)
{
    (void)engine;
}

static void take(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream)
{
    (void)engine, (void)stream;
    memcpy(to, from, bytes);
}

static double mark(mgw_engine *engine, unsigned id, void *stream)
{
    (void)engine, (void)id, (void)stream;
    return mgw_now_s();
}

static void complete(mgw_engine *engine, size_t operation)
{
    (void)engine, (void)operation;
}

static void zero(mgw_engine *engine, void *data, size_t bytes)
{
    (void)engine;
    memset(data, 0, bytes);
}

static mgw_status admit(mgw_engine *engine, size_t operation, mgw_error *error)
{
    (void)engine, (void)operation, (void)error;
    return MGW_OK;
}

static mgw_status copy(mgw_engine *engine, void *to, const void *from, size_t bytes,
                       mgw_error *error)
{
    (void)engine, (void)error;
    memcpy(to, from, bytes);
    return MGW_OK;
}

static mgw_status posted(mgw_engine *engine, mgw_error *error)
{
    return mgw_request_wait(engine->transport, &engine->last, error);
}

static mgw_status end(mgw_engine *engine, mgw_error *error)
{
    (void)error;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    const double *ready_s = mgw_flow_ready_times(engine->flow);
    double end_s = operations[count - 1].end_s;
    double compute_s = 0;
    for (size_t i = 0; i < engine->arena.count; i++)
        compute_s = ready_s[i] > compute_s ? ready_s[i] : compute_s;
    engine_times *times = &engine->times;
    mgw_tuner_observe(engine->tuner,
                      &(mgw_step_record){.late_s = times->late_s,
                                         .compute_s = compute_s,
                                         .iteration_s = end_s > compute_s ? end_s : compute_s,
                                         .ready_s = ready_s,
                                         .took_s = times->took_s,
                                         .busy_s = times->busy_s});
    times->last_compute_s = compute_s;
    times->end_s = mgw_flow_begun_s(engine->flow) + end_s;
    return MGW_OK;
}

static uint64_t waits(const mgw_engine *engine)
{
    (void)engine;
    return 0;
}

const engine_place engine_host = {
    .open = nothing,
    .close = leave_alone,
    .enter = enter,
    .start = nothing,
    .begin = nothing,
    .take = take,
    .mark = mark,
    .complete = complete,
    .zero = zero,
    .join = nothing,
    .admit = admit,
    .copy = copy,
    .posted = posted,
    .end = end,
    .watch = nothing,
    .settle = nothing,
    .ask = nothing,
    .answer = nothing,
    .back_to_back = 1,
    .waits = waits,
};
