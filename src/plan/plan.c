/* Creates plans with a policy, and times them with the model. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "base/status.h"
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

/* Whether an earlier operation must have averaged its tensors: for gathers, and after updates. */
static bool needs_averages(const mgw_operation *operation)
{
    return operation->release == MGW_AFTER_UPDATE || !mgw_collective_averages(operation->kind);
}

#define NOT_AVERAGED (-1.0)

/* By tensor: when it is averaged, to be filled in; null if no operation needs it. */
static mgw_status make_averaged(const mgw_plan *plan, size_t n, double **out, mgw_error *error)
{
    bool needed = false;
    for (size_t m = 0; m < plan->operation_count; m++)
        needed |= needs_averages(&plan->operations[m]);
    *out = needed ? malloc(n * sizeof **out) : NULL;
    for (size_t i = 0; *out && i < n; i++)
        (*out)[i] = NOT_AVERAGED;
    return needed && !*out ? mgw_fail_memory(error, "plan") : MGW_OK;
}

/* When the operation's data is ready; NOT_AVERAGED if some of it never is. */
static double find_ready(const mgw_problem *problem, const mgw_operation *operation,
                         const double *averaged_s)
{
    size_t last = operation->first + operation->count;
    if (!averaged_s || !needs_averages(operation))
        return problem->ready_s[last];
    double ready_s = operation->release == MGW_AFTER_UPDATE ? problem->ready_s[problem->n] : 0;
    for (size_t i = operation->first; i < last; i++) {
        if (averaged_s[i] == NOT_AVERAGED)
            return NOT_AVERAGED;
        ready_s = mgw_later(ready_s, averaged_s[i]);
    }
    return ready_s;
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

/* The time of an operation; sets its bytes. */
static double take(const mgw_problem *problem, mgw_operation *operation)
{
    uint64_t bytes = mgw_problem_bytes(problem, operation->kind, operation->release,
                                       operation->first, operation->first + operation->count);
    operation->bytes =
        has_wire(operation) ? mgw_wire_bytes(operation->wire, bytes / sizeof(float)) : bytes;
    return has_wire(operation)
               ? mgw_wire_seconds(problem->given, operation->kind, operation->wire, bytes)
               : mgw_cost_seconds(problem->given, operation->kind, bytes);
}

/* The model: one channel, with operations in order, each after its release rule holds. */
static mgw_status time_operations(const mgw_problem *problem, mgw_plan *plan, double *averaged_s,
                                  mgw_error *error)
{
    double compute_s = problem->ready_s[problem->n];
    double free_s = 0;
    for (size_t m = 0; m < plan->operation_count; m++) {
        mgw_operation *operation = &plan->operations[m];
        size_t last = operation->first + operation->count;
        operation->ready_s = find_ready(problem, operation, averaged_s);
        if (operation->ready_s == NOT_AVERAGED)
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "operation %zu, %s: earlier operations do not average its tensors", m,
                            mgw_collective_name(operation->kind));
        operation->start_s = mgw_later(operation->ready_s, free_s);
        if (operation->release == MGW_AFTER_BACKWARD)
            operation->start_s = mgw_later(operation->start_s, compute_s);
        free_s = operation->start_s + take(problem, operation);
        operation->end_s = free_s;
        if (averaged_s && mgw_collective_averages(operation->kind))
            for (size_t i = operation->first; i < last; i++)
                averaged_s[i] = free_s;
    }
    plan->compute_s = compute_s;
    plan->iteration_s = mgw_later(free_s, compute_s);
    if (!isfinite(free_s))
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s on %s: the predicted time is not finite",
                        plan->model, plan->cluster);
    return MGW_OK;
}

static mgw_status predict(const mgw_problem *problem, mgw_plan *plan, mgw_error *error)
{
    double *averaged_s = NULL;
    mgw_status status = make_averaged(plan, problem->n, &averaged_s, error);
    if (!status)
        status = time_operations(problem, plan, averaged_s, error);
    free(averaged_s);
    free(plan->stalls);
    plan->stalls = NULL;
    plan->stall_count = 0;
    if (!status && plan->overlaps_forward)
        status = mgw_plan_time_forward(problem, plan, error);
    plan->exposed_s = plan->iteration_s - plan->compute_s;
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

static mgw_status decide(const mgw_problem *problem, const mgw_policy *policy, mgw_plan *plan,
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
            (has_wire(o) && !mgw_collective_averages(o->kind)))
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
        status = c->policy ? decide(&problem, c->policy, plan, error)
                           : copy_operations(c, problem.n, plan, error);
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
    const content own = {.operations = plan->operations, .count = plan->operation_count};
    mgw_cost allowed = allow_wires(trace, cost, &own);
    mgw_status status = mgw_problem_init(&problem, trace, &allowed, error);
    if (!status)
        status = predict(&problem, plan, error);
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

uint64_t mgw_plan_bytes(const mgw_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t m = 0; m < plan->operation_count; m++)
        bytes += plan->operations[m].bytes;
    return bytes;
}
