/* The shortest period that any schedule can have that overlaps the next forward pass. */
#include "plan/problem.h"

double mgw_problem_forward_bound(const mgw_problem *problem)
{
    size_t n = problem->n;
    double ready_s = problem->ready_s[n];
    uint64_t gradients = problem->prefix[n] - problem->prefix[n - 1];
    uint64_t parameters = mgw_problem_bytes(problem, MGW_ALL_GATHER, MGW_AFTER_UPDATE, n - 1, n);
    double halves_s = mgw_cost_seconds(problem->cost, MGW_REDUCE_SCATTER, gradients) +
                      mgw_cost_seconds(problem->cost, MGW_ALL_GATHER, parameters);
    double whole_s = mgw_cost_seconds(problem->cost, MGW_ALL_REDUCE, gradients);
    double least_s = halves_s < whole_s ? halves_s : whole_s;
    return mgw_later(ready_s, ready_s + least_s - mgw_problem_needed(problem, n));
}
