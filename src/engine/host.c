/* Gradients in the host's memory: they are there when they are said to be, and so are averages. */
#include <string.h>

#include "base/clock.h"
#include "engine/place.h"

static double mark(mgw_engine *engine, unsigned id, void *stream)
{
    (void)engine, (void)id, (void)stream;
    return mgw_now_s();
}

static void move(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream)
{
    (void)engine, (void)stream;
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
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
    double compute_s = engine_last_ready_s(engine, 0, engine->arena.count);
    engine_times *times = &engine->times;
    mgw_tuner_observe(engine->tuner,
                      &(mgw_step_record){.late_s = times->late_s,
                                         .compute_s = compute_s,
                                         .iteration_s = end_s > compute_s ? end_s : compute_s,
                                         .ready_s = ready_s,
                                         .took_s = times->took_s,
                                         .busy_s = times->busy_s});
    times->end_s = mgw_flow_begun_s(engine->flow) + end_s;
    return MGW_OK;
}

const engine_place engine_host = {
    .mark = mark,
    .move = move,
    .posted = posted,
    .end = end,
    .back_to_back = 1,
};
