/* Gradients in a GPU's memory. The host only says what waits for what: the transport's stream for
 * gradients, the caller's for averages. Times come from events, looked at when they are long over.
 */
#include "engine/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "engine/place.h"
#include "transport/transport.h"

static mgw_status check(int code, const char *what, mgw_error *error)
{
    return code ? mgw_cuda_fail(code, what, error) : MGW_OK;
}

static mgw_status device_settle(mgw_engine *engine, mgw_error *error);

/* Steps are numbered as the flow does. */
static uint32_t step_of(const mgw_engine *engine)
{
    return (uint32_t)mgw_flow_step(engine->flow);
}

static engine_slot *slot_of(engine_device *device, uint32_t step)
{
    return &device->slots[step % ENGINE_SLOTS];
}

/* ---- Life ---- */

static mgw_status device_open(mgw_engine *engine, mgw_error *error)
{
    if (engine->wire != MGW_F32)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "wire: gradients on a device travel as they are, not as 16 bits");
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

static void device_enter(const mgw_engine *engine)
{
    engine->device->cuda->context_set(engine->device->context);
}

static int create_events(const engine_device *device, cuda_event *events, size_t count,
                         unsigned flags)
{
    int code = events ? 0 : CUDA_OUT_OF_MEMORY;
    for (size_t i = 0; !code && i < count; i++)
        code = device->cuda->event_create(&events[i], flags);
    return code;
}

static size_t share_count(const engine_device *device)
{
    return device->tensor_count / ENGINE_SHARE + 1;
}

static int create_slot(const engine_device *device, engine_slot *slot)
{
    slot->ready = calloc(share_count(device), sizeof *slot->ready);
    int code = create_events(device, slot->ready, share_count(device), CUDA_EVENT_TIMED);
    if (!code)
        code = create_events(device, &slot->begin, 1, CUDA_EVENT_TIMED);
    if (!code)
        code = create_events(device, &slot->computed, 1, CUDA_EVENT_TIMED);
    return code ? code : create_events(device, &slot->end, 1, CUDA_EVENT_TIMED);
}

static mgw_status device_start(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    size_t n = device->tensor_count = engine->arena.count;
    device->channel = mgw_transport_stream(engine->transport);
    device->ready_s = calloc(n, sizeof *device->ready_s);
    device->message = calloc(n, sizeof *device->message);
    device->foreign = calloc(n, sizeof *device->foreign);
    device->is_foreign = calloc(n, sizeof *device->is_foreign);
    int code = device->is_foreign && device->ready_s ? 0 : CUDA_OUT_OF_MEMORY;
    if (!code)
        code = create_events(device, device->message, n, CUDA_EVENT_UNTIMED);
    if (!code)
        code = create_events(device, device->foreign, n, CUDA_EVENT_UNTIMED);
    if (!code)
        code = create_events(device, &device->handover, 1, CUDA_EVENT_UNTIMED);
    if (!code)
        code = create_events(device, &device->answered, 1, CUDA_EVENT_UNTIMED);
    if (!code)
        code = device->cuda->stream_create(&device->merge, CUDA_STREAM_NON_BLOCKING);
    for (size_t i = 0; !code && i < ENGINE_SLOTS; i++)
        code = create_slot(device, &device->slots[i]);
    return check(code, "cannot make events", error);
}

static void destroy_events(const engine_device *device, cuda_event *events, size_t count)
{
    for (size_t i = 0; events && i < count; i++)
        if (events[i])
            device->cuda->event_destroy(events[i]);
}

static void device_close(mgw_engine *engine)
{
    engine_device *device = engine->device;
    if (!device)
        return;
    destroy_events(device, device->message, device->tensor_count);
    destroy_events(device, device->foreign, device->tensor_count);
    destroy_events(device, &device->handover, 1);
    destroy_events(device, &device->answered, 1);
    if (device->merge)
        device->cuda->stream_destroy(device->merge);
    for (size_t i = 0; i < ENGINE_SLOTS; i++) {
        engine_slot *slot = &device->slots[i];
        destroy_events(device, slot->ready, share_count(device));
        destroy_events(device, &slot->begin, 1);
        destroy_events(device, &slot->computed, 1);
        destroy_events(device, &slot->end, 1);
        free(slot->ready);
    }
    free(device->message);
    free(device->foreign);
    free(device->is_foreign);
    free(device->ready_s);
    free(device);
}

/* ---- The caller's side of a step ---- */

/* The caller may be on a thread that never met the GPU: then it does, and tries again. */
static bool was_elsewhere(const engine_device *device, int code)
{
    if (code == CUDA_INVALID_CONTEXT)
        device->cuda->context_set(device->context);
    return code == CUDA_INVALID_CONTEXT;
}

static int record(const engine_device *device, cuda_event event, cuda_stream stream)
{
    int code = device->cuda->event_record(event, stream);
    return was_elsewhere(device, code) ? device->cuda->event_record(event, stream) : code;
}

static mgw_status device_begin(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    uint32_t step = step_of(engine);
    engine_slot *slot = slot_of(device, step);
    mgw_status status = MGW_OK;
    if (step - device->resolved > ENGINE_SLOTS) /* too far ahead of the GPU */
        status = engine_run(engine, device_settle, error);
    if (status)
        return status;
    slot->measures = step > 1 && mgw_tuner_watches(engine->tuner);
    slot->share = step % ENGINE_SHARE;
    memset(device->is_foreign, 0, device->tensor_count * sizeof *device->is_foreign);
    size_t count = 0;
    mgw_flow_operations(engine->flow, &count);
    atomic_store(&device->incomplete, (uint32_t)count);
    return check(record(device, slot->begin, engine->stream), "cannot begin a step", error);
}

/* What ready() cannot return. */
static void note(engine_device *device, int code)
{
    int none = 0;
    if (code)
        atomic_compare_exchange_strong(&device->code, &none, code);
}

static double device_mark(mgw_engine *engine, unsigned id, void *stream)
{
    engine_device *device = engine->device;
    const engine_slot *slot = slot_of(device, step_of(engine));
    if (slot->measures && id % ENGINE_SHARE == slot->share)
        note(device, record(device, slot->ready[id / ENGINE_SHARE], stream));
    if (stream != engine->stream) {
        note(device, record(device, device->foreign[id], stream));
        device->is_foreign[id] = true;
    }
    return 0; /* events tell */
}
static void device_take(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream)
{
    engine_device *device = engine->device;
    int code = device->cuda->copy(to, from, bytes, stream);
    note(device, was_elsewhere(device, code) ? device->cuda->copy(to, from, bytes, stream) : code);
}

/* Whether gradients of this step came on other streams than the caller's. */
static bool any_foreign(const engine_device *device)
{
    return memchr(device->is_foreign, true, device->tensor_count);
}

/* All of the message's gradients are on the caller's stream by now, or have events of their own. */
static void device_complete(mgw_engine *engine, size_t m)
{
    engine_device *device = engine->device;
    const engine_slot *slot = slot_of(device, step_of(engine));
    if (atomic_fetch_sub(&device->incomplete, 1) == 1 && !any_foreign(device))
        note(device, record(device, slot->computed, engine->stream));
    note(device, record(device, device->message[m], engine->stream));
}

static void device_zero(mgw_engine *engine, void *data, size_t bytes)
{
    engine_device *device = engine->device;
    int code = device->cuda->fill(data, 0, bytes, engine->stream);
    note(device,
         was_elsewhere(device, code) ? device->cuda->fill(data, 0, bytes, engine->stream) : code);
}

static mgw_status device_join(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    cuda_event end = slot_of(device, step_of(engine))->end;
    int code = atomic_load(&device->code);
    if (!code)
        code = device->cuda->stream_wait(engine->stream, end, 0);
    if (was_elsewhere(device, code))
        code = device->cuda->stream_wait(engine->stream, end, 0);
    return check(code, "a step failed", error);
}

/* ---- The communication thread's side ---- */

/* When all gradients are there, on whatever streams: a stream that waits for all of them knows. */
static int mark_computed(const mgw_engine *engine, size_t last)
{
    const engine_device *device = engine->device;
    int code = device->cuda->stream_wait(device->merge, device->message[last], 0);
    for (size_t i = 0; !code && i < device->tensor_count; i++)
        if (device->is_foreign[i])
            code = device->cuda->stream_wait(device->merge, device->foreign[i], 0);
    const engine_slot *slot = &device->slots[step_of(engine) % ENGINE_SLOTS];
    return code ? code : device->cuda->event_record(slot->computed, device->merge);
}

/* The transport's stream waits for the gradients of one operation. */
static int follow(const engine_device *device, const mgw_operation *operation, size_t index)
{
    int code = device->cuda->stream_wait(device->channel, device->message[index], 0);
    for (size_t i = operation->first; !code && i < operation->first + operation->count; i++)
        if (device->is_foreign[i])
            code = device->cuda->stream_wait(device->channel, device->foreign[i], 0);
    return code;
}

static mgw_status device_admit(mgw_engine *engine, size_t index, mgw_error *error)
{
    engine_device *device = engine->device;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    /* Behind the backward pass the first one waits for all, and the others wait for the first. */
    bool all = operations[index].release == MGW_AFTER_BACKWARD && index == 0;
    int code = atomic_load(&device->code);
    for (size_t i = all ? 0 : index; !code && i < (all ? count : index + 1); i++)
        code = follow(device, &operations[i], i);
    if (!code && index + 1 == count && any_foreign(device))
        code = mark_computed(engine, index);
    return check(code, "a gradient's event failed", error);
}

static mgw_status device_copy(mgw_engine *engine, void *to, const void *from, size_t bytes,
                              mgw_error *error)
{
    engine_device *device = engine->device;
    return check(device->cuda->copy(to, from, bytes, device->channel), "cannot copy a gradient",
                 error);
}

static int seconds_between(const engine_device *device, cuda_event from, cuda_event to, double *out)
{
    float ms = 0;
    int code = device->cuda->event_elapsed(&ms, from, to);
    *out = ms * 1e-3;
    return code;
}

/* The times of a step that has ended, and with it all that is before its end on either stream. */
static int take_down(mgw_engine *engine, const engine_slot *slot)
{
    engine_device *device = engine->device;
    mgw_step_record record = {.ready_s = device->ready_s};
    int code = seconds_between(device, slot->begin, slot->end, &record.iteration_s);
    if (!code)
        code = seconds_between(device, slot->begin, slot->computed, &record.compute_s);
    memset(device->ready_s, 0, device->tensor_count * sizeof *device->ready_s);
    for (size_t i = slot->share; !code && slot->measures && i < device->tensor_count;
         i += ENGINE_SHARE)
        code = seconds_between(device, slot->begin, slot->ready[i / ENGINE_SHARE],
                               &device->ready_s[i]);
    mgw_tuner_observe(engine->tuner, &record);
    return code;
}

static int resolve(mgw_engine *engine)
{
    engine_device *device = engine->device;
    int code = 0;
    while (!code && device->resolved < device->enqueued) {
        const engine_slot *slot = slot_of(device, device->resolved + 1);
        code = device->cuda->event_query(slot->end);
        if (code)
            break;
        code = take_down(engine, slot);
        device->resolved++;
    }
    return code == CUDA_NOT_READY ? 0 : code;
}

static mgw_status device_end(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    int code = device->cuda->event_record(slot_of(device, step_of(engine))->end, device->channel);
    device->enqueued = step_of(engine);
    device->waits += !(mgw_transport_capabilities(engine->transport) & MGW_GOES_ON);
    return check(code ? code : resolve(engine), "a step failed", error);
}

/* ---- Collectives of the program's numbers: the caller's stream waits for them, not the host ----
 */

static mgw_status device_ask(mgw_engine *engine, mgw_error *error)
{
    const engine_device *device = engine->device;
    int code = device->cuda->event_record(device->handover, engine->stream);
    if (!code)
        code = device->cuda->stream_wait(device->channel, device->handover, 0);
    return check(code, "cannot follow the stream", error);
}

static mgw_status device_answer(mgw_engine *engine, mgw_error *error)
{
    const engine_device *device = engine->device;
    int code = device->cuda->event_record(device->answered, device->channel);
    if (!code)
        code = device->cuda->stream_wait(engine->stream, device->answered, 0);
    return check(code, "cannot wait for an answer", error);
}

/* ---- Waiting, and whether it can end ---- */

/* What was posted goes on by itself. */
static mgw_status device_posted(mgw_engine *engine, mgw_error *error)
{
    (void)error;
    engine->device->open = true;
    return MGW_OK;
}

static mgw_status device_watch(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    bool done = true;
    mgw_status status =
        device->open ? mgw_request_test(engine->transport, &engine->last, &done, error) : MGW_OK;
    device->open = !done;
    return status;
}

static mgw_status device_settle(mgw_engine *engine, mgw_error *error)
{
    engine_device *device = engine->device;
    device->waits += device->resolved < device->enqueued || device->open;
    mgw_status status = mgw_request_wait(engine->transport, &engine->last, error);
    device->open = status != MGW_OK;
    while (!status) { /* the ends of steps are right behind the last operation */
        status = check(resolve(engine), "a step failed", error);
        if (status || device->resolved == device->enqueued)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    }
    return status;
}

static uint64_t device_waits(const mgw_engine *engine)
{
    return engine->device->waits;
}

const engine_place engine_cuda = {
    .open = device_open,
    .close = device_close,
    .enter = device_enter,
    .start = device_start,
    .begin = device_begin,
    .take = device_take,
    .mark = device_mark,
    .complete = device_complete,
    .zero = device_zero,
    .join = device_join,
    .admit = device_admit,
    .copy = device_copy,
    .posted = device_posted,
    .end = device_end,
    .watched = true,
    .watch = device_watch,
    .settle = device_settle,
    .ask = device_ask,
    .answer = device_answer,
    .asks_after_start = true,
    .sampled = ENGINE_SHARE,
    .back_to_back = 16,
    .waits = device_waits,
};
