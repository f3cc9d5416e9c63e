/* For tests of what is inside the library, which keeps its own way to record errors to itself. */
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
