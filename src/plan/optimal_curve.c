/* The exact optimum for any non-decreasing T(M), by dynamic programming. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/* Time grows quadratically; beyond this limit it would take minutes. */
enum { TENSORS_MAX = 20000 };

/* Limit on messages tried in the search for the fewest: a few seconds. */
#define TRIES_MAX 3e8

/*
 * The best message that ends with tensor j, if the channel is free after tensors 1..i at
 * `before[i]`. Among the i that are done when j is ready, the last is best, since it gives the
 * shortest message. Those that are not done must be tried one by one.
 */
static double best_message(const mgw_problem *problem, const double *before, size_t j,
                           uint32_t *best_i, double *tries)
{
    double ready_s = problem->ready_s[j];
    double best = INFINITY;
    size_t i = j - 1;
    for (; i > 0 && before[i] > ready_s; i--) {
        double end = before[i] + mgw_problem_seconds(problem, i, j);
        if (end < best) {
            best = end;
            *best_i = (uint32_t)i;
        }
    }
    *tries += (double)(j - i);
    double end = ready_s + mgw_problem_seconds(problem, i, j);
    if (end <= best) {
        best = end;
        *best_i = (uint32_t)i;
    }
    return best;
}

static double earliest_end(const mgw_problem *problem, double *earliest, uint32_t *from)
{
    double tries = 0;
    earliest[0] = 0;
    for (size_t j = 1; j <= problem->n; j++)
        earliest[j] = best_message(problem, earliest, j, &from[j], &tries);
    return earliest[problem->n];
}

/* The plan of the dynamic program's choices, from the back. */
static size_t trace_back(const uint32_t *from, size_t n, size_t *ends)
{
    size_t count = 0;
    for (size_t j = n; j > 0; j = from[j])
        count++;
    size_t m = count;
    for (size_t j = n; j > 0; j = from[j])
        ends[--m] = j;
    return count;
}

/*
 * Finds the fewest messages with the earliest end: round k finds the earliest end of every prefix
 * with at most k messages, until that is as good as with any number. Unlike with a + b*M, fewer
 * messages need not mean an earlier deadline, so all rounds are needed. `from` has, per round, the
 * tensor before each last message.
 */
typedef struct rounds {
    size_t count;
    size_t capacity;
    uint32_t **from;
    double tries;
    size_t chosen;   /* the round with the best plan: */
    double chosen_s; /* its end, plus worth_s per message */
} rounds;

static bool add_round(rounds *r, size_t n)
{
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 16;
        uint32_t **from = realloc(r->from, capacity * sizeof *from);
        if (!from)
            return false;
        r->from = from;
        r->capacity = capacity;
    }
    r->from[r->count] = calloc(n + 1, sizeof **r->from);
    return r->from[r->count] && ++r->count;
}

/* Whether the fewest were found; false: out of memory, or too many tries. */
static bool find_fewest(const mgw_problem *problem, double end_s, double *before, double *after,
                        rounds *r)
{
    size_t n = problem->n;
    double good_enough = end_s * (1 + MGW_ROUNDING);
    before[0] = 0;
    for (size_t j = 1; j <= n; j++)
        before[j] = INFINITY;
    while (before[n] > good_enough) {
        if (r->tries > TRIES_MAX || !add_round(r, n))
            return false;
        after[0] = 0;
        for (size_t j = 1; j <= n; j++)
            after[j] = best_message(problem, before, j, &r->from[r->count - 1][j], &r->tries);
        double worth_s = after[n] + problem->cost->worth_s * (double)r->count;
        if (r->count == 1 || worth_s < r->chosen_s) {
            r->chosen = r->count;
            r->chosen_s = worth_s;
        }
        double *swap = before;
        before = after;
        after = swap;
    }
    return true;
}

/* The plan of the dynamic program ends as early as any; the rounds then find the fewest messages.
 */
static mgw_status plan_with(const mgw_problem *problem, double *before, double *after,
                            uint32_t *from, size_t *ends, size_t *count, mgw_error *error)
{
    double end_s = earliest_end(problem, before, from);
    if (!isfinite(end_s))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "the predicted time is not finite");
    *count = trace_back(from, problem->n, ends);
    rounds r = {0};
    if (find_fewest(problem, end_s, before, after, &r)) {
        *count = r.chosen;
        size_t j = problem->n;
        for (size_t k = r.chosen; k > 0; k--) {
            ends[k - 1] = j;
            j = r.from[k - 1][j];
        }
    }
    for (size_t k = 0; k < r.count; k++)
        free(r.from[k]);
    free(r.from);
    return MGW_OK;
}

mgw_status mgw_plan_optimal_curve(const mgw_problem *problem, const mgw_policy *policy,
                                  size_t *ends, size_t *count, mgw_error *error)
{
    (void)policy;
    size_t n = problem->n;
    if (n > TENSORS_MAX)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "%s: %zu tensors are too many to plan 'optimal' on a measured curve (at "
                        "most %d); fit a line with 'mgwfbp fit', which has no limit",
                        problem->cost->cluster ? problem->cost->cluster : "curve", n, TENSORS_MAX);
    double *before = malloc((n + 1) * sizeof *before);
    double *after = malloc((n + 1) * sizeof *after);
    uint32_t *from = calloc(n + 1, sizeof *from);
    mgw_status status = before && after && from
                            ? plan_with(problem, before, after, from, ends, count, error)
                            : mgw_fail_memory(error, "optimal plan");
    free(before);
    free(after);
    free(from);
    return status;
}
