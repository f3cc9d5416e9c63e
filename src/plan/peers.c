/* Policies of other systems that overlap the next forward pass: groups by size or module, with one
 * reduce-scatter and one all-gather each. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/problem.h"

/* Whether two tensors belong to the same module: their names are equal up to the last dot. */
static bool same_module(const mgw_trace *trace, size_t left, size_t right)
{
    const char *a = mgw_trace_tensor_name(trace, left);
    const char *b = mgw_trace_tensor_name(trace, right);
    const char *a_dot = strrchr(a, '.');
    const char *b_dot = strrchr(b, '.');
    size_t length = a_dot ? (size_t)(a_dot - a) : 0;
    return length == (b_dot ? (size_t)(b_dot - b) : 0) && !strncmp(a, b, length);
}

/* One group per module; neighbouring modules share a group while it holds at most cap_bytes. */
static size_t group_modules(const mgw_problem *problem, uint64_t cap_bytes, size_t *ends)
{
    size_t count = 0;
    size_t begin = 0; /* start of the group; `module` is the start of its last module */
    for (size_t module = 0, j = 1; j <= problem->n; j++) {
        if (j < problem->n && same_module(problem->trace, j - 1, j))
            continue;
        if (module > begin && problem->prefix[j] - problem->prefix[begin] > cap_bytes) {
            ends[count++] = module;
            begin = module;
        }
        module = j;
    }
    ends[count++] = problem->n;
    return count;
}

typedef struct group {
    size_t first;
    size_t end;
    double needed_s;
} group;

/* By time of need; ties: the last ready first. */
static int compare_groups(const void *left, const void *right)
{
    const group *a = left;
    const group *b = right;
    if (a->needed_s != b->needed_s)
        return a->needed_s < b->needed_s ? -1 : 1;
    return (a->first < b->first) - (a->first > b->first);
}

static void add_pairs(const mgw_problem *problem, const mgw_policy *policy, const size_t *ends,
                      size_t count, group *groups, mgw_operations *out)
{
    for (size_t m = 0, first = 0; m < count; first = ends[m++]) {
        groups[m] = (group){first, ends[m], problem->forward_s};
        for (size_t j = first + 1; j <= ends[m]; j++) {
            double needed_s = mgw_problem_needed(problem, j);
            groups[m].needed_s = needed_s < groups[m].needed_s ? needed_s : groups[m].needed_s;
        }
        mgw_operations_add(out, MGW_REDUCE_SCATTER, MGW_WHEN_READY, first, ends[m]);
    }
    qsort(groups, count, sizeof *groups, compare_groups);
    /* DeAR gathers averaged gradients, and every worker updates all parameters. */
    mgw_release release = policy->kind == MGW_DEAR ? MGW_AFTER_BACKWARD : MGW_AFTER_UPDATE;
    for (size_t m = 0; m < count; m++)
        mgw_operations_add(out, MGW_ALL_GATHER, release, groups[m].first, groups[m].end);
}

mgw_status mgw_plan_peers(const mgw_problem *problem, const mgw_policy *policy, mgw_operations *out,
                          mgw_error *error)
{
    size_t *ends = malloc(problem->n * sizeof *ends);
    group *groups = malloc(problem->n * sizeof *groups);
    size_t count = 0;
    mgw_status status = ends && groups ? MGW_OK : mgw_fail_memory(error, "plan");
    if (!status && policy->kind == MGW_FSDP)
        count = group_modules(problem, policy->cap_bytes, ends);
    else if (!status)
        status = mgw_plan_threshold(problem, policy, ends, &count, error);
    if (!status)
        add_pairs(problem, policy, ends, count, groups, out);
    free(ends);
    free(groups);
    return status;
}
