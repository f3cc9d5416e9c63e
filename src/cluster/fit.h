/* Measured samples made into a curve. */
#ifndef MGW_CLUSTER_FIT_H
#define MGW_CLUSTER_FIT_H

#include <mgwfbp/cluster.h>

/* A sorted copy, or null if there is no memory. Ownership: the caller frees it. */
mgw_sample *mgw_samples_sorted(const mgw_sample *samples, size_t count);

/* One point per size, never falling. `within` says how sure each sample is; null: all alike.
 * Ownership: the caller frees *curve. */
MGW_CHECKED mgw_status mgw_curve_make(const mgw_sample *sorted, const double *within, size_t count,
                                      mgw_sample **curve, size_t *curve_count, mgw_error *error);

/*
 * How T goes on behind the last sample: as it went over the last factor of four, which one sample
 * that is a little wrong does not turn; or with b where it was flat, which pooled samples are and
 * no network is. 0 for one sample.
 */
static inline double mgw_curve_slope_beyond(const mgw_curve *curve)
{
    const mgw_sample *last = &curve->samples[curve->sample_count - 1];
    const mgw_sample *from = last;
    while (from > curve->samples && from->bytes > last->bytes / 4)
        from--;
    if (from == last || from->seconds >= last->seconds)
        return from == last ? 0 : curve->b_s_per_byte;
    return (last->seconds - from->seconds) / (double)(last->bytes - from->bytes);
}

/* T(bytes), also between whole bytes; see mgw_cost_seconds. */
double mgw_curve_at(const mgw_curve *curve, double bytes);

/* What casts take where nobody has measured it, by wire. */
extern const mgw_cast mgw_casts_typical[MGW_DTYPE_COUNT];

#endif
