/*
 * Plans that policy `overlap` does not search, taken where they are faster. It gathers parameters
 * in the reverse of ready order, so where the forward pass needs them in quite another order,
 * gathers in that order can be better. No exact algorithm is known for any order.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/overlap.h"

typedef struct contest {
    const mgw_problem *problem;
    mgw_operations *best;
    mgw_operations tried;
    double best_s;
} contest;

/* The period, and what operations must be worth. Wires are in the cost. */
static mgw_status judge(const mgw_problem *problem, const mgw_operations *operations,
                        double *seconds, mgw_error *error)
{
    char nothing[] = "";
    mgw_plan plan = {.model = nothing,
                     .cluster = nothing,
                     .operations = operations->list,
                     .operation_count = operations->count,
                     .overlaps_forward = true};
    mgw_status status = mgw_channels_time(problem, problem->cost, 1, &plan, error);
    free(plan.stalls);
    *seconds = plan.iteration_s + problem->cost->worth_s * (double)operations->count;
    return status;
}

static mgw_status challenge(contest *c, mgw_error *error)
{
    double seconds = 0;
    mgw_status status = judge(c->problem, &c->tried, &seconds, error);
    if (!status && seconds < c->best_s * (1 - MGW_ROUNDING)) {
        c->best->count = c->tried.count;
        memcpy(c->best->list, c->tried.list, c->tried.count * sizeof *c->tried.list);
        c->best_s = seconds;
    }
    return status;
}

static mgw_status challenge_with(contest *c, mgw_policy_kind kind, uint64_t cap_bytes,
                                 mgw_error *error)
{
    const mgw_policy peer = {.kind = kind, .first_bytes = cap_bytes, .cap_bytes = cap_bytes};
    c->tried.count = 0;
    mgw_status status = mgw_plan_peers(c->problem, &peer, &c->tried, error);
    return status ? status : challenge(c, error);
}

/* Whether no tensor is needed before one that is ready later. */
static bool is_reverse(const mgw_problem *problem)
{
    for (size_t j = 2; j <= problem->n; j++)
        if (mgw_problem_needed(problem, j) > mgw_problem_needed(problem, j - 1))
            return false;
    return true;
}

/* Groups from the smallest worthwhile to everything, by factors of two. */
static mgw_status challenge_sizes(contest *c, mgw_error *error)
{
    enum { SIZES = 12 };
    mgw_status status = MGW_OK;
    uint64_t cap_bytes = c->problem->prefix[c->problem->n];
    for (int i = 0; !status && i < SIZES && cap_bytes > 0; i++, cap_bytes /= 2)
        status = challenge_with(c, MGW_ZERO, cap_bytes, error);
    return status;
}

mgw_status mgw_overlap_compare(const mgw_problem *problem, mgw_operations *best, mgw_error *error)
{
    contest c = {.problem = problem, .best = best};
    c.tried.list = calloc(2 * problem->n, sizeof *c.tried.list);
    mgw_status status = c.tried.list ? judge(problem, best, &c.best_s, error)
                                     : mgw_fail_memory(error, "overlap plan");
    if (!status)
        status = challenge_with(&c, MGW_ZERO, MGW_DDP_CAP_BYTES, error);
    if (!status)
        status = challenge_with(&c, MGW_FSDP, 0, error);
    if (!status && !is_reverse(problem))
        status = challenge_sizes(&c, error);
    free(c.tried.list);
    return status;
}
