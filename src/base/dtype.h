/* Number types by name, for readers of files. */
#ifndef MGW_BASE_DTYPE_H
#define MGW_BASE_DTYPE_H

#include <stdbool.h>

#include <mgwfbp/dtype.h>

/* Whether there is a type of that name; if so, sets *out. */
bool mgw_dtype_parse(const char *name, mgw_dtype *out);

#endif
