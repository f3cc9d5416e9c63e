/* One step: gradients become ready, messages are sent in plan order, all are waited for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "transport/reduce.h"

mgw_status engine_cut(mgw_engine *engine, const size_t *ends, size_t count, mgw_error *error)
{
    size_t next[DTYPES] = {0};
    size_t tensor = 0;
    engine->messages = engine->rows[engine->sent == engine->rows[0]];
    for (size_t m = 0; m < count; m++) {
        engine_message *message = &engine->messages[m];
        if (ends[m] <= tensor || ends[m] > engine->tensor_count)
            return mgw_fail(error, MGW_ERR_INPUT, "plan: message %zu is empty or too long", m);
        *message = (engine_message){.first = tensor, .count = ends[m] - tensor};
        memcpy(message->begin, next, sizeof next);
        for (; tensor < ends[m]; tensor++) {
            const engine_tensor *t = &engine->tensors[tensor];
            size_t unit = 64 / mgw_dtype_bytes(t->dtype);
            next[t->dtype] += (t->count + unit - 1) / unit * unit;
            engine->message_of[tensor] = (uint32_t)m;
        }
        for (int d = 0; d < DTYPES; d++)
            message->length[d] = next[d] - message->begin[d];
    }
    if (tensor != engine->tensor_count)
        return mgw_fail(error, MGW_ERR_INPUT, "plan: it has %zu tensors of %zu", tensor,
                        engine->tensor_count);
    engine->message_count = count;
    return MGW_OK;
}

/* ---- The caller's side ---- */

static mgw_status check_usable(const mgw_engine *engine, bool in_step, const char *call,
                               mgw_error *error)
{
    if (engine->failed)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the engine failed before; close it", call);
    if (!engine->started || engine->in_step != in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: %s", call,
                        !engine->started ? "the engine is not started"
                        : in_step        ? "no step was begun"
                                         : "the step before was not waited for");
    return MGW_OK;
}

/* What ready() could not say, because it is wait-free and returns nothing. */
static mgw_status check_trouble(mgw_engine *engine, const char *what, mgw_error *error)
{
    uint32_t trouble = atomic_load(&engine->trouble);
    if (!trouble)
        return MGW_OK;
    engine->failed = true;
    if (trouble > engine->tensor_count)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "rank %u: tensor %u: there is no such tensor",
                        engine->rank, trouble - 1);
    return mgw_fail(error, MGW_ERR_ARGUMENT, "rank %u: tensor %u ('%.80s') %s", engine->rank,
                    trouble - 1, mgw_names_get(engine->names, trouble - 1), what);
}

/* Here and not behind the step before, so that between steps the plan is the one that it had. */
static mgw_status plan_if_due(mgw_engine *engine, mgw_error *error)
{
    int due = engine->plan ? engine->options.replan_steps : engine->options.profile_steps;
    if (engine->device && due < ENGINE_SHARE + 1) /* until every tensor was timed */
        due = ENGINE_SHARE + 1;
    return engine->since_look >= (size_t)due ? engine_run(engine, engine_replan, error) : MGW_OK;
}

mgw_status mgw_engine_begin(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = check_usable(engine, false, "begin", error);
    if (!status)
        status = check_trouble(engine, "was ready outside of a step", error);
    if (!status)
        status = plan_if_due(engine, error);
    if (status)
        return status;
    for (size_t m = 0; m < engine->message_count; m++)
        atomic_store_explicit(&engine->remaining[m], (uint32_t)engine->messages[m].count + 1,
                              memory_order_relaxed);
    atomic_store(&engine->waiting, false);
    engine->step++;
    if (engine->device && (status = engine_device_begin(engine, error))) {
        engine->failed = true;
        return status;
    }
    engine->in_step = true;
    engine->begin_s = mgw_now_s();
    engine->late_s = engine->end_s > 0 ? engine->begin_s - engine->end_s : 0;
    engine->task = engine_run_step;
    if (engine->threaded)
        sem_post(&engine->go);
    return MGW_OK;
}

/* Releases the gradient and the time to the communication thread; the last one wakes it. */
static void count_down(mgw_engine *engine, size_t m)
{
    if (atomic_fetch_sub_explicit(&engine->remaining[m], 1, memory_order_acq_rel) != 2)
        return;
    if (engine->device)
        engine_device_complete(engine, m);
    atomic_store_explicit(&engine->remaining[m], 0, memory_order_release);
    sem_post(&engine->work);
}

/* Whether the tensor is due. */
static bool claim(mgw_engine *engine, unsigned id)
{
    /* Outside of a step every tensor has been ready in the step before, or there are no books. */
    bool due = engine->started && id < engine->tensor_count &&
               atomic_exchange_explicit(&engine->ready_step[id], engine->step,
                                        memory_order_relaxed) != engine->step;
    if (!due)
        atomic_store(&engine->trouble, id < UINT32_MAX ? id + 1 : id);
    return due;
}

static void publish(mgw_engine *engine, unsigned id, void *stream)
{
    if (engine->device)
        engine_device_ready(engine, id, stream);
    else
        engine->ready_s[id] = mgw_now_s() - engine->begin_s;
    count_down(engine, engine->message_of[id]);
}

void mgw_engine_ready(mgw_engine *engine, unsigned id)
{
    mgw_engine_ready_on(engine, id, engine->device ? engine->device->compute : NULL);
}

void mgw_engine_ready_on(mgw_engine *engine, unsigned id, void *stream)
{
    if (claim(engine, id))
        publish(engine, id, stream);
}

void mgw_engine_ready_at(mgw_engine *engine, unsigned id, const void *source, void *stream)
{
    if (!claim(engine, id))
        return;
    const engine_tensor *tensor = &engine->tensors[id];
    size_t bytes = tensor->count * mgw_dtype_bytes(tensor->dtype);
    void *home = tensor->bound ? tensor->bound : mgw_engine_gradient(engine, id);
    if (bytes && engine->device)
        engine_device_take(engine, home, source, bytes, stream);
    else if (bytes)
        memcpy(home, source, bytes);
    atomic_fetch_add_explicit(&engine->copied_bytes, bytes, memory_order_relaxed);
    publish(engine, id, stream);
}

static void zero_unused(mgw_engine *engine)
{
    for (size_t i = 0; i < engine->tensor_count; i++) {
        if (atomic_load(&engine->ready_step[i]) == engine->step)
            continue;
        const engine_tensor *tensor = &engine->tensors[i];
        size_t bytes = tensor->count * mgw_dtype_bytes(tensor->dtype);
        void *gradient = tensor->bound ? tensor->bound : mgw_engine_gradient(engine, (unsigned)i);
        if (bytes && engine->device)
            engine_device_zero(engine, gradient, bytes);
        else if (bytes)
            memset(gradient, 0, bytes);
        mgw_engine_ready(engine, (unsigned)i);
    }
}

mgw_status mgw_engine_wait(mgw_engine *engine, mgw_error *error)
{
    mgw_status status = check_usable(engine, true, "wait", error);
    if (status)
        return status;
    if (engine->options.zero_unused)
        zero_unused(engine);
    atomic_store(&engine->waiting, true);
    if (!engine->threaded)
        engine->status = engine_run_step(engine, &engine->error);
    while (engine->threaded && sem_wait(&engine->done) && errno == EINTR)
        continue;
    engine->in_step = false;
    if (engine->status) {
        engine->failed = true;
        return mgw_fail(error, engine->status, "%s", engine->error.message);
    }
    status = check_trouble(engine, "was ready twice in one step", error);
    if (!status && engine->device)
        status = engine_device_join(engine, error);
    engine->failed = status != MGW_OK;
    return status;
}

/* ---- The communication thread's side ---- */

/* The tensor of a message that is still missing. */
static const char *missing_tensor(const mgw_engine *engine, const engine_message *message)
{
    for (size_t i = message->first; i < message->first + message->count; i++)
        if (atomic_load(&engine->ready_step[i]) != engine->step)
            return mgw_names_get(engine->names, i);
    return "?";
}

bool engine_sleep_on(sem_t *semaphore, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return !sem_clockwait(semaphore, CLOCK_MONOTONIC, &until);
}

/* Sleeps until the message is complete, or the caller has waited too long or is closing. */
static mgw_status await_gradients(mgw_engine *engine, size_t m, double *waiting_s, mgw_error *error)
{
    double timeout_s = engine->options.transport.timeout_s;
    while (atomic_load_explicit(&engine->remaining[m], memory_order_acquire)) {
        engine->taken += engine_sleep_on(&engine->work, 100 * 1000 * 1000);
        if (atomic_load(&engine->closing))
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "the engine was closed in the middle of a step");
        if (atomic_load(&engine->waiting) && *waiting_s == 0)
            *waiting_s = mgw_now_s();
        if (*waiting_s > 0 && mgw_now_s() - *waiting_s > timeout_s &&
            atomic_load_explicit(&engine->remaining[m], memory_order_acquire))
            return mgw_fail(error, MGW_ERR_TIMEOUT,
                            "rank %u: message %zu: tensor '%.80s' was not ready within %.3g s of "
                            "waiting",
                            engine->rank, m + 1, missing_tensor(engine, &engine->messages[m]),
                            timeout_s);
        mgw_status status = engine->device ? engine_device_watch(engine, error) : MGW_OK;
        if (status)
            return status;
    }
    return MGW_OK;
}

/* Gradients that stay elsewhere are copied into the arena, or back. */
static mgw_status copy_bound(mgw_engine *engine, const engine_message *message, bool in,
                             mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t i = message->first; !status && i < message->first + message->count; i++) {
        const engine_tensor *tensor = &engine->tensors[i];
        size_t bytes = tensor->count * mgw_dtype_bytes(tensor->dtype);
        if (!tensor->bound || !bytes)
            continue;
        void *inside = mgw_engine_gradient(engine, (unsigned)i);
        void *to = in ? inside : tensor->bound;
        const void *from = in ? tensor->bound : inside;
        if (engine->device)
            status = engine_device_copy(engine, to, from, bytes, error);
        else
            memcpy(to, from, bytes);
        atomic_fetch_add_explicit(&engine->copied_bytes, bytes, memory_order_relaxed);
    }
    return status;
}

/* f32 gradients that travel as 16 bits: narrowed, reduced, widened. */
static mgw_status reduce_narrow(mgw_engine *engine, size_t m, float *data, size_t count,
                                mgw_error *error)
{
    mgw_narrow(data, engine->narrow, count, engine->wire);
    mgw_status status =
        engine_aggregate(engine, m, engine->narrow, count, engine->wire, NULL, NULL, error);
    if (!status)
        mgw_widen(engine->narrow, data, count, engine->wire);
    return status;
}

static mgw_status send_message(mgw_engine *engine, size_t m, mgw_error *error)
{
    const engine_message *message = &engine->messages[m];
    mgw_status status = engine->device ? engine_device_admit(engine, m, error) : MGW_OK;
    if (!status)
        status = copy_bound(engine, message, true, error);
    for (int d = 0; !status && d < DTYPES; d++) {
        size_t count = message->length[d];
        if (!count)
            continue;
        void *data = engine->arena[d] + message->begin[d] * mgw_dtype_bytes((mgw_dtype)d);
        if (d == MGW_F32 && engine->wire != MGW_F32)
            status = reduce_narrow(engine, m, data, count, error);
        else
            status = engine_aggregate(engine, m, data, count, (mgw_dtype)d, NULL, NULL, error);
    }
    return status ? status : copy_bound(engine, message, false, error);
}

void engine_add_times(mgw_engine *engine, double iteration_s, double compute_s)
{
    engine->last_compute_s = compute_s;
    engine->compute_sum_s += compute_s;
    engine->iteration_sum_s += iteration_s;
    engine->window++;
}

static void take_down(mgw_engine *engine)
{
    double end_s = engine->messages[engine->message_count - 1].end_s;
    double compute_s = 0;
    for (size_t i = 0; i < engine->tensor_count; i++) {
        compute_s = engine->ready_s[i] > compute_s ? engine->ready_s[i] : compute_s;
    }
    engine_add_times(engine, end_s > compute_s ? end_s : compute_s, compute_s);
    engine_note_step(engine);
    engine->end_s = engine->begin_s + end_s;
}

/* On a device the messages are only begun; their times come later. */
static mgw_status end_step(mgw_engine *engine, mgw_error *error)
{
    engine->sent = engine->messages;
    engine->sent_count = engine->message_count;
    engine->steps++;
    engine->since_look++;
    if (engine->device)
        return engine_device_end(engine, error);
    take_down(engine);
    return MGW_OK;
}

mgw_status engine_run_step(mgw_engine *engine, mgw_error *error)
{
    double waiting_s = 0;
    mgw_status status = MGW_OK;
    engine->taken = 0;
    mgw_transport_defer(engine->transport, true);
    for (size_t m = 0; !status && engine->after_backward && m < engine->message_count; m++) {
        status = await_gradients(engine, m, &waiting_s, error);
        if (!status && engine->device)
            status = engine_device_admit(engine, m, error);
    }
    for (size_t m = 0; !status && m < engine->message_count; m++) {
        engine_message *message = &engine->messages[m];
        status = await_gradients(engine, m, &waiting_s, error);
        if (status)
            break;
        message->start_s = mgw_now_s() - engine->begin_s;
        message->busy_s = -mgw_busy_s();
        mgw_error inner = {0};
        status = send_message(engine, m, &inner);
        message->end_s = mgw_now_s() - engine->begin_s;
        message->busy_s += mgw_busy_s();
        if (status)
            status = mgw_fail(error, inner.status, "message %zu of %zu (from '%.60s'): %s", m + 1,
                              engine->message_count, mgw_names_get(engine->names, message->first),
                              inner.message);
    }
    /* Every message was posted once, by a thread that may still be about to: then it is done. */
    while (!status && engine->taken < engine->message_count)
        engine->taken += !sem_wait(&engine->work);
    mgw_transport_defer(engine->transport, false);
    return status ? status : end_step(engine, error);
}
