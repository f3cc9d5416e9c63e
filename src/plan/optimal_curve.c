/* The exact optimum for any non-decreasing T(M), by dynamic programming. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

#define ROUNDING 1e-13

/* Time grows with the square; beyond this it would be minutes. */
enum { TENSORS_MAX = 20000 };

/*
 * The best message that ends with tensor j, if `before[i]` is when the channel is free after
 * tensors 1..i. Among the i that are done when j is ready the last is best, for it leaves the
 * shortest message; those still under way have to be tried one by one.
 */
static double best_message(const mgw_problem *problem, const double *before, size_t j,
                           size_t *best_i)
{
    double ready_s = problem->ready_s[j];
    double best = INFINITY;
    size_t i = j - 1;
    for (; i > 0 && before[i] > ready_s; i--) {
        double end = before[i] + mgw_problem_seconds(problem, i, j);
        if (end < best) {
            best = end;
            *best_i = i;
        }
    }
    double end = ready_s + mgw_problem_seconds(problem, i, j);
    if (end <= best) {
        best = end;
        *best_i = i;
    }
    return best;
}

static double earliest_end(const mgw_problem *problem, double *earliest)
{
    size_t ignored = 0;
    earliest[0] = 0;
    for (size_t j = 1; j <= problem->n; j++)
        earliest[j] = best_message(problem, earliest, j, &ignored);
    return earliest[problem->n];
}

/*
 * The fewest messages with the earliest end: round k finds the earliest end of every prefix that
 * at most k messages can reach, until one is as good as any number of them. Unlike with a + b*M,
 * fewer messages need not mean an earlier deadline, so all rounds are needed. `from` holds, per
 * round, the tensor before each last message.
 */
typedef struct rounds {
    size_t count;
    size_t capacity;
    uint32_t **from;
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
    r->from[r->count] = malloc((n + 1) * sizeof **r->from);
    return r->from[r->count] && ++r->count;
}

static bool find_fewest(const mgw_problem *problem, double end_s, double *before, double *after,
                        rounds *r)
{
    size_t n = problem->n;
    double good_enough = end_s * (1 + ROUNDING);
    before[0] = 0;
    for (size_t j = 1; j <= n; j++)
        before[j] = INFINITY;
    while (before[n] > good_enough) {
        if (!add_round(r, n))
            return false;
        uint32_t *from = r->from[r->count - 1];
        after[0] = 0;
        from[0] = 0;
        for (size_t j = 1; j <= n; j++) {
            size_t i = 0;
            after[j] = best_message(problem, before, j, &i);
            from[j] = (uint32_t)i;
        }
        double *swap = before;
        before = after;
        after = swap;
    }
    return true;
}

mgw_status mgw_plan_optimal_curve(const mgw_problem *problem, const mgw_policy *policy,
                                  size_t *ends, size_t *count, mgw_error *error)
{
    (void)policy;
    size_t n = problem->n;
    if (n > TENSORS_MAX)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "%s: %zu tensors are too many to plan on a measured curve (at most %d); "
                        "'mgwfbp fit' makes a line of it, which has no limit",
                        problem->cost->cluster ? problem->cost->cluster : "curve", n, TENSORS_MAX);
    double *before = malloc((n + 1) * sizeof *before);
    double *after = malloc((n + 1) * sizeof *after);
    rounds r = {0};
    bool good =
        before && after && find_fewest(problem, earliest_end(problem, before), before, after, &r);
    if (good) {
        *count = r.count;
        size_t j = n;
        for (size_t k = r.count; k > 0; k--) {
            ends[k - 1] = j;
            j = r.from[k - 1][j];
        }
    }
    for (size_t k = 0; k < r.count; k++)
        free(r.from[k]);
    free(r.from);
    free(before);
    free(after);
    return good ? MGW_OK : mgw_fail_memory(error, "optimal plan");
}
