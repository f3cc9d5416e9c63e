/* Status texts, and the one function that records an error. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/locale.h"
#include "base/utf8.h"
#include "base/version.h"

const char *mgw_status_text(mgw_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case name:                                                                                     \
        return text;
        MGW_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *mgw_version(void)
{
    return MGW_VERSION;
}

void mgw_error_record(mgw_error *error, mgw_status status, const char *format, ...)
{
    if (!error)
        return;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    locale_t before = uselocale(mgw_c_locale());
    vsnprintf(error->message, sizeof error->message, format, arguments);
    uselocale(before);
    va_end(arguments);
    /* Names come from outside: the message stays one line, whatever they contain. */
    mgw_utf8_clean(error->message);
}
