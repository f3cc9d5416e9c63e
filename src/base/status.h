/* Recording errors, for the inside of the library. */
#ifndef MGW_BASE_STATUS_H
#define MGW_BASE_STATUS_H

#include <mgwfbp/status.h>

/* Records what and where in `error` (if there is one) and returns `status`. */
mgw_status mgw_fail(mgw_error *error, mgw_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

mgw_status mgw_fail_memory(mgw_error *error, const char *what);

#endif
