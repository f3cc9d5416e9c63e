/* Policies by size alone: close a message once it holds its limit (Horovod's fusion, DDP's
 * buckets). */
#include "plan/problem.h"

mgw_status mgw_plan_threshold(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                              size_t *count, mgw_error *error)
{
    (void)error;
    size_t messages = 0;
    size_t begin = 0;
    for (size_t j = 1; j <= problem->n; j++) {
        uint64_t limit = messages == 0 ? policy->first_bytes : policy->cap_bytes;
        if (problem->prefix[j] - problem->prefix[begin] < limit && j < problem->n)
            continue;
        ends[messages++] = j;
        begin = j;
    }
    *count = messages;
    return MGW_OK;
}
