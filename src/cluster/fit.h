/* Measured samples made into a curve. */
#ifndef MGW_CLUSTER_FIT_H
#define MGW_CLUSTER_FIT_H

#include <mgwfbp/cluster.h>

/* A sorted copy, or null if there is no memory. Ownership: the caller frees it. */
mgw_sample *mgw_samples_sorted(const mgw_sample *samples, size_t count);

/* One point per size, never falling. Ownership: the caller frees *curve. */
MGW_CHECKED mgw_status mgw_curve_make(const mgw_sample *sorted, size_t count, mgw_sample **curve,
                                      size_t *curve_count, mgw_error *error);

#endif
