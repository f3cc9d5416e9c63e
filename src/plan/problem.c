/* The input of a planner: prefix sums of times and sizes; and the lower bound. */
#include "plan/problem.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"
#include "plan/beside.h"

/* For all kinds that average, T becomes the minimum over the wires. */
static mgw_status choose_wires(mgw_problem *problem, mgw_error *error)
{
    mgw_status status = MGW_OK;
    problem->narrowed = *problem->given;
    problem->cost = &problem->narrowed;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        mgw_curve *curve = &problem->narrowed.of[kind];
        if (!mgw_collective_averages((mgw_collective)kind))
            continue;
        *curve = (mgw_curve){0}; /* the samples are not ours to free */
        if (!status)
            status = mgw_wire_curve(problem->given, (mgw_collective)kind, curve, error);
    }
    return status;
}

mgw_status mgw_problem_init(mgw_problem *problem, const mgw_trace *trace, const mgw_cost *cost,
                            mgw_error *error)
{
    size_t n = trace->tensor_count;
    *problem = (mgw_problem){0};
    if (n == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the trace has no tensors", trace->model);
    *problem = (mgw_problem){.n = n,
                             .ready_s = malloc((n + 1) * sizeof(double)),
                             .prefix = malloc((n + 1) * sizeof(uint64_t)),
                             .given = cost,
                             .cost = cost,
                             .trace = trace,
                             .forward_s = trace->forward_s,
                             .gradient_bytes = mgw_dtype_bytes(trace->gradient_dtype),
                             .parameter_bytes = mgw_dtype_bytes(trace->parameter_dtype)};
    if (!problem->ready_s || !problem->prefix) {
        mgw_problem_fini(problem);
        return mgw_fail_memory(error, trace->model);
    }
    problem->ready_s[0] = 0;
    problem->prefix[0] = 0;
    double now = trace->forward_s;
    for (size_t j = 1; j <= n; j++) {
        now += trace->tensors[j - 1].backward_s;
        problem->ready_s[j] = now;
        problem->prefix[j] =
            problem->prefix[j - 1] + trace->tensors[j - 1].count * problem->gradient_bytes;
    }
    bool narrows = cost->wires & ~(1u << MGW_F32);
    mgw_status status = narrows ? choose_wires(problem, error) : MGW_OK;
    if (status)
        mgw_problem_fini(problem);
    return status;
}

void mgw_problem_fini(mgw_problem *problem)
{
    free(problem->ready_s);
    free(problem->prefix);
    for (int kind = 0; problem->cost == &problem->narrowed && kind < MGW_COLLECTIVE_COUNT; kind++)
        if (mgw_collective_averages((mgw_collective)kind))
            free((void *)problem->narrowed.of[kind].samples);
    *problem = (mgw_problem){0};
}

double mgw_problem_needed(const mgw_problem *problem, size_t j)
{
    double needed_s = problem->trace->tensors[j - 1].forward_start_s;
    if (needed_s == MGW_TIME_UNKNOWN)
        return 0;
    bool never = needed_s == MGW_NEVER_NEEDED;
    return never || needed_s > problem->forward_s ? problem->forward_s : needed_s;
}

/*
 * The minimum channel time of any split of `bytes`: bytes times the best time per byte. On a + b*M
 * one message is best; a measured curve may have a better rate at one of its samples, and between
 * two samples the rate is best at one of the two.
 */
static double least_seconds(const mgw_cost *cost, uint64_t bytes)
{
    const mgw_curve *curve = &cost->of[MGW_ALL_REDUCE];
    double least = mgw_cost_seconds(cost, MGW_ALL_REDUCE, bytes);
    for (size_t i = 0; i < curve->sample_count; i++) {
        uint64_t size = curve->samples[i].bytes;
        double split = size && size < bytes
                           ? curve->samples[i].seconds * ((double)bytes / (double)size)
                           : least;
        least = split < least ? split : least;
    }
    return least;
}

double mgw_problem_least_beside(const mgw_problem *problem, double sent_s, double from_s)
{
    double message = mgw_later(problem->given->beside.message, 1);
    double compute = mgw_later(problem->given->beside.compute, 1);
    double all_s = problem->ready_s[problem->n];
    /* While both run, this share of the time is gained. */
    double gained = mgw_later(1 / message + 1 / compute - 1, 0);
    double both_s = compute * (all_s - from_s);
    both_s = both_s < message * sent_s ? both_s : message * sent_s;
    return all_s + sent_s - gained * both_s;
}

double mgw_problem_lower_bound(const mgw_problem *problem)
{
    size_t n = problem->n;
    double after_last = problem->ready_s[n] + mgw_problem_seconds(problem, n - 1, n);
    double sent_s = least_seconds(problem->cost, problem->prefix[n]);
    double bound_s = mgw_later(after_last, problem->ready_s[1] + sent_s);
    if (mgw_beside_matters(&problem->given->beside))
        bound_s =
            mgw_later(bound_s, mgw_problem_least_beside(problem, sent_s, problem->ready_s[1]));
    return bound_s;
}

mgw_status mgw_lower_bound(const mgw_trace *trace, const mgw_cost *cost, double *out_s,
                           mgw_error *error)
{
    mgw_problem problem;
    mgw_status status = mgw_problem_init(&problem, trace, cost, error);
    if (!status)
        *out_s = mgw_problem_lower_bound(&problem);
    mgw_problem_fini(&problem);
    return status;
}
