/* Sanitizes text from outside for a terminal or a picture. */
#ifndef MGW_BASE_UTF8_H
#define MGW_BASE_UTF8_H

#include <stddef.h>

/* The length of the character that begins here: 1 to 4, or 0 if it is invalid UTF-8. */
size_t mgw_utf8_length(const char *string);

/* Replaces control characters and invalid UTF-8 by '?', in place. */
void mgw_utf8_clean(char *string);

#endif
