/* Error recording for tests of library internals, since the library does not export its own. */
#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"

void mgw_error_record(mgw_error *error, mgw_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
}
