/* How one operation is done: by all workers together, or by the server that owns it. */
#include "base/clock.h"
#include "base/status.h"
#include "engine/place.h"
#include "transport/reduce.h"

mgw_status engine_post(mgw_engine *engine, const mgw_call *call, mgw_error *error)
{
    mgw_status status = mgw_transport_post(engine->transport, call, &engine->last, error);
    return status ? status : engine_at_place(engine, engine->place->posted, error);
}

mgw_status engine_aggregate(mgw_engine *engine, size_t index, void *data, size_t count,
                            mgw_dtype dtype, double *push_s, double *pull_s, mgw_error *error)
{
    mgw_call call = {.kind = MGW_ALL_REDUCE,
                     .data = data,
                     .count = count,
                     .dtype = dtype,
                     .op = engine->options.op};
    if (engine->options.servers <= 0)
        return engine_post(engine, &call, error);
    unsigned servers = (unsigned)engine->options.servers;
    call.kind = MGW_PUSH;
    call.root = (unsigned)(index % (servers < engine->size ? servers : engine->size));
    double begin_s = mgw_now_s();
    mgw_status status = engine_post(engine, &call, error);
    double pushed_s = mgw_now_s();
    call.kind = MGW_PULL;
    call.count = count * mgw_dtype_bytes(dtype);
    if (!status)
        status = engine_post(engine, &call, error);
    if (push_s)
        *push_s = pushed_s - begin_s;
    if (pull_s)
        *pull_s = mgw_now_s() - pushed_s;
    return status;
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

/* f32 gradients that travel as 16 bits: narrowed, reduced, widened. */
static mgw_status aggregate_narrow(mgw_engine *engine, size_t index, float *data, size_t count,
                                   mgw_error *error)
{
    void *narrow = engine->arena.narrow;
    mgw_narrow(data, narrow, count, engine->wire);
    mgw_status status =
        engine_aggregate(engine, index, narrow, count, engine->wire, NULL, NULL, error);
    if (!status)
        mgw_widen(narrow, data, count, engine->wire);
    return status;
}

static mgw_status aggregate_slice(mgw_engine *engine, size_t index, const mgw_operation *operation,
                                  mgw_dtype dtype, mgw_error *error)
{
    size_t begin = 0;
    size_t count = 0;
    mgw_layout_slice(engine->arena.layout, operation->first, operation->count, dtype, &begin,
                     &count);
    if (!count)
        return MGW_OK;
    void *data = engine->arena.memory[dtype] + begin * mgw_dtype_bytes(dtype);
    if (dtype == MGW_F32 && engine->wire != MGW_F32)
        return aggregate_narrow(engine, index, data, count, error);
    return engine_aggregate(engine, index, data, count, dtype, NULL, NULL, error);
}

mgw_status engine_send(mgw_engine *engine, size_t index, mgw_error *error)
{
    size_t count = 0;
    const mgw_operation *operation = &mgw_flow_operations(engine->flow, &count)[index];
    mgw_status status = engine->place->admit ? engine->place->admit(engine, index, error) : MGW_OK;
    if (!status)
        copy_bound(engine, operation, true);
    for (int d = 0; !status && d < DTYPES; d++)
        status = aggregate_slice(engine, index, operation, (mgw_dtype)d, error);
    if (!status)
        copy_bound(engine, operation, false);
    return status;
}
