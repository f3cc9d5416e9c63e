/* What the writer and the reader of Chrome traces agree on. */
#ifndef MGW_TIMELINE_CHROME_H
#define MGW_TIMELINE_CHROME_H

#include <mgwfbp/timeline.h>

#define MGW_TIMELINES_FORMAT "mgwfbp-timelines-1"

enum { LANE_COMPUTE = 1, LANE_MESSAGES = 2 };

/* Whether it concerns no tensors in particular, so that nothing is said of them. */
static inline bool mgw_chrome_bare(mgw_span_kind kind)
{
    return kind == MGW_SPAN_FORWARD || kind == MGW_SPAN_NEXT_FORWARD;
}

#endif
