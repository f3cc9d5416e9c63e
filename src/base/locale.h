/* Numbers with a decimal point, whatever the program's locale. */
#ifndef MGW_BASE_LOCALE_H
#define MGW_BASE_LOCALE_H

#include <locale.h>
#include <stddef.h>

/* The "C" locale, created once and kept. Threads: any. */
locale_t mgw_c_locale(void);

/* snprintf in the "C" locale. */
void mgw_snprintf(char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
