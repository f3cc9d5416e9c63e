/* What the parts of src/trace know of each other. */
#ifndef MGW_TRACE_TRACE_H
#define MGW_TRACE_TRACE_H

#include <mgwfbp/trace.h>

/* The rules that concern the whole: not empty, sums in range, distinct names. */
MGW_CHECKED mgw_status mgw_trace_check(const mgw_trace *trace, const char *origin,
                                       mgw_error *error);

void mgw_trace_extra_destroy(struct mgw_trace_extra *extra);

#endif
