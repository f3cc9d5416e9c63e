/* Opens, starts and closes the engine; and its communication thread. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/process.h"
#include "base/status.h"
#include "base/thread.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/transport.h"

bool engine_is_ours(const mgw_engine *engine)
{
    return engine && engine->process == mgw_process();
}

mgw_status engine_check(const mgw_engine *engine, const char *call, mgw_error *error)
{
    if (engine_is_ours(engine))
        return MGW_OK;
    if (!engine)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the engine is null", call);
    return mgw_fail(
        error, MGW_ERR_ARGUMENT,
        "%s: the engine belongs to process %ld, and this process is a fork of it: only that "
        "process can use it (fork before mgw_engine_open, or open another engine here)",
        call, (long)engine->process);
}

/* ---- The communication thread ---- */

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) && errno == EINTR)
        continue;
}

/* Waits for a task, and meanwhile attends to background work. A failure is reported by the next
 * task. */
static void await_task(mgw_engine *engine)
{
    mgw_error ignored;
    if (engine->parameters)
        engine_attend(engine);
    else if (!engine->place->watch)
        wait_for(&engine->thread.go);
    else
        while (!engine_sleep_on(&engine->thread.go, 20 * 1000 * 1000))
            if (engine->transport && engine->place->watch(engine, &ignored))
                continue;
}

/* Runs the task, unless a gather in the background has failed: then returns its error. */
static mgw_status do_task(mgw_engine *engine, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    if (p && p->status)
        return mgw_fail(error, p->status, "%s", p->error.message);
    if (engine->transport)
        mgw_transport_intend(engine->transport, MGW_FOR_PROGRAM, false);
    mgw_status status = engine->thread.task(engine, error);
    if (status)
        engine_explain(engine, error);
    return status;
}

/* Runs tasks until there is none. All use of the transport happens here. */
static void *communicate(void *argument)
{
    mgw_engine *engine = argument;
    engine_thread *thread = &engine->thread;
    for (;;) {
        await_task(engine);
        if (!thread->task)
            break;
        thread->status = do_task(engine, &thread->error);
        sem_post(&thread->done);
    }
    if (engine->parameters && !engine->failed && !engine->in_step)
        engine_take_posts(engine);
    engine_last_words(engine);
    mgw_transport_close(engine->transport);
    return NULL;
}

void engine_hand_over(mgw_engine *engine, engine_task *task)
{
    engine_thread *thread = &engine->thread;
    thread->task = task;
    if (thread->threaded && engine->parameters)
        engine_call(engine);
    else if (thread->threaded)
        sem_post(&thread->go);
}

mgw_status engine_await(mgw_engine *engine, mgw_error *error)
{
    engine_thread *thread = &engine->thread;
    if (thread->threaded)
        wait_for(&thread->done);
    else
        thread->status = do_task(engine, &thread->error);
    if (!thread->status)
        return MGW_OK;
    engine->failed = true;
    return mgw_fail(error, thread->status, "%s", thread->error.message);
}

mgw_status engine_run(mgw_engine *engine, engine_task *task, mgw_error *error)
{
    engine_hand_over(engine, task);
    return engine_await(engine, error);
}

/* ---- Open and close ---- */

static mgw_status open_transport(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_at_place(engine, engine->place->enter, error);
    if (!status)
        status = mgw_transport_open(&engine->options.transport, &engine->transport, error);
    if (!status) {
        engine->rank = mgw_transport_rank(engine->transport);
        engine->size = mgw_transport_size(engine->transport);
        status = engine_check_servers(engine, error);
    }
    return status;
}

static void free_all(mgw_engine *engine)
{
    engine_thread *thread = &engine->thread;
    pthread_mutex_destroy(&engine->history.lock);
    sem_destroy(&thread->work);
    sem_destroy(&thread->go);
    sem_destroy(&thread->done);
    mgw_tuner_destroy(engine->tuner);
    mgw_flow_destroy(engine->flow);
    if (engine->place->close)
        engine->place->close(engine);
    engine_arena_fini(&engine->arena);
    engine_parameters_close(engine);
    engine_debug_close(engine);
    free(engine->times.took_s);
    free(engine->times.busy_s);
    free(engine);
}

static mgw_status prepare(const mgw_engine_options *options, mgw_engine *engine, mgw_error *error)
{
    bool caller = false;
    mgw_error why = {0};
    mgw_status status = engine_complete_options(options, &engine->options, error);
    if (!status && !(options && options->servers > 0))
        engine->servers_from = "MGWFBP_SERVERS";
    if (!status)
        status = engine_read_wire(engine->options.wire, &engine->wire, error);
    if (!status)
        status = engine_parameters_open(engine, error);
    if (!status) /* fail for a bad name now, not after the calibration */
        status =
            engine_blame(engine->options.policy, "MGWFBP_POLICY",
                         engine_check_policy(engine, engine->options.policy, &why), &why, error);
    if (!status)
        status = mgw_transport_prepare(&engine->options.transport, &caller, error);
    if (!status && engine->options.transport.on_device)
        engine->place = &engine_cuda;
    if (!status)
        status = engine_at_place(engine, engine->place->open, error);
    if (!status)
        status = mgw_names_create(&engine->arena.names, error);
    engine->thread.threaded = !caller;
    return status;
}

mgw_status mgw_engine_open(const mgw_engine_options *options, mgw_engine **out, mgw_error *error)
{
    mgw_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return mgw_fail_memory(error, "engine");
    engine_thread *thread = &engine->thread;
    engine->place = &engine_host;
    engine->process = mgw_process();
    pthread_mutex_init(&engine->history.lock, NULL);
    sem_init(&thread->work, 0, 0);
    sem_init(&thread->go, 0, 0);
    sem_init(&thread->done, 0, 0);
    mgw_status status = prepare(options, engine, error);
    if (!status && thread->threaded && mgw_thread_start(&thread->thread, communicate, engine))
        status = mgw_fail(error, MGW_ERR_NO_MEMORY, "engine: cannot start a thread");
    if (status) {
        free_all(engine);
        return status;
    }
    status = engine_run(engine, open_transport, error);
    if (status)
        mgw_engine_close(engine);
    else
        *out = engine;
    return status;
}

void mgw_engine_close(mgw_engine *engine)
{
    if (!engine_is_ours(engine)) /* a fork's copy ends with the fork */
        return;
    engine_thread *thread = &engine->thread;
    if (!thread->threaded) {
        engine_last_words(engine);
        mgw_transport_close(engine->transport);
        free_all(engine);
        return;
    }
    if (engine->parameters) /* nothing more is started; work in flight ends or fails */
        atomic_store(&thread->closing, true);
    else if (engine->in_step) { /* end the step first: it fails, or it is just finishing */
        atomic_store(&thread->closing, true);
        sem_post(&thread->work);
        wait_for(&thread->done);
    }
    engine_hand_over(engine, NULL);
    pthread_join(thread->thread, NULL);
    free_all(engine);
}

unsigned mgw_engine_rank(const mgw_engine *engine)
{
    return engine ? engine->rank : 0;
}

unsigned mgw_engine_size(const mgw_engine *engine)
{
    return engine ? engine->size : 0;
}

/* ---- Start ---- */

static mgw_status make_tuner(mgw_engine *engine, double crowd, mgw_cluster *cluster,
                             mgw_error *error)
{
    size_t n = engine->arena.count;
    const char **names = malloc(n * sizeof *names);
    uint64_t *bytes = malloc(n * sizeof *bytes);
    mgw_status status = names && bytes ? MGW_OK : mgw_fail_memory(error, "engine");
    for (size_t i = 0; !status && i < n; i++) {
        const engine_tensor *tensor = &engine->arena.tensors[i];
        names[i] = mgw_names_get(engine->arena.names, i);
        bytes[i] = tensor->count * mgw_dtype_bytes(engine_travels_as(engine, tensor->dtype));
    }
    mgw_dtype dtype = engine_travels_as(engine, engine->arena.tensors[0].dtype);
    bool one = (unsigned)dtype < DTYPES; /* not 8 bits, which have scales */
    for (size_t i = 1; i < n; i++)
        one = one && engine_travels_as(engine, engine->arena.tensors[i].dtype) == dtype;
    const mgw_engine_options *o = &engine->options;
    const mgw_tuner_options options = {.policy = o->policy,
                                       .profile_steps = o->profile_steps,
                                       .replan_steps = o->replan_steps,
                                       .replan_percent = o->replan_percent,
                                       .sampled = engine->place->sampled,
                                       .whole_steps = engine->place->sampled > 0,
                                       .crowd = crowd,
                                       .size = engine->size,
                                       .parameter_ratio = engine_parameter_ratio(engine),
                                       .trials = o->trials > 0 ? (unsigned)o->trials : 0,
                                       .lanes = mgw_transport_lanes(engine->transport),
                                       .one_dtype = one,
                                       .dtype = dtype};
    if (!status)
        status = mgw_tuner_create(&options, n, names, bytes, cluster, &engine->tuner, error);
    free((void *)names);
    free(bytes);
    return status;
}

static mgw_status make_books(mgw_engine *engine, mgw_error *error)
{
    size_t n = engine->arena.count;
    engine->times.took_s = calloc(2 * n, sizeof *engine->times.took_s);
    engine->times.busy_s = calloc(2 * n, sizeof *engine->times.busy_s);
    if (!engine->times.took_s || !engine->times.busy_s)
        return mgw_fail_memory(error, "engine");
    return mgw_flow_create(n, &engine->flow, error);
}

static mgw_status start(mgw_engine *engine, mgw_error *error)
{
    double crowd = 0;
    mgw_cluster *cluster = NULL;
    mgw_transport_intend(engine->transport, MGW_FOR_START, false);
    mgw_status status = engine_agree(engine, &crowd, error);
    if (!status)
        status = engine_at_place(engine, engine->place->start, error);
    if (!status)
        status = engine_arena_allocate(engine, error);
    if (!status && engine->parameters)
        status = engine_parameters_allocate(engine, error);
    if (!status)
        status = engine_calibrate(engine, &cluster, error);
    if (!status)
        status = make_tuner(engine, crowd, cluster, error);
    if (!engine->tuner)
        mgw_cluster_destroy(cluster);
    engine_name_policy(engine, engine->options.plan ? NULL : engine->options.policy);
    if (!status && engine->options.plan)
        status = engine_pin(engine, error);
    return status ? status : engine_adopt(engine, error);
}

mgw_status mgw_engine_start(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = engine_check(engine, "start", error);
    if (status)
        return status;
    engine_arena *arena = &engine->arena;
    if (engine->started || engine->failed || arena->count == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "engine: %s",
                        engine->started ? "started before"
                        : arena->count  ? "failed before; it can only be closed"
                                        : "no tensors were added");
    size_t first = 0;
    size_t second = 0;
    status = mgw_names_distinct(arena->names, &first, &second, error);
    if (!status && first != second)
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "tensors %zu and %zu have the same name '%.80s'",
                          first, second, mgw_names_get(arena->names, first));
    if (!status)
        status = make_books(engine, error);
    if (!status)
        status = engine_debug_open(engine, error);
    if (!status)
        status = engine_run(engine, start, error);
    if (!status)
        status = engine_reshard(engine, error);
    if (!status && engine->early) /* the flow reports it at the first begin */
        mgw_flow_claim(engine->flow, engine->early - 1);
    engine->started = engine->history.open = !status;
    return status;
}
