/* The exact optimum for T(M) = a + b*M, in linear time. docs/model.md has the proof. */
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/*
 * How far a recomputed time may be off by rounding. Two plans whose ends differ by less are
 * equally good; of these the one with the fewest messages is wanted.
 */
#define ROUNDING 1e-13

/*
 * earliest[j] = the earliest end of communication for tensors 1..j. Two candidates for the message
 * before suffice: the last prefix that is done when j is ready, and the next one. Both ready times
 * and ends grow, so one pointer walks forward.
 */
static void find_earliest(const mgw_problem *problem, double *earliest)
{
    size_t done = 0; /* the last i < j with earliest[i] <= ready_s[j] */
    earliest[0] = 0;
    for (size_t j = 1; j <= problem->n; j++) {
        double ready_s = problem->ready_s[j];
        while (done + 1 < j && earliest[done + 1] <= ready_s)
            done++;
        earliest[j] = ready_s + mgw_problem_seconds(problem, done, j);
        if (done + 1 < j) {
            double queued = earliest[done + 1] + mgw_problem_seconds(problem, done + 1, j);
            if (queued < earliest[j])
                earliest[j] = queued;
        }
    }
}

/*
 * The fewest messages that end by `end_s`, from the back. If the messages behind tensor i are m in
 * number, the channel must be theirs from end_s - m*a - b*(P_n - P_i) on: it depends on m and i
 * alone. So a message ending with tensor j can reach back to any i where that time is not before
 * ready_s[j], and reaching back furthest is best, for the next message's last tensor is then ready
 * the earliest. Writes the ends from the back; returns the number of messages.
 */
static size_t merge_backward(const mgw_problem *problem, double end_s, size_t *ends)
{
    double a = problem->cost->a_s;
    double b = problem->cost->b_s_per_byte;
    double slack = end_s * ROUNDING;
    size_t n = problem->n;
    size_t count = 0;
    for (size_t j = n; j > 0;) {
        ends[count++] = j;
        double last_start = problem->ready_s[j] - slack;
        size_t i = j - 1;
        while (i > 0 && end_s - (double)count * a -
                                b * (double)(problem->prefix[n] - problem->prefix[i - 1]) >=
                            last_start)
            i--;
        j = i;
    }
    return count;
}

mgw_status mgw_plan_optimal(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                            size_t *count, mgw_error *error)
{
    if (problem->cost->sample_count)
        return mgw_plan_optimal_curve(problem, policy, ends, count, error);
    double *earliest = malloc((problem->n + 1) * sizeof *earliest);
    if (!earliest)
        return mgw_fail_memory(error, "optimal plan");
    find_earliest(problem, earliest);
    size_t messages = merge_backward(problem, earliest[problem->n], ends);
    free(earliest);
    for (size_t k = 0; k < messages / 2; k++) {
        size_t end = ends[k];
        ends[k] = ends[messages - 1 - k];
        ends[messages - 1 - k] = end;
    }
    *count = messages;
    return MGW_OK;
}
