/* Measures the cost of collectives among all workers, with more samples where the curve bends. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"
#include "tune/tuner.h"

enum { SIZES_MAX = 64, REPEATS_MAX = 32 };

/* Samples of all requested kinds, by size: times, and their relative uncertainty. */
typedef struct sweep {
    size_t count;
    uint64_t bytes[SIZES_MAX + 1];
    bool twice[SIZES_MAX + 1]; /* measured twice, at different times */
    double seconds[MGW_COLLECTIVE_COUNT][SIZES_MAX + 1];
    double within[MGW_COLLECTIVE_COUNT][SIZES_MAX + 1];
} sweep;

/* A running calibration. */
typedef struct calibration {
    const mgw_calibration *how;
    const mgw_exchange *exchange;
    sweep sweep;
    bool stops;     /* some worker wants to stop */
    double spent_s; /* from agreed times, so that all workers stop at the same point */
} calibration;

static bool is_wanted(const mgw_calibration *how, int kind)
{
    return how->kinds >> kind & 1;
}

/* ---- One size ---- */

/* Required relative accuracy: times that differ by less are not repeated. */
static const double sure = 0.05;

/* The median of this worker's times and half the width of its confidence interval; then the maximum
 * of both over all workers. */
static mgw_status agree(calibration *c, double *times, size_t count, double *seconds,
                        double *within, mgw_error *error)
{
    double low = 0;
    double high = 0;
    double both[3];
    both[0] = mgw_median(times, count);
    mgw_median_interval(times, count, &low, &high);
    both[1] = both[0] > 0 ? (high - low) / 2 / both[0] : 0;
    bool asks = c->how->stops != NULL;
    both[2] = asks && c->how->stops(c->how->context);
    mgw_status status = c->exchange->combine(c->exchange->context, both, 0, 2 + asks, error);
    c->stops = c->stops || both[2] > 0;
    *seconds = fmax(both[0], 1e-9); /* the clock may be too coarse; a fit needs positive times */
    *within = both[1];
    return status;
}

/* Times `calls` calls, and more while they differ and time is left. The first call is a warm-up,
 * and counts only if there are too few. */
static mgw_status time_kind(calibration *c, mgw_collective kind, uint64_t bytes, unsigned calls,
                            double *seconds, double *within, mgw_error *error)
{
    const mgw_calibration *how = c->how;
    double times[REPEATS_MAX] = {0};
    size_t done = calls <= how->repeats; /* calls that count */
    size_t count = calls - !done;
    size_t most = how->most_repeats > count ? how->most_repeats : count;
    count = count < REPEATS_MAX ? count : REPEATS_MAX;
    most = most < REPEATS_MAX ? most : REPEATS_MAX;
    mgw_status status = how->time(how->context, kind, bytes, &times[0], error);
    double uncounted = !done;
    while (!status) {
        for (size_t k = done; !status && k < count; k++)
            status = how->time(how->context, kind, bytes, &times[k], error);
        if (!status)
            status = agree(c, times, count ? count : 1, seconds, within, error);
        if (status)
            return status;
        c->spent_s += *seconds * ((double)(count - done) + uncounted);
        if (*within <= sure || count == most || c->stops ||
            (how->enough_s > 0 && c->spent_s > how->enough_s))
            break;
        uncounted = 0;
        done = count;
        count = count + 2 < most ? count + 2 : most;
    }
    return status;
}

/* Inserts a size in order, and returns its index. */
static size_t make_room(sweep *s, uint64_t bytes)
{
    size_t at = s->count;
    while (at > 0 && s->bytes[at - 1] > bytes)
        at--;
    size_t behind = s->count - at;
    memmove(&s->bytes[at + 1], &s->bytes[at], behind * sizeof *s->bytes);
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        memmove(&s->seconds[kind][at + 1], &s->seconds[kind][at], behind * sizeof(double));
        memmove(&s->within[kind][at + 1], &s->within[kind][at], behind * sizeof(double));
    }
    memmove(&s->twice[at + 1], &s->twice[at], behind * sizeof *s->twice);
    s->bytes[at] = bytes;
    s->twice[at] = false;
    s->count++;
    return at;
}

static mgw_status time_size(calibration *c, uint64_t bytes, unsigned calls, mgw_error *error)
{
    mgw_status status = MGW_OK;
    size_t at = make_room(&c->sweep, bytes);
    for (int kind = 0; !status && kind < MGW_COLLECTIVE_COUNT; kind++)
        if (is_wanted(c->how, kind))
            status = time_kind(c, (mgw_collective)kind, bytes, calls, &c->sweep.seconds[kind][at],
                               &c->sweep.within[kind][at], error);
    return status;
}

/* How often a size can be timed in the rest of a share of the time limit: as often as wanted, or
 * less; 0: not often enough for a median. Assumes that a larger size takes no longer per byte than
 * a smaller one. */
static unsigned calls_that_fit(const calibration *c, uint64_t bytes, size_t like, double share)
{
    const mgw_calibration *how = c->how;
    const sweep *s = &c->sweep;
    unsigned wanted = how->repeats + 1;
    double one_s = 0;
    for (int kind = 0; s->count && kind < MGW_COLLECTIVE_COUNT; kind++)
        if (is_wanted(how, kind))
            one_s += s->seconds[kind][like] * fmax((double)bytes / (double)s->bytes[like], 1);
    if (how->enough_s <= 0 || !s->count)
        return wanted;
    double fit = floor((share * how->enough_s - c->spent_s) / one_s);
    return fit >= wanted ? wanted : fit >= 3 ? (unsigned)fit : 0;
}

/* ---- Choosing sizes ---- */

/* The initial sizes may use at most this share of the time limit. */
static const double first_share = 0.75;

static mgw_status sweep_grid(calibration *c, mgw_error *error)
{
    const mgw_calibration *how = c->how;
    uint64_t bytes = how->least_bytes < how->most_bytes ? how->least_bytes : how->most_bytes;
    while (c->sweep.count < SIZES_MAX) {
        unsigned calls = calls_that_fit(c, bytes, c->sweep.count - 1, first_share);
        if (!calls)
            break;
        mgw_status status = time_size(c, bytes, calls, error);
        if (status)
            return status;
        if (bytes == how->most_bytes || c->stops)
            break;
        bytes = how->most_bytes / how->factor >= bytes ? bytes * how->factor : how->most_bytes;
    }
    return MGW_OK;
}

/* The relative distance of a point from the chord of its neighbours, beyond the noise of the three;
 * the maximum over all kinds. */
static double bend_at(const calibration *c, size_t i)
{
    const sweep *s = &c->sweep;
    double most = 0;
    for (int kind = 0; i > 0 && i + 1 < s->count && kind < MGW_COLLECTIVE_COUNT; kind++) {
        const double *t = s->seconds[kind];
        const double *within = s->within[kind];
        double along =
            (double)(s->bytes[i] - s->bytes[i - 1]) / (double)(s->bytes[i + 1] - s->bytes[i - 1]);
        double chord_s = t[i - 1] + (t[i + 1] - t[i - 1]) * along;
        double noise = fmax(within[i], fmax(within[i - 1], within[i + 1]));
        if (is_wanted(c->how, kind))
            most = fmax(most, fabs(t[i] - chord_s) / t[i] - noise);
    }
    return most;
}

/* The best place for another size: between `at` and the next; `bend` is the one of the two that
 * bends more. */
typedef struct spot {
    double worth;
    size_t at;
    size_t bend;
    unsigned calls;
} spot;

/* Neighbours with a smaller ratio need no size between them. */
static const double close_enough = 1.3;

/* Weighs the bend on either side of a gap by the width of the gap; otherwise a jump would attract
 * all new sizes. */
static spot find_spot(const calibration *c)
{
    const sweep *s = &c->sweep;
    spot best = {0};
    for (size_t i = 0; i + 1 < s->count; i++) {
        double ratio = (double)s->bytes[i + 1] / fmax((double)s->bytes[i], 1);
        double left = bend_at(c, i);
        double right = bend_at(c, i + 1);
        double worth = fmax(left, right) * log(ratio);
        unsigned calls = calls_that_fit(c, s->bytes[i + 1], i + 1, 1);
        if (calls && fmax(left, right) > sure && ratio > close_enough && worth > best.worth)
            best = (spot){worth, i, left > right ? i : i + 1, calls};
    }
    return best;
}

/*
 * Other load slows a machine down for a while, whatever the size. So a point that bends is first
 * measured again, later than its neighbours. Load only adds time, so the smaller value is used,
 * with half of the difference as uncertainty.
 */
static mgw_status measure_again(calibration *c, size_t at, unsigned calls, mgw_error *error)
{
    sweep *s = &c->sweep;
    mgw_status status = MGW_OK;
    for (int kind = 0; !status && kind < MGW_COLLECTIVE_COUNT; kind++) {
        double seconds = 0;
        double within = 0;
        double *before_s = &s->seconds[kind][at];
        if (!is_wanted(c->how, kind))
            continue;
        status = time_kind(c, (mgw_collective)kind, s->bytes[at], calls, &seconds, &within, error);
        double less_s = fmin(seconds, *before_s);
        double doubt = fabs(seconds - *before_s) / 2 / fmax(less_s, 1e-9);
        s->within[kind][at] =
            fmax(seconds < *before_s ? within : s->within[kind][at], fmin(doubt, 1));
        *before_s = less_s;
    }
    s->twice[at] = true;
    return status;
}

/* Larger sizes take longer: a point that takes longer than the next was disturbed. */
static bool find_dip(const calibration *c, size_t *at, unsigned *calls)
{
    const sweep *s = &c->sweep;
    for (size_t i = s->count - 1; i-- > 0;)
        for (int kind = 0; !s->twice[i] && kind < MGW_COLLECTIVE_COUNT; kind++)
            if (is_wanted(c->how, kind) &&
                s->seconds[kind][i] > s->seconds[kind][i + 1] * (1 + sure)) {
                *at = i;
                *calls = calls_that_fit(c, s->bytes[i], i, 1);
                return *calls > 0;
            }
    return false;
}

/* Adds sizes at the geometric mean of two neighbours, rounded to whole elements of any dtype. */
static mgw_status refine(calibration *c, mgw_error *error)
{
    sweep *s = &c->sweep;
    mgw_status status = MGW_OK;
    for (unsigned more = 0;
         !status && !c->stops && more < c->how->more_sizes && s->count < SIZES_MAX;) {
        size_t dip = 0;
        unsigned calls = 0;
        if (find_dip(c, &dip, &calls)) {
            status = measure_again(c, dip, calls, error);
            continue;
        }
        spot best = find_spot(c);
        if (best.worth == 0)
            break;
        uint64_t least = s->bytes[best.at];
        uint64_t bytes = (uint64_t)sqrt((double)least * (double)s->bytes[best.at + 1]) / 8 * 8;
        if (!s->twice[best.bend]) {
            status = measure_again(c, best.bend, best.calls, error);
        } else if (bytes > least) {
            status = time_size(c, bytes, best.calls, error);
            more++;
        } else {
            break;
        }
    }
    return status;
}

/* ---- The cluster ---- */

/* A line is used if every sample is within this share of it, plus the sample's own uncertainty. */
static const double line_within = 0.05;

static bool is_near(const mgw_line *line, const mgw_sample *samples, const double *within,
                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double on_line = line->a_s + line->b_s_per_byte * (double)samples[i].bytes;
        double off = fabs(on_line - samples[i].seconds) / samples[i].seconds;
        if (off > line_within + within[i])
            return false;
    }
    return true;
}

/* The samples of each kind, and the fitted line. */
typedef struct result {
    mgw_sample samples[MGW_COLLECTIVE_COUNT][SIZES_MAX + 1];
    mgw_fit fit[MGW_COLLECTIVE_COUNT];
    bool lines; /* lines fit all kinds */
} result;

static mgw_status fit_lines(const mgw_calibration *how, const sweep *s, result *r, mgw_error *error)
{
    mgw_status status = MGW_OK;
    r->lines = !how->keeps_samples;
    for (int kind = 0; !status && kind < MGW_COLLECTIVE_COUNT; kind++) {
        if (!is_wanted(how, kind))
            continue;
        for (size_t i = 0; i < s->count; i++)
            r->samples[kind][i] = (mgw_sample){s->bytes[i], s->seconds[kind][i]};
        status = mgw_fit_line(r->samples[kind], s->count, &r->fit[kind], error);
        r->lines = r->lines && (status || is_near(&r->fit[kind].line, r->samples[kind],
                                                  s->within[kind], s->count));
    }
    return status;
}

/* A parameter server's all-reduce is a push followed by a pull. */
static void add_up(const sweep *s, result *r)
{
    for (size_t i = 0; i < s->count; i++)
        r->samples[MGW_ALL_REDUCE][i] =
            (mgw_sample){s->bytes[i], s->seconds[MGW_PUSH][i] + s->seconds[MGW_PULL][i]};
}

static mgw_status set_kind(const sweep *s, const result *r, mgw_collective kind,
                           mgw_cluster *cluster, mgw_error *error)
{
    if (r->lines)
        return mgw_cluster_set_line(cluster, kind, &r->fit[kind].line, error);
    mgw_status status = mgw_cluster_set_samples(cluster, kind, r->samples[kind], s->count, error);
    return status ? status : mgw_cluster_set_within(cluster, kind, s->within[kind], error);
}

/* Makes the cluster from lines if these fit, otherwise from samples. */
static mgw_status make_cluster(const mgw_calibration *how, unsigned workers, const sweep *s,
                               result *r, mgw_cluster **out, mgw_error *error)
{
    static const mgw_collective parts[] = {MGW_REDUCE_SCATTER, MGW_ALL_GATHER, MGW_PUSH, MGW_PULL};
    bool servers = is_wanted(how, MGW_PUSH);
    mgw_status status = fit_lines(how, s, r, error);
    if (status)
        return status;
    if (servers)
        add_up(s, r);
    if (!r->lines)
        status = mgw_cluster_from_samples(how->name, workers, r->samples[MGW_ALL_REDUCE], s->count,
                                          out, error);
    else if (servers)
        status = mgw_cluster_from_push_pull(how->name, workers, &r->fit[MGW_PUSH].line,
                                            &r->fit[MGW_PULL].line, out, error);
    else
        status =
            mgw_cluster_from_line(how->name, workers, &r->fit[MGW_ALL_REDUCE].line, out, error);
    if (!status && !r->lines && !servers)
        status = mgw_cluster_set_within(*out, MGW_ALL_REDUCE, s->within[MGW_ALL_REDUCE], error);
    for (size_t i = 0; !status && i < sizeof parts / sizeof *parts; i++) {
        bool settled = r->lines && servers && i >= 2; /* already part of the cluster */
        if (is_wanted(how, parts[i]) && !settled)
            status = set_kind(s, r, parts[i], *out, error);
    }
    return status;
}

/* A line needs two points: with a single one, all sizes are assumed to take equally long. */
static void complete(sweep *s)
{
    if (s->count != 1)
        return;
    s->bytes[1] = 2 * s->bytes[0] + 1;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        s->seconds[kind][1] = s->seconds[kind][0];
        s->within[kind][1] = s->within[kind][0];
    }
    s->count = 2;
}

mgw_status mgw_calibrate(const mgw_calibration *how, const mgw_exchange *exchange,
                         mgw_cluster **out, mgw_error *error)
{
    unsigned workers = exchange->size < 2 ? 2 : exchange->size;
    mgw_cluster *cluster = NULL;
    if (how->least_bytes == 0 || how->factor < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "calibration: sizes must start at 1 byte or more and at least double");
    calibration *c = calloc(1, sizeof *c);
    result *r = calloc(1, sizeof *r);
    mgw_status status = c && r ? MGW_OK : mgw_fail_memory(error, "calibration");
    if (!status) {
        c->how = how;
        c->exchange = exchange;
        status = sweep_grid(c, error);
    }
    if (!status)
        status = refine(c, error);
    if (!status) {
        complete(&c->sweep);
        status = make_cluster(how, workers, &c->sweep, r, &cluster, error);
    }
    if (status)
        mgw_cluster_destroy(cluster);
    else
        *out = cluster;
    free(r);
    free(c);
    return status;
}
