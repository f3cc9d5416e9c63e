/* Conventions shared by the writer and the reader of Chrome traces. */
#ifndef MGW_TIMELINE_CHROME_H
#define MGW_TIMELINE_CHROME_H

#include <mgwfbp/timeline.h>

#define MGW_TIMELINES_FORMAT "mgwfbp-timelines-1"

enum { LANE_COMPUTE = 1, LANE_MESSAGES = 2 };

/* Whether the kind refers to no particular tensors, so that none are written. */
static inline bool mgw_chrome_bare(mgw_span_kind kind)
{
    return kind == MGW_SPAN_FORWARD || kind == MGW_SPAN_NEXT_FORWARD;
}

#endif
