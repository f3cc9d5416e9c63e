/* The published rule (MG-WFBP, Algorithm 1), in linear time. */
#include "plan/problem.h"

/*
 * As published, every merge recomputes all start times, which is O(L^2). But a merge only affects
 * later messages, so a single pass in ready order gives the same plan: tensor j joins its successor
 * iff the successor is ready less than a start-up after the current message could start.
 * tests/unit/published.h has the published version, for the tests and the benchmark.
 */
mgw_status mgw_plan_greedy(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                           size_t *count, mgw_error *error)
{
    (void)policy, (void)error;
    double a_s = problem->cost->of[MGW_ALL_REDUCE].a_s;
    size_t messages = 0;
    size_t begin = 0;
    double free_s = 0; /* when the channel is free */
    for (size_t j = 1; j <= problem->n; j++) {
        double start_s = mgw_later(problem->ready_s[j], free_s);
        if (j < problem->n && problem->ready_s[j + 1] < start_s + a_s)
            continue;
        free_s = start_s + mgw_problem_seconds(problem, begin, j);
        ends[messages++] = j;
        begin = j;
    }
    *count = messages;
    return MGW_OK;
}
