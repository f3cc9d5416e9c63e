/* What collectives cost here: measured among all workers, as a line or as a curve. */
#include <math.h>
#include <stdlib.h>

#include "base/median.h"
#include "base/status.h"
#include "tune/tuner.h"

enum { SIZES_MAX = 48, REPEATS_MAX = 32 };

/* Of one kind, by size. */
typedef struct sweep {
    mgw_sample samples[SIZES_MAX + 1];
    size_t count;
} sweep;

/* The median of what this worker has seen; of workers the slowest counts. */
static mgw_status time_size(const mgw_calibration *how, const mgw_exchange *exchange,
                            mgw_collective kind, uint64_t bytes, double *out_s, mgw_error *error)
{
    double times[REPEATS_MAX] = {0};
    size_t repeats = how->repeats < REPEATS_MAX ? how->repeats : REPEATS_MAX;
    mgw_status status = how->time(how->context, kind, bytes, &times[0], error); /* warms up */
    for (size_t i = 0; !status && i < repeats; i++)
        status = how->time(how->context, kind, bytes, &times[i], error);
    if (status)
        return status;
    *out_s = mgw_median(times, repeats);
    status = exchange->combine(exchange->context, out_s, 0, 1, error);
    *out_s = fmax(*out_s, 1e-9); /* a clock may not see the fastest; a fit wants times above 0 */
    return status;
}

static bool is_wanted(const mgw_calibration *how, int kind)
{
    return how->kinds >> kind & 1;
}

static mgw_status sweep_sizes(const mgw_calibration *how, const mgw_exchange *exchange,
                              sweep sweeps[MGW_COLLECTIVE_COUNT], mgw_error *error)
{
    double spent_s = 0;
    uint64_t bytes = how->least_bytes < how->most_bytes ? how->least_bytes : how->most_bytes;
    for (size_t size = 0; size < SIZES_MAX; size++) {
        for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
            double seconds = 0;
            sweep *s = &sweeps[kind];
            if (!is_wanted(how, kind))
                continue;
            mgw_status status =
                time_size(how, exchange, (mgw_collective)kind, bytes, &seconds, error);
            if (status)
                return status;
            s->samples[s->count++] = (mgw_sample){bytes, seconds};
            spent_s += seconds * (how->repeats + 1);
        }
        if (bytes == how->most_bytes || (how->enough_s > 0 && spent_s > how->enough_s))
            break;
        bytes = how->most_bytes / how->factor >= bytes ? bytes * how->factor : how->most_bytes;
    }
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) /* a line needs two points */
        if (sweeps[kind].count == 1) {
            sweep *s = &sweeps[kind];
            s->samples[s->count++] =
                (mgw_sample){2 * s->samples[0].bytes + 1, s->samples[0].seconds};
        }
    return MGW_OK;
}

/* Of samples, or of the lines that fit them: those alone make a parameter server's. */
static mgw_status make_cluster(const mgw_calibration *how, unsigned workers, const sweep *sweeps,
                               mgw_cluster **out, mgw_error *error)
{
    static const mgw_collective halves[] = {MGW_REDUCE_SCATTER, MGW_ALL_GATHER};
    bool servers = is_wanted(how, MGW_PUSH);
    bool fits = servers || !how->keeps_samples;
    const sweep *whole = &sweeps[MGW_ALL_REDUCE];
    mgw_fit of[MGW_COLLECTIVE_COUNT];
    mgw_status status = MGW_OK;
    for (int kind = 0; !status && fits && kind < MGW_COLLECTIVE_COUNT; kind++)
        if (is_wanted(how, kind))
            status = mgw_fit_line(sweeps[kind].samples, sweeps[kind].count, &of[kind], error);
    if (status)
        return status;
    if (servers)
        status = mgw_cluster_from_push_pull(how->name, workers, &of[MGW_PUSH].line,
                                            &of[MGW_PULL].line, out, error);
    else if (fits)
        status = mgw_cluster_from_line(how->name, workers, &of[MGW_ALL_REDUCE].line, out, error);
    else
        status =
            mgw_cluster_from_samples(how->name, workers, whole->samples, whole->count, out, error);
    for (size_t i = 0; !status && i < sizeof halves / sizeof *halves; i++) {
        const sweep *half = &sweeps[halves[i]];
        if (fits && is_wanted(how, halves[i]))
            status = mgw_cluster_set_line(*out, halves[i], &of[halves[i]].line, error);
        else if (is_wanted(how, halves[i]))
            status = mgw_cluster_set_samples(*out, halves[i], half->samples, half->count, error);
    }
    return status;
}

mgw_status mgw_calibrate(const mgw_calibration *how, const mgw_exchange *exchange,
                         mgw_cluster **out, mgw_error *error)
{
    unsigned workers = exchange->size < 2 ? 2 : exchange->size;
    mgw_cluster *cluster = NULL;
    if (how->least_bytes == 0 || how->factor < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "calibration: sizes from 1 byte on, each at least twice the one before");
    sweep *sweeps = calloc(MGW_COLLECTIVE_COUNT, sizeof *sweeps);
    if (!sweeps)
        return mgw_fail_memory(error, "calibration");
    mgw_status status = sweep_sizes(how, exchange, sweeps, error);
    if (!status)
        status = make_cluster(how, workers, sweeps, &cluster, error);
    if (status)
        mgw_cluster_destroy(cluster);
    else
        *out = cluster;
    free(sweeps);
    return status;
}
