/* What transports for the memory of GPUs have in common. */
#include "transport/on_device.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"

mgw_status on_device_open(on_device *device, mgw_error *error)
{
    mgw_status status = mgw_cuda_enter(&device->cuda, &device->context, error);
    int code = status ? 0 : device->cuda->stream_create(&device->stream, CUDA_STREAM_NON_BLOCKING);
    return code ? mgw_cuda_fail(code, "cannot make a stream", error) : status;
}

void on_device_close(on_device *device)
{
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
    block->next = device->blocks;
    device->blocks = block;
    *out = block->at;
    code = device->cuda->fill(block->at, 0, some, device->stream);
    return code ? mgw_cuda_fail(code, "cannot clear memory", error) : MGW_OK;
}

bool on_device_has(const on_device *device, const void *data)
{
    unsigned type = 0;
    return !device->cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, data) &&
           type == CUDA_MEMORY_OF_DEVICE;
}

static const double awake_s = 2e-3;

void on_device_pause(double begun_s)
{
    if (mgw_now_s() - begun_s > awake_s)
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    else
        sched_yield();
}
