/* Parameters kept by the engine: their memory, and the ownership of shards under a plan. */
#include "engine/parameters.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transport/transport.h"

/* ---- Opening and closing ---- */

mgw_status engine_parameters_open(mgw_engine *engine, mgw_error *error)
{
    const mgw_engine_options *o = &engine->options;
    if (!o->keeps_parameters)
        return o->parameters ? mgw_fail(error, MGW_ERR_ARGUMENT,
                                        "parameters: '%.40s', but the engine does not keep them",
                                        o->parameters)
                             : MGW_OK;
    if (o->servers > 0)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED, "parameters: cannot be used with servers");
    engine_parameters *p = calloc(1, sizeof *p);
    if (!p)
        return mgw_fail_memory(error, "engine");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->news, NULL);
    engine->parameters = p;
    return engine_read_dtype("parameters", o->parameters, &p->dtype, error);
}

mgw_status engine_check_policy(const mgw_engine *engine, const char *name, mgw_error *error)
{
    mgw_policy policy;
    mgw_status status = mgw_policy_parse(name, &policy, error);
    if (status || engine->parameters || !mgw_policy_gathers(&policy))
        return status;
    return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                    "policy %.60s: its plans gather parameters, and the engine does not keep them "
                    "(option keeps_parameters)",
                    name);
}

void engine_ownership_fini(engine_ownership *ownership)
{
    mgw_shards_destroy(ownership->shards);
    free(ownership->averages);
    free(ownership->gathered_by);
    free(ownership->own);
    free(ownership->by_operation);
    free(ownership->begins);
    *ownership = (engine_ownership){0};
}

void engine_parameters_close(mgw_engine *engine)
{
    engine_parameters *p = engine->parameters;
    if (!p)
        return;
    engine_ownership_fini(&p->now);
    engine_ownership_fini(&p->next);
    engine_ownership_fini(&p->before);
    pthread_cond_destroy(&p->news);
    pthread_mutex_destroy(&p->lock);
    free(p->is_said);
    free(p->spans[0]);
    free(p->spans[1]);
    free(p->needs.need_s);
    free(p->needs.stalls);
    free(p->needs.ready_s);
    free(p);
}

static mgw_status check_before_start(const mgw_engine *engine, const char *call, mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (engine->parameters && !engine->started)
        return MGW_OK;
    return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                    engine->parameters ? "only before mgw_engine_start"
                                       : "the engine does not keep parameters");
}

mgw_status mgw_engine_on_update(mgw_engine *engine, mgw_update *update, void *context,
                                mgw_error *error)
{
    mgw_status status = check_before_start(engine, "on_update", error);
    if (!status) {
        engine->parameters->update = update;
        engine->parameters->update_context = context;
    }
    return status;
}

mgw_status mgw_engine_on_reshard(mgw_engine *engine, mgw_on_reshard *on_reshard, void *context,
                                 mgw_error *error)
{
    mgw_status status = check_before_start(engine, "on_reshard", error);
    if (!status) {
        engine->parameters->on_reshard = on_reshard;
        engine->parameters->reshard_context = context;
    }
    return status;
}

/* ---- Memory ---- */

mgw_dtype mgw_engine_parameter_dtype(const mgw_engine *engine, mgw_dtype dtype)
{
    return engine && engine->parameters && dtype == MGW_F32 ? engine->parameters->dtype : dtype;
}

static size_t bytes_of(const mgw_engine *engine, mgw_dtype dtype)
{
    size_t element = mgw_dtype_bytes(mgw_engine_parameter_dtype(engine, dtype));
    return mgw_layout_length(engine->arena.layout, dtype) * element;
}

uint64_t engine_parameter_bytes(const mgw_engine *engine)
{
    uint64_t bytes = 0;
    for (int d = 0; engine->parameters && engine->arena.layout && d < DTYPES; d++)
        bytes += bytes_of(engine, (mgw_dtype)d);
    return bytes;
}

double engine_parameter_ratio(const mgw_engine *engine)
{
    double gathered = (double)engine_parameter_bytes(engine);
    double reduced = 0;
    for (int d = 0; d < DTYPES; d++)
        reduced += (double)(mgw_layout_length(engine->arena.layout, (mgw_dtype)d) *
                            mgw_dtype_bytes(engine_travels_as(engine, (mgw_dtype)d)));
    if (!engine->parameters || reduced == 0)
        return engine->parameters ? 1 : 0;
    return gathered < 0.7 * reduced ? 0.5 : gathered > 1.4 * reduced ? 2 : 1;
}

mgw_status engine_parameters_allocate(mgw_engine *engine, mgw_error *error)
{
    engine_parameters *p = engine->parameters;
    size_t n = engine->arena.count;
    p->is_said = calloc(2 * n, sizeof *p->is_said);
    p->spans[0] = calloc(2 * n, sizeof *p->spans[0]);
    p->spans[1] = calloc(2 * n, sizeof *p->spans[1]);
    p->needs.need_s = calloc(n, sizeof *p->needs.need_s);
    p->needs.stalls = calloc(n, sizeof *p->needs.stalls);
    p->needs.ready_s = calloc(n, sizeof *p->needs.ready_s);
    bool room = p->is_said && p->spans[0] && p->spans[1] && p->needs.need_s && p->needs.stalls &&
                p->needs.ready_s;
    p->started = true;
    mgw_status status = room ? MGW_OK : mgw_fail_memory(error, "engine");
    for (int d = 0; !status && d < DTYPES; d++) {
        size_t bytes = bytes_of(engine, (mgw_dtype)d);
        void *memory = NULL;
        if (bytes)
            status = mgw_transport_allocate(engine->transport, bytes, &memory, error);
        p->memory[d] = memory;
    }
    return status;
}

void *mgw_engine_gradient_memory(const mgw_engine *engine, mgw_dtype dtype)
{
    bool known = engine && engine->started && (unsigned)dtype < DTYPES;
    return known ? engine->arena.memory[dtype] : NULL;
}

void *mgw_engine_parameter_memory(const mgw_engine *engine, mgw_dtype dtype)
{
    bool known = engine && engine->started && engine->parameters && (unsigned)dtype < DTYPES;
    return known ? engine->parameters->memory[dtype] : NULL;
}

void *mgw_engine_parameter(const mgw_engine *engine, unsigned id)
{
    if (!engine || !engine->started || !engine->parameters || id >= engine->arena.count)
        return NULL;
    const engine_arena *arena = &engine->arena;
    mgw_dtype dtype = arena->tensors[id].dtype;
    size_t element = mgw_dtype_bytes(mgw_engine_parameter_dtype(engine, dtype));
    return engine->parameters->memory[dtype] + mgw_layout_offset(arena->layout, id) * element;
}

/* ---- Ownership ---- */

const mgw_shard *mgw_engine_shards(const mgw_engine *engine, size_t *count)
{
    const engine_parameters *p = engine ? engine->parameters : NULL;
    *count = p ? p->now.count : 0;
    return p ? p->now.own : NULL;
}

size_t mgw_engine_shard_length(const mgw_engine *engine, mgw_dtype dtype)
{
    size_t length = 0;
    size_t count = 0;
    const mgw_shard *shards = mgw_engine_shards(engine, &count);
    for (size_t i = 0; i < count; i++)
        length += shards[i].dtype == dtype ? shards[i].count : 0;
    return length;
}

mgw_status engine_check_order(const mgw_operation *operations, size_t count, mgw_error *error)
{
    bool gathers = false;
    for (size_t i = 0; i < count; i++) {
        if (gathers && operations[i].kind != MGW_ALL_GATHER)
            return mgw_fail(error, MGW_ERR_INPUT,
                            "plan: operation %zu averages after an all-gather", i + 1);
        gathers = operations[i].kind == MGW_ALL_GATHER;
    }
    return MGW_OK;
}

static mgw_status list_operations(engine_ownership *o, size_t tensors,
                                  const mgw_operation *operations, size_t count, mgw_error *error)
{
    o->operation_count = count;
    o->averages = malloc(count * sizeof *o->averages);
    o->gathered_by = malloc(tensors * sizeof *o->gathered_by);
    if (!o->averages || !o->gathered_by)
        return mgw_fail_memory(error, "engine");
    for (size_t i = 0; i < tensors; i++)
        o->gathered_by[i] = MGW_NO_OPERATION;
    for (size_t i = 0; i < count; i++) {
        const mgw_operation *operation = &operations[i];
        bool gathers = operation->kind == MGW_ALL_GATHER;
        for (size_t k = 0; gathers && k < operation->count; k++)
            o->gathered_by[operation->first + k] = i;
        if (!gathers)
            o->averages[o->average_count++] = i;
    }
    return engine_check_order(operations, count, error);
}

/* A stable sort by operation. */
static mgw_status sort_shards(engine_ownership *o, mgw_error *error)
{
    o->begins = calloc(o->operation_count + 2, sizeof *o->begins);
    o->by_operation = malloc((o->count ? o->count : 1) * sizeof *o->by_operation);
    if (!o->begins || !o->by_operation)
        return mgw_fail_memory(error, "engine");
    size_t *next = o->begins + 1; /* where the next shard of an operation goes; finally its end */
    for (size_t i = 0; i < o->count; i++)
        next[o->own[i].reduced_by + 1]++;
    for (size_t m = 0; m < o->operation_count; m++)
        next[m + 1] += next[m];
    for (size_t i = 0; i < o->count; i++)
        o->by_operation[next[o->own[i].reduced_by]++] = o->own[i];
    return MGW_OK;
}

size_t engine_average_count(const mgw_engine *engine)
{
    size_t count = 0;
    mgw_flow_operations(engine->flow, &count);
    return engine->parameters ? engine->parameters->now.average_count : count;
}

mgw_status engine_parameters_adopt(mgw_engine *engine, const mgw_operation *operations,
                                   size_t count, mgw_error *error)
{
    engine_ownership *o = &engine->parameters->next;
    engine_ownership_fini(o);
    mgw_status status = list_operations(o, engine->arena.count, operations, count, error);
    if (!status)
        status = mgw_shards_create(engine->arena.layout, operations, count, engine->size,
                                   &o->shards, error);
    if (!status)
        status = mgw_shards_of(o->shards, engine->rank, &o->own, &o->count, error);
    return status ? status : sort_shards(o, error);
}
