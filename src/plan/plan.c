/* Creates plans with a policy, and times them with the model. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "base/status.h"
#include "plan/beside.h"
#include "plan/policy.h"

static const char *const releases[] = {
#define X(constant, name) [constant] = name,
    MGW_RELEASE_LIST(X)
#undef X
};

const char *mgw_release_name(mgw_release release)
{
    return releases[release];
}

mgw_status mgw_release_parse(const char *name, mgw_release *out, mgw_error *error)
{
    char known[128] = "";
    for (size_t i = 0; i < MGW_RELEASE_COUNT; i++) {
        if (!strcmp(releases[i], name)) {
            *out = (mgw_release)i;
            return MGW_OK;
        }
        strcat(strcat(known, i ? ", " : ""), releases[i]);
    }
    return mgw_fail(error, MGW_ERR_ARGUMENT, "unknown release rule '%.40s'; choose one of %s", name,
                    known);
}

bool mgw_plan_has_gathers(const mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++)
        if (plan->operations[m].kind == MGW_ALL_GATHER)
            return true;
    return false;
}

void mgw_plan_destroy(mgw_plan *plan)
{
    if (!plan)
        return;
    mgw_names_release(plan->names);
    free(plan->operations);
    free(plan->stalls);
    free(plan->policy);
    free(plan->model);
    free(plan->cluster);
    free(plan);
}

static bool has_wire(const mgw_operation *operation)
{
    return operation->wire != MGW_F32;
}

double mgw_operation_seconds(const mgw_cost *cost, const mgw_operation *operation)
{
    if (!has_wire(operation))
        return mgw_cost_seconds(cost, operation->kind, operation->bytes);
    uint64_t whole = mgw_wire_bytes(operation->wire, MGW_FP8_BLOCK);
    double elements = (double)operation->bytes * MGW_FP8_BLOCK / (double)whole;
    return mgw_wire_seconds(cost, operation->kind, operation->wire,
                            (uint64_t)(elements * sizeof(float)));
}

static mgw_status time_plan(const mgw_problem *problem, mgw_plan *plan, mgw_error *error)
{
    mgw_status status = mgw_channels_time(problem, problem->given, 1, plan, error);
    if (status || !mgw_beside_matters(&problem->given->beside))
        return status;
    double *ready_s = malloc(problem->n * sizeof *ready_s);
    status =
        ready_s ? mgw_beside_time(problem, plan, ready_s, error) : mgw_fail_memory(error, "plan");
    free(ready_s);
    return status;
}

static mgw_status predict(const mgw_problem *problem, mgw_plan *plan, mgw_error *error)
{
    mgw_status status = time_plan(problem, plan, error);
    plan->lower_bound_s = plan->overlaps_forward ? mgw_problem_forward_bound(problem)
                                                 : mgw_problem_lower_bound(problem);
    return status || plan->lower_bound_s >= 0 ? status : mgw_fail_memory(error, "plan");
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
    if (!status && !(plan->operations = calloc(count, sizeof *plan->operations)))
        status = mgw_fail_memory(error, "plan");
    for (size_t m = 0, first = 0; !status && m < count; first = ends[m++])
        plan->operations[m] = (mgw_operation){.kind = MGW_ALL_REDUCE,
                                              .release = mgw_policy_release(policy),
                                              .first = first,
                                              .count = ends[m] - first};
    if (!status)
        plan->operation_count = count;
    free(ends);
    return status;
}

static mgw_status compose(const mgw_problem *problem, const mgw_policy *policy, mgw_plan *plan,
                          mgw_error *error)
{
    plan->overlaps_forward = true;
    plan->operations = calloc(2 * problem->n, sizeof *plan->operations);
    if (!plan->operations)
        return mgw_fail_memory(error, "plan");
    mgw_operations made = {.list = plan->operations};
    mgw_status status = mgw_policy_composer(policy)(problem, policy, &made, error);
    plan->operation_count = made.count;
    mgw_operation *fits = status ? NULL : realloc(made.list, made.count * sizeof *fits);
    plan->operations = fits ? fits : made.list;
    return status;
}

/* Chooses the wire of each message by itself: a message that ends earlier delays nothing. */
static void choose_wires(const mgw_problem *problem, mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        mgw_operation *o = &plan->operations[m];
        if (mgw_collective_averages(o->kind))
            o->wire = mgw_wire_choose(
                problem->given, o->kind,
                mgw_problem_bytes(problem, o->kind, o->release, o->first, o->first + o->count));
    }
}

mgw_status mgw_plan_decide(const mgw_problem *problem, const mgw_policy *policy, mgw_plan *plan,
                           mgw_error *error)
{
    mgw_status status = mgw_policy_composer(policy) ? compose(problem, policy, plan, error)
                                                    : partition(problem, policy, plan, error);
    if (!status)
        choose_wires(problem, plan);
    return status;
}

/* The content of a plan: given operations, or those of a policy. */
typedef struct content {
    const mgw_policy *policy;
    const mgw_operation *operations;
    size_t count;
} content;

static mgw_status copy_operations(const content *c, size_t n, mgw_plan *plan, mgw_error *error)
{
    for (size_t m = 0; m < c->count; m++) {
        const mgw_operation *o = &c->operations[m];
        if (o->count == 0 || o->count > n || o->first > n - o->count ||
            (unsigned)o->kind >= MGW_COLLECTIVE_COUNT ||
            (unsigned)o->release >= MGW_RELEASE_COUNT || !mgw_wire_is_known(o->wire) ||
            o->lanes > MGW_LANES_MAX || (has_wire(o) && !mgw_collective_averages(o->kind)))
            return mgw_fail(error, MGW_ERR_ARGUMENT, "plan: operation %zu of %zu is invalid", m + 1,
                            c->count);
    }
    plan->operations = malloc((c->count ? c->count : 1) * sizeof *plan->operations);
    if (!plan->operations)
        return mgw_fail_memory(error, "plan");
    memcpy(plan->operations, c->operations, c->count * sizeof *plan->operations);
    plan->operation_count = c->count;
    plan->overlaps_forward = mgw_plan_has_gathers(plan);
    return MGW_OK;
}

/* The cost with the allowed wires: for a policy, those of the cost if gradients are f32; otherwise
 * also those of the operations, so that the bound holds for them. */
static mgw_cost allow_wires(const mgw_trace *trace, const mgw_cost *cost, const content *c)
{
    mgw_cost allowed = *cost;
    unsigned used = 0;
    for (size_t m = 0; m < c->count; m++)
        used |= 1u << (c->operations[m].wire & 31);
    if (c->policy && trace->gradient_dtype != MGW_F32)
        allowed.wires = 0;
    else if (used & ~(1u << MGW_F32))
        allowed.wires |= used | 1u << MGW_F32;
    return allowed;
}

static mgw_status make(const mgw_trace *trace, const mgw_cost *cost, const char *name,
                       const content *c, mgw_plan **out, mgw_error *error)
{
    mgw_cost allowed = allow_wires(trace, cost, c);
    mgw_plan *plan = calloc(1, sizeof *plan);
    if (!plan || !(plan->policy = strdup(name))) {
        free(plan);
        return mgw_fail_memory(error, "plan");
    }
    plan->names = mgw_names_share(trace->names);
    mgw_problem problem = {0};
    mgw_status status = label(plan, trace, cost, error);
    if (!status)
        status = mgw_problem_init(&problem, trace, &allowed, error);
    if (!status)
        status = !c->policy ? copy_operations(c, problem.n, plan, error)
                 : mgw_beside_searches(&problem, c->policy)
                     ? mgw_beside_search(&problem, c->policy, plan, error)
                     : mgw_plan_decide(&problem, c->policy, plan, error);
    if (!status)
        status = predict(&problem, plan, error);
    mgw_problem_fini(&problem);
    if (status)
        mgw_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

mgw_status mgw_plan_make(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                         mgw_plan **out, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    mgw_policy_name(policy, name);
    return make(trace, cost, name, &(content){.policy = policy}, out, error);
}

mgw_status mgw_plan_from_operations(const mgw_trace *trace, const mgw_cost *cost, const char *name,
                                    const mgw_operation *operations, size_t count, mgw_plan **out,
                                    mgw_error *error)
{
    return make(trace, cost, name, &(content){.operations = operations, .count = count}, out,
                error);
}

mgw_status mgw_plan_check_tensors(const mgw_plan *plan, const mgw_trace *trace, mgw_error *error)
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
    return MGW_OK;
}

mgw_status mgw_plan_time(mgw_plan *plan, const mgw_trace *trace, const mgw_cost *cost,
                         mgw_error *error)
{
    mgw_status status = mgw_plan_check_tensors(plan, trace, error);
    if (status)
        return status;
    mgw_problem problem = {0};
    const content own = {.operations = plan->operations, .count = plan->operation_count};
    mgw_cost allowed = allow_wires(trace, cost, &own);
    status = mgw_problem_init(&problem, trace, &allowed, error);
    if (!status)
        status = label(plan, trace, cost, error); /* sets times that predict may change */
    if (!status)
        status = predict(&problem, plan, error);
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

uint64_t mgw_plan_bytes(const mgw_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t m = 0; m < plan->operation_count; m++)
        bytes += plan->operations[m].bytes;
    return bytes;
}
