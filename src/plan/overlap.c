/* Policy `overlap`: all-reduces for some tensors, reduce-scatters and all-gathers for the others;
 * and policy `sharded`, the latter for all. */
#include "plan/overlap.h"

#include <math.h>

#include "base/status.h"

/* Up to this many tensors, every pair of s and k is examined. */
enum { ALL_PAIRS_MAX = 48 };

/* On a curve, time grows quadratically; beyond this limit it would take minutes. */
enum { TENSORS_MAX = 20000 };

/* Limit on operations tried on a curve in the search for the best k. */
#define TRIES_MAX 2e7

static bool is_line(const mgw_cost *cost)
{
    return !cost->of[MGW_ALL_REDUCE].sample_count && !cost->of[MGW_REDUCE_SCATTER].sample_count &&
           !cost->of[MGW_ALL_GATHER].sample_count;
}

static double find_period(mgw_sequence *sequence, size_t s, size_t k)
{
    mgw_sequence_set(sequence, s, k);
    return mgw_sequence_period(sequence);
}

/* The choices to examine: every stride'th k, with s = 0 or, if `pairs`, with every s. */
typedef struct choices {
    size_t n;
    size_t stride;
    bool pairs;
    double periods[(ALL_PAIRS_MAX + 1) * (ALL_PAIRS_MAX + 2) / 2]; /* of pairs */
} choices;

static double *period_of(choices *c, const mgw_choice *at)
{
    return &c->periods[at->k * (at->k + 1) / 2 + at->s];
}

/* From most all-reduces to fewest, so that the first wins ties. */
static bool next_choice(const choices *c, mgw_choice *at)
{
    if (c->pairs && at->s + 1 < at->k) {
        at->s++;
        return true;
    }
    at->s = 0;
    if (at->k == 0)
        return false;
    at->k = at->k > c->stride ? at->k - c->stride : 0;
    return true;
}

static mgw_choice find_best(mgw_sequence *sequence, choices *c)
{
    mgw_choice best = {.period_s = INFINITY};
    mgw_choice at = {.k = c->n};
    do {
        at.period_s = find_period(sequence, at.s, at.k);
        if (c->pairs)
            *period_of(c, &at) = at.period_s;
        if (at.period_s < best.period_s)
            best = at;
    } while (next_choice(c, &at));
    return best;
}

/* The minimum number of operations: one for each run of tensors and kind. */
static size_t count_least(const choices *c, const mgw_choice *at)
{
    return 2 * (at->s > 0) + (at->s < at->k) + 2 * (at->k < c->n);
}

/* Among equal periods, prefers the fewest operations, then the most all-reduced tensors. */
static void prefer_fewest(mgw_sequence *sequence, choices *c, mgw_choice *best)
{
    double limit_s = best->period_s * (1 + MGW_ROUNDING);
    size_t fewest = 2 * c->n + 1;
    size_t whole = 0;
    mgw_choice at = {.k = c->n};
    do {
        bool more = at.k - at.s > whole; /* then an equal number of operations is enough */
        size_t most = fewest - 1 + (more && fewest <= 2 * c->n);
        if (count_least(c, &at) > most || *period_of(c, &at) > limit_s)
            continue;
        mgw_sequence_set(sequence, at.s, at.k);
        size_t count = mgw_sequence_fewest(sequence, limit_s, most);
        if (!count)
            continue;
        fewest = count;
        whole = at.k - at.s;
        best->s = at.s;
        best->k = at.k;
    } while (next_choice(c, &at));
}

/* For curves, and for lines with few tensors. */
static mgw_choice search_choices(mgw_sequence *sequence, bool line)
{
    size_t n = sequence->problem->n;
    choices c = {.n = n, .stride = 1, .pairs = n <= ALL_PAIRS_MAX};
    double tries = (double)n * (double)n * (double)n;
    if (!line && tries > TRIES_MAX)
        c.stride = (size_t)(tries / TRIES_MAX) + 1;
    mgw_choice best = find_best(sequence, &c);
    if (c.pairs)
        prefer_fewest(sequence, &c, &best);
    return best;
}

/* ---- Weighing operations against time ---- */

/* The shortest period from `low_s` on that `count` operations allow; `high_s` is possible. */
static double bisect_period(mgw_sequence *sequence, size_t count, double low_s, double high_s)
{
    while (high_s - low_s > 1e-9 * high_s) {
        double middle_s = low_s + (high_s - low_s) / 2;
        if (mgw_sequence_fewest(sequence, middle_s, count))
            high_s = middle_s;
        else
            low_s = middle_s;
    }
    return high_s;
}

/* Uses fewer operations and a longer period for the same s and k, if that costs less in total. */
static void save_operations(mgw_sequence *sequence, size_t s, size_t k, double *least_s,
                            mgw_choice *best)
{
    double worth_s = sequence->problem->cost->worth_s;
    double period_s = find_period(sequence, s, k);
    double limit_s = period_s * (1 + MGW_ROUNDING);
    size_t room = 2 * sequence->problem->n;
    size_t count = period_s < *least_s ? mgw_sequence_fewest(sequence, limit_s, room) : 0;
    for (; count > 0; count--) {
        double high_s = *least_s - worth_s * (double)count;
        if (high_s < limit_s || !mgw_sequence_fewest(sequence, high_s, count))
            continue;
        double found_s = bisect_period(sequence, count, period_s, high_s);
        *least_s = found_s + worth_s * (double)count;
        *best = (mgw_choice){s, k, found_s};
    }
}

/* As with `optimal`, each operation costs worth_s. Tries the best choice and, if they are allowed,
 * all-reduces only. */
static void weigh_operations(mgw_sequence *sequence, bool wholes, mgw_choice *best)
{
    size_t n = sequence->problem->n;
    mgw_choice at = *best;
    double most_s = at.period_s + sequence->problem->cost->worth_s * 2 * (double)n;
    double least_s = most_s * (1 + 2 * MGW_ROUNDING);
    save_operations(sequence, at.s, at.k, &least_s, best);
    if (wholes && at.k - at.s < n)
        save_operations(sequence, 0, n, &least_s, best);
}

mgw_status mgw_plan_overlap(const mgw_problem *problem, const mgw_policy *policy,
                            mgw_operations *out, mgw_error *error)
{
    bool wholes = policy->kind == MGW_OVERLAP;
    bool line = is_line(problem->cost);
    if (!line && problem->n > TENSORS_MAX)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "%s: %zu tensors are too many to plan '%s' on a measured curve (at "
                        "most %d); fit a line with 'mgwfbp fit', which has no limit",
                        problem->cost->cluster ? problem->cost->cluster : "curve", problem->n,
                        wholes ? "overlap" : "sharded", TENSORS_MAX);
    mgw_sequence sequence;
    mgw_choice choice = {0};
    mgw_status status = mgw_sequence_init(&sequence, problem, error);
    if (status)
        return status;
    if (!wholes)
        choice.period_s = find_period(&sequence, 0, 0);
    else if (line && problem->n > ALL_PAIRS_MAX)
        status = mgw_overlap_line(&sequence, &choice, error);
    else
        choice = search_choices(&sequence, line);
    if (!status && !isfinite(choice.period_s))
        status = mgw_fail(error, MGW_ERR_UNSUPPORTED, "the predicted time is not finite");
    if (!status && problem->cost->worth_s > 0 && (line || problem->n <= ALL_PAIRS_MAX))
        weigh_operations(&sequence, wholes, &choice);
    if (!status) {
        mgw_sequence_set(&sequence, choice.s, choice.k);
        status = mgw_sequence_plan(&sequence, choice.period_s, out, error);
    }
    mgw_sequence_fini(&sequence);
    return status ? status : mgw_overlap_compare(problem, out, error);
}
