/* Performs one operation: by all workers together, or by the parameter server that owns it. */
#include "base/clock.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/transport.h"

mgw_status engine_post(mgw_engine *engine, const mgw_call *given, mgw_error *error)
{
    mgw_call call = *given;
    call.rounds_once = call.data && call.data == engine->arena.narrow;
    mgw_status status = mgw_transport_post(engine->transport, &call, &engine->last, error);
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

/* All-reduces; or pushes to the server that owns the operation, and pulls. */
static mgw_status aggregate(mgw_engine *engine, size_t index, void *data, size_t count,
                            mgw_dtype dtype, mgw_error *error)
{
    if (!engine->options.servers)
        return engine_collect(engine, MGW_ALL_REDUCE, index, data, count, dtype, error);
    mgw_status status = engine_collect(engine, MGW_PUSH, index, data, count, dtype, error);
    return status ? status : engine_collect(engine, MGW_PULL, index, data, count, dtype, error);
}

/* A single worker's gradients are the averages, wherever they are. But shards must be in the arena.
 */
static bool is_alone(const mgw_engine *engine)
{
    return engine->size == 1 && !engine->parameters;
}

/* Copies gradients that are bound elsewhere into the arena, or back. */
static void copy_bound(mgw_engine *engine, const mgw_operation *operation, bool in)
{
    for (size_t i = operation->first; i < operation->first + operation->count; i++) {
        const engine_tensor *tensor = &engine->arena.tensors[i];
        size_t bytes = engine_tensor_bytes(tensor);
        if (!tensor->bound || !bytes || is_alone(engine))
            continue;
        void *inside = mgw_engine_gradient(engine, (unsigned)i);
        engine->place->move(engine, in ? inside : tensor->bound, in ? tensor->bound : inside, bytes,
                            mgw_transport_stream(engine->transport));
        atomic_fetch_add_explicit(&engine->arena.copied_bytes, bytes, memory_order_relaxed);
    }
}

/* ---- Narrow wire formats ---- */

/* The bits by which sums, unlike averages, may exceed the inputs. */
static int find_headroom(const mgw_engine *engine)
{
    int bits = 0;
    while (engine->options.op == MGW_SUM && (unsigned)1 << bits < engine->size)
        bits++;
    return bits;
}

mgw_status engine_narrow(mgw_engine *engine, mgw_dtype wire, void *data, size_t count,
                         engine_cast *out, mgw_error *error)
{
    const engine_arena *arena = &engine->arena;
    mgw_status status = MGW_OK;
    *out = (engine_cast){.wire = wire, .data = data, .narrow = arena->narrow, .count = count};
    if (mgw_dtype_bytes(wire) == 1) {
        out->largest = arena->largest;
        out->headroom = find_headroom(engine);
        engine->place->largest(engine, out);
        const mgw_call agree = {.kind = MGW_ALL_REDUCE,
                                .data = arena->largest,
                                .count = (count + MGW_FP8_BLOCK - 1) / MGW_FP8_BLOCK,
                                .dtype = MGW_F32,
                                .op = MGW_MAX};
        status = engine_post(engine, &agree, error);
    }
    if (!status)
        engine->place->narrow(engine, out);
    return status;
}

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
    mgw_dtype wire = engine_wire(engine, operation, dtype);
    if (wire == dtype || is_alone(engine))
        return aggregate(engine, index, data, count, dtype, error);
    engine_cast cast;
    mgw_status status = engine_narrow(engine, wire, data, count, &cast, error);
    if (!status)
        status = aggregate(engine, index, cast.narrow, count, wire, error);
    if (!status)
        engine->place->widen(engine, &cast);
    return status;
}

/* In a step, all workers run the operations of the agreed plan, so checking the first one is
 * enough. Gathers may come between steps, where a program may call anything before it reports its
 * updates; with a callback, updates are reported within the step. */
static bool follows(const mgw_engine *engine, size_t index)
{
    size_t count = 0;
    bool gathers = mgw_flow_operations(engine->flow, &count)[index].kind == MGW_ALL_GATHER;
    return index > 0 && !engine->debug && (!gathers || engine->parameters->update);
}

mgw_status engine_send(mgw_engine *engine, size_t index, mgw_error *error)
{
    size_t count = 0;
    const mgw_operation *operation = &mgw_flow_operations(engine->flow, &count)[index];
    mgw_status status = engine->place->admit ? engine->place->admit(engine, index, error) : MGW_OK;
    if (!status && operation->kind != MGW_ALL_GATHER)
        status = engine_debug_send(engine, operation, error);
    mgw_transport_intend(engine->transport, MGW_FOR_MESSAGE + index, follows(engine, index));
    mgw_transport_limit_lanes(engine->transport, operation->lanes);
    if (!status && operation->kind != MGW_ALL_GATHER)
        copy_bound(engine, operation, true);
    for (int d = 0; !status && d < DTYPES; d++)
        status = aggregate_slice(engine, index, operation, (mgw_dtype)d, error);
    if (!status && operation->kind == MGW_ALL_REDUCE)
        copy_bound(engine, operation, false);
    else if (!status && operation->kind == MGW_REDUCE_SCATTER)
        engine_return_shards(engine, index);
    if (!status && operation->kind == MGW_ALL_REDUCE)
        engine_debug_sent(engine, operation);
    return status;
}
