/* The exact optimum for T(M) = a + b*M, in linear time. See docs/explanation/model.md for the
 * proof. */
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/*
 * earliest[j] is the earliest end of communication for tensors 1..j, and from[j] the tensor before
 * the last message of a plan that achieves it. Two candidates suffice: the last prefix that is done
 * when j is ready, and the next one. Both ready times and ends increase, so one pointer moves
 * forward.
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
 * Finds the fewest messages that end by `end_s`, from the back. A message that ends with tensor j
 * by `end_s` may reach back to any i for which it starts no earlier than j is ready. from[j] is one
 * of these, whatever the rounding. Reaching back furthest is best: then the last tensor of the
 * preceding message is ready earliest, and the total channel time depends only on the number of
 * messages. Writes the ends from the back; returns the number of messages.
 */
static size_t merge_backward(const mgw_problem *problem, const double *earliest, const size_t *from,
                             double end_s, size_t *ends)
{
    double slack_s = end_s * MGW_ROUNDING;
    size_t count = 0;
    for (size_t j = problem->n; j > 0;) {
        ends[count++] = j;
        size_t i = from[j];
        while (i > 0 &&
               end_s - mgw_problem_seconds(problem, i - 1, j) >= problem->ready_s[j] - slack_s)
            i--;
        end_s -= mgw_problem_seconds(problem, i, j);
        if (end_s < earliest[i]) /* due to rounding, which must not accumulate over the messages */
            end_s = earliest[i];
        j = i;
    }
    return count;
}

/*
 * Chooses the end time if each message must gain `worth_s`. For each number k of messages,
 * bisection finds the earliest possible end. The step never becomes longer by more than `worth_s`
 * per saved message.
 */
static double choose_end(const mgw_problem *problem, const double *earliest, const size_t *from,
                         size_t *ends)
{
    double worth_s = problem->cost->worth_s;
    double first_s = earliest[problem->n];
    if (!(worth_s > 0))
        return first_s;
    size_t most = merge_backward(problem, earliest, from, first_s, ends);
    double last_s = first_s + worth_s * (double)(most - 1);
    size_t fewest = merge_backward(problem, earliest, from, last_s, ends);
    double best_s = first_s;
    double best_worth_s = first_s + worth_s * (double)most;
    for (size_t k = fewest; k < most; k++) {
        double low_s = first_s;
        double high_s = last_s;
        while (high_s - low_s > 1e-9 * high_s) {
            double middle_s = (low_s + high_s) / 2;
            if (merge_backward(problem, earliest, from, middle_s, ends) <= k)
                high_s = middle_s;
            else
                low_s = middle_s;
        }
        if (high_s + worth_s * (double)k <= best_worth_s) {
            best_s = high_s;
            best_worth_s = high_s + worth_s * (double)k;
        }
    }
    return best_s;
}

mgw_status mgw_plan_optimal(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                            size_t *count, mgw_error *error)
{
    if (problem->cost->of[MGW_ALL_REDUCE].sample_count)
        return mgw_plan_optimal_curve(problem, policy, ends, count, error);
    double *earliest = malloc((problem->n + 1) * sizeof *earliest);
    size_t *from = malloc((problem->n + 1) * sizeof *from);
    size_t messages = 0;
    if (earliest && from) {
        find_earliest(problem, earliest, from);
        double end_s = choose_end(problem, earliest, from, ends);
        messages = merge_backward(problem, earliest, from, end_s, ends);
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
