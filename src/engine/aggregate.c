/* How one operation is done: by all workers together, or by the server that owns it. */
#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/reduce.h"

mgw_status engine_post(mgw_engine *engine, const mgw_call *call, mgw_error *error)
{
    mgw_status status = mgw_transport_post(engine->transport, call, &engine->last, error);
    return status ? status : engine_at_place(engine, engine->place->posted, error);
}

mgw_status engine_collect(mgw_engine *engine, mgw_collective kind, size_t index, void *data,
                          size_t count, mgw_dtype dtype, mgw_error *error)
{
    unsigned servers = (unsigned)engine->options.servers;
    unsigned owners = servers < engine->size ? servers : engine->size;
    const mgw_call call = {.kind = kind,
                           .data = data,
                           .count = kind == MGW_PULL ? count * mgw_dtype_bytes(dtype) : count,
                           .dtype = dtype,
                           .op = engine->options.op,
                           .root = owners ? (unsigned)(index % owners) : 0};
    return engine_post(engine, &call, error);
}

/* All-reduce; or push to the server that owns the operation, and pull. */
static mgw_status aggregate(mgw_engine *engine, size_t index, void *data, size_t count,
                            mgw_dtype dtype, mgw_error *error)
{
    if (!engine->options.servers)
        return engine_collect(engine, MGW_ALL_REDUCE, index, data, count, dtype, error);
    mgw_status status = engine_collect(engine, MGW_PUSH, index, data, count, dtype, error);
    return status ? status : engine_collect(engine, MGW_PULL, index, data, count, dtype, error);
}

/* Gradients that stay elsewhere are copied into the arena, or back. */
static void copy_bound(mgw_engine *engine, const mgw_operation *operation, bool in)
{
    for (size_t i = operation->first; i < operation->first + operation->count; i++) {
        const engine_tensor *tensor = &engine->arena.tensors[i];
        size_t bytes = engine_tensor_bytes(tensor);
        if (!tensor->bound || !bytes)
            continue;
        void *inside = mgw_engine_gradient(engine, (unsigned)i);
        engine->place->move(engine, in ? inside : tensor->bound, in ? tensor->bound : inside, bytes,
                            mgw_transport_stream(engine->transport));
        atomic_fetch_add_explicit(&engine->arena.copied_bytes, bytes, memory_order_relaxed);
    }
}

/* f32 gradients that travel as 16 bits are narrowed, and widened again. */
static mgw_status aggregate_slice(mgw_engine *engine, size_t index, const mgw_operation *operation,
                                  mgw_dtype dtype, mgw_error *error)
{
    if (operation->kind != MGW_ALL_REDUCE)
        return engine_send_half(engine, index, dtype, error);
    const engine_arena *arena = &engine->arena;
    size_t begin = 0;
    size_t count = 0;
    mgw_layout_slice(arena->layout, operation->first, operation->count, dtype, &begin, &count);
    if (!count)
        return MGW_OK;
    void *data = arena->memory[dtype] + begin * mgw_dtype_bytes(dtype);
    if (engine_travels_as(engine, dtype) == dtype)
        return aggregate(engine, index, data, count, dtype, error);
    mgw_narrow(data, arena->narrow, count, engine->wire);
    mgw_status status = aggregate(engine, index, arena->narrow, count, engine->wire, error);
    if (!status)
        mgw_widen(arena->narrow, data, count, engine->wire);
    return status;
}

mgw_status engine_send(mgw_engine *engine, size_t index, mgw_error *error)
{
    size_t count = 0;
    const mgw_operation *operation = &mgw_flow_operations(engine->flow, &count)[index];
    mgw_status status = engine->place->admit ? engine->place->admit(engine, index, error) : MGW_OK;
    if (!status && operation->kind != MGW_ALL_GATHER)
        copy_bound(engine, operation, true);
    for (int d = 0; !status && d < DTYPES; d++)
        status = aggregate_slice(engine, index, operation, (mgw_dtype)d, error);
    if (!status && operation->kind == MGW_ALL_REDUCE)
        copy_bound(engine, operation, false);
    else if (!status && operation->kind == MGW_REDUCE_SCATTER)
        engine_return_shards(engine, index);
    return status;
}
