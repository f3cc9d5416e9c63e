/* Clusters with levels: the cost of collectives on their links. */
#ifndef MGW_CLUSTER_LEVELS_H
#define MGW_CLUSTER_LEVELS_H

#include <mgwfbp/cluster.h>

/* a and b of an all-reduce, and of its two halves. */
typedef struct mgw_level_lines {
    mgw_line whole;
    mgw_line first;
    mgw_line second;
} mgw_level_lines;

/* *workers is the total over all levels. */
MGW_CHECKED mgw_status mgw_levels_check(const mgw_level *levels, size_t count, unsigned *workers,
                                        mgw_error *error);

/* The lines of one level, and of all together. The levels were checked. */
MGW_CHECKED mgw_status mgw_levels_line(const mgw_level *levels, size_t at, mgw_level_lines *out,
                                       mgw_error *error);
MGW_CHECKED mgw_status mgw_levels_lines(const mgw_level *levels, size_t count, mgw_level_lines *out,
                                        mgw_error *error);

/* Ownership: the caller frees it. Null: out of memory. */
mgw_level *mgw_levels_copy(const mgw_level *levels, size_t count);
void mgw_levels_free(mgw_level *levels, size_t count);

#endif
