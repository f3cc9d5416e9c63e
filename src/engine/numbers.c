/* Collectives on the program's own data, between steps. */
#include "base/status.h"
#include "engine/place.h"

static mgw_status between_steps(mgw_engine *engine, engine_task *task, const char *call,
                                mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (engine->failed || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                        engine->failed ? "the engine failed before; close it"
                                       : "only between steps");
    return engine_run(engine, task, error);
}

static mgw_status synchronize(mgw_engine *engine, mgw_error *error)
{
    return engine->started ? engine_at_place(engine, engine->place->settle, error) : MGW_OK;
}

/* The transport's wait has a timeout, but the program's work on a GPU has none. */
static mgw_status barrier(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = synchronize(engine, error);
    return status ? status : mgw_transport_barrier(engine->transport, error);
}

/* In GPU memory, the collective may still run when this returns; in host memory, it is done. */
static mgw_status move_numbers(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_at_place(engine, engine->place->ask, error);
    if (!status)
        status = engine_post(engine, &engine->thread.numbers, error);
    return status ? status : engine_at_place(engine, engine->place->answer, error);
}

static mgw_status move_between_steps(mgw_engine *engine, mgw_call numbers, const char *call,
                                     mgw_error *error)
{
    mgw_status status = engine_check(engine, call, error);
    if (status)
        return status;
    if (numbers.count && !numbers.data)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the numbers are null", call);
    if (engine->place->ask && !engine->started)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: on a device only after mgw_engine_start",
                        call);
    if (!engine->in_step)
        engine->thread.numbers = numbers;
    return between_steps(engine, move_numbers, call, error);
}

mgw_status mgw_engine_synchronize(mgw_engine *engine, mgw_error *error)
{
    return between_steps(engine, synchronize, "synchronize", error);
}

void mgw_engine_set_stream(mgw_engine *engine, void *stream)
{
    if (engine)
        engine->stream = stream;
}

mgw_status mgw_engine_barrier(mgw_engine *engine, mgw_error *error)
{
    return between_steps(engine, barrier, "barrier", error);
}

mgw_status mgw_engine_all_reduce(mgw_engine *engine, void *data, size_t count, mgw_dtype dtype,
                                 mgw_op op, mgw_error *error)
{
    return move_between_steps(
        engine,
        (mgw_call){.kind = MGW_ALL_REDUCE, .data = data, .count = count, .dtype = dtype, .op = op},
        "all-reduce", error);
}

mgw_status mgw_engine_broadcast(mgw_engine *engine, void *data, size_t bytes, mgw_error *error)
{
    return move_between_steps(engine, (mgw_call){.kind = MGW_PULL, .data = data, .count = bytes},
                              "broadcast", error);
}
