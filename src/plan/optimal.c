/* The exact optimum for T(M) = a + b*M, in linear time. docs/model.md has the proof. */
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/*
 * earliest[j] = the earliest end of communication for tensors 1..j, and from[j] the tensor before
 * the last message of a plan that reaches it. Two candidates suffice: the last prefix that is done
 * when j is ready, and the next one. Both ready times and ends grow, so one pointer walks forward.
 */
static void find_earliest(const mgw_problem *problem, double *earliest, size_t *from)
{
    size_t done = 0; /* the last i < j with earliest[i] <= ready_s[j] */
    earliest[0] = 0;
    for (size_t j = 1; j <= problem->n; j++) {
        double ready_s = problem->ready_s[j];
        while (done + 1 < j && earliest[done + 1] <= ready_s)
            done++;
        earliest[j] = ready_s + mgw_problem_seconds(problem, done, j);
        from[j] = done;
        if (done + 1 < j) {
            double queued = earliest[done + 1] + mgw_problem_seconds(problem, done + 1, j);
            if (queued < earliest[j]) {
                earliest[j] = queued;
                from[j] = done + 1;
            }
        }
    }
}

/*
 * The fewest messages that end by earliest[n], from the back. A message that ends with tensor j by
 * `end_s` may reach back to any i for which it starts no earlier than j is ready. from[j] is one of
 * these, whatever rounding does, and reaching back furthest is best: the next message's last
 * tensor is then ready the earliest, and how long the channel is theirs depends only on the number
 * of messages. Writes the ends from the back; returns the number of messages.
 */
static size_t merge_backward(const mgw_problem *problem, const double *earliest, const size_t *from,
                             size_t *ends)
{
    double end_s = earliest[problem->n];
    double slack_s = end_s * MGW_ROUNDING;
    size_t count = 0;
    for (size_t j = problem->n; j > 0;) {
        ends[count++] = j;
        size_t i = from[j];
        while (i > 0 &&
               end_s - mgw_problem_seconds(problem, i - 1, j) >= problem->ready_s[j] - slack_s)
            i--;
        end_s -= mgw_problem_seconds(problem, i, j);
        if (end_s < earliest[i]) /* by rounding, which must not add up over the messages */
            end_s = earliest[i];
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
    size_t *from = malloc((problem->n + 1) * sizeof *from);
    size_t messages = 0;
    if (earliest && from) {
        find_earliest(problem, earliest, from);
        messages = merge_backward(problem, earliest, from, ends);
    }
    free(earliest);
    free(from);
    if (!messages)
        return mgw_fail_memory(error, "optimal plan");
    for (size_t k = 0; k < messages / 2; k++) {
        size_t end = ends[k];
        ends[k] = ends[messages - 1 - k];
        ends[messages - 1 - k] = end;
    }
    *count = messages;
    return MGW_OK;
}
