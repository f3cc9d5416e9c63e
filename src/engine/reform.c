/* Continues with the surviving workers: makes a new engine with the same tensors and callbacks. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/parameters.h"
#include "transport/transport.h"

/* Maximum number of attempts: if another worker dies meanwhile, the survivors agree again. */
enum { ROUNDS = 8 };

/* Passes the tensors and callbacks to the new engine. */
static mgw_status tell_again(const mgw_engine *old, mgw_engine *engine, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < old->arena.count; i++) {
        const engine_tensor *tensor = &old->arena.tensors[i];
        unsigned id = 0;
        status = mgw_engine_add(engine, mgw_names_get(old->arena.names, i), tensor->count,
                                tensor->dtype, &id, error);
    }
    const engine_parameters *p = old->parameters;
    if (!status && p && p->update)
        status = mgw_engine_on_update(engine, p->update, p->update_context, error);
    if (!status && p && p->on_reshard)
        status = mgw_engine_on_reshard(engine, p->on_reshard, p->reshard_context, error);
    return status;
}

static mgw_status bind_again(const mgw_engine *old, mgw_engine *engine, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < old->arena.count; i++)
        if (old->arena.tensors[i].bound)
            status = mgw_engine_bind(engine, (unsigned)i, old->arena.tensors[i].bound, error);
    engine->stream = old->stream;
    return status;
}

/* One attempt, with the workers that survived at its start. */
static mgw_status meet(const mgw_engine *old, const mgw_engine_options *given,
                       const mgw_survivors *left, mgw_engine **out, mgw_error *error)
{
    mgw_engine_options options = *given;
    const char *job = options.transport.job ? options.transport.job : getenv("MGWFBP_JOB");
    char name[512];
    snprintf(name, sizeof name, "%.400s~%u.%u", job ? job : "", old->reforms + 1, left->round);
    options.transport.job = name;
    options.transport.size = left->size;
    options.transport.rank = left->rank;
    if (left->address[0])
        options.transport.address = left->address;
    options.transport.join_s = left->join_s;
    mgw_engine *engine = NULL;
    mgw_status status = mgw_engine_open(&options, &engine, error);
    if (!status)
        engine->options.transport.job = NULL; /* the name is only valid in this call */
    if (!status)
        status = tell_again(old, engine, error);
    if (!status)
        status = mgw_engine_start(engine, error);
    if (!status)
        status = bind_again(old, engine, error);
    if (status) {
        mgw_engine_close(engine);
        return status;
    }
    engine->reforms = old->reforms + 1;
    *out = engine;
    return MGW_OK;
}

mgw_status mgw_engine_reform(mgw_engine *engine, const mgw_engine_options *options,
                             mgw_engine **out, mgw_error *error)
{
    mgw_status status = engine_check(engine, "reform", error);
    if (status)
        return status;
    if (engine->in_step || !engine->failed)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "reform: %s",
                        engine->in_step ? "a step is still running" : "no worker was lost");
    mgw_engine_options given = options ? *options : (mgw_engine_options){0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        mgw_survivors left = {0};
        status = mgw_transport_survive(engine->transport, round, &left, error);
        if (status)
            return status;
        status = meet(engine, &given, &left, out, error);
        if (status != MGW_ERR_PEER && status != MGW_ERR_TIMEOUT)
            break;
    }
    if (!status)
        mgw_engine_close(engine);
    return status;
}
