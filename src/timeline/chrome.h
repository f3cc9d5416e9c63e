/* What the writer and the reader of Chrome traces agree on. */
#ifndef MGW_TIMELINE_CHROME_H
#define MGW_TIMELINE_CHROME_H

#include <mgwfbp/timeline.h>

#define MGW_TIMELINES_FORMAT "mgwfbp-timelines-1"

enum { LANE_COMPUTE = 1, LANE_MESSAGES = 2 };

static inline const char *mgw_chrome_category(mgw_span_kind kind)
{
    static const char *const categories[] = {[MGW_SPAN_FORWARD] = "forward",
                                             [MGW_SPAN_BACKWARD] = "backward",
                                             [MGW_SPAN_MESSAGE] = "communication"};
    return categories[kind];
}

#endif
