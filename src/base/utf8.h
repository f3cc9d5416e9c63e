/* Text from outside, made fit for a terminal or a picture. */
#ifndef MGW_BASE_UTF8_H
#define MGW_BASE_UTF8_H

#include <stddef.h>

/* The bytes of the character that begins here: 1 to 4, or 0 if this is not UTF-8. */
size_t mgw_utf8_length(const char *string);

/* Replaces control characters, and bytes that are not UTF-8, by '?'. In place. */
void mgw_utf8_clean(char *string);

#endif
