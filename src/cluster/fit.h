/* Measured samples made into a curve. */
#ifndef MGW_CLUSTER_FIT_H
#define MGW_CLUSTER_FIT_H

#include <mgwfbp/cluster.h>

/* By size, then by time: for qsort. */
int mgw_sample_compare(const void *left, const void *right);

/* One point per size, never falling. Ownership: the caller frees *curve. */
MGW_CHECKED mgw_status mgw_curve_make(const mgw_sample *sorted, size_t count, mgw_sample **curve,
                                      size_t *curve_count, mgw_error *error);

#endif
