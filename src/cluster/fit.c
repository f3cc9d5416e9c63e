/* Least-squares fits on relative errors, and curves from measured samples. */
#include "cluster/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* With x the size and t the time: the sums over samples of 1/t^2, x/t^2, x^2/t^2, 1/t, x/t. */
typedef struct sums {
    double w, wx, wxx, wt, wxt;
} sums;

static sums add_up(const mgw_sample *samples, size_t count, double scale)
{
    sums s = {0};
    for (size_t i = 0; i < count; i++) {
        double x = (double)samples[i].bytes / scale;
        double weight = 1 / samples[i].seconds;
        s.w += weight * weight;
        s.wx += weight * weight * x;
        s.wxx += weight * weight * x * x;
        s.wt += weight;
        s.wxt += weight * x;
    }
    return s;
}

/* The unconstrained minimum if a and b are not negative, otherwise the better of the two edges. */
static mgw_line solve(const sums *s)
{
    double determinant = s->w * s->wxx - s->wx * s->wx;
    if (determinant > 0) {
        double a = (s->wt * s->wxx - s->wxt * s->wx) / determinant;
        double b = (s->w * s->wxt - s->wx * s->wt) / determinant;
        if (a >= 0 && b >= 0)
            return (mgw_line){a, b};
    }
    /* On an edge the squared error decreases by (w t)^2 / w: compare the two decreases. */
    double gain_a = s->wt * s->wt / s->w;
    double gain_b = s->wxx > 0 ? s->wxt * s->wxt / s->wxx : 0;
    if (gain_a >= gain_b)
        return (mgw_line){s->wt / s->w, 0};
    return (mgw_line){0, s->wxt / s->wxx};
}

static void judge(const mgw_sample *samples, size_t count, const sums *s, mgw_fit *fit)
{
    double mean = s->wt / s->w; /* the best constant, with the same weights */
    double residual = 0;
    double total = 0;
    fit->max_relative_error = 0;
    fit->worst_bytes = samples[0].bytes;
    for (size_t i = 0; i < count; i++) {
        double t = samples[i].seconds;
        double e = (fit->line.a_s + fit->line.b_s_per_byte * (double)samples[i].bytes - t) / t;
        residual += e * e;
        total += (mean - t) * (mean - t) / (t * t);
        if (fabs(e) > fit->max_relative_error) {
            fit->max_relative_error = fabs(e);
            fit->worst_bytes = samples[i].bytes;
        }
    }
    /* If all times are equal up to rounding, there is no variance to explain. */
    fit->r2 = total > 1e-20 * (double)count ? 1 - residual / total : 1;
}

mgw_status mgw_fit_line(const mgw_sample *samples, size_t count, mgw_fit *out, mgw_error *error)
{
    uint64_t smallest = UINT64_MAX;
    uint64_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        /* These bounds, which no measurement reaches, keep all sums below in range. */
        if (!(samples[i].seconds >= 1e-15 && samples[i].seconds <= 1e15))
            return mgw_fail(error, MGW_ERR_INPUT,
                            "sample of %llu bytes: its time must be between 1e-15 and 1e15 s",
                            (unsigned long long)samples[i].bytes);
        smallest = samples[i].bytes < smallest ? samples[i].bytes : smallest;
        largest = samples[i].bytes > largest ? samples[i].bytes : largest;
    }
    if (count < 2 || smallest == largest)
        return mgw_fail(error, MGW_ERR_INPUT, "samples of at least two different sizes are needed");
    double scale = (double)largest;
    sums s = add_up(samples, count, scale);
    out->line = solve(&s);
    out->line.b_s_per_byte /= scale;
    judge(samples, count, &s, out);
    return MGW_OK;
}

static int compare_samples(const void *left, const void *right)
{
    const mgw_sample *a = left;
    const mgw_sample *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

mgw_sample *mgw_samples_sorted(const mgw_sample *samples, size_t count)
{
    mgw_sample *sorted = malloc(count ? count * sizeof *sorted : 1);
    if (!sorted)
        return NULL;
    memcpy(sorted, samples, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_samples);
    return sorted;
}

/* A point of a curve under construction: its weight, and the number of samples pooled into it. */
typedef struct pool {
    double seconds;
    double weight;
    size_t size;
} pool;

static void join(pool *into, const pool *other)
{
    double total = into->weight + other->weight;
    into->seconds += (other->seconds - into->seconds) * (other->weight / total);
    into->weight = total;
    into->size += other->size;
}

/* If their uncertainty is known, samples are weighted by it: a disturbed sample that took a hundred
 * times as long has almost no weight. These are the limits of the uncertainty. */
static const double surest = 0.01;
static const double least_sure = 1000;

static pool pool_of(const mgw_sample *sample, const double *within)
{
    double doubt_s = within ? sample->seconds * fmin(fmax(*within, surest), least_sure) : 1;
    return (pool){sample->seconds, 1 / (doubt_s * doubt_s), 1};
}

/*
 * Samples of the same size are averaged. Noise makes some larger messages look faster than smaller
 * ones: decreasing neighbours are pooled into their mean until nothing decreases (isotonic
 * regression). Pools are closed from left to right, so the ends of the closed ones form a stack.
 * Returns the number of points.
 */
static size_t make_monotone(const mgw_sample *sorted, const double *within, size_t count,
                            pool *pools, mgw_sample *points)
{
    size_t open = 0;
    size_t kept = 0;
    for (size_t i = 0; i < count;) {
        pool next = pool_of(&sorted[i], within ? &within[i] : NULL);
        size_t same = i + 1;
        for (; same < count && sorted[same].bytes == sorted[i].bytes; same++) {
            pool other = pool_of(&sorted[same], within ? &within[same] : NULL);
            join(&next, &other);
        }
        next.size = 1;
        points[kept++].bytes = sorted[i].bytes;
        i = same;
        for (; open > 0 && next.seconds < pools[open - 1].seconds; open--) {
            pool left = pools[open - 1];
            join(&left, &next);
            next = left;
        }
        pools[open++] = next;
    }
    for (size_t p = 0, i = 0; p < open; p++)
        for (size_t k = 0; k < pools[p].size; k++)
            points[i++].seconds = pools[p].seconds;
    return kept;
}

mgw_status mgw_curve_make(const mgw_sample *sorted, const double *within, size_t count,
                          mgw_sample **curve, size_t *curve_count, mgw_error *error)
{
    mgw_sample *points = calloc(count + 1, sizeof *points);
    pool *pools = calloc(count + 1, sizeof *pools);
    if (!points || !pools) {
        free(points);
        free(pools);
        return mgw_fail_memory(error, "curve");
    }
    *curve_count = make_monotone(sorted, within, count, pools, points);
    *curve = points;
    free(pools);
    return MGW_OK;
}
