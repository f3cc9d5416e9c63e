/* A GPU for machines without one: a libcuda.so.1 whose streams only keep time. Work is done when it
 * is asked for, in the host's memory; when it would have been done on a GPU is what events tell. So
 * the engine's life on a device can be tested everywhere, under sanitizers; that its streams wait
 * for each other is seen on a GPU alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

struct CUstream_st {
    _Atomic uint64_t done_ns; /* when all of its work so far is */
};

struct CUevent_st {
    _Atomic uint64_t at_ns;
};

enum { ALLOCATIONS = 4096 };
static struct {
    cuda_pointer at;
    size_t bytes;
} allocations[ALLOCATIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st default_stream;
static _Thread_local cuda_context current;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* When work that is given to the stream now would begin. */
static uint64_t begin_ns(cuda_stream stream)
{
    uint64_t now = now_ns();
    uint64_t done = atomic_load(&(stream ? stream : &default_stream)->done_ns);
    return done > now ? done : now;
}

EXPORT int cuInit(unsigned flags)
{
    return (int)flags;
}

EXPORT int cuGetErrorString(int code, const char **text)
{
    *text = code == CUDA_NOT_READY ? "not ready" : "an error of the fake GPU";
    return 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(cuda_context *context, int device)
{
    static char primary;
    *context = (cuda_context)(void *)(&primary + device);
    return 0;
}

EXPORT int cuCtxGetCurrent(cuda_context *context)
{
    *context = current;
    return 0;
}

EXPORT int cuCtxSetCurrent(cuda_context context)
{
    current = context;
    return 0;
}

EXPORT int cuMemAlloc_v2(cuda_pointer *out, size_t bytes)
{
    void *memory = NULL;
    if (!current || posix_memalign(&memory, 256, bytes))
        return current ? CUDA_OUT_OF_MEMORY : CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i + 1 < ALLOCATIONS && allocations[i].at)
        i++;
    allocations[i].at = *out = memory;
    allocations[i].bytes = bytes;
    pthread_mutex_unlock(&lock);
    memset(memory, 0xff, bytes);
    return 0;
}

EXPORT int cuMemFree_v2(cuda_pointer at)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < ALLOCATIONS; i++)
        if (allocations[i].at == at)
            allocations[i].at = NULL;
    pthread_mutex_unlock(&lock);
    free(at);
    return 0;
}

EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    (void)at, (void)bytes;
    return (int)flags;
}

EXPORT int cuMemHostUnregister(void *at)
{
    (void)at;
    return 0;
}

EXPORT int cuPointerGetAttribute(void *out, int attribute, const void *at)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < ALLOCATIONS; i++)
        found |= allocations[i].at && (const char *)at >= (const char *)allocations[i].at &&
                 (const char *)at < (const char *)allocations[i].at + allocations[i].bytes;
    pthread_mutex_unlock(&lock);
    *(unsigned *)out = CUDA_MEMORY_OF_DEVICE;
    return found && attribute == CUDA_POINTER_MEMORY_TYPE ? 0 : 1;
}

EXPORT int cuMemcpyHtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream)
{
    (void)stream;
    memcpy(to, from, bytes);
    return 0;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, cuda_stream stream)
{
    (void)stream;
    memcpy(to, from, bytes);
    return 0;
}

EXPORT int cuMemcpyDtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream)
{
    return cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}

EXPORT int cuMemsetD8Async(cuda_pointer at, unsigned char value, size_t bytes, cuda_stream stream)
{
    (void)stream;
    memset(at, value, bytes);
    return 0;
}

EXPORT int cuStreamCreate(cuda_stream *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? 0 : CUDA_OUT_OF_MEMORY;
}

EXPORT int cuStreamDestroy_v2(cuda_stream stream)
{
    free(stream);
    return 0;
}

EXPORT int cuStreamQuery(cuda_stream stream)
{
    return begin_ns(stream) > now_ns() ? CUDA_NOT_READY : 0;
}

EXPORT int cuEventCreate(cuda_event *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? 0 : CUDA_OUT_OF_MEMORY;
}

EXPORT int cuEventDestroy_v2(cuda_event event)
{
    free(event);
    return 0;
}

EXPORT int cuEventRecord(cuda_event event, cuda_stream stream)
{
    if (!current)
        return CUDA_INVALID_CONTEXT;
    atomic_store(&event->at_ns, begin_ns(stream));
    return 0;
}

EXPORT int cuEventQuery(cuda_event event)
{
    return atomic_load(&event->at_ns) > now_ns() ? CUDA_NOT_READY : 0;
}

EXPORT int cuEventElapsedTime(float *ms, cuda_event from, cuda_event to)
{
    if (cuEventQuery(from) || cuEventQuery(to))
        return CUDA_NOT_READY;
    *ms = (float)((double)(int64_t)(atomic_load(&to->at_ns) - atomic_load(&from->at_ns)) * 1e-6);
    return 0;
}

EXPORT int cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags)
{
    uint64_t begin = begin_ns(stream);
    uint64_t at = atomic_load(&event->at_ns);
    atomic_store(&(stream ? stream : &default_stream)->done_ns, at > begin ? at : begin);
    return (int)flags;
}

EXPORT int cuModuleLoadData(cuda_module *out, const void *image)
{
    *out = (cuda_module)(void *)(uintptr_t)image;
    return 0;
}

EXPORT int cuModuleUnload(cuda_module module)
{
    (void)module;
    return 0;
}

EXPORT int cuModuleGetFunction(cuda_function *out, cuda_module module, const char *name)
{
    *out = (cuda_function)(void *)module;
    return strcmp(name, "hold") ? 1 : 0;
}

/* There is one kernel: hold(begin, offset) of device.c. */
EXPORT int cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, cuda_stream stream, void **parameters,
                          void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z;
    (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes, (void)extra;
    uint64_t *at = *(cuda_pointer *)parameters[0];
    uint64_t offset = *(uint64_t *)parameters[1];
    uint64_t begin = begin_ns(stream);
    if (offset == 0)
        *at = begin;
    else if (*at + offset > begin)
        atomic_store(&stream->done_ns, *at + offset);
    return 0;
}
