/* Numbers with a decimal point, whatever the program's locale. */
#include "base/locale.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

locale_t mgw_c_locale(void)
{
    static locale_t locale;
    locale_t found = __atomic_load_n(&locale, __ATOMIC_ACQUIRE);
    if (found)
        return found;
    locale_t made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (__atomic_compare_exchange_n(&locale, &found, made, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return made;
    freelocale(made);
    return found;
}

void mgw_snprintf(char *out, size_t size, const char *format, ...)
{
    locale_t before = uselocale(mgw_c_locale());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, size, format, arguments); /* NOLINT(clang-analyzer-valist.Uninitialized) */
    va_end(arguments);
    uselocale(before);
}
