/* Parameters in GPU memory: updates run on the caller's stream, gathers after them on the
 * transport's, and the caller's stream waits for these when it needs them. */
#include <stdlib.h>

#include "engine/device.h"
#include "engine/parameters.h"
#include "transport/transport.h"

/* ---- Opening and closing ---- */

int device_ahead_start(mgw_engine *engine)
{
    engine_device *device = engine->device;
    size_t n = device->tensor_count;
    device->need_s = calloc(n, sizeof *device->need_s);
    device->stalled_s = calloc(n + 1, sizeof *device->stalled_s);
    device->waited_in = calloc(2 * n, sizeof *device->waited_in);
    bool room = device->need_s && device->stalled_s && device->waited_in;
    for (size_t i = 0; i < SLOTS; i++) {
        slot_ahead *ahead = &device->slots[i].ahead;
        ahead->stalls_at_ready = calloc(n / SHARE + 1, sizeof *ahead->stalls_at_ready);
        ahead->stalls_at_need = calloc(n / SHARE + 1, sizeof *ahead->stalls_at_need);
        room = room && ahead->stalls_at_ready && ahead->stalls_at_need;
    }
    return room ? 0 : CUDA_OUT_OF_MEMORY;
}

void device_ahead_close(engine_device *device)
{
    for (size_t i = 0; i < SLOTS; i++) {
        free(device->slots[i].ahead.stalls_at_ready);
        free(device->slots[i].ahead.stalls_at_need);
    }
    free(device->need_s);
    free(device->stalled_s);
    free(device->waited_in);
}

void device_ahead_begin(mgw_engine *engine)
{
    slot_ahead *ahead = &slot_now(engine)->ahead;
    atomic_store(&ahead->stall_count, 0);
    for (size_t i = 0; i < engine->device->tensor_count / SHARE + 1; i++)
        ahead->stalls_at_need[i] = NOT_NEEDED;
}

/* ---- Order ---- */

void device_over(mgw_engine *engine, size_t operation)
{
    engine_device *device = engine->device;
    const slot *of = slot_of(engine, (uint32_t)engine->parameters->step);
    device_note(device, device->cuda->event_record(of->ahead.over[operation], device->channel));
}

mgw_status device_averaged(mgw_engine *engine, size_t operation, mgw_error *error)
{
    const slot *now = slot_now(engine);
    return device_check(device_wait(engine->device, engine->stream, now->ahead.over[operation]),
                        "cannot wait for averages", error);
}

mgw_status device_updated(mgw_engine *engine, size_t operation, mgw_error *error)
{
    const slot *now = slot_now(engine);
    return device_check(
        device_record(engine->device, now->ahead.updated[operation], engine->stream),
        "cannot follow an update", error);
}

int device_ahead_admit(mgw_engine *engine, size_t gather)
{
    const engine_parameters *p = engine->parameters;
    const slot *of = slot_of(engine, (uint32_t)p->step);
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(engine->flow, &count);
    const mgw_operation *g = &operations[gather];
    int code = atomic_load(&engine->device->code);
    for (size_t i = 0; !code && i < p->now.average_count; i++) {
        const mgw_operation *o = &operations[p->now.averages[i]];
        if (o->first < g->first + g->count && g->first < o->first + o->count)
            code = mgw_transport_follow(engine->transport, of->ahead.updated[p->now.averages[i]]);
    }
    return code;
}

/* Makes the caller's stream wait for a gather of the previous step; events measure how long. */
static int wait_for_gather(mgw_engine *engine, size_t gather)
{
    engine_device *device = engine->device;
    uint32_t step = step_of(engine);
    slot_ahead *ahead = &slot_now(engine)->ahead;
    if (gather == MGW_NO_OPERATION || step < 2 || device->waited_in[gather] == step)
        return 0;
    device->waited_in[gather] = step;
    uint32_t stall = atomic_load(&ahead->stall_count);
    int code = device_record(device, ahead->stall[2 * stall], engine->stream);
    if (!code)
        code = device_wait(device, engine->stream, slot_of(engine, step - 1)->ahead.over[gather]);
    if (!code)
        code = device_record(device, ahead->stall[2 * stall + 1], engine->stream);
    atomic_store(&ahead->stall_count, stall + 1);
    return code;
}

mgw_status device_need(mgw_engine *engine, unsigned id, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    slot *now = slot_now(engine);
    int code = 0;
    if (now->measures && id % SHARE == now->share &&
        now->ahead.stalls_at_need[id / SHARE] == NOT_NEEDED) {
        now->ahead.stalls_at_need[id / SHARE] = atomic_load(&now->ahead.stall_count);
        code = device_record(engine->device, now->ahead.need[id / SHARE], engine->stream);
    }
    if (!code)
        code = wait_for_gather(engine, p->now.gathered_by[id]);
    return device_check(code, "cannot wait for a parameter", error);
}

/* Gathers run in order: after the last one, all are over. In a step these are the gathers of the
 * previous step, if it had the same plan; otherwise they were over when this plan was adopted. */
mgw_status device_drain(mgw_engine *engine, mgw_error *error)
{
    const engine_parameters *p = engine->parameters;
    uint32_t step = step_of(engine) - engine->in_step;
    size_t last = p->now.operation_count - 1;
    bool any = p->now.operation_count > p->now.average_count && step > 0;
    int code =
        any ? device_wait(engine->device, engine->stream, slot_of(engine, step)->ahead.over[last])
            : 0;
    return device_check(code, "cannot wait for parameters", error);
}

/* ---- Times ---- */

int device_ahead_take_down(const mgw_engine *engine, const slot *of, mgw_step_record *record)
{
    engine_device *device = engine->device;
    const slot_ahead *ahead = &of->ahead;
    uint32_t stalls = atomic_load(&ahead->stall_count);
    int code = 0;
    for (uint32_t k = 0; !code && k < stalls; k++) {
        double seconds = 0;
        code = device_seconds(device, ahead->stall[2 * k], ahead->stall[2 * k + 1], &seconds);
        device->stalled_s[k + 1] = device->stalled_s[k] + seconds;
    }
    record->stall_s = device->stalled_s[stalls];
    record->compute_s -= record->stall_s;
    record->need_s = device->need_s;
    for (size_t i = of->share; !code && of->measures && i < device->tensor_count; i += SHARE) {
        uint32_t before = ahead->stalls_at_need[i / SHARE];
        device->ready_s[i] -= device->stalled_s[ahead->stalls_at_ready[i / SHARE]];
        device->need_s[i] = MGW_NEVER_NEEDED;
        if (before == NOT_NEEDED)
            continue;
        code = device_seconds(device, of->at[BEGIN], ahead->need[i / SHARE], &device->need_s[i]);
        device->need_s[i] -= device->stalled_s[before];
    }
    return code;
}
