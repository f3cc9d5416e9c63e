/* The current plan: chosen by the tuner, or set by the program. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "plan/places.h"
#include "transport/transport.h"

/* Allocates memory for the wire formats of a plan. The option `wire` applies to all messages and
 * takes precedence. */
static mgw_status admit_wires(mgw_engine *engine, const mgw_operation *operations, size_t count,
                              mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && engine->wire == MGW_F32 && i < count; i++)
        status = engine_allow_wire(engine, operations[i].wire, error);
    return status;
}

mgw_status engine_adopt(mgw_engine *engine, mgw_error *error)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(engine->tuner, &count);
    mgw_status status = admit_wires(engine, operations, count, error);
    if (!status)
        status = mgw_flow_adopt(engine->flow, operations, count, error);
    if (!status && engine->parameters)
        status = engine_parameters_adopt(engine, operations, count, error);
    return status;
}

static mgw_status look(mgw_engine *engine, mgw_error *error)
{
    bool may_stay = engine->thread.may_stay;
    bool changed = false;
    mgw_exchange exchange = mgw_transport_exchange(engine->transport);
    mgw_transport_intend(engine->transport, MGW_FOR_LOOK, false);
    mgw_status status = engine_at_place(engine, engine->place->settle, error);
    if (!status)
        status = mgw_tuner_look(engine->tuner, &exchange, may_stay, &changed, error);
    return status || !changed ? status : engine_adopt(engine, error);
}

/* Looks for a better plan, and moves the program's state with it. */
mgw_status engine_look(mgw_engine *engine, bool may_stay, mgw_error *error)
{
    engine->thread.may_stay = may_stay;
    mgw_status status = engine_run(engine, look, error);
    return status ? status : engine_reshard(engine, error);
}

/* The gathers of the last step are in flight when the new plan is adopted: before the new owners
 * use their shards, the caller's stream waits for them. */
mgw_status engine_take_turn(mgw_engine *engine, mgw_error *error)
{
    if (mgw_tuner_due(engine->tuner))
        return engine_look(engine, true, error);
    if (!mgw_tuner_turn(engine->tuner))
        return MGW_OK;
    mgw_status status = engine_run(engine, engine_adopt, error);
    if (!status && engine->parameters)
        status = engine_at_place(engine, engine->place->drain, error);
    engine->failed = engine->failed || status; /* the new plan is only partly in force */
    return status ? status : engine_reshard(engine, error);
}

void engine_name_policy(mgw_engine *engine, const char *name)
{
    mgw_policy policy;
    if (name && !mgw_policy_parse(name, &policy, NULL))
        mgw_policy_name(&policy, engine->policy);
    else
        snprintf(engine->policy, sizeof engine->policy, "given");
}

mgw_status engine_pin(mgw_engine *engine, mgw_error *error)
{
    const char *path = engine->options.plan;
    mgw_error inner = {0};
    uint64_t hash = 0;
    unsigned rank = 0;
    mgw_status own = mgw_tuner_load_plan(engine->tuner, path, &hash, &inner);
    mgw_status status = engine_first_rank(engine, own != MGW_OK, &rank, error);
    if (own && !status) /* a rank that fails reports why, the others report which rank */
        return mgw_fail(error, own, "rank %u: %s%s", engine->rank,
                        path == getenv("MGWFBP_PLAN") ? "MGWFBP_PLAN: " : "", inner.message);
    if (!status && rank < engine->size)
        return mgw_fail(error, MGW_ERR_PEER, "rank %u cannot use its plan file", rank);
    if (!status)
        status = engine_same_hash(engine, hash, &rank, error);
    if (!status && rank)
        status = mgw_fail(error, MGW_ERR_PEER, "%s: rank %u has a different plan than rank 0", path,
                          rank);
    return status;
}

/* ---- Requests of the program ---- */

static mgw_status check_between_steps(mgw_engine *engine, const char *call, mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (engine->failed || !engine->started || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: only between steps", call);
    return engine_check_updates(engine, call, error);
}

mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy, mgw_error *error)
{
    mgw_status status = check_between_steps(engine, "set_policy", error);
    if (!status && !policy)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "set_policy: the name is null");
    if (!status)
        status = engine_check_policy(engine, policy, error);
    if (!status)
        status = mgw_tuner_set_policy(engine->tuner, policy, error);
    if (!status)
        engine_name_policy(engine, policy);
    if (status || !mgw_flow_step(engine->flow)) /* nothing was measured yet */
        return status;
    return engine_look(engine, false, error);
}

/* Uses the program's plan, which must be the same on all workers. */
static mgw_status take_given(mgw_engine *engine, mgw_error *error)
{
    const mgw_operation *given = engine->thread.given;
    size_t count = engine->thread.given_count;
    uint64_t hash = mgw_plan_hash(given, count);
    unsigned differs = 0;
    mgw_transport_intend(engine->transport, MGW_FOR_PLAN, false);
    mgw_status status = engine_at_place(engine, engine->place->settle, error);
    if (!status)
        status = engine_same_hash(engine, hash, &differs, error);
    if (!status && differs)
        status = mgw_fail(error, MGW_ERR_PEER, "set_plan: rank %u has a different plan than rank 0",
                          differs);
    if (!status)
        status = mgw_tuner_set_operations(engine->tuner, given, count, error);
    if (!status)
        engine_name_policy(engine, NULL);
    return status ? status : engine_adopt(engine, error);
}

mgw_status mgw_engine_set_plan(mgw_engine *engine, const mgw_operation *operations, size_t count,
                               mgw_error *error)
{
    mgw_status status = check_between_steps(engine, "set_plan", error);
    if (!status && !operations)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "set_plan: the operations are null");
    for (size_t i = 0; !status && i < count; i++)
        if (operations[i].kind != MGW_ALL_REDUCE && !engine->parameters)
            status = mgw_fail(error, MGW_ERR_UNSUPPORTED,
                              "set_plan: operation %zu is half of an all-reduce, but the engine "
                              "does not keep parameters",
                              i + 1);
    mgw_places places = {0};
    if (!status)
        status = mgw_places_init(engine->arena.count, operations, count, &places, error);
    mgw_places_fini(&places);
    if (!status)
        status = engine_check_order(operations, count, error);
    if (status)
        return status;
    engine->thread.given = operations;
    engine->thread.given_count = count;
    status = engine_run(engine, take_given, error);
    return status ? status : engine_reshard(engine, error);
}
