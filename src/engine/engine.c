/* The engine's life: opened, described, started, closed; and the thread that does its work. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "base/thread.h"
#include "engine/device.h"
#include "transport/transport.h"

/* ---- The communication thread ---- */

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) && errno == EINTR)
        continue;
}

/* Meanwhile somebody has to see to what goes on by itself. A failure shows in the next task. */
static void await_task(mgw_engine *engine)
{
    mgw_error ignored;
    if (!engine->device)
        wait_for(&engine->go);
    else
        while (!engine_sleep_on(&engine->go, 20 * 1000 * 1000))
            if (engine->transport && engine_device_watch(engine, &ignored))
                continue;
}

/* Does what it is given until that is nothing. Everything that the transport does, it does here. */
static void *communicate(void *argument)
{
    mgw_engine *engine = argument;
    for (;;) {
        await_task(engine);
        if (!engine->task)
            break;
        engine->status = engine->task(engine, &engine->error);
        sem_post(&engine->done);
    }
    mgw_transport_close(engine->transport);
    return NULL;
}

mgw_status engine_run(mgw_engine *engine, engine_task *task, mgw_error *error)
{
    if (engine->threaded) {
        engine->task = task;
        sem_post(&engine->go);
        wait_for(&engine->done);
    } else {
        engine->status = task(engine, &engine->error);
    }
    if (engine->status) {
        engine->failed = true;
        return mgw_fail(error, engine->status, "%s", engine->error.message);
    }
    return MGW_OK;
}

/* ---- Open and close ---- */

static mgw_status open_transport(mgw_engine *engine, mgw_error *error)
{
    engine_device_enter(engine->device);
    mgw_status status = mgw_transport_open(&engine->options.transport, &engine->transport, error);
    if (!status) {
        engine->rank = mgw_transport_rank(engine->transport);
        engine->size = mgw_transport_size(engine->transport);
    }
    return status;
}

static mgw_status read_choices(mgw_engine *engine, mgw_error *error)
{
    const char *wire = engine->options.wire;
    engine->wire = MGW_F32;
    if (wire && !strcmp(wire, "f16"))
        engine->wire = MGW_F16;
    else if (wire && !strcmp(wire, "bf16"))
        engine->wire = MGW_BF16;
    else if (wire && strcmp(wire, "f32") != 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "wire: '%.40s' is not f32, f16 or bf16", wire);
    return mgw_policy_parse(engine->options.policy, &engine->policy, error);
}

mgw_status mgw_engine_open(const mgw_engine_options *options, mgw_engine **out, mgw_error *error)
{
    mgw_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return mgw_fail_memory(error, "engine");
    mgw_status status = engine_complete_options(options, &engine->options, error);
    if (!status)
        status = read_choices(engine, error);
    bool caller = false;
    if (!status)
        status = mgw_transport_prepare(&engine->options.transport, &caller, error);
    if (!status)
        status = engine_device_open(engine, &engine->device, error);
    if (!status)
        status = mgw_names_create(&engine->names, error);
    if (status) {
        engine_device_close(engine->device);
        free(engine);
        return status;
    }
    sem_init(&engine->work, 0, 0);
    sem_init(&engine->go, 0, 0);
    sem_init(&engine->done, 0, 0);
    engine->process = getpid();
    engine->threaded = !caller;
    if (engine->threaded && mgw_thread_start(&engine->thread, communicate, engine)) {
        mgw_names_release(engine->names);
        engine_device_close(engine->device);
        free(engine);
        return mgw_fail(error, MGW_ERR_NO_MEMORY, "engine: cannot start a thread");
    }
    status = engine_run(engine, open_transport, error);
    if (status)
        mgw_engine_close(engine);
    else
        *out = engine;
    return status;
}

static void free_all(mgw_engine *engine)
{
    sem_destroy(&engine->work);
    sem_destroy(&engine->go);
    sem_destroy(&engine->done);
    mgw_plan_destroy(engine->plan);
    mgw_trace_destroy(engine->trace);
    mgw_cluster_destroy(engine->cluster);
    mgw_names_release(engine->names);
    engine_device_close(engine->device);
    free(engine->tensors);
    free(engine->rows[0]);
    free(engine->rows[1]);
    free(engine->message_of);
    free((void *)engine->ready_step);
    free(engine->ready_s);
    free((void *)engine->remaining);
    engine_recent_free(engine);
    free(engine);
}

void mgw_engine_close(mgw_engine *engine)
{
    if (!engine || engine->process != getpid()) /* a fork has our memory, but not the thread */
        return;
    if (!engine->threaded) {
        mgw_transport_close(engine->transport);
        free_all(engine);
        return;
    }
    if (engine->in_step) { /* end the step first: it fails, or it is just finishing */
        atomic_store(&engine->closing, true);
        sem_post(&engine->work);
        wait_for(&engine->done);
    }
    engine->task = NULL;
    sem_post(&engine->go);
    pthread_join(engine->thread, NULL);
    free_all(engine);
}
unsigned mgw_engine_rank(const mgw_engine *engine)
{
    return engine->rank;
}

unsigned mgw_engine_size(const mgw_engine *engine)
{
    return engine->size;
}

/* ---- Tensors ---- */

mgw_status mgw_engine_add(mgw_engine *engine, const char *name, size_t count, mgw_dtype dtype,
                          unsigned *id, mgw_error *error)
{
    if (engine->started)
        return mgw_fail(
            error, MGW_ERR_ARGUMENT,
            "tensor '%.80s': the engine has started; tensors cannot be added or resized", name);
    size_t most = SIZE_MAX / 32 - 64; /* elements in all, with what aligning adds */
    if ((unsigned)dtype >= DTYPES || engine->element_count > most ||
        count > most - engine->element_count || engine->tensor_count > UINT32_MAX - 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "tensor '%.80s': unknown dtype, or too large",
                        name);
    if (engine->tensor_count == engine->tensor_capacity) {
        size_t capacity = engine->tensor_capacity ? 2 * engine->tensor_capacity : 64;
        engine_tensor *tensors = realloc(engine->tensors, capacity * sizeof *tensors);
        if (!tensors)
            return mgw_fail_memory(error, "engine");
        engine->tensors = tensors;
        engine->tensor_capacity = capacity;
    }
    mgw_status status = mgw_names_add(engine->names, name, error);
    if (status)
        return status;
    engine->tensors[engine->tensor_count] = (engine_tensor){.count = count, .dtype = dtype};
    engine->element_count += count + 64;
    *id = (unsigned)engine->tensor_count++;
    return MGW_OK;
}

/*
 * Lays the tensors out in ready order, so that every message of every plan is one slice per dtype.
 * Each begins on a multiple of 64 bytes; the gaps travel along, and stay zero.
 */
static mgw_status allocate_arenas(mgw_engine *engine, mgw_error *error)
{
    for (size_t i = 0; i < engine->tensor_count; i++) {
        engine_tensor *tensor = &engine->tensors[i];
        size_t unit = 64 / mgw_dtype_bytes(tensor->dtype);
        tensor->offset = engine->arena_count[tensor->dtype];
        engine->arena_count[tensor->dtype] += (tensor->count + unit - 1) / unit * unit;
    }
    mgw_status status = MGW_OK;
    for (int d = 0; !status && d < DTYPES; d++)
        if (engine->arena_count[d]) {
            void *memory = NULL;
            status = mgw_transport_allocate(engine->transport,
                                            engine->arena_count[d] * mgw_dtype_bytes((mgw_dtype)d),
                                            &memory, error);
            engine->arena[d] = memory;
        }
    if (!status && engine->wire != MGW_F32 && engine->arena_count[MGW_F32]) {
        engine->narrow_bytes = 2 * engine->arena_count[MGW_F32];
        status =
            mgw_transport_allocate(engine->transport, engine->narrow_bytes, &engine->narrow, error);
    }
    return status;
}

static mgw_status allocate_books(mgw_engine *engine, mgw_error *error)
{
    size_t n = engine->tensor_count;
    engine->message_of = calloc(n, sizeof *engine->message_of);
    engine->rows[0] = calloc(n, sizeof *engine->rows[0]);
    engine->rows[1] = calloc(n, sizeof *engine->rows[1]);
    engine->ready_step = calloc(n, sizeof *engine->ready_step);
    engine->ready_s = calloc(n, sizeof *engine->ready_s);
    engine->remaining = calloc(n, sizeof *engine->remaining);
    if (engine->message_of && engine->rows[0] && engine->rows[1] && engine->ready_step &&
        engine->ready_s && engine->remaining)
        return engine_recent_allocate(engine, error);
    return mgw_fail_memory(error, "engine");
}

/* Until there is a plan: as PyTorch's DDP would, which is rarely bad. */
static mgw_status cut_by_size(mgw_engine *engine, mgw_error *error)
{
    size_t *ends = malloc(engine->tensor_count * sizeof *ends);
    if (!ends)
        return mgw_fail_memory(error, "engine");
    size_t count = 0;
    size_t held = 0;
    for (size_t i = 0; i < engine->tensor_count; i++) {
        held += engine->tensors[i].count * mgw_dtype_bytes(engine->tensors[i].dtype);
        if (held < (count ? MGW_DDP_CAP_BYTES : MGW_DDP_FIRST_BYTES) &&
            i + 1 < engine->tensor_count)
            continue;
        ends[count++] = i + 1;
        held = 0;
    }
    mgw_status status = engine_cut(engine, ends, count, error);
    free(ends);
    return status;
}

static mgw_status start(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_agree(engine, error);
    if (!status)
        status = engine_device_start(engine, error);
    if (!status)
        status = allocate_arenas(engine, error);
    if (!status)
        status = engine_calibrate(engine, error);
    return status;
}

mgw_status mgw_engine_start(mgw_engine *engine, mgw_error *error)
{
    if (engine->started || engine->failed || engine->tensor_count == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "engine: %s",
                        engine->started        ? "started before"
                        : engine->tensor_count ? "failed before; it can only be closed"
                                               : "no tensors were added");
    size_t first = 0;
    size_t second = 0;
    mgw_status status = mgw_names_distinct(engine->names, &first, &second, error);
    if (!status && first != second)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "tensors %zu and %zu are both called '%.80s'",
                          first, second, mgw_names_get(engine->names, first));
    if (!status)
        status = allocate_books(engine, error);
    if (!status)
        status = cut_by_size(engine, error);
    if (!status)
        status = engine_run(engine, start, error);
    engine->started = !status;
    return status;
}

/* ---- Collectives for the program ---- */

static mgw_status between_steps(mgw_engine *engine, engine_task *task, const char *call,
                                mgw_error *error)
{
    if (engine->failed || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                        engine->failed ? "the engine failed before; close it"
                                       : "only between steps");
    return engine_run(engine, task, error);
}

/* The transport's own wait has a timeout, and the program's work on a GPU none. */
static mgw_status barrier(mgw_engine *engine, mgw_error *error)
{
    mgw_status status =
        engine->device && engine->started ? engine_device_settle(engine, error) : MGW_OK;
    return status ? status : mgw_transport_barrier(engine->transport, error);
}

static mgw_status move_numbers(mgw_engine *engine, mgw_error *error)
{
    const engine_numbers *n = &engine->numbers;
    if (n->told)
        return mgw_transport_broadcast(engine->transport, n->data, n->count, 0, error);
    return mgw_transport_all_reduce(engine->transport, n->data, n->count, n->dtype, n->op, error);
}

/* In a GPU's memory they go on by themselves; in the host's they are there at the end. */
static mgw_status move_behind_stream(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_device_ask(engine, error);
    mgw_transport_defer(engine->transport, true);
    if (!status)
        status = move_numbers(engine, error);
    mgw_transport_defer(engine->transport, false);
    return status ? status : engine_device_answer(engine, error);
}

static mgw_status move_between_steps(mgw_engine *engine, engine_numbers numbers, const char *call,
                                     mgw_error *error)
{
    if (engine->device && !engine->started)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: on a device only after mgw_engine_start",
                        call);
    if (!engine->in_step)
        engine->numbers = numbers;
    return between_steps(engine, engine->device ? move_behind_stream : move_numbers, call, error);
}

static mgw_status synchronize(mgw_engine *engine, mgw_error *error)
{
    return engine->device && engine->started ? engine_device_settle(engine, error) : MGW_OK;
}

mgw_status mgw_engine_synchronize(mgw_engine *engine, mgw_error *error)
{
    return between_steps(engine, synchronize, "synchronize", error);
}

void mgw_engine_set_stream(mgw_engine *engine, void *stream)
{
    if (engine->device)
        engine->device->compute = stream;
}

mgw_status mgw_engine_barrier(mgw_engine *engine, mgw_error *error)
{
    return between_steps(engine, barrier, "barrier", error);
}

mgw_status mgw_engine_all_reduce(mgw_engine *engine, void *data, size_t count, mgw_dtype dtype,
                                 mgw_op op, mgw_error *error)
{
    return move_between_steps(
        engine, (engine_numbers){.data = data, .count = count, .dtype = dtype, .op = op},
        "all-reduce", error);
}

mgw_status mgw_engine_broadcast(mgw_engine *engine, void *data, size_t bytes, mgw_error *error)
{
    return move_between_steps(engine, (engine_numbers){.data = data, .count = bytes, .told = true},
                              "broadcast", error);
}

void *mgw_engine_gradient(const mgw_engine *engine, unsigned id)
{
    if (!engine->started || id >= engine->tensor_count)
        return NULL;
    const engine_tensor *tensor = &engine->tensors[id];
    return engine->arena[tensor->dtype] + tensor->offset * mgw_dtype_bytes(tensor->dtype);
}

mgw_status mgw_engine_bind(mgw_engine *engine, unsigned id, void *where, mgw_error *error)
{
    if (!engine->started || engine->in_step || id >= engine->tensor_count)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "bind: tensor %u: %s", id,
                        id >= engine->tensor_count ? "there is no such tensor"
                                                   : "only between steps");
    engine->tensors[id].bound = where;
    return MGW_OK;
}
