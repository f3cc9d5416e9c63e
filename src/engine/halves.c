/* The halves of an all-reduce: reduce-scatters of gradients, and all-gathers of parameters. */
#include "engine/parameters.h"
#include "engine/place.h"

/* This worker's shards of an operation. */
static const mgw_shard *shards_of(const engine_ownership *o, size_t index, size_t *count)
{
    *count = o->begins[index + 1] - o->begins[index];
    return o->by_operation + o->begins[index];
}

/* Scatters f32 gradients in another wire format; `begin` is their offset in the arena. */
static mgw_status scatter_narrow(mgw_engine *engine, size_t index, mgw_dtype wire, mgw_call *call,
                                 size_t begin, mgw_error *error)
{
    engine_cast cast;
    mgw_status status = engine_narrow(engine, wire, call->data, call->count, &cast, error);
    call->data = cast.narrow;
    call->dtype = wire;
    if (!status)
        status = engine_post(engine, call, error);
    size_t count = 0;
    const mgw_shard *shards = shards_of(&engine->parameters->now, index, &count);
    for (size_t i = 0; !status && i < count; i++) {
        cast.first = shards[i].begin - begin;
        cast.count = shards[i].count;
        if (shards[i].dtype == MGW_F32)
            engine->place->widen(engine, &cast);
    }
    return status;
}

mgw_status engine_send_half(mgw_engine *engine, size_t index, mgw_dtype dtype, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    size_t count = 0;
    size_t begin = 0;
    const mgw_operation *operation = &mgw_flow_operations(engine->flow, &count)[index];
    mgw_call call = {.kind = operation->kind, .dtype = dtype, .op = engine->options.op};
    call.segment_count =
        mgw_shards_segments(p->now.shards, index, dtype, &call.segments, &begin, &call.count);
    if (!call.segment_count)
        return MGW_OK;
    char *memory = engine->arena.memory[dtype];
    if (call.kind == MGW_ALL_GATHER) {
        call.dtype = mgw_engine_parameter_dtype(engine, dtype);
        memory = p->memory[dtype];
    }
    call.data = memory + begin * mgw_dtype_bytes(call.dtype);
    mgw_dtype wire = engine_wire(engine, operation, dtype);
    if (call.kind == MGW_REDUCE_SCATTER && wire != dtype)
        return scatter_narrow(engine, index, wire, &call, begin, error);
    return engine_post(engine, &call, error);
}

void engine_return_shards(mgw_engine *engine, size_t index)
{
    size_t count = 0;
    const mgw_shard *shards = shards_of(&engine->parameters->now, index, &count);
    for (size_t i = 0; i < count; i++) {
        const engine_tensor *tensor = &engine->arena.tensors[shards[i].tensor];
        size_t element = mgw_dtype_bytes(tensor->dtype);
        if (!tensor->bound)
            continue;
        engine->place->move(engine, (char *)tensor->bound + shards[i].first * element,
                            engine->arena.memory[tensor->dtype] + shards[i].begin * element,
                            shards[i].count * element, mgw_transport_stream(engine->transport));
        atomic_fetch_add_explicit(&engine->arena.copied_bytes, shards[i].count * element,
                                  memory_order_relaxed);
    }
}
