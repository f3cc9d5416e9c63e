/* Recording errors, inside the library. */
#ifndef MGW_BASE_STATUS_H
#define MGW_BASE_STATUS_H

#include <mgwfbp/status.h>

/*
 * Records a message in `error` (if not null); evaluates to `status`. A macro, so that compilers and
 * analysers see that a failure is never MGW_OK.
 */
#define mgw_fail(error, status, ...) (mgw_error_record(error, status, __VA_ARGS__), (status))

#define mgw_fail_memory(error, what) mgw_fail(error, MGW_ERR_NO_MEMORY, "%s: out of memory", what)

#endif
