/* A step in a large job: stragglers, failures, price. */
#include <mgwfbp/outlook.h>

#include <math.h>
#include <stdlib.h>

#include "sim/straggle.h"

/* ---- Stragglers ---- */

typedef struct timing {
    const mgw_trace *trace;
    const mgw_cost *cost;
    mgw_plan *plan;
    mgw_trace scaled; /* a shallow copy with its own tensors */
} timing;

/* Multiplies all computation times by x, the factor of the slowest worker. */
static void scale(timing *t, double x)
{
    t->scaled.forward_s = t->trace->forward_s * x;
    for (size_t i = 0; i < t->trace->tensor_count; i++) {
        mgw_tensor tensor = t->trace->tensors[i];
        tensor.backward_s *= x;
        if (tensor.forward_start_s > 0) /* known, and not at the start */
            tensor.forward_start_s *= x;
        t->scaled.tensors[i] = tensor;
    }
}

static mgw_status time_step(void *context, double x, double *iteration_s, mgw_error *error)
{
    timing *t = context;
    scale(t, x);
    mgw_status status = mgw_plan_time(t->plan, &t->scaled, t->cost, error);
    *iteration_s = t->plan->iteration_s;
    return status;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Measured steps as factors of the trace's time, sorted. Ownership: the caller frees *out. */
static mgw_status find_factors(const mgw_trace *trace, double **out, double *mean, mgw_error *error)
{
    double compute_s = mgw_trace_compute_s(trace);
    if (trace->step_count == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "%s: has no measured steps (steps_s); give --jitter a percentage instead",
                        trace->model);
    if (!(compute_s > 0))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: has no computation", trace->model);
    *out = malloc(trace->step_count * sizeof **out);
    if (!*out)
        return mgw_fail_memory(error, trace->model);
    *mean = 0;
    for (size_t i = 0; i < trace->step_count; i++) {
        (*out)[i] = trace->steps_s[i] / compute_s;
        *mean += (*out)[i] / (double)trace->step_count;
    }
    qsort(*out, trace->step_count, sizeof **out, compare);
    return MGW_OK;
}

static mgw_status same(void *context, double x, double *y, mgw_error *error)
{
    (void)context;
    (void)error;
    *y = x;
    return MGW_OK;
}

/* Plans for the expected slowest worker, as an engine would. */
static mgw_status plan_step(timing *t, const mgw_policy *policy, const mgw_slowest *slowest,
                            mgw_outlook *out, mgw_error *error)
{
    double mean = 0;
    mgw_status status = mgw_slowest_mean(slowest, same, NULL, &mean, &out->slowest, error);
    scale(t, out->slowest);
    if (!status)
        status = mgw_plan_make(&t->scaled, t->cost, policy, &t->plan, error);
    if (!status)
        status = mgw_slowest_mean(slowest, time_step, t, &out->iteration_s, &mean, error);
    return status;
}

/* *mean: the mean factor of one worker. */
static mgw_status straggle(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                           const mgw_conditions *conditions, mgw_outlook *out, double *mean,
                           mgw_error *error)
{
    timing t = {.trace = trace, .cost = cost, .scaled = *trace};
    mgw_slowest slowest = {.kind = conditions->jitter,
                           .deviation = conditions->deviation,
                           .factor_count = trace->step_count,
                           .workers = cost->workers};
    double *factors = NULL;
    mgw_status status = MGW_OK;
    *mean = 1;
    t.scaled.tensors = malloc(trace->tensor_count * sizeof *t.scaled.tensors);
    if (!t.scaled.tensors)
        return mgw_fail_memory(error, trace->model);
    if (conditions->jitter == MGW_JITTER_MEASURED)
        status = find_factors(trace, &factors, mean, error);
    slowest.factors = factors;
    if (!status)
        status = plan_step(&t, policy, &slowest, out, error);
    mgw_plan_destroy(t.plan);
    free(t.scaled.tensors);
    free(factors);
    return status;
}

/* ---- Failures ---- */

/* Checkpoints are made between steps: chooses the better of the two numbers of steps around the
 * best interval. */
static void checkpoint(const mgw_conditions *c, mgw_outlook *out)
{
    double wanted = c->interval_s > 0    ? c->interval_s
                    : out->failure_s > 0 ? mgw_best_interval(out->failure_s, c->checkpoint_s)
                                         : 0;
    if (c->interval_s <= 0 && out->failure_s <= 0) /* without failures, no checkpoints are needed */
        return;
    double fewer = fmax(1, floor(wanted / out->iteration_s));
    double best = 0;
    for (int more = 0; more < 2; more++) {
        double steps = fewer + more;
        double share = mgw_training_share(out->failure_s, c->checkpoint_s, c->restart_s,
                                          steps * out->iteration_s);
        if (more && (share <= best || c->interval_s > 0))
            break;
        best = share;
        out->interval_steps = steps;
    }
    out->trains = best;
    out->interval_s = out->interval_steps * out->iteration_s;
    if (out->failure_s > 0) {
        out->daly_s = mgw_daly_interval(out->failure_s, c->checkpoint_s);
        out->daly_trains =
            mgw_training_share(out->failure_s, c->checkpoint_s, c->restart_s, out->daly_s);
    }
}

/* ---- The outlook ---- */

/* About a million years, in seconds; larger values would lose precision. */
static const double longest_s = 3e13;

static bool is_time(double value)
{
    return value >= 0 && value <= longest_s;
}

static mgw_status check(const mgw_conditions *c, mgw_error *error)
{
    if (!is_time(c->deviation) || c->deviation > 10)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "jitter: must be from 0 to 10 times a step");
    if (!is_time(c->mtbf_s) || !is_time(c->checkpoint_s) || !is_time(c->restart_s) ||
        !is_time(c->interval_s) || !is_time(c->price))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "failures: times and prices must not be negative, and at most %g",
                        longest_s);
    return MGW_OK;
}

mgw_status mgw_outlook_make(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                            const mgw_conditions *conditions, mgw_outlook *out, mgw_error *error)
{
    double mean = 1;
    *out = (mgw_outlook){.slowest = 1, .trains = 1};
    mgw_status status = check(conditions, error);
    if (!status)
        status = straggle(trace, cost, policy, conditions, out, &mean, error);
    if (status)
        return status;
    double workers = cost->workers;
    if (conditions->mtbf_s > 0)
        out->failure_s = conditions->mtbf_s / workers;
    if (out->iteration_s > 0)
        checkpoint(conditions, out);
    double step_s = out->iteration_s > 0 ? out->iteration_s / out->trains : 0;
    out->efficiency = step_s > 0 ? mean * mgw_trace_compute_s(trace) / step_s : 1;
    out->speedup = workers * out->efficiency;
    double batch = (double)trace->batch * workers;
    out->samples_per_s = step_s > 0 ? batch / step_s : 0;
    if (conditions->samples)
        out->epoch_s = step_s * ceil((double)conditions->samples / batch);
    out->epoch_cost = out->epoch_s / 3600 * workers * conditions->price;
    return MGW_OK;
}
