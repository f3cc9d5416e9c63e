/* Looks for the best plan if computation and messages slow each other down: when gradients are
 * ready then depends on the plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/beside.h"
#include "plan/policy.h"

static mgw_status time_beside(const mgw_problem *problem, mgw_plan *plan, double *ready_s,
                              mgw_error *error)
{
    mgw_status status = mgw_channels_time(problem, problem->given, 1, plan, error);
    return status ? status : mgw_beside_time(problem, plan, ready_s, error);
}

static void take_operations(mgw_plan *from, mgw_plan *to)
{
    free(to->operations);
    to->operations = from->operations;
    to->operation_count = from->operation_count;
    to->overlaps_forward = from->overlaps_forward;
    to->iteration_s = from->iteration_s;
    from->operations = NULL;
}

/*
 * A message that runs beside computation has its speed divided by `message`. So with ready times
 * divided by it, messages alone take as long as they take on that slower clock, up to the end of
 * the backward pass; and what is sent after it does not change which plan is best. A plan of halves
 * is nearly always beside computation; for those, all of T is multiplied instead.
 */
static mgw_status decide_at(mgw_problem *problem, const double *ready_s, const mgw_policy *policy,
                            mgw_plan *plan, mgw_error *error)
{
    size_t room = problem->n + 1;
    double factor = fmax(problem->given->beside.message, 1);
    double *alone_s = problem->ready_s;
    const mgw_cost *cost = problem->cost;
    mgw_cost slower = *cost;
    mgw_sample *samples = NULL;
    mgw_status status = MGW_OK;
    problem->ready_s = malloc(room * sizeof *alone_s);
    if (!problem->ready_s)
        status = mgw_fail_memory(error, "plan");
    bool halves = mgw_policy_composer(policy) != NULL;
    for (size_t j = 0; !status && j < room; j++)
        problem->ready_s[j] = j ? ready_s[j - 1] / (halves ? 1 : factor) : 0;
    if (!status && halves) {
        status = mgw_cost_scale(&slower, factor, &samples, error);
        problem->cost = &slower;
    }
    if (!status)
        status = mgw_plan_decide(problem, policy, plan, error);
    free(problem->ready_s);
    free(samples);
    problem->ready_s = alone_s;
    problem->cost = cost;
    return status;
}

/* Plans for ready times as they are beside the messages of the plan before, a few times over; keeps
 * the best in *best. */
static mgw_status improve(mgw_problem *problem, const mgw_policy *policy, double *ready_s,
                          mgw_plan *best, mgw_error *error)
{
    enum { ROUNDS = 4 };
    mgw_status status = MGW_OK;
    memcpy(ready_s, problem->ready_s + 1, problem->n * sizeof *ready_s);
    for (int i = 0; !status && i < ROUNDS; i++) {
        mgw_plan made = {0};
        status = decide_at(problem, ready_s, policy, &made, error);
        if (!status)
            status = time_beside(problem, &made, ready_s, error);
        bool better = !best->operations || made.iteration_s < best->iteration_s;
        if (!status && better)
            take_operations(&made, best);
        free(made.operations);
        free(made.stalls);
        if (!better)
            break;
    }
    return status;
}

mgw_status mgw_beside_search(mgw_problem *problem, const mgw_policy *policy, mgw_plan *plan,
                             mgw_error *error)
{
    static const mgw_policy whole = {.kind = MGW_OPTIMAL};
    double *ready_s = malloc(problem->n * sizeof *ready_s);
    if (!ready_s)
        return mgw_fail_memory(error, "plan");
    mgw_status status = improve(problem, &whole, ready_s, plan, error);
    if (!status && policy->kind == MGW_OVERLAP) {
        plan->overlaps_forward = true;
        status = time_beside(problem, plan, ready_s, error); /* all-reduces, awaited where needed */
        if (!status)
            status = improve(problem, policy, ready_s, plan, error);
    }
    free(ready_s);
    return status;
}

bool mgw_beside_searches(const mgw_problem *problem, const mgw_policy *policy)
{
    return mgw_beside_matters(&problem->given->beside) &&
           (policy->kind == MGW_OPTIMAL || policy->kind == MGW_OVERLAP);
}
