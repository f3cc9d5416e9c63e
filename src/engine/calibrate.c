/* Before the first step: the cost of messages, from the options or measured. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/status.h"
#include "engine/place.h"
#include "transport/transport.h"

/* ---- From the options ---- */

/* The file may be different or missing on another host. */
static mgw_status load_cluster(mgw_engine *engine, mgw_cluster **out, mgw_error *error)
{
    const char *name = engine->options.cluster;
    mgw_error own = {0};
    mgw_status loaded = mgw_cluster_load(name, out, &own);
    unsigned without = 0;
    mgw_status status = engine_first_rank(engine, loaded != MGW_OK, &without, error);
    if (status)
        return status;
    if (loaded)
        return mgw_fail(error, loaded, "rank %u: %s%s", engine->rank,
                        name == getenv("MGWFBP_CLUSTER") ? "MGWFBP_CLUSTER: " : "", own.message);
    if (without < engine->size)
        return mgw_fail(error, MGW_ERR_PEER, "rank %u cannot read the cluster '%.200s'", without,
                        name);
    mgw_cost cost;
    unsigned differs = 0;
    mgw_cluster_cost(*out, &cost);
    uint64_t hash = 0;
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        const mgw_curve *curve = &cost.of[k];
        hash = 31 * hash + (mgw_hash(curve, offsetof(mgw_curve, sample_count)) ^ /* a and b */
                            mgw_hash(curve->samples, curve->sample_count * sizeof *curve->samples));
    }
    status = engine_same_hash(engine, hash, &differs, error);
    if (!status && differs)
        status = mgw_fail(error, MGW_ERR_PEER,
                          "rank %u has a different cluster than rank 0 in '%.200s': use the same "
                          "file",
                          differs, name);
    return status;
}

/* ---- Measured ---- */

typedef struct stopwatch {
    mgw_engine *engine;
    mgw_dtype dtype; /* with the largest arena: zero, and as large as any message */
    size_t index;    /* of the emulated operation: servers take turns */
    bool widens;     /* casts follow the last collective */
} stopwatch;

/* On a GPU, narrow messages are cast before and after, and summed in another way than f32: the
 * whole is timed. */
static mgw_status collect(stopwatch *watch, mgw_collective kind, uint64_t bytes, mgw_error *error)
{
    mgw_engine *engine = watch->engine;
    const engine_arena *arena = &engine->arena;
    void *data = arena->memory[watch->dtype];
    mgw_dtype wire = engine_travels_as(engine, watch->dtype);
    bool averages = kind != MGW_ALL_GATHER && kind != MGW_PULL;
    if (!engine->device || !averages || wire == watch->dtype)
        return engine_collect(engine, kind, watch->index++, data,
                              bytes / mgw_dtype_bytes(watch->dtype), watch->dtype, error);
    engine_cast cast;
    mgw_status status =
        engine_narrow(engine, wire, data, bytes / mgw_dtype_bytes(wire), &cast, error);
    if (!status)
        status = engine_collect(engine, kind, watch->index++, cast.narrow, cast.count, wire, error);
    if (!status)
        engine->place->widen(engine, &cast);
    watch->widens = true;
    return status;
}

/* The transport only waits for its collectives: a cast after the last one may still write to the
 * arena, which belongs to the program afterwards. */
static void await_casts(stopwatch *watch)
{
    mgw_engine *engine = watch->engine;
    float first;
    if (watch->widens)
        engine->place->read(engine, &first, engine->arena.memory[watch->dtype], sizeof first,
                            mgw_transport_stream(engine->transport));
    watch->widens = false;
}

static mgw_status time_once(void *context, mgw_collective kind, uint64_t bytes, double *seconds,
                            mgw_error *error)
{
    stopwatch *watch = context;
    mgw_engine *engine = watch->engine;
    size_t repeats = bytes <= 1 << 20 ? engine->place->back_to_back : 1;
    mgw_status status = mgw_transport_barrier(engine->transport, error);
    mgw_transport_intend(engine->transport, MGW_FOR_START, true); /* as in most of a step */
    double begin_s = mgw_now_s();
    for (size_t r = 0; !status && r < repeats; r++)
        status = collect(watch, kind, bytes, error);
    if (!status)
        status = mgw_request_wait(engine->transport, &engine->last, error);
    await_casts(watch);
    *seconds = (mgw_now_s() - begin_s) / (double)repeats;
    mgw_transport_intend(engine->transport, MGW_FOR_START, false);
    return status;
}

mgw_status engine_calibrate(mgw_engine *engine, mgw_cluster **out, mgw_error *error)
{
    if (engine->options.cluster)
        return load_cluster(engine, out, error);
    char name[64];
    snprintf(name, sizeof name, "%.40s-%u", mgw_transport_name(engine->transport), engine->size);
    stopwatch watch = {.engine = engine};
    uint64_t most = 0;
    for (int d = 0; d < DTYPES; d++) {
        size_t bytes = engine_arena_bytes(&engine->arena, (mgw_dtype)d);
        watch.dtype = bytes > most ? (mgw_dtype)d : watch.dtype;
        most = bytes > most ? bytes : most;
    }
    if (engine->device && watch.dtype == MGW_F32 && engine->arena.narrow)
        most = most / sizeof(float) * mgw_dtype_bytes(engine->wire);
    uint64_t enough = (uint64_t)64 << 20;
    bool servers = engine->options.servers > 0;
    unsigned kinds = servers ? 1u << MGW_PUSH | 1u << MGW_PULL : 1u << MGW_ALL_REDUCE;
    if (engine->parameters)
        kinds |= 1u << MGW_REDUCE_SCATTER | 1u << MGW_ALL_GATHER;
    const mgw_calibration how = {.name = name,
                                 .least_bytes = 1024,
                                 .most_bytes = most < enough ? most : enough,
                                 .factor = 4,
                                 .more_sizes = 8,
                                 .repeats = 3,
                                 .most_repeats = 9,
                                 .enough_s = 0.5,
                                 .kinds = kinds,
                                 .context = &watch,
                                 .time = time_once};
    mgw_exchange exchange = mgw_transport_exchange(engine->transport);
    return mgw_calibrate(&how, &exchange, out, error);
}
