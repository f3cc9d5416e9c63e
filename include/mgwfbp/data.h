/* Built-in data: traces and clusters whose names can be used instead of files. */
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

/* All built-in data, sorted by kind and name. Threads: any. Ownership: the library's. */
const mgw_builtin *mgw_builtin_list(size_t *count);

/*
 * Reads a file, or the built-in of that name, into `text` and detects its kind, for the matching
 * mgw_<kind>_parse. Works with a pipe, which can be read only once. Ownership: the caller frees the
 * text, also after a failure.
 */
MGW_CHECKED mgw_status mgw_data_read(const char *path_or_name, mgw_data_kind *kind, mgw_text *text,
                                     mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
