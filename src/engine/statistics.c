/* What happened: statistics, and the last step as a timeline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/device.h"
#include "engine/engine.h"

void mgw_engine_measure(const mgw_engine *engine, mgw_engine_statistics *out)
{
    double window = (double)engine->window;
    bool fresh = engine->window > 0; /* else the window before counts */
    *out = (mgw_engine_statistics){
        .steps = engine->steps,
        .plans = engine->plans,
        .tensors = engine->tensor_count,
        .messages = engine->message_count,
        .extra_bytes = engine->narrow_bytes,
        .copied_bytes = engine->copied_bytes,
        .device_waits = engine->device ? engine->device->waits : 0,
        .iteration_s = fresh ? engine->iteration_sum_s / window : engine->last_iteration_mean_s,
        .compute_s = fresh ? engine->compute_sum_s / window : engine->last_compute_mean_s,
        .predicted_s = engine->plan ? engine->plan->iteration_s : 0,
        .slowdown = engine->slowdown};
    out->exposed_s = out->iteration_s - out->compute_s;
    for (int d = 0; d < DTYPES; d++)
        out->arena_bytes += engine->arena_count[d] * mgw_dtype_bytes((mgw_dtype)d);
}

const mgw_plan *mgw_engine_plan(const mgw_engine *engine)
{
    return engine->plan;
}

const mgw_cluster *mgw_engine_cluster(const mgw_engine *engine)
{
    return engine->cluster;
}

const mgw_trace *mgw_engine_trace(const mgw_engine *engine)
{
    return engine->trace;
}

uint64_t engine_message_bytes(const mgw_engine *engine, const engine_message *message)
{
    uint64_t bytes = 0;
    for (int d = 0; d < DTYPES; d++)
        bytes += message->length[d] * mgw_dtype_bytes(d == MGW_F32 ? engine->wire : (mgw_dtype)d);
    return bytes;
}

static double last_ready_s(const mgw_engine *engine, const engine_message *message)
{
    double latest = 0;
    for (size_t i = message->first; i < message->first + message->count; i++)
        latest = engine->ready_s[i] > latest ? engine->ready_s[i] : latest;
    return latest;
}

mgw_status mgw_engine_timeline(const mgw_engine *engine, mgw_timeline **out, mgw_error *error)
{
    if (!engine->steps || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "timeline: only between steps, after the first");
    if (engine->device) /* the host does not know, and timing each message would stretch it */
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "timeline: not of messages on a device");
    mgw_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline)
        return mgw_fail_memory(error, "timeline");
    char title[64];
    snprintf(title, sizeof title, "rank %u of %u, measured", engine->rank, engine->size);
    timeline->title = strdup(title);
    timeline->spans = malloc((1 + engine->sent_count) * sizeof *timeline->spans);
    timeline->names = mgw_names_share(engine->names);
    if (!timeline->title || !timeline->spans) {
        mgw_timeline_destroy(timeline);
        return mgw_fail_memory(error, "timeline");
    }
    timeline->spans[timeline->span_count++] = (mgw_span){
        .kind = MGW_SPAN_BACKWARD, .end_s = engine->last_compute_s, .count = engine->tensor_count};
    for (size_t m = 0; m < engine->sent_count; m++) {
        const engine_message *message = &engine->sent[m];
        timeline->spans[timeline->span_count++] =
            (mgw_span){.kind = MGW_SPAN_MESSAGE,
                       .start_s = message->start_s,
                       .end_s = message->end_s,
                       .ready_s = last_ready_s(engine, message),
                       .first = message->first,
                       .count = message->count,
                       .bytes = engine_message_bytes(engine, message)};
    }
    *out = timeline;
    return MGW_OK;
}
