/* The option `debug`: detects program errors that would otherwise go unnoticed. The engine owns a
 * gradient from ready to wait. Its bytes are hashed when it is ready, before it is sent, when it is
 * averaged, and at the end of the step, where the averages of all workers are compared. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/status.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/transport.h"

enum { READ_ALL, NO_MEMORY, NOT_READ };

struct engine_debug {
    uint64_t *ready; /* by tensor: hash when it was ready; written by the thread that reported it */
    uint64_t *average; /* by tensor: hash of the average */
    uint64_t *told;    /* by tensor: rank 0's averages */
    atomic_int unread; /* why a gradient could not be read, so that nothing can be checked */
};

mgw_status engine_debug_open(mgw_engine *engine, mgw_error *error)
{
    size_t n = engine->arena.count;
    if (engine->options.debug <= 0)
        return MGW_OK;
    engine_debug_close(engine); /* left from a failed start */
    engine_debug *d = engine->debug = calloc(1, sizeof *d);
    uint64_t *hashes = d ? calloc(3 * n, sizeof *hashes) : NULL;
    if (!hashes)
        return mgw_fail_memory(error, "engine");
    *d = (engine_debug){.ready = hashes, .average = hashes + n, .told = hashes + 2 * n};
    return MGW_OK;
}

void engine_debug_close(mgw_engine *engine)
{
    if (engine->debug)
        free(engine->debug->ready);
    free(engine->debug);
    engine->debug = NULL;
}

/* The hash of a gradient in stream order. If it cannot be read, the step fails for that reason,
 * without blaming the program. */
static uint64_t hash_of(mgw_engine *engine, size_t id, void *stream)
{
    size_t bytes = engine_tensor_bytes(&engine->arena.tensors[id]);
    const void *home = engine_home(engine, id);
    if (!engine->place->read || !bytes)
        return mgw_hash(home, bytes);
    void *copy = malloc(bytes);
    uint64_t hash = 0;
    if (copy && engine->place->read(engine, copy, home, bytes, stream))
        hash = mgw_hash(copy, bytes);
    else
        atomic_store(&engine->debug->unread, copy ? NOT_READ : NO_MEMORY);
    free(copy);
    return hash;
}

static void *channel(const mgw_engine *engine)
{
    return mgw_transport_stream(engine->transport);
}

void engine_debug_ready(mgw_engine *engine, size_t id, void *stream)
{
    if (engine->debug)
        engine->debug->ready[id] = hash_of(engine, id, stream);
}

/* Fails if a gradient could not be read; the other workers see that this one has failed. */
static mgw_status check_read(const mgw_engine *engine, mgw_error *error)
{
    switch (atomic_load(&engine->debug->unread)) {
    case READ_ALL:
        return MGW_OK;
    case NO_MEMORY:
        return mgw_fail_memory(error, "gradients that debug compares");
    default:
        return mgw_fail(error, MGW_ERR_IO, "debug: a gradient cannot be read from the GPU");
    }
}

/* Each worker has found a tensor that was written to, or none (the number of tensors). All workers
 * report the first rank that has. */
static mgw_status agree(mgw_engine *engine, uint64_t written, const char *when, mgw_error *error)
{
    size_t n = engine->arena.count;
    unsigned rank = 0;
    mgw_transport_intend(engine->transport, MGW_FOR_CHECK, false);
    mgw_status status = engine_first_rank(engine, written < n, &rank, error);
    if (status || rank == engine->size)
        return status;
    status = mgw_transport_broadcast(engine->transport, &written, sizeof written, rank, error);
    if (status)
        return status;
    return mgw_fail(error, MGW_ERR_ARGUMENT,
                    "rank %u: tensor %llu ('%.80s') was written to after it was %s: the engine "
                    "owns a gradient from mgw_engine_ready to the end of mgw_engine_wait",
                    rank, (unsigned long long)written,
                    mgw_names_get(engine->arena.names, written < n ? written : 0), when);
}

mgw_status engine_debug_send(mgw_engine *engine, const mgw_operation *o, mgw_error *error)
{
    const engine_debug *d = engine->debug;
    size_t end = o->first + o->count;
    size_t i = o->first;
    if (!d)
        return MGW_OK;
    while (i < end && d->ready[i] == hash_of(engine, i, channel(engine)))
        i++;
    mgw_status status = check_read(engine, error);
    return status ? status : agree(engine, i < end ? i : engine->arena.count, "ready", error);
}

void engine_debug_sent(mgw_engine *engine, const mgw_operation *o)
{
    for (size_t i = o->first; engine->debug && i < o->first + o->count; i++)
        engine->debug->average[i] = hash_of(engine, i, channel(engine));
}

/* ---- The end of a step ---- */

/* Whether the whole average is here: otherwise only this worker's shards are, which may already be
 * updated. */
static bool is_average(const mgw_engine *engine, size_t id)
{
    const engine_parameters *p = engine->parameters;
    return !p || (!p->update && p->now.gathered_by[id] == MGW_NO_OPERATION);
}

/* The first tensor that was written to after it was averaged; the number of tensors: none. */
static size_t find_written(mgw_engine *engine)
{
    engine_debug *d = engine->debug;
    size_t i = 0;
    for (; i < engine->arena.count; i++)
        if (!is_average(engine, i))
            d->average[i] = 0;
        else if (d->average[i] != hash_of(engine, i, channel(engine)))
            break;
    return i;
}

/* All workers report the first rank that differs from rank 0, and its tensor. */
static mgw_status tell_difference(mgw_engine *engine, unsigned differs, mgw_error *error)
{
    engine_debug *d = engine->debug;
    size_t n = engine->arena.count;
    uint64_t tensor = 0;
    for (size_t i = 0; i < n; i++)
        d->told[i] = d->average[i];
    mgw_status status =
        mgw_transport_broadcast(engine->transport, d->told, n * sizeof *d->told, 0, error);
    while (!status && tensor + 1 < n && d->told[tensor] == d->average[tensor])
        tensor++;
    if (!status)
        status = mgw_transport_broadcast(engine->transport, &tensor, sizeof tensor, differs, error);
    if (status)
        return status;
    return mgw_fail(
        error, MGW_ERR_PEER,
        "step %llu: rank %u has a different average of tensor %llu ('%.80s') than rank 0: "
        "it was written to while it was sent, or two tensors share memory",
        (unsigned long long)mgw_flow_step(engine->flow), differs, (unsigned long long)tensor,
        mgw_names_get(engine->arena.names, tensor < n ? tensor : 0));
}

static mgw_status check_step(mgw_engine *engine, mgw_error *error)
{
    unsigned rank = 0;
    mgw_status status = engine_at_place(engine, engine->place->settle, error);
    size_t written = status ? 0 : find_written(engine);
    if (!status)
        status = check_read(engine, error);
    if (!status)
        status = agree(engine, written, "averaged", error);
    uint64_t step = mgw_flow_step(engine->flow);
    uint64_t hash = mgw_hash(engine->debug->average, engine->arena.count * sizeof(uint64_t)) ^
                    mgw_hash(&step, sizeof step);
    if (!status)
        status = engine_same_hash(engine, hash, &rank, error);
    return status || !rank ? status : tell_difference(engine, rank, error);
}

mgw_status engine_debug_end(mgw_engine *engine, mgw_error *error)
{
    return engine->debug ? engine_run(engine, check_step, error) : MGW_OK;
}
