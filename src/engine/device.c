/*
 * Gradients in GPU memory. The host only orders streams: the transport's stream waits for
 * gradients, the caller's for averages. Times come from events, which are read long after they have
 * completed.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/parameters.h"
#include "engine/place.h"
#include "transport/transport.h"

mgw_status device_check(int code, const char *what, mgw_error *error)
{
    return code ? mgw_cuda_fail(code, what, error) : MGW_OK;
}

/* ---- Opening and closing ---- */

static mgw_status device_open(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = calloc(1, sizeof *device);
    if (!device)
        return mgw_fail_memory(error, "engine");
    mgw_status status = mgw_cuda_enter(&device->cuda, &device->context, error);
    if (status)
        free(device);
    else
        engine->device = device;
    return status;
}

static mgw_status device_enter(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    return device_check(device->cuda->context_set(device->context), "cannot enter the device",
                        error);
}

static int create_events(engine_device *device, bool ahead)
{
    size_t n = device->tensor_count;
    size_t untimed_of_slot = ahead ? 4 * n : n;
    size_t untimed = n + 1 + SLOTS * untimed_of_slot;
    size_t shares = n / SHARE + 1;
    size_t of_slot = READY + shares + (ahead ? shares + 2 * n : 0);
    device->event_count = untimed + SLOTS * of_slot;
    device->events = calloc(device->event_count, sizeof *device->events);
    int code = device->events ? 0 : CUDA_OUT_OF_MEMORY;
    for (size_t i = 0; !code && i < device->event_count; i++)
        code = device->cuda->event_create(&device->events[i],
                                          i < untimed ? CUDA_EVENT_UNTIMED : CUDA_EVENT_TIMED);
    device->foreign = device->events;
    device->handover = device->events + n;
    for (size_t i = 0; i < SLOTS; i++) {
        slot *s = &device->slots[i];
        s->message = device->handover + 1 + i * untimed_of_slot;
        s->at = device->events + untimed + i * of_slot;
        s->ahead.updated = s->message + n; /* these and the following, if there are parameters */
        s->ahead.over = s->message + 2 * n;
        s->ahead.need = s->at + READY + shares;
        s->ahead.stall = s->ahead.need + shares;
    }
    return code;
}

static mgw_status device_start(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    size_t n = device->tensor_count = engine->arena.count;
    device->channel = mgw_transport_stream(engine->transport);
    device->ready_s = calloc(n, sizeof *device->ready_s);
    device->is_foreign = calloc(n, sizeof *device->is_foreign);
    int code = device->is_foreign && device->ready_s ? 0 : CUDA_OUT_OF_MEMORY;
    if (!code)
        code = create_events(device, engine->parameters);
    if (!code)
        code = device->cuda->stream_create(&device->merge, CUDA_STREAM_NON_BLOCKING);
    if (!code && engine->parameters)
        code = device_ahead_start(engine);
    return device_check(code, "cannot make events", error);
}

static mgw_status device_allow(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    if (device->kernels.cuda)
        return MGW_OK;
    return device_check(cuda_kernels_open(device->cuda, &device->kernels),
                        "cannot load kernels for narrow numbers", error);
}

/* Kernels belong to a context, which may not be current on the caller's thread. */
static void close_kernels(engine_device *device)
{
    cuda_context before = NULL;
    if (!device->kernels.cuda || device->cuda->context_get(&before))
        return;
    if (!device->cuda->context_set(device->context))
        cuda_kernels_close(&device->kernels);
    device->cuda->context_set(before);
}

static void device_close(mgw_engine *engine)
{
    engine_device *device = engine->device;
    if (!device)
        return;
    for (size_t i = 0; device->events && i < device->event_count; i++)
        if (device->events[i])
            device->cuda->event_destroy(device->events[i]);
    if (device->merge)
        device->cuda->stream_destroy(device->merge);
    close_kernels(device);
    device_ahead_close(device);
    free(device->events);
    free(device->is_foreign);
    free(device->ready_s);
    free(device);
}

/* ---- The caller's side of a step ---- */

/* Whether the caller's thread had no context: then sets it, and the caller retries. */
static bool was_elsewhere(const engine_device *device, int code)
{
    if (code == CUDA_INVALID_CONTEXT)
        device->cuda->context_set(device->context);
    return code == CUDA_INVALID_CONTEXT;
}

int device_record(const engine_device *device, cuda_event event, cuda_stream stream)
{
    int code = device->cuda->event_record(event, stream);
    return was_elsewhere(device, code) ? device->cuda->event_record(event, stream) : code;
}

int device_wait(const engine_device *device, cuda_stream stream, cuda_event event)
{
    int code = device->cuda->stream_wait(stream, event, 0);
    return was_elsewhere(device, code) ? device->cuda->stream_wait(stream, event, 0) : code;
}

static mgw_status device_begin(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    uint32_t step = step_of(engine);
    slot *now = slot_now(engine);
    mgw_status status = MGW_OK;
    if (step - device->resolved >= SLOTS) /* the host is too far ahead of the GPU */
        status = engine_run(engine, engine->place->settle, error);
    if (status)
        return status;
    now->measures = step > 1 && mgw_tuner_watches(engine->tuner);
    now->share = step % SHARE;
    memset(device->is_foreign, 0, device->tensor_count * sizeof *device->is_foreign);
    atomic_store(&device->incomplete, (uint32_t)engine_average_count(engine));
    if (engine->parameters)
        device_ahead_begin(engine);
    return device_check(device_record(device, now->at[BEGIN], engine->stream),
                        "cannot begin a step", error);
}

void device_note(engine_device *device, int code)
{
    int none = 0;
    if (code)
        atomic_compare_exchange_strong(&device->code, &none, code);
}

static double device_mark(mgw_engine *engine, unsigned id, void *stream)
{
    engine_device *device = engine->device;
    const slot *now = slot_now(engine);
    if (now->measures && id % SHARE == now->share) {
        device_note(device, device_record(device, now->at[READY + id / SHARE], stream));
        if (engine->parameters)
            now->ahead.stalls_at_ready[id / SHARE] = atomic_load(&now->ahead.stall_count);
    }
    if (stream != engine->stream) {
        device_note(device, device_record(device, device->foreign[id], stream));
        device->is_foreign[id] = true;
    }
    return 0; /* events measure it */
}

static unsigned device_samples(const mgw_engine *engine, unsigned *share)
{
    const slot *now = slot_now(engine);
    *share = now->share;
    return now->measures ? SHARE : 0;
}

/* Whether gradients of this step were reported on other streams than the caller's. */
static bool any_foreign(const engine_device *device)
{
    return memchr(device->is_foreign, true, device->tensor_count);
}

/* All gradients of the message are on the caller's stream, or have their own events. */
static void device_complete(mgw_engine *engine, size_t m)
{
    engine_device *device = engine->device;
    const slot *now = slot_now(engine);
    if (atomic_fetch_sub(&device->incomplete, 1) == 1 && !any_foreign(device))
        device_note(device, device_record(device, now->at[COMPUTED], engine->stream));
    device_note(device, device_record(device, now->message[m], engine->stream));
}

static int move(const cuda *c, void *to, const void *from, size_t bytes, cuda_stream stream)
{
    return from ? c->copy(to, from, bytes, stream) : c->fill(to, 0, bytes, stream);
}

static void device_move(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream)
{
    engine_device *device = engine->device;
    int code = move(device->cuda, to, from, bytes, stream);
    if (was_elsewhere(device, code))
        code = move(device->cuda, to, from, bytes, stream);
    device_note(device, code);
}

static int await_stream(const mgw_engine *engine, void *stream)
{
    const cuda *c = engine->device->cuda;
    double begun_s = mgw_now_s();
    int code = c->stream_query(stream);
    if (was_elsewhere(engine->device, code))
        code = c->stream_query(stream);
    while (code == CUDA_NOT_READY && mgw_now_s() - begun_s < engine->options.transport.timeout_s) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
        code = c->stream_query(stream);
    }
    return code;
}

/* Respects the timeout: the copy may have to wait for the program's computation, and to unpinned
 * memory it would do so in the driver, without a limit. */
static bool device_read(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream)
{
    engine_device *device = engine->device;
    const cuda *c = device->cuda;
    int code = await_stream(engine, stream);
    if (!code)
        code = c->copy_out(to, from, bytes, stream);
    if (was_elsewhere(device, code))
        code = c->copy_out(to, from, bytes, stream);
    if (!code)
        code = await_stream(engine, stream);
    device_note(device, code);
    return !code;
}

/* Kernels are loaded: no message is narrow before device_allow. */

_Static_assert(CUDA_SCALED_BLOCK == MGW_FP8_BLOCK, "kernels scale as the host does");

static void device_largest(mgw_engine *engine, const engine_cast *c)
{
    engine_device *device = engine->device;
    device_note(device,
                cuda_largest(&device->kernels, c->data, c->count, c->largest, device->channel));
}

static cuda_scales scales_of(const engine_cast *c)
{
    return (cuda_scales){c->largest, c->largest ? c->first : 0, c->headroom};
}

static char *narrow_at(const engine_cast *c)
{
    return (char *)c->narrow + c->first * mgw_dtype_bytes(c->wire);
}

static void device_narrow(mgw_engine *engine, const engine_cast *c)
{
    engine_device *device = engine->device;
    const cuda_scales scales = scales_of(c);
    device_note(device, cuda_narrow(&device->kernels, c->data + c->first, narrow_at(c), c->count,
                                    c->wire, &scales, device->channel));
}

static void device_widen(mgw_engine *engine, const engine_cast *c)
{
    engine_device *device = engine->device;
    const cuda_scales scales = scales_of(c);
    device_note(device, cuda_widen(&device->kernels, narrow_at(c), c->data + c->first, c->count,
                                   c->wire, &scales, device->channel));
}

static mgw_status device_join(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    cuda_event end = slot_now(engine)->at[END];
    int code = atomic_load(&device->code);
    if (!code)
        code = device_wait(device, engine->stream, end);
    return device_check(code, "a step failed", error);
}

/* ---- The communication thread's side ---- */

/* Records when all gradients are ready, on any streams, on a stream that waits for all of them. */
static int mark_computed(const mgw_engine *engine, size_t last)
{
    const engine_device *device = engine->device;
    const slot *now = slot_now(engine);
    int code = device->cuda->stream_wait(device->merge, now->message[last], 0);
    for (size_t i = 0; !code && i < device->tensor_count; i++)
        if (device->is_foreign[i])
            code = device->cuda->stream_wait(device->merge, device->foreign[i], 0);
    return code ? code : device->cuda->event_record(now->at[COMPUTED], device->merge);
}

/* Makes the next collective wait for the gradients of one operation. */
static int follow(const mgw_engine *engine, const mgw_operation *operation, size_t index)
{
    const engine_device *device = engine->device;
    int code = mgw_transport_follow(engine->transport, slot_now(engine)->message[index]);
    for (size_t i = operation->first; !code && i < operation->first + operation->count; i++)
        if (device->is_foreign[i])
            code = mgw_transport_follow(engine->transport, device->foreign[i]);
    return code;
}

static mgw_status device_admit(mgw_engine *engine, size_t index, mgw_error *error)
{
    engine_device *device = engine->device;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    if (operations[index].kind == MGW_ALL_GATHER)
        return device_check(device_ahead_admit(engine, index), "an update's event failed", error);
    count = engine_average_count(engine);
    /* After the backward pass, the first operation waits for all gradients, and the others wait for
     * the first. */
    bool all = operations[index].release == MGW_AFTER_BACKWARD && index == 0;
    int code = atomic_load(&device->code);
    for (size_t i = all ? 0 : index; !code && i < (all ? count : index + 1); i++)
        code = follow(engine, &operations[i], i);
    if (!code && index + 1 == count && any_foreign(device))
        code = mark_computed(engine, index);
    return device_check(code, "a gradient's event failed", error);
}

int device_seconds(const engine_device *device, cuda_event from, cuda_event to, double *out)
{
    float ms = 0;
    int code = device->cuda->event_elapsed(&ms, from, to);
    *out = ms * 1e-3;
    return code;
}

/* Records the times of a step that has ended, with all work before its end on both streams. */
static int take_down(mgw_engine *engine, const slot *of)
{
    engine_device *device = engine->device;
    mgw_step_record record = {.ready_s = device->ready_s, .step = device->resolved + 1};
    int code = device_seconds(device, of->at[BEGIN], of->at[END], &record.iteration_s);
    if (!code)
        code = device_seconds(device, of->at[BEGIN], of->at[COMPUTED], &record.compute_s);
    memset(device->ready_s, 0, device->tensor_count * sizeof *device->ready_s);
    for (size_t i = of->share; !code && of->measures && i < device->tensor_count; i += SHARE)
        code =
            device_seconds(device, of->at[BEGIN], of->at[READY + i / SHARE], &device->ready_s[i]);
    if (!code && device->resolved > 0)
        code = device_seconds(device, slot_of(engine, device->resolved)->at[END], of->at[END],
                              &record.period_s);
    if (!code && engine->parameters)
        code = device_ahead_take_down(engine, of, &record);
    mgw_tuner_observe(engine->tuner, &record);
    return code;
}

static int resolve(mgw_engine *engine)
{
    engine_device *device = engine->device;
    int code = 0;
    while (!code && device->resolved < device->enqueued) {
        const slot *oldest = slot_of(engine, device->resolved + 1);
        code = device->cuda->event_query(oldest->at[END]);
        if (code)
            break;
        code = take_down(engine, oldest);
        device->resolved++;
    }
    return code == CUDA_NOT_READY ? 0 : code;
}

static mgw_status device_end(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    int code = device->cuda->event_record(slot_now(engine)->at[END], device->channel);
    device->enqueued = step_of(engine);
    engine->waits += !(mgw_transport_capabilities(engine->transport) & MGW_GOES_ON);
    return device_check(code ? code : resolve(engine), "a step failed", error);
}

/* ---- Collectives of the program's data: its stream waits for them, not the host ---- */

/* Orders later work of one stream after the current work of the other. */
static int order(const engine_device *device, cuda_stream before, cuda_stream behind)
{
    int code = device->cuda->event_record(*device->handover, before);
    return code ? code : device->cuda->stream_wait(behind, *device->handover, 0);
}

static mgw_status device_ask(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    int code = mgw_transport_follow(engine->transport, NULL);
    if (!code)
        code = order(device, engine->stream, device->channel);
    return device_check(code, "cannot follow the stream", error);
}

static mgw_status device_answer(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    return device_check(order(device, device->channel, engine->stream), "cannot wait for an answer",
                        error);
}

/* ---- Waiting ---- */

static mgw_status device_watch(mgw_engine *engine, mgw_error *error)
{
    bool done = false;
    mgw_status status = mgw_request_test(engine->transport, &engine->last, &done, error);
    if (done)
        engine->last = (mgw_request){0};
    return status;
}

static mgw_status device_settle(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    engine->waits += device->resolved < device->enqueued || engine->last.number;
    mgw_status status = mgw_request_wait(engine->transport, &engine->last, error);
    if (!status)
        engine->last = (mgw_request){0};
    while (!status) { /* steps end right after the last operation */
        status = device_check(resolve(engine), "a step failed", error);
        if (status || device->resolved == device->enqueued)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    }
    return status;
}

const engine_place engine_cuda = {
    .open = device_open,
    .close = device_close,
    .enter = device_enter,
    .start = device_start,
    .begin = device_begin,
    .mark = device_mark,
    .samples = device_samples,
    .complete = device_complete,
    .join = device_join,
    .move = device_move,
    .read = device_read,
    .allow = device_allow,
    .largest = device_largest,
    .narrow = device_narrow,
    .widen = device_widen,
    .over = device_over,
    .averaged = device_averaged,
    .updated = device_updated,
    .need = device_need,
    .drain = device_drain,
    .admit = device_admit,
    .end = device_end,
    .watch = device_watch,
    .settle = device_settle,
    .ask = device_ask,
    .answer = device_answer,
    .sampled = SHARE,
    .back_to_back = 16,
};
