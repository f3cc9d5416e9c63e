/* Between steps: which plan is best, by what was measured. Rank 0 decides; the others follow, and
 * all make sure that they follow the same. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/device.h"
#include "engine/engine.h"

/* The measured step as a trace of bytes: tensors may differ in dtype, but all are bytes. */
static mgw_status make_trace(const mgw_engine *engine, mgw_trace **out, mgw_error *error)
{
    size_t n = engine->tensor_count;
    const double *ready_s = engine->known_ready_s;
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

/* What rank 0 broadcasts: whether to switch, the plan's cuts, its prediction. */
typedef struct decision {
    uint64_t change;
    uint64_t after_backward;
    uint64_t count;
    uint64_t hash;
} decision;

/* T(M) as it is in steps, beside computation. Ownership: the caller frees *samples, after use. */
static mgw_status cost_in_steps(const mgw_engine *engine, mgw_cost *cost, mgw_sample **samples,
                                mgw_error *error)
{
    mgw_cluster_cost(engine->cluster, cost);
    cost->a_s *= engine->slowdown;
    cost->b_s_per_byte *= engine->slowdown;
    cost->worth_s = engine->worth_s;
    if (!cost->sample_count)
        return MGW_OK;
    *samples = malloc(cost->sample_count * sizeof **samples);
    if (!*samples)
        return mgw_fail_memory(error, "engine");
    for (size_t i = 0; i < cost->sample_count; i++)
        (*samples)[i] =
            (mgw_sample){cost->samples[i].bytes, cost->samples[i].seconds * engine->slowdown};
    cost->samples = *samples;
    return MGW_OK;
}

/* Makes the new plan; with one in force, keeps that unless the new one promises enough. */
static mgw_status decide(mgw_engine *engine, const mgw_trace *trace, mgw_plan **made,
                         mgw_error *error)
{
    mgw_cost cost;
    mgw_sample *samples = NULL;
    mgw_plan *plan = NULL;
    mgw_status status = cost_in_steps(engine, &cost, &samples, error);
    if (!status)
        status = mgw_plan_make(trace, &cost, &engine->policy, &plan, error);
    bool keep = false;
    if (!status && engine->plan && !strcmp(engine->plan->policy, plan->policy)) {
        status = mgw_plan_time(engine->plan, trace, &cost, error);
        double enough = 1 - engine->options.replan_percent / 100.0;
        keep = !status && plan->iteration_s >= engine->plan->iteration_s * enough;
    }
    if (status || keep) {
        mgw_plan_destroy(plan);
        plan = NULL;
    }
    free(samples);
    *made = plan;
    return status;
}

static void forget_window(mgw_engine *engine)
{
    if (engine->window) { /* what statistics show until there is more */
        engine->last_iteration_mean_s = engine->iteration_sum_s / (double)engine->window;
        engine->last_compute_mean_s = engine->compute_sum_s / (double)engine->window;
    }
    engine_recent_forget(engine);
    engine->since_look = 0;
    engine->window = 0;
    engine->iteration_sum_s = 0;
    engine->compute_sum_s = 0;
}

/* Every rank builds the plan from the cuts it was told, and all compare what they have built. */
static mgw_status adopt(mgw_engine *engine, const decision *told, size_t *ends, mgw_trace *trace,
                        mgw_plan *plan, mgw_error *error)
{
    unsigned differs = 0;
    uint64_t hash = engine_hash(ends, told->count * sizeof *ends);
    if (hash != told->hash)
        hash = ~told->hash; /* damaged on the way: all shall see it */
    mgw_status status = engine_same_hash(engine, hash, &differs, error);
    if (!status && differs)
        status = mgw_fail(error, MGW_ERR_PEER, "rank %u has another plan than rank 0", differs);
    if (!status)
        status = engine_cut(engine, ends, told->count, error);
    if (status)
        return status;
    engine->after_backward = told->after_backward;
    mgw_plan_destroy(engine->plan);
    mgw_trace_destroy(engine->trace);
    engine->plan = plan;
    engine->trace = trace;
    engine->plans++;
    return MGW_OK;
}

/* Rank 0's decision, as everybody hears it. */
static mgw_status hear(mgw_engine *engine, const mgw_plan *plan, decision *told, size_t *ends,
                       mgw_error *error)
{
    *told = (decision){0};
    if (engine->rank == 0 && plan) {
        for (size_t m = 0; m < plan->message_count; m++)
            ends[m] = plan->messages[m].first + plan->messages[m].count;
        *told = (decision){.change = 1,
                           .after_backward = engine->policy.kind == MGW_NAIVE,
                           .count = plan->message_count,
                           .hash = engine_hash(ends, plan->message_count * sizeof *ends)};
    }
    mgw_status status = mgw_transport_broadcast(engine->transport, told, sizeof *told, 0, error);
    if (!status && told->count > engine->tensor_count)
        status = mgw_fail(error, MGW_ERR_PEER, "rank 0's plan has too many messages");
    if (!status)
        status =
            mgw_transport_broadcast(engine->transport, ends, told->count * sizeof *ends, 0, error);
    return status;
}

mgw_status engine_replan(mgw_engine *engine, mgw_error *error)
{
    size_t n = engine->tensor_count;
    size_t *ends = calloc(n, sizeof *ends);
    mgw_trace *trace = NULL;
    mgw_plan *plan = NULL;
    decision told = {0};
    mgw_status status = ends ? MGW_OK : mgw_fail_memory(error, "engine");
    if (!status && engine->device)
        status = engine_device_settle(engine, error);
    if (!status)
        status = engine_recent_gather(engine, error);
    if (!status)
        status = make_trace(engine, &trace, error);
    /* Ranks other than 0 plan too, for their statistics; they follow what they are told. */
    if (!status)
        status = decide(engine, trace, &plan, error);
    if (!status)
        status = hear(engine, plan, &told, ends, error);
    if (!status && told.change) {
        if (!plan) { /* cannot be, with the same numbers; but rank 0's word counts */
            status = mgw_fail(error, MGW_ERR_PEER, "rank 0 has a plan that rank %u did not find",
                              engine->rank);
        } else {
            status = adopt(engine, &told, ends, trace, plan, error);
            if (!status) {
                trace = NULL;
                plan = NULL;
            }
        }
    }
    if (!status)
        forget_window(engine);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
    free(ends);
    return status;
}

static mgw_status replan_for_policy(mgw_engine *engine, mgw_error *error)
{
    return engine->steps ? engine_replan(engine, error) : MGW_OK;
}

mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy, mgw_error *error)
{
    if (engine->failed || !engine->started || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "set_policy: only between steps");
    mgw_status status = mgw_policy_parse(policy, &engine->policy, error);
    return status ? status : engine_run(engine, replan_for_policy, error);
}
