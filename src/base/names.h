/*
 * A list of distinct names, written once and then shared: a trace and its plans use the same one.
 */
#ifndef MGW_BASE_NAMES_H
#define MGW_BASE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct mgw_names mgw_names;

MGW_CHECKED mgw_status mgw_names_create(mgw_names **out, mgw_error *error);

/* Appends a copy of `name`. Not allowed once the list is shared. */
MGW_CHECKED mgw_status mgw_names_add(mgw_names *names, const char *name, mgw_error *error);

/* Whether all names differ; if not, *first and *second are the indices of two that are equal. */
MGW_CHECKED mgw_status mgw_names_distinct(const mgw_names *names, size_t *first, size_t *second,
                                          mgw_error *error);

bool mgw_names_equal(const mgw_names *left, const mgw_names *right);

size_t mgw_names_count(const mgw_names *names);
const char *mgw_names_get(const mgw_names *names, size_t index);

/* Threads: any. Ownership: each reference is released once; the last release frees the list. */
mgw_names *mgw_names_share(mgw_names *names);
void mgw_names_release(mgw_names *names);

#endif
