/* The slowest of N workers: distributions of a factor, and means for the largest of N. */
#include "sim/straggle.h"

#include <math.h>

enum { NODES_MAX = 513, CELLS = 4096 };

static double log_normal_cdf(double z)
{
    return z > 0 ? log1p(-erfc(z / sqrt(2)) / 2) : log(erfc(-z / sqrt(2)) / 2);
}

/* A lognormal factor of mean 1 is e^(sz - s^2/2). */
static double log_scale(const mgw_slowest *s)
{
    return sqrt(log1p(s->deviation * s->deviation));
}

static double factor_at(const mgw_slowest *s, double z)
{
    if (s->kind == MGW_JITTER_NORMAL)
        return fmax(0, 1 + s->deviation * z);
    double scale = log_scale(s);
    return exp(scale * z - scale * scale / 2);
}

/* The probability that the largest of N standard normal numbers is below z. */
static double below(const mgw_slowest *s, double z)
{
    return exp(s->workers * log_normal_cdf(z));
}

/* The value at which that probability reaches `share`. */
static double quantile(const mgw_slowest *s, double share)
{
    double low = -40;
    double high = 40;
    for (int i = 0; i < 80; i++) {
        double middle = (low + high) / 2;
        if (below(s, middle) < share)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* ---- Piecewise linear functions ---- */

typedef struct pieces {
    mgw_pieces *function;
    void *context;
    size_t count;
    double x[NODES_MAX];
    double y[NODES_MAX];
} pieces;

static void add_node(pieces *p, double x, double y)
{
    p->x[p->count] = x;
    p->y[p->count++] = y;
}

/*
 * Adds nodes between the last one and (right, y): halves the interval until the middle lies on the
 * chord. For a convex function, everything in between then does, too.
 */
static mgw_status refine(pieces *p, double right, double y, int depth, mgw_error *error)
{
    const double flat = 1e-9;
    double left = p->x[p->count - 1];
    double middle = left + (right - left) / 2;
    double value = 0;
    double chord = p->y[p->count - 1] + (y - p->y[p->count - 1]) / 2;
    mgw_status status = MGW_OK;
    if (depth > 0 && middle > left && middle < right)
        status = p->function(p->context, middle, &value, error);
    else
        value = chord;
    if (status)
        return status;
    if (fabs(value - chord) > flat * fabs(chord)) {
        status = refine(p, middle, value, depth - 1, error);
        return status ? status : refine(p, right, y, depth - 1, error);
    }
    add_node(p, right, y);
    return MGW_OK;
}

static mgw_status find_pieces(pieces *p, double low, double high, mgw_error *error)
{
    double y = 0;
    mgw_status status = p->function(p->context, low, &y, error);
    if (status)
        return status;
    add_node(p, low, y);
    if (high <= low)
        return MGW_OK;
    status = p->function(p->context, high, &y, error);
    return status ? status : refine(p, high, y, 9, error); /* 2^9 pieces, 513 nodes at most */
}

/* Arguments must increase: *at remembers the piece. */
static double value_of(const pieces *p, size_t *at, double x)
{
    while (*at + 2 < p->count && x > p->x[*at + 1])
        ++*at;
    if (p->count == 1)
        return p->y[0];
    double width = p->x[*at + 1] - p->x[*at];
    return p->y[*at] + (p->y[*at + 1] - p->y[*at]) * (x - p->x[*at]) / width;
}

/* ---- Means ---- */

static mgw_status mean_measured(const mgw_slowest *s, pieces *p, double *mean, double *factor,
                                mgw_error *error)
{
    size_t count = s->factor_count;
    size_t at = 0;
    mgw_status status = find_pieces(p, s->factors[0], s->factors[count - 1], error);
    *mean = *factor = 0;
    for (size_t i = 0; !status && i < count; i++) {
        double weight = pow((double)(i + 1) / (double)count, s->workers) -
                        pow((double)i / (double)count, s->workers);
        *factor += weight * s->factors[i];
        *mean += weight * value_of(p, &at, s->factors[i]);
    }
    return status;
}

/*
 * Sums over narrow cells: the probability that the largest factor lies in the cell, times the
 * function at its middle. The probability outside all cells is below 10^-12.
 */
static mgw_status mean_normal(const mgw_slowest *s, pieces *p, double *mean, double *factor,
                              mgw_error *error)
{
    double low = quantile(s, 1e-12);
    double high = quantile(s, 1 - 1e-12);
    double width = (high - low) / CELLS;
    size_t at = 0;
    mgw_status status = find_pieces(p, factor_at(s, low), factor_at(s, high), error);
    double before = 0;
    *mean = *factor = 0;
    for (int i = 1; !status && i <= CELLS; i++) {
        double now = i < CELLS ? below(s, low + i * width) : 1;
        double x = factor_at(s, low + (i - 0.5) * width);
        *factor += (now - before) * x;
        *mean += (now - before) * value_of(p, &at, x);
        before = now;
    }
    return status;
}

mgw_status mgw_slowest_mean(const mgw_slowest *slowest, mgw_pieces *function, void *context,
                            double *mean, double *factor, mgw_error *error)
{
    pieces p = {.function = function, .context = context};
    switch (slowest->kind) {
    case MGW_JITTER_MEASURED:
        return mean_measured(slowest, &p, mean, factor, error);
    case MGW_JITTER_NORMAL:
    case MGW_JITTER_LOGNORMAL:
        if (slowest->deviation > 0)
            return mean_normal(slowest, &p, mean, factor, error);
        break;
    case MGW_JITTER_NONE:
        break;
    }
    *factor = 1;
    return function(context, 1, mean, error);
}
