/* The data that comes with the library: traces and clusters that work wherever a file does. */
#ifndef MGWFBP_DATA_H
#define MGWFBP_DATA_H

#include <stddef.h>

#include <mgwfbp/status.h>
#include <mgwfbp/text.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef enum mgw_data_kind { MGW_DATA_TRACE, MGW_DATA_CLUSTER, MGW_DATA_PLAN } mgw_data_kind;

typedef struct mgw_builtin {
    const char *name;
    mgw_data_kind kind;
    const char *text; /* JSON */
    size_t size;
} mgw_builtin;

/* All of it, sorted by kind and name. Threads: any. Ownership: the library's. */
const mgw_builtin *mgw_builtin_list(size_t *count);

/*
 * Reads a file, or the built-in of that name, into `text` and finds out what it says it is, for the
 * mgw_<kind>_parse that fits. A pipe can be read only once: this does. Ownership: the caller ends
 * the text, also after a failure.
 */
MGW_CHECKED mgw_status mgw_data_read(const char *path_or_name, mgw_data_kind *kind, mgw_text *text,
                                     mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
