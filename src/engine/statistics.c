/* Statistics, and the last step as a timeline. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/parameters.h"

void mgw_engine_measure(const mgw_engine *engine, mgw_engine_statistics *out)
{
    *out = (mgw_engine_statistics){0};
    if (!engine)
        return;
    const engine_arena *arena = &engine->arena;
    mgw_tuner_statistics seen = {.slowdown = 1};
    size_t operations = 0;
    if (engine->tuner) {
        mgw_tuner_measure(engine->tuner, &seen);
        mgw_tuner_operations(engine->tuner, &operations);
    }
    *out = (mgw_engine_statistics){
        .steps = seen.steps,
        .plans = seen.plans,
        .tensors = arena->count,
        .messages = operations,
        .extra_bytes = arena->narrow_bytes,
        .copied_bytes = arena->copied_bytes,
        .device_waits = engine->waits,
        .iteration_s = seen.iteration_s,
        .compute_s = seen.compute_s,
        .exposed_s = seen.iteration_s - seen.compute_s,
        .predicted_s = seen.predicted_s,
        .slowdown = seen.slowdown,
        .stall_s = seen.stall_s,
        .parameter_bytes = engine_parameter_bytes(engine),
        .trials = seen.trials,
        .trial_steps = seen.trial_steps,
        .trial_cost_s = seen.trial_cost_s,
        .trying = seen.trying,
        .lanes = engine->transport ? mgw_transport_lanes(engine->transport) : 0};
    for (int d = 0; arena->layout && d < DTYPES; d++)
        out->arena_bytes += engine_arena_bytes(arena, (mgw_dtype)d);
}

const mgw_plan *mgw_engine_plan(const mgw_engine *engine)
{
    return engine && engine->tuner ? mgw_tuner_plan(engine->tuner) : NULL;
}

const mgw_tried *mgw_engine_tried(const mgw_engine *engine, size_t *count)
{
    *count = 0;
    return engine && engine->tuner ? mgw_tuner_tried(engine->tuner, count) : NULL;
}

const mgw_operation *mgw_engine_operations(const mgw_engine *engine, size_t *count, uint64_t *plan)
{
    *count = 0;
    *plan = engine && engine->in_step ? mgw_flow_plans(engine->flow) : 0;
    return engine && engine->tuner ? mgw_tuner_operations(engine->tuner, count) : NULL;
}

const mgw_cluster *mgw_engine_cluster(const mgw_engine *engine)
{
    return engine && engine->tuner ? mgw_tuner_cluster(engine->tuner) : NULL;
}

const mgw_trace *mgw_engine_trace(const mgw_engine *engine)
{
    return engine && engine->tuner ? mgw_tuner_trace(engine->tuner) : NULL;
}

/* Bytes of a message as sent, including gaps. */
static uint64_t message_bytes(const mgw_engine *engine, const mgw_operation *message)
{
    uint64_t bytes = 0;
    for (int d = 0; d < DTYPES; d++) {
        size_t begin = 0;
        size_t length = 0;
        mgw_layout_slice(engine->arena.layout, message->first, message->count, (mgw_dtype)d, &begin,
                         &length);
        mgw_dtype wire = engine_wire(engine, message, (mgw_dtype)d);
        bytes += d == MGW_F32 ? mgw_wire_bytes(wire, length) : length * mgw_dtype_bytes(wire);
    }
    return bytes;
}

double engine_last_ready_s(const mgw_engine *engine, size_t first, size_t count)
{
    const double *ready_s = mgw_flow_ready_times(engine->flow);
    double latest_s = 0;
    for (size_t i = first; i < first + count; i++)
        latest_s = ready_s[i] > latest_s ? ready_s[i] : latest_s;
    return latest_s;
}

mgw_status mgw_engine_timeline(const mgw_engine *engine, mgw_timeline **out, mgw_error *error)
{
    mgw_status status = engine_check(engine, "timeline", error);
    if (status)
        return status;
    size_t count = 0;
    const mgw_operation *operations =
        engine->flow ? mgw_flow_operations(engine->flow, &count) : NULL;
    if (!count || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "timeline: only between steps, after the first");
    if (engine->device) /* the host does not know the times, and timing each message would slow it
                           down */
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "timeline: not available for messages on a device");
    mgw_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline)
        return mgw_fail_memory(error, "timeline");
    char title[64];
    snprintf(title, sizeof title, "rank %u of %u, measured", engine->rank, engine->size);
    timeline->title = strdup(title);
    timeline->spans = malloc((2 + count + 2 * engine->arena.count) * sizeof *timeline->spans);
    timeline->names = mgw_names_share(engine->arena.names);
    if (!timeline->title || !timeline->spans) {
        mgw_timeline_destroy(timeline);
        return mgw_fail_memory(error, "timeline");
    }
    double begin_s = engine->parameters ? engine_add_stalls(engine, timeline) : 0;
    double last_s = engine_last_ready_s(engine, 0, engine->arena.count);
    double forward_s = fmin(engine->times.forward_s, last_s);
    if (forward_s > begin_s) {
        timeline->spans[timeline->span_count++] =
            (mgw_span){.kind = MGW_SPAN_FORWARD, .start_s = begin_s, .end_s = forward_s};
        begin_s = forward_s;
    }
    timeline->spans[timeline->span_count++] = (mgw_span){.kind = MGW_SPAN_BACKWARD,
                                                         .start_s = begin_s,
                                                         .end_s = last_s,
                                                         .count = engine->arena.count};
    if (engine->parameters)
        engine_add_gathers(engine, timeline);
    count = engine_average_count(engine);
    for (size_t m = 0; m < count; m++) {
        const mgw_operation *message = &operations[m];
        timeline->spans[timeline->span_count++] =
            (mgw_span){.kind = MGW_SPAN_MESSAGE + message->kind,
                       .start_s = message->start_s,
                       .end_s = message->end_s,
                       .ready_s = engine_last_ready_s(engine, message->first, message->count),
                       .first = message->first,
                       .count = message->count,
                       .bytes = message_bytes(engine, message)};
    }
    *out = timeline;
    return MGW_OK;
}
