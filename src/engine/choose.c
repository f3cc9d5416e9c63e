/* Which plan is best, by what was measured. */
#include <stdlib.h>

#include "base/status.h"
#include "engine/engine.h"

/* A step as a trace of bytes: tensors may differ in dtype, but all are bytes. */
static mgw_status make_trace(const mgw_engine *engine, const double *ready_s, mgw_trace **out,
                             mgw_error *error)
{
    size_t n = engine->tensor_count;
    mgw_tensor *tensors = malloc(n * sizeof *tensors);
    const char **names = malloc(n * sizeof *names);
    mgw_status status = tensors && names ? MGW_OK : mgw_fail_memory(error, "engine");
    for (size_t i = 0; !status && i < n; i++) {
        const engine_tensor *tensor = &engine->tensors[i];
        size_t width = tensor->dtype == MGW_F32 ? mgw_dtype_bytes(engine->wire)
                                                : mgw_dtype_bytes(tensor->dtype);
        tensors[i] = (mgw_tensor){.count = (tensor->count * width + 1) / 2, /* as f16 */
                                  .backward_s = ready_s[i] - (i ? ready_s[i - 1] : 0),
                                  .forward_start_s = MGW_TIME_UNKNOWN};
        names[i] = mgw_names_get(engine->names, i);
    }
    if (!status)
        status = mgw_trace_create("measured", MGW_F16, 0, n, names, tensors, out, error);
    free(tensors);
    free((void *)names);
    return status;
}

/* T(M) as it is in steps, beside computation. Ownership: the caller frees *samples, after use. */
static mgw_status cost_in_steps(const mgw_engine *engine, mgw_cost *cost, mgw_sample **samples,
                                mgw_error *error)
{
    mgw_cluster_cost(engine->cluster, cost);
    mgw_curve *curve = &cost->of[MGW_ALL_REDUCE];
    curve->a_s *= engine->slowdown;
    curve->b_s_per_byte *= engine->slowdown;
    cost->worth_s = engine->worth_s;
    if (!curve->sample_count)
        return MGW_OK;
    *samples = malloc(curve->sample_count * sizeof **samples);
    if (!*samples)
        return mgw_fail_memory(error, "engine");
    for (size_t i = 0; i < curve->sample_count; i++)
        (*samples)[i] =
            (mgw_sample){curve->samples[i].bytes, curve->samples[i].seconds * engine->slowdown};
    curve->samples = *samples;
    return MGW_OK;
}

/* What plans are made from: the median step first, then the steps one by one. */
typedef struct evidence {
    mgw_trace *traces[1 + ENGINE_RECENT];
    size_t count; /* of traces */
    mgw_cost cost;
    mgw_sample *samples;
} evidence;

static void forget_evidence(evidence *e)
{
    for (size_t i = 0; i < e->count; i++)
        mgw_trace_destroy(e->traces[i]);
    free(e->samples);
}

static mgw_status gather_evidence(const mgw_engine *engine, evidence *e, mgw_error *error)
{
    *e = (evidence){0};
    mgw_status status = cost_in_steps(engine, &e->cost, &e->samples, error);
    for (size_t i = 0; !status && i < 1 + engine->known_steps; i++) {
        const double *ready_s =
            i ? engine->step_ready_s + (i - 1) * engine->tensor_count : engine->known_ready_s;
        status = make_trace(engine, ready_s, &e->traces[i], error);
        e->count += !status;
    }
    if (status)
        forget_evidence(e);
    return status;
}

/* What steps take with the plan: on average over those that were seen, or else the median one; and
 * with what its messages take from computation. */
static mgw_status try_plan(const evidence *e, mgw_plan *plan, double *mean_s, mgw_error *error)
{
    size_t first = e->count > 1;
    double sum_s = 0;
    mgw_status status = MGW_OK;
    for (size_t i = first; !status && i < e->count; i++) {
        status = mgw_plan_time(plan, e->traces[i], &e->cost, error);
        sum_s += plan->iteration_s;
    }
    *mean_s = sum_s / (double)(e->count - first) + e->cost.worth_s * (double)plan->operation_count;
    return status;
}

/*
 * What is best for the median step cuts as late as just fits there, which is too late in every
 * other one. So what is best for each of the steps is tried on all of them. The other policies do
 * what their rule says; and on a measured curve planning takes long, and is done once.
 */
static mgw_status find_plan(const mgw_engine *engine, const evidence *e, mgw_plan **best,
                            double *best_s, mgw_error *error)
{
    bool tries = engine->policy.kind == MGW_OPTIMAL && !e->cost.of[MGW_ALL_REDUCE].sample_count;
    size_t candidates = tries ? e->count : 1;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < candidates; i++) {
        mgw_plan *plan = NULL;
        double mean_s = 0;
        status = mgw_plan_make(e->traces[i], &e->cost, &engine->policy, &plan, error);
        if (!status)
            status = try_plan(e, plan, &mean_s, error);
        if (!status && (!*best || mean_s < *best_s)) {
            mgw_plan_destroy(*best);
            *best = plan;
            *best_s = mean_s;
            plan = NULL;
        }
        mgw_plan_destroy(plan);
    }
    return status;
}

/* Whether the plan in force stays: unless the new one promises enough of a usual step. */
static mgw_status compare(mgw_engine *engine, const evidence *e, double new_s, bool *stays,
                          mgw_error *error)
{
    double now_s = 0;
    mgw_status status = try_plan(e, engine->plan, &now_s, error);
    if (!status) /* predictions are of the median step */
        status = mgw_plan_time(engine->plan, e->traces[0], &e->cost, error);
    double enough_s = engine->plan->iteration_s * engine->options.replan_percent / 100;
    *stays = now_s - new_s <= enough_s;
    return status;
}

mgw_status engine_choose(mgw_engine *engine, bool may_stay, mgw_trace **trace, mgw_plan **plan,
                         mgw_error *error)
{
    evidence e;
    mgw_plan *best = NULL;
    double best_s = 0;
    bool stays = false;
    mgw_status status = gather_evidence(engine, &e, error);
    if (status)
        return status;
    status = find_plan(engine, &e, &best, &best_s, error);
    if (!status && may_stay && engine->plan)
        status = compare(engine, &e, best_s, &stays, error);
    if (!status)
        status = mgw_plan_time(best, e.traces[0], &e.cost, error);
    if (!status && stays) { /* its times are of this trace now */
        mgw_trace *before = engine->trace;
        engine->trace = e.traces[0];
        e.traces[0] = before;
    } else if (!status) {
        *plan = best;
        *trace = e.traces[0];
        best = NULL;
        e.traces[0] = NULL;
    }
    mgw_plan_destroy(best);
    forget_evidence(&e);
    return status;
}
