/* Between steps: a new plan, where a better one was found. Rank 0 decides; the others follow, and
 * all make sure that they follow the same. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/device.h"
#include "engine/engine.h"

/* What rank 0 broadcasts: whether to switch, the plan's cuts, its prediction. */
typedef struct decision {
    uint64_t change;
    uint64_t after_backward;
    uint64_t count;
    uint64_t hash;
} decision;

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
        for (size_t m = 0; m < plan->operation_count; m++)
            ends[m] = plan->operations[m].first + plan->operations[m].count;
        *told = (decision){.change = 1,
                           .after_backward = plan->operations[0].release == MGW_AFTER_BACKWARD,
                           .count = plan->operation_count,
                           .hash = engine_hash(ends, plan->operation_count * sizeof *ends)};
    }
    mgw_status status = mgw_transport_broadcast(engine->transport, told, sizeof *told, 0, error);
    if (!status && told->count > engine->tensor_count)
        status = mgw_fail(error, MGW_ERR_PEER, "rank 0's plan has too many messages");
    if (!status)
        status =
            mgw_transport_broadcast(engine->transport, ends, told->count * sizeof *ends, 0, error);
    return status;
}

static mgw_status replan(mgw_engine *engine, bool may_stay, mgw_error *error)
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
    /* Ranks other than 0 plan too, for their statistics; they follow what they are told. */
    if (!status)
        status = engine_choose(engine, may_stay, &trace, &plan, error);
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

mgw_status engine_replan(mgw_engine *engine, mgw_error *error)
{
    return replan(engine, true, error);
}

static mgw_status replan_for_policy(mgw_engine *engine, mgw_error *error)
{
    return engine->steps ? replan(engine, false, error) : MGW_OK;
}

mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy, mgw_error *error)
{
    if (engine->failed || !engine->started || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "set_policy: only between steps");
    mgw_status status = mgw_policy_parse(policy, &engine->policy, error);
    return status ? status : engine_run(engine, replan_for_policy, error);
}
