/* Policies that depend on neither times nor sizes: one message per tensor, and one for all. */
#include "plan/problem.h"

mgw_status mgw_plan_each(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                         size_t *count, mgw_error *error)
{
    (void)policy, (void)error;
    for (size_t j = 1; j <= problem->n; j++)
        ends[j - 1] = j;
    *count = problem->n;
    return MGW_OK;
}

mgw_status mgw_plan_single(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                           size_t *count, mgw_error *error)
{
    (void)policy, (void)error;
    ends[0] = problem->n;
    *count = 1;
    return MGW_OK;
}
