/* A timeline in memory, and its statistics. */
#include <stdlib.h>

#include <mgwfbp/timeline.h>

#include "base/names.h"

void mgw_timeline_destroy(mgw_timeline *timeline)
{
    if (!timeline)
        return;
    mgw_names_release(timeline->names);
    free(timeline->spans);
    free(timeline->title);
    free(timeline);
}

void mgw_timelines_destroy(mgw_timeline **timelines, size_t count)
{
    for (size_t i = 0; timelines && i < count; i++)
        mgw_timeline_destroy(timelines[i]);
    free(timelines);
}

void mgw_timeline_shift(mgw_timeline *timeline, double seconds)
{
    for (size_t i = 0; i < timeline->span_count; i++) {
        timeline->spans[i].start_s += seconds;
        timeline->spans[i].end_s += seconds;
        timeline->spans[i].ready_s += seconds;
    }
}

const char *mgw_span_name(mgw_span_kind kind)
{
    static const char *const names[] = {
#define X(constant, name) [constant] = name,
        MGW_SPAN_LIST(X)
#undef X
    };
    return names[kind];
}

const char *mgw_timeline_tensor_name(const mgw_timeline *timeline, size_t index)
{
    return mgw_names_get(timeline->names, index);
}

/* Sums up the spans of each kind; compute_s is still the end of the backward pass. */
static mgw_timeline_stats add_up(const mgw_timeline *timeline)
{
    mgw_timeline_stats stats = {0};
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        double length_s = span->end_s - span->start_s;
        if (span->end_s > stats.end_s)
            stats.end_s = span->end_s;
        if (mgw_span_is_operation(span->kind)) {
            stats.communication_s += length_s;
            stats.messages++;
        } else if (span->kind == MGW_SPAN_STALL) {
            stats.stalled_s += length_s;
        } else if (span->kind != MGW_SPAN_NEXT_FORWARD && span->end_s > stats.compute_s) {
            stats.compute_s = span->end_s;
        }
    }
    return stats;
}

/* Stalls of this step's forward pass; none if the next step's are in the timeline. */
static double find_own_stalls(const mgw_timeline *timeline, double compute_end_s)
{
    double stalled_s = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        if (span->kind == MGW_SPAN_STALL && (span->start_s + span->end_s) / 2 < compute_end_s)
            stalled_s += span->end_s - span->start_s;
    }
    return stalled_s;
}

/* The part of each operation before the end of computation. */
static double find_hidden(const mgw_timeline *timeline, double compute_end_s)
{
    double hidden_s = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        if (mgw_span_is_operation(span->kind) && span->start_s < compute_end_s)
            hidden_s += (span->end_s < compute_end_s ? span->end_s : compute_end_s) - span->start_s;
    }
    return hidden_s;
}

mgw_timeline_stats mgw_timeline_measure(const mgw_timeline *timeline)
{
    mgw_timeline_stats stats = add_up(timeline);
    double end_s = stats.compute_s;
    stats.compute_s -= find_own_stalls(timeline, end_s);
    stats.iteration_s = timeline->period_s > 0 ? timeline->period_s : stats.end_s;
    stats.exposed_s = stats.iteration_s - stats.compute_s;
    /* Communication during a stall of the forward pass is what the pass stalls for. */
    double hidden_s = timeline->period_s > 0 ? stats.communication_s - stats.exposed_s
                                             : find_hidden(timeline, end_s);
    stats.overlap = stats.communication_s > 0 ? hidden_s / stats.communication_s : 1;
    if (stats.overlap < 0)
        stats.overlap = 0;
    return stats;
}
