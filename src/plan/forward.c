/* Times the next forward pass, which waits for each tensor at its first use: period and stalls. */
#include <stdlib.h>

#include "base/status.h"
#include "plan/problem.h"

/* A tensor that delays the next forward pass. */
typedef struct late {
    size_t tensor;
    double needed_s; /* in the pass */
    double back_s;   /* on the clock of the operations */
} late;

/* By time of need; ties: the last one back first. No two are equal, so every qsort gives the same
 * order. */
static int compare_late(const void *left, const void *right)
{
    const late *a = left;
    const late *b = right;
    if (a->needed_s != b->needed_s)
        return a->needed_s < b->needed_s ? -1 : 1;
    if (a->back_s != b->back_s)
        return a->back_s > b->back_s ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* When each tensor is back: at the end of its last operation. */
static void find_back(const mgw_plan *plan, double *back_s)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *o = &plan->operations[m];
        for (size_t i = o->first; i < o->first + o->count; i++)
            back_s[i] = o->end_s;
    }
}

static size_t find_late(const mgw_problem *problem, const double *back_s, late *out)
{
    size_t count = 0;
    for (size_t i = 0; i < problem->n; i++) {
        double needed_s = mgw_problem_needed(problem, i + 1);
        if (back_s[i] - needed_s > problem->ready_s[problem->n])
            out[count++] = (late){i, needed_s, back_s[i]};
    }
    qsort(out, count, sizeof *out, compare_late);
    return count;
}

/* iteration_s is the start of the pass as delayed so far; later tensors may delay it further. */
static mgw_status add_stalls(const late *list, size_t count, mgw_plan *plan, mgw_error *error)
{
    plan->iteration_s = plan->compute_s;
    plan->stalls = count ? malloc(count * sizeof *plan->stalls) : NULL;
    if (count && !plan->stalls)
        return mgw_fail_memory(error, "plan");
    for (size_t i = 0; i < count; i++) {
        double begin_s = list[i].back_s - list[i].needed_s;
        if (begin_s <= plan->iteration_s)
            continue;
        plan->stalls[plan->stall_count++] =
            (mgw_stall){list[i].tensor, plan->iteration_s + list[i].needed_s, list[i].back_s};
        plan->iteration_s = begin_s;
    }
    return MGW_OK;
}

mgw_status mgw_plan_time_forward(const mgw_problem *problem, mgw_plan *plan, mgw_error *error)
{
    double *back_s = calloc(problem->n, sizeof *back_s);
    late *list = malloc(problem->n * sizeof *list);
    mgw_status status = MGW_OK;
    if (back_s && list) {
        find_back(plan, back_s);
        status = add_stalls(list, find_late(problem, back_s, list), plan, error);
    } else {
        status = mgw_fail_memory(error, "plan");
    }
    free(back_s);
    free(list);
    return status;
}
