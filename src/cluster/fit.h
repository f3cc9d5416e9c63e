/* Curves from measured samples. */
#ifndef MGW_CLUSTER_FIT_H
#define MGW_CLUSTER_FIT_H

#include <mgwfbp/cluster.h>

/* A sorted copy; null: out of memory. Ownership: the caller frees it. */
mgw_sample *mgw_samples_sorted(const mgw_sample *samples, size_t count);

/* Makes a curve with one point per size, never decreasing. `within` is the relative uncertainty of
 * each sample; null: all are equal. Ownership: the caller frees *curve. */
MGW_CHECKED mgw_status mgw_curve_make(const mgw_sample *sorted, const double *within, size_t count,
                                      mgw_sample **curve, size_t *curve_count, mgw_error *error);

/*
 * The slope of T beyond the last sample: the slope over the last factor of four in size, so that
 * one inaccurate sample matters little; or b if that is flat, as pooled samples are but networks
 * are not. 0 for one sample.
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

/* T(bytes) for any real number of bytes; see mgw_cost_seconds. */
double mgw_curve_at(const mgw_curve *curve, double bytes);

/* Default times of casts, by wire, if they were not measured. */
extern const mgw_cast mgw_casts_typical[MGW_DTYPE_COUNT];

#endif
