/* Declarations shared inside src/trace. */
#ifndef MGW_TRACE_TRACE_H
#define MGW_TRACE_TRACE_H

#include <mgwfbp/trace.h>

/* Checks the trace as a whole: not empty, sums in range, unique names. */
MGW_CHECKED mgw_status mgw_trace_check(const mgw_trace *trace, const char *origin,
                                       mgw_error *error);

void mgw_trace_extra_destroy(struct mgw_trace_extra *extra);

#endif
