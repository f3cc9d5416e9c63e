/* The source of a file's text: a path, or the name of built-in data. */
#ifndef MGW_DATA_SOURCE_H
#define MGW_DATA_SOURCE_H

#include <mgwfbp/data.h>

#include "base/near.h"

typedef struct mgw_source {
    const char *text;
    size_t size;
    char *owned; /* the text, if it was read from a file */
} mgw_source;

/* A file of that name takes precedence. *out may be closed even after a failure. */
MGW_CHECKED mgw_status mgw_source_open(const char *path_or_name, mgw_source *out, mgw_error *error);
void mgw_source_close(mgw_source *source);

/* Compares the names of built-in data of a kind. */
void mgw_source_offer(mgw_data_kind kind, mgw_near *near);

/*
 * Fails because there is neither a file nor built-in data of that name, and suggests similar names.
 */
MGW_CHECKED mgw_status mgw_source_unknown(const mgw_near *near, mgw_error *error);

#endif
