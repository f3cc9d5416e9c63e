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

const char *mgw_timeline_tensor_name(const mgw_timeline *timeline, size_t index)
{
    return mgw_names_get(timeline->names, index);
}

mgw_timeline_stats mgw_timeline_measure(const mgw_timeline *timeline)
{
    mgw_timeline_stats stats = {0};
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        if (span->end_s > stats.iteration_s)
            stats.iteration_s = span->end_s;
        if (span->kind == MGW_SPAN_MESSAGE) {
            stats.communication_s += span->end_s - span->start_s;
            stats.messages++;
        } else if (span->end_s > stats.compute_s) {
            stats.compute_s = span->end_s;
        }
    }
    /* What of each message falls behind the end of computation is not hidden. */
    double hidden_s = 0;
    for (size_t i = 0; i < timeline->span_count; i++) {
        const mgw_span *span = &timeline->spans[i];
        if (span->kind == MGW_SPAN_MESSAGE && span->start_s < stats.compute_s)
            hidden_s +=
                (span->end_s < stats.compute_s ? span->end_s : stats.compute_s) - span->start_s;
    }
    stats.exposed_s = stats.iteration_s - stats.compute_s;
    stats.overlap = stats.communication_s > 0 ? hidden_s / stats.communication_s : 1;
    return stats;
}
