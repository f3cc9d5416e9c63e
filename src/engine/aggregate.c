/* How one message is averaged: by all workers together, or by the server that owns it. */
#include "base/clock.h"
#include "engine/engine.h"

mgw_status engine_aggregate(mgw_engine *engine, size_t m, void *data, size_t count, mgw_dtype dtype,
                            double *push_s, double *pull_s, mgw_error *error)
{
    mgw_op op = engine->options.op;
    if (engine->options.servers <= 0)
        return mgw_transport_all_reduce(engine->transport, data, count, dtype, op, error);
    unsigned servers = (unsigned)engine->options.servers;
    unsigned owner = (unsigned)(m % (servers < engine->size ? servers : engine->size));
    double begin_s = mgw_now_s();
    mgw_status status =
        mgw_transport_reduce(engine->transport, data, count, dtype, op, owner, error);
    double pushed_s = mgw_now_s();
    if (!status)
        status = mgw_transport_broadcast(engine->transport, data, count * mgw_dtype_bytes(dtype),
                                         owner, error);
    if (push_s)
        *push_s = pushed_s - begin_s;
    if (pull_s)
        *pull_s = mgw_now_s() - pushed_s;
    return status;
}
