/* A plan in memory: made by a policy, timed by the model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "base/status.h"
#include "plan/policy.h"

void mgw_plan_destroy(mgw_plan *plan)
{
    if (!plan)
        return;
    mgw_names_release(plan->names);
    free(plan->messages);
    free(plan->policy);
    free(plan->model);
    free(plan->cluster);
    free(plan);
}

/* The model: one channel, messages in order, none before its last gradient is ready. */
static mgw_status predict(const mgw_problem *problem, bool after_backward, mgw_plan *plan,
                          mgw_error *error)
{
    double compute_s = problem->ready_s[problem->n];
    double free_s = after_backward ? compute_s : 0;
    for (size_t m = 0; m < plan->message_count; m++) {
        mgw_message *message = &plan->messages[m];
        size_t last = message->first + message->count;
        message->bytes = problem->prefix[last] - problem->prefix[message->first];
        message->ready_s = problem->ready_s[last];
        message->start_s = mgw_later(message->ready_s, free_s);
        message->end_s = message->start_s + mgw_problem_seconds(problem, message->first, last);
        free_s = message->end_s;
    }
    plan->compute_s = compute_s;
    plan->iteration_s = free_s;
    plan->exposed_s = free_s - compute_s;
    plan->lower_bound_s = mgw_problem_lower_bound(problem);
    if (!isfinite(free_s))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s on %s: the predicted time is not finite",
                        plan->model, plan->cluster);
    return MGW_OK;
}

/* `naive` is the one policy whose messages wait for more than their gradients. */
static bool waits_for_backward(const char *policy)
{
    return !strcmp(policy, "naive");
}

static mgw_status label(mgw_plan *plan, const mgw_trace *trace, const mgw_cost *cost,
                        mgw_error *error)
{
    char *model = strdup(trace->model);
    char *cluster = strdup(cost->cluster ? cost->cluster : "");
    if (!model || !cluster) {
        free(model);
        free(cluster);
        return mgw_fail_memory(error, "plan");
    }
    free(plan->model);
    free(plan->cluster);
    plan->model = model;
    plan->cluster = cluster;
    plan->workers = cost->workers;
    plan->forward_s = trace->forward_s;
    return MGW_OK;
}

static mgw_status partition(const mgw_problem *problem, const mgw_policy *policy, mgw_plan *plan,
                            mgw_error *error)
{
    size_t *ends = malloc(problem->n * sizeof *ends);
    if (!ends)
        return mgw_fail_memory(error, "plan");
    size_t count = 0;
    mgw_status status = mgw_policy_planner(policy)(problem, policy, ends, &count, error);
    if (!status && !(plan->messages = calloc(count, sizeof *plan->messages)))
        status = mgw_fail_memory(error, "plan");
    for (size_t m = 0, first = 0; !status && m < count; first = ends[m++])
        plan->messages[m] = (mgw_message){.first = first, .count = ends[m] - first};
    if (!status)
        plan->message_count = count;
    free(ends);
    return status;
}

mgw_status mgw_plan_make(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                         mgw_plan **out, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    mgw_policy_name(policy, name);
    mgw_plan *plan = calloc(1, sizeof *plan);
    if (!plan || !(plan->policy = strdup(name))) {
        free(plan);
        return mgw_fail_memory(error, "plan");
    }
    plan->names = mgw_names_share(trace->names);
    mgw_problem problem = {0};
    mgw_status status = label(plan, trace, cost, error);
    if (!status)
        status = mgw_problem_init(&problem, trace, cost, error);
    if (!status)
        status = partition(&problem, policy, plan, error);
    if (!status)
        status = predict(&problem, waits_for_backward(plan->policy), plan, error);
    mgw_problem_fini(&problem);
    if (status)
        mgw_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

mgw_status mgw_plan_time(mgw_plan *plan, const mgw_trace *trace, const mgw_cost *cost,
                         mgw_error *error)
{
    size_t count = mgw_plan_tensor_count(plan);
    if (count != trace->tensor_count)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "the plan has %zu tensors, the trace %s %zu",
                        count, trace->model, trace->tensor_count);
    for (size_t i = 0; plan->names != trace->names && i < count; i++)
        if (strcmp(mgw_names_get(plan->names, i), mgw_names_get(trace->names, i)) != 0)
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "tensor %zu is '%.80s' in the plan and '%.80s' in the trace %s", i,
                            mgw_names_get(plan->names, i), mgw_names_get(trace->names, i),
                            trace->model);
    mgw_problem problem = {0};
    mgw_status status = mgw_problem_init(&problem, trace, cost, error);
    if (!status)
        status = predict(&problem, waits_for_backward(plan->policy), plan, error);
    if (!status)
        status = label(plan, trace, cost, error);
    mgw_problem_fini(&problem);
    return status;
}

const char *mgw_plan_tensor_name(const mgw_plan *plan, size_t index)
{
    return mgw_names_get(plan->names, index);
}

size_t mgw_plan_tensor_count(const mgw_plan *plan)
{
    return mgw_names_count(plan->names);
}
