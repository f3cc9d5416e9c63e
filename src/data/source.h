/* Where a file's text comes from: a path, or a name of what is built in. */
#ifndef MGW_DATA_SOURCE_H
#define MGW_DATA_SOURCE_H

#include <mgwfbp/data.h>

#include "base/near.h"

typedef struct mgw_source {
    const char *text;
    size_t size;
    char *owned; /* the text, if it was read from a file */
} mgw_source;

/* A file of that name goes first. *out may be closed also after a failure. */
MGW_CHECKED mgw_status mgw_source_open(const char *path_or_name, mgw_source *out, mgw_error *error);
void mgw_source_close(mgw_source *source);

/* Compares the names of built-in data of a kind. */
void mgw_source_offer(mgw_data_kind kind, mgw_near *near);

/* Says that there is neither a file nor a built-in of that name, and which names are near. */
MGW_CHECKED mgw_status mgw_source_unknown(const mgw_near *near, mgw_error *error);

#endif
