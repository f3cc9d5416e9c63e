/* Common parts of transports for GPU memory. */
#include "transport/on_device.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"

mgw_status on_device_open(on_device *device, mgw_error *error)
{
    prctl(PR_SET_TIMERSLACK, 1UL); /* the short sleeps of this thread would last twice as long */
    mgw_status status = mgw_cuda_enter(&device->cuda, &device->context, error);
    int code = status ? 0 : device->cuda->stream_create(&device->stream, CUDA_STREAM_NON_BLOCKING);
    return code ? mgw_cuda_fail(code, "cannot make a stream", error) : status;
}

void on_device_close(on_device *device)
{
    for (size_t i = 0; i < device->room; i++) {
        if (device->marks[i].begun)
            device->cuda->event_destroy(device->marks[i].begun);
        if (device->marks[i].ended)
            device->cuda->event_destroy(device->marks[i].ended);
    }
    free(device->marks);
    for (device_block *b = device->blocks, *next = NULL; b; b = next) {
        next = b->next;
        device->cuda->release(b->at);
        free(b);
    }
    if (device->stream)
        device->cuda->stream_destroy(device->stream);
}

mgw_status on_device_allocate(on_device *device, size_t bytes, void **out, mgw_error *error)
{
    device_block *block = calloc(1, sizeof *block);
    if (!block)
        return mgw_fail_memory(error, "device");
    size_t some = bytes ? bytes : 1;
    int code = device->cuda->allocate(&block->at, some);
    if (code) {
        free(block);
        mgw_error why;
        mgw_status status = mgw_cuda_fail(code, "no memory", &why);
        return mgw_fail(error, status, "%zu bytes for gradients: %s", bytes, why.message);
    }
    block->bytes = some;
    block->next = device->blocks;
    device->blocks = block;
    *out = block->at;
    code = device->cuda->fill(block->at, 0, some, device->stream);
    return code ? mgw_cuda_fail(code, "cannot clear memory", error) : MGW_OK;
}

/* ---- Marks ---- */

static device_mark *mark_of(const on_device *device, uint64_t number)
{
    return &device->marks[number & (device->room - 1)];
}

bool on_device_is_over(on_device *device, uint64_t number, int *code)
{
    if (number <= device->over)
        return true;
    *code = device->cuda->event_query(mark_of(device, number)->ended);
    if (*code == CUDA_NOT_READY) {
        *code = 0;
        return false;
    }
    if (!*code)
        device->over = number;
    return !*code;
}

static void catch_up(on_device *device, int *code)
{
    while (device->over < device->posted && on_device_is_over(device, device->over + 1, code))
        continue;
}

double on_device_oldest_s(on_device *device, int *code)
{
    catch_up(device, code);
    if (device->over == device->posted || *code)
        return 0;
    device_mark *oldest = mark_of(device, device->over + 1);
    if (oldest->begun_s == 0) {
        *code = device->cuda->event_query(oldest->gate ? oldest->gate : oldest->begun);
        oldest->begun_s = *code ? 0 : mgw_awake_s();
        *code = *code == CUDA_NOT_READY ? 0 : *code;
    }
    return oldest->begun_s;
}

/* Makes room for one more. All marks are in use when it grows. */
static int make_room(on_device *device)
{
    int code = 0;
    if (device->posted - device->over < device->room)
        return 0;
    catch_up(device, &code);
    if (code || device->posted - device->over < device->room)
        return code;
    size_t more = device->room ? 2 * device->room : 64;
    device_mark *marks = calloc(more, sizeof *marks);
    if (!marks)
        return CUDA_OUT_OF_MEMORY;
    for (uint64_t n = device->over + 1; n <= device->posted; n++)
        marks[n & (more - 1)] = *mark_of(device, n);
    free(device->marks);
    device->marks = marks;
    device->room = more;
    return 0;
}

int on_device_follow(on_device *device, cuda_event event)
{
    device->gate = event;
    device->gates++;
    return event ? device->cuda->stream_wait(device->stream, event, 0) : 0;
}

int on_device_mark_begun(on_device *device, bool matters)
{
    int code = make_room(device);
    if (code)
        return code;
    device_mark *mark = mark_of(device, device->posted + 1);
    mark->begun_s = 0;
    mark->gate = device->gates == 1 ? device->gate : NULL;
    device->gates = 0;
    if (!mark->begun)
        code = device->cuda->event_create(&mark->begun, CUDA_EVENT_UNTIMED);
    if (!code && !mark->ended)
        code = device->cuda->event_create(&mark->ended, CUDA_EVENT_UNTIMED);
    bool known = mark->gate || !matters;
    return code || known ? code : device->cuda->event_record(mark->begun, device->stream);
}

int on_device_mark_ended(on_device *device)
{
    int code =
        device->cuda->event_record(mark_of(device, device->posted + 1)->ended, device->stream);
    device->posted += !code;
    return code;
}

bool on_device_has(const on_device *device, const void *data)
{
    unsigned type = 0;
    for (const device_block *b = device->blocks; b; b = b->next) /* without calling the driver */
        if ((uintptr_t)data - (uintptr_t)b->at < b->bytes)
            return true;
    return !device->cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, data) &&
           type == CUDA_MEMORY_OF_DEVICE;
}

static const double awake_s = 2e-3;

void on_device_pause(double begun_s)
{
    if (mgw_awake_s() - begun_s > awake_s)
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    else
        sched_yield();
}
