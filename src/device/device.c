/* A stream on a GPU: copies, and a kernel that waits for a given time. */
#include <mgwfbp/device.h>

#include <sched.h>
#include <stdlib.h>

#include "base/status.h"
#include "device/cuda.h"

struct mgw_device {
    const cuda *cuda;
    cuda_context context;
    cuda_stream stream;
    cuda_module module;
    cuda_function hold;
    cuda_pointer begin; /* where the GPU stores when the schedule began */
};

/*
 * hold(begin, offset): with an offset of 0 stores the GPU's clock, in ns; otherwise waits until
 * `offset` later. In PTX, which the driver compiles for the present GPU.
 */
static const char hold_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry hold(.param .u64 begin, .param .u64 offset)\n"
                               "{\n"
                               "    .reg .u64 %at, %offset, %until, %now;\n"
                               "    .reg .pred %p;\n"
                               "    ld.param.u64 %at, [begin];\n"
                               "    ld.param.u64 %offset, [offset];\n"
                               "    setp.ne.u64 %p, %offset, 0;\n"
                               "    @%p bra wait;\n"
                               "    mov.u64 %now, %globaltimer;\n"
                               "    st.global.u64 [%at], %now;\n"
                               "    ret;\n"
                               "wait:\n"
                               "    ld.global.u64 %until, [%at];\n"
                               "    add.u64 %until, %until, %offset;\n"
                               "again:\n"
                               "    mov.u64 %now, %globaltimer;\n"
                               "    setp.lt.u64 %p, %now, %until;\n"
                               "    @%p bra again;\n"
                               "    ret;\n"
                               "}\n";

mgw_status mgw_device_open(mgw_device **out, mgw_error *error)
{
    mgw_device *d = calloc(1, sizeof *d);
    if (!d)
        return mgw_fail_memory(error, "device");
    mgw_status status = mgw_cuda_enter(&d->cuda, &d->context, error);
    if (status) {
        free(d);
        return status;
    }
    int code = d->cuda->stream_create(&d->stream, CUDA_STREAM_NON_BLOCKING);
    if (!code)
        code = d->cuda->allocate(&d->begin, sizeof(uint64_t));
    if (!code)
        code = d->cuda->module_load(&d->module, hold_ptx);
    if (!code)
        code = d->cuda->module_function(&d->hold, d->module, "hold");
    if (code) {
        status = mgw_cuda_fail(code, "cannot make a stream", error);
        mgw_device_close(d);
        return status;
    }
    *out = d;
    return MGW_OK;
}

void mgw_device_close(mgw_device *device)
{
    if (!device)
        return;
    if (device->module)
        device->cuda->module_unload(device->module);
    if (device->begin)
        device->cuda->release(device->begin);
    if (device->stream)
        device->cuda->stream_destroy(device->stream);
    free(device);
}

void *mgw_device_stream(const mgw_device *device)
{
    return device->stream;
}

static mgw_status check(int code, const char *what, mgw_error *error)
{
    return code ? mgw_cuda_fail(code, what, error) : MGW_OK;
}

mgw_status mgw_device_finish(mgw_device *device, mgw_error *error)
{
    int code = 0;
    while ((code = device->cuda->stream_query(device->stream)) == CUDA_NOT_READY)
        sched_yield();
    return check(code, "work on the GPU failed", error);
}

mgw_status mgw_device_write(mgw_device *device, void *to, const void *from, size_t bytes,
                            mgw_error *error)
{
    /* Unpinned memory is copied to a staging buffer before the call returns. */
    return check(device->cuda->copy_in(to, from, bytes, device->stream), "cannot copy to the GPU",
                 error);
}

mgw_status mgw_device_read(mgw_device *device, void *to, const void *from, size_t bytes,
                           mgw_error *error)
{
    mgw_status status = check(device->cuda->copy_out(to, from, bytes, device->stream),
                              "cannot copy from the GPU", error);
    return status ? status : mgw_device_finish(device, error);
}

static mgw_status launch(mgw_device *device, uint64_t offset_ns, mgw_error *error)
{
    void *parameters[] = {&device->begin, &offset_ns};
    return check(
        device->cuda->launch(device->hold, 1, 1, 1, 1, 1, 1, 0, device->stream, parameters, NULL),
        "cannot start a kernel", error);
}

mgw_status mgw_device_begin(mgw_device *device, mgw_error *error)
{
    return launch(device, 0, error);
}

mgw_status mgw_device_hold(mgw_device *device, double until_s, mgw_error *error)
{
    return until_s > 0 ? launch(device, (uint64_t)(until_s * 1e9) + 1, error) : MGW_OK;
}
