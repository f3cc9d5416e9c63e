/* What workers tell each other between steps, over the transport. */
#include "base/status.h"
#include "engine/engine.h"

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima,
                          mgw_error *error)
{
    mgw_transport *transport = ((mgw_engine *)context)->transport;
    mgw_status status = MGW_OK;
    if (sums)
        status = mgw_transport_all_reduce(transport, values, sums, MGW_F64, MGW_SUM, error);
    if (!status && maxima)
        status =
            mgw_transport_all_reduce(transport, values + sums, maxima, MGW_F64, MGW_MAX, error);
    return status;
}

static mgw_status tell(void *context, void *data, size_t bytes, mgw_error *error)
{
    return mgw_transport_broadcast(((mgw_engine *)context)->transport, data, bytes, 0, error);
}

mgw_exchange engine_exchange(mgw_engine *engine)
{
    return (mgw_exchange){engine, engine->rank, engine->size, combine, tell};
}

mgw_status engine_first_rank(mgw_engine *engine, bool so, unsigned *first, mgw_error *error)
{
    double behind = so ? (double)(engine->size - engine->rank) : 0;
    mgw_status status = combine(engine, &behind, 0, 1, error);
    *first = engine->size - (unsigned)behind;
    return status;
}

mgw_status engine_same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs, mgw_error *error)
{
    uint64_t told = hash;
    mgw_status status = tell(engine, &told, sizeof told, error);
    if (!status)
        status = engine_first_rank(engine, hash != told, differs, error);
    if (!status && *differs == engine->size)
        *differs = 0;
    return status;
}
