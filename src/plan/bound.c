/*
 * A lower bound on the period of any schedule that overlaps the next forward pass: reduce-scatters,
 * all-gathers and all-reduces of any tensors, in any order. See docs/explanation/model.md for the
 * proofs.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cluster/fit.h"
#include "plan/beside.h"

/*
 * Approximate number of steps for windows, and for lost time; with more, only every stride'th one
 * is examined.
 */
#define STEPS_MAX 150000.0

/* Minimum costs, from lines below the curves. */
typedef struct least {
    double startup_s; /* of any operation */
    double both_s;    /* of the operations of a tensor: a reduce-scatter and an all-gather, or an
                         all-reduce */
    double per_element_s; /* of these operations */
} least;

typedef struct bounding {
    const mgw_problem *problem;
    size_t n;
    double *needed_s; /* of tensors 1..n */
    double *work_s;   /* prefix sums over tensors 1..j */
    size_t *order;    /* tensors by decreasing time of need */
    size_t *place;    /* position of tensor j in `order` */
    /* scratch of n + 1 each */
    double *ready_s;
    double *sum_s;
    double *ends;
    double *lost_s;     /* before tensor i is ready */
    double *lost_due_s; /* after the need of order[i], backwards in time */
} bounding;

/* ---- Lines below curves ---- */

/* The slope of the curve's lower convex hull to the right of a point on it. */
static double slope_from(const mgw_curve *curve, double bytes, double seconds)
{
    size_t last = curve->sample_count - 1;
    double least_slope = INFINITY;
    for (size_t i = 0; i <= last; i++) {
        double distance = (double)curve->samples[i].bytes - bytes;
        if (distance > 0)
            least_slope = fmin(least_slope, (curve->samples[i].seconds - seconds) / distance);
    }
    if (last == 0)
        return 0; /* a constant */
    return fmin(least_slope, mgw_curve_slope_beyond(curve));
}

/* A line that is nowhere above T and has a non-negative start; among those along the lower hull,
 * the one that touches T closest to `bytes`. */
static mgw_line find_minorant(const mgw_curve *curve, double bytes)
{
    if (curve->sample_count == 0)
        return (mgw_line){curve->a_s, curve->b_s_per_byte};
    double at = 0;
    double seconds = curve->samples[0].seconds;
    mgw_line line = {seconds, fmax(0, slope_from(curve, at, seconds))};
    for (size_t i = 0; i < curve->sample_count; i++) { /* along the corners of the hull */
        const mgw_sample *corner = &curve->samples[i];
        double x = (double)corner->bytes;
        double on_line = line.a_s + line.b_s_per_byte * x;
        if (x <= at || x > bytes || corner->seconds > on_line * (1 + 1e-12))
            continue;
        double slope = slope_from(curve, x, corner->seconds);
        double start_s = corner->seconds - slope * x;
        if (start_s < 0)
            return line;
        line = (mgw_line){start_s, slope};
        at = x;
    }
    return line;
}

static least find_least(const mgw_problem *problem, double elements)
{
    double gradients = (double)problem->gradient_bytes;
    double parameters = (double)problem->parameter_bytes;
    const mgw_curve *of = problem->cost->of;
    mgw_line scatter = find_minorant(&of[MGW_REDUCE_SCATTER], elements * gradients);
    double gathered = fmin(gradients, parameters); /* gradients may be gathered, too */
    mgw_line gather = find_minorant(&of[MGW_ALL_GATHER], elements * gathered);
    mgw_line whole = find_minorant(&of[MGW_ALL_REDUCE], elements * gradients);
    double halves_s = scatter.b_s_per_byte * gradients + gather.b_s_per_byte * gathered;
    return (least){fmin(fmin(scatter.a_s, gather.a_s), whole.a_s),
                   fmin(scatter.a_s + gather.a_s, whole.a_s),
                   fmin(halves_s, whole.b_s_per_byte * gradients)};
}

/* ---- Windows ---- */

/*
 * All tensors that are ready from tensor i on and needed by a given time must be reduced and
 * gathered in between: for every i and every time.
 */
static double bound_windows(const bounding *b, const least *l, size_t stride)
{
    double bound_s = 0;
    for (size_t i = b->n; i > 0; i = i > stride ? i - stride : i > 1) {
        double work_s = 0;
        for (size_t at = b->n; at > 0; at--) {
            size_t j = b->order[at];
            if (j < i)
                continue;
            work_s += b->work_s[j] - b->work_s[j - 1];
            bound_s = fmax(bound_s, b->problem->ready_s[i] + l->both_s + work_s - b->needed_s[j]);
        }
    }
    return bound_s;
}

/* ---- Lost time ---- */

/*
 * For each of `count` tensors, in the order of b->ready_s and with the work of b->sum_s: the
 * minimum time that any schedule loses by waiting and start-ups before the tensor is ready. If
 * operations that began before contain tensors up to j, the last of them could also send all
 * remaining tensors up to j. That is a schedule of 1..j, so it has lost at least what the best
 * chain for them loses, and has done no more than their work.
 */
static void find_lost(const bounding *b, size_t count, double startup_s, double *lost_s)
{
    double *ends = b->ends;
    size_t done = 0;
    ends[0] = -INFINITY;
    for (size_t j = 1; j <= count; j++) {
        while (done + 1 < j && ends[done + 1] <= b->ready_s[j])
            done++;
        ends[j] = b->ready_s[j] + startup_s + (b->sum_s[j] - b->sum_s[done]);
        if (done + 1 < j)
            ends[j] =
                fmin(ends[j], ends[done + 1] + startup_s + (b->sum_s[j] - b->sum_s[done + 1]));
    }
    for (size_t i = 1, j = 0; i <= count; i++) {
        double now_s = b->ready_s[i];
        while (j + 1 < i && ends[j + 1] <= now_s)
            j++;
        double sent_s = b->sum_s[j];
        if (j + 1 < i)
            sent_s = fmax(sent_s, now_s - (ends[j + 1] - b->sum_s[j + 1]));
        lost_s[i] = now_s - sent_s;
    }
}

/*
 * The bound for tensors first+1..n: their work, plus the time lost before tensor i is ready and
 * after the first need of tensors from i on. The operations of that tensor lie in between, with
 * their start-ups; so no operation spans both ends, and no start-up is counted twice.
 */
static double bound_lost(const bounding *b, const least *l, size_t first)
{
    size_t count = b->n - first;
    double total_s = b->work_s[b->n] - b->work_s[first];
    for (size_t i = 0; i <= count; i++) {
        b->ready_s[i] = b->problem->ready_s[first + i];
        b->sum_s[i] = b->work_s[first + i] - b->work_s[first];
    }
    find_lost(b, count, l->startup_s, b->lost_s);
    size_t at = 0;
    b->sum_s[0] = 0;
    for (size_t i = 1; i <= b->n; i++) {
        size_t j = b->order[i];
        if (j <= first)
            continue;
        at++;
        b->place[j] = at;
        b->ready_s[at] = -b->needed_s[j];
        b->sum_s[at] = b->sum_s[at - 1] + (b->work_s[j] - b->work_s[j - 1]);
    }
    find_lost(b, count, l->startup_s, b->lost_due_s);
    double bound_s = 0;
    size_t last = 0; /* the first needed of tensors i..n */
    for (size_t i = b->n; i > first; i--) {
        last = b->place[i] > last ? b->place[i] : last;
        bound_s = fmax(bound_s, b->lost_s[i - first] + b->lost_due_s[last] + total_s + l->both_s);
    }
    return bound_s;
}

/* ---- The bound ---- */

typedef struct needed {
    double needed_s;
    size_t tensor;
} needed;

/* The last needed first; ties: the first ready first. */
static int compare_needed(const void *left, const void *right)
{
    const needed *a = left;
    const needed *b = right;
    if (a->needed_s != b->needed_s)
        return a->needed_s > b->needed_s ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

static bool sort_needed(bounding *b)
{
    needed *list = malloc((b->n + 1) * sizeof *list);
    for (size_t i = 0; list && i < b->n; i++)
        list[i] = (needed){b->needed_s[i + 1], i + 1};
    if (list)
        qsort(list, b->n, sizeof *list, compare_needed);
    for (size_t i = 0; list && i < b->n; i++)
        b->order[i + 1] = list[i].tensor;
    free(list);
    return list != NULL;
}

static double bound_with(bounding *b, const least *l, double steps_max)
{
    size_t n = b->n;
    size_t stride = (size_t)((double)n * (double)n / steps_max) + 1;
    double per_byte_s = l->per_element_s / (double)b->problem->gradient_bytes;
    for (size_t j = 0; j <= n; j++)
        b->work_s[j] = per_byte_s * (double)b->problem->prefix[j];
    double bound_s = bound_windows(b, l, stride);
    for (size_t first = 0; first < n; first += stride)
        bound_s = fmax(bound_s, bound_lost(b, l, first));
    return bound_s;
}

/* On curves, uses lines below them that are close at several message sizes. */
static double bound_all(bounding *b)
{
    const mgw_problem *problem = b->problem;
    const mgw_curve *of = problem->cost->of;
    bool line = !of[MGW_ALL_REDUCE].sample_count && !of[MGW_REDUCE_SCATTER].sample_count &&
                !of[MGW_ALL_GATHER].sample_count;
    double all = (double)problem->prefix[b->n] / (double)problem->gradient_bytes;
    double elements = all;
    double bound_s = problem->ready_s[b->n];
    size_t sizes = line ? 1 : 8;
    for (size_t i = 0; i < sizes; i++) {
        least l = find_least(problem, elements);
        bound_s = fmax(bound_s, bound_with(b, &l, STEPS_MAX / (double)sizes));
        if (mgw_beside_matters(&problem->given->beside)) {
            double sent_s = l.both_s + l.per_element_s * all;
            bound_s = fmax(bound_s, mgw_problem_least_beside(problem, sent_s, 0));
        }
        elements /= 4;
    }
    return bound_s;
}

double mgw_problem_forward_bound(const mgw_problem *problem)
{
    size_t n = problem->n;
    size_t room = n + 1;
    double *numbers = malloc(7 * room * sizeof *numbers);
    size_t *places = malloc(2 * room * sizeof *places);
    double bound_s = -1;
    bounding b = {.problem = problem, .n = n};
    if (numbers && places) {
        b.needed_s = numbers;
        b.work_s = numbers + room;
        b.ready_s = numbers + 2 * room;
        b.sum_s = numbers + 3 * room;
        b.ends = numbers + 4 * room;
        b.lost_s = numbers + 5 * room;
        b.lost_due_s = numbers + 6 * room;
        b.order = places;
        b.place = places + room;
        for (size_t j = 1; j <= n; j++)
            b.needed_s[j] = mgw_problem_needed(problem, j);
        if (sort_needed(&b))
            bound_s = bound_all(&b);
    }
    free(numbers);
    free(places);
    return bound_s;
}
