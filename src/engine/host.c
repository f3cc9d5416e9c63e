/* Gradients in host memory: they are complete when they are reported, and so are averages. */
#include <string.h>

#include "base/clock.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/reduce.h"

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

static mgw_fp8_blocks blocks_of(const engine_cast *c)
{
    return (mgw_fp8_blocks){c->wire, c->largest, c->headroom, c->first, c->count};
}

static void largest(mgw_engine *engine, const engine_cast *c)
{
    (void)engine;
    mgw_fp8_largest(c->data, c->count, c->largest);
}

static void narrow(mgw_engine *engine, const engine_cast *c)
{
    (void)engine;
    mgw_fp8_blocks blocks = blocks_of(c);
    if (c->largest)
        mgw_fp8_narrow(c->data, c->narrow, &blocks);
    else
        mgw_narrow(c->data + c->first, (uint16_t *)c->narrow + c->first, c->count, c->wire);
}

static void widen(mgw_engine *engine, const engine_cast *c)
{
    (void)engine;
    mgw_fp8_blocks blocks = blocks_of(c);
    if (c->largest)
        mgw_fp8_widen(c->narrow, c->data, &blocks);
    else
        mgw_widen((const uint16_t *)c->narrow + c->first, c->data + c->first, c->count, c->wire);
}

static mgw_status posted(mgw_engine *engine, mgw_error *error)
{
    return mgw_request_wait(engine->transport, &engine->last, error);
}

/* The step is over. With a callback for updates, it lasts until these are done. */
static mgw_status join(mgw_engine *engine, mgw_error *error)
{
    (void)error;
    const engine_parameters *p = engine->parameters;
    engine_times *times = &engine->times;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    const mgw_operation *last = &operations[engine_average_count(engine) - 1];
    double begun_s = mgw_flow_begun_s(engine->flow);
    double now_s = mgw_now_s();
    double end_s = p ? now_s - begun_s : last->end_s;
    double computed_s = engine_last_ready_s(engine, 0, engine->arena.count);
    mgw_step_record record = {.late_s = times->late_s,
                              .compute_s = computed_s,
                              .iteration_s = end_s > computed_s ? end_s : computed_s,
                              .ready_s = mgw_flow_ready_times(engine->flow),
                              .took_s = times->took_s,
                              .busy_s = times->busy_s,
                              .forward_s = times->forward_s,
                              .period_s = times->over_s > 0 ? now_s - times->over_s : 0};
    engine_observe(engine, &record);
    times->end_s = begun_s + last->end_s;
    times->over_s = now_s;
    return MGW_OK;
}

const engine_place engine_host = {
    .mark = mark,
    .join = join,
    .move = move,
    .largest = largest,
    .narrow = narrow,
    .widen = widen,
    .posted = posted,
    .back_to_back = 1,
};
