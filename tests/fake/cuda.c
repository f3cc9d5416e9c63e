/* A GPU for machines without one: a libcuda.so.1 whose memory is the host's and whose streams are
 * threads. They do their work in order, each at its own pace, now and then with a pause, and wait
 * for each other's events: so the order of work that the engine asks for is tested everywhere,
 * under sanitizers. Work on the default stream is done when it is asked for. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda.h"
#include "kernels.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

typedef enum work_kind { COPY, FILL, HOLD, RECORD, WAIT, CALL } work_kind;

typedef struct work {
    struct work *next;
    work_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
    void *snapshot; /* freed when it is done */
    cuda_event event;
    uint64_t ticket; /* the event's record that is meant */
    void (*call)(void *argument);
} work;

struct CUstream_st {
    pthread_cond_t more;
    work *first; /* not begun */
    work *last;
    bool busy;
    bool ends;
    uint32_t random;
};

struct CUevent_st {
    uint64_t asked; /* records so far */
    uint64_t done;  /* of those */
    uint64_t at_ns; /* the last */
    unsigned holders;
};

/* Memory of the GPU, and of the host's what is pinned. */
enum { RANGES = 4096 };
typedef struct range {
    void *at;
    size_t bytes;
} range;
static range allocations[RANGES];
static range pinned[RANGES];

/* Of all that is above. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* an event is, or a stream is idle */
static size_t pending;                                    /* work of all streams */

static _Thread_local cuda_context current;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void add_range(range *ranges, void *at, size_t bytes)
{
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i + 1 < RANGES && ranges[i].at)
        i++;
    ranges[i] = (range){at, bytes};
    pthread_mutex_unlock(&lock);
}

static void remove_range(range *ranges, const void *at)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < RANGES; i++)
        if (ranges[i].at == at)
            ranges[i].at = NULL;
    pthread_mutex_unlock(&lock);
}

static bool in_range(const range *ranges, const char *at)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < RANGES; i++) {
        const char *begin = ranges[i].at;
        found = begin && at >= begin && at < begin + ranges[i].bytes;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void pause_until(uint64_t ns)
{
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
        continue;
}

/* ---- Work ---- */

/* With the lock. */
static void let_go(cuda_event event)
{
    if (--event->holders == 0)
        free(event);
}

/* hold(begin, offset) of device.c: at the first call it takes the time, from then on it waits. */
static void hold(uint64_t *begin, uint64_t offset)
{
    if (offset == 0)
        *begin = now_ns();
    else
        pause_until(*begin + offset);
}

static void record(const work *w)
{
    pthread_mutex_lock(&lock);
    if (w->event->done < w->ticket) /* else it was recorded again, on a faster stream */
        w->event->done = w->ticket;
    w->event->at_ns = now_ns();
    let_go(w->event);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void await(const work *w)
{
    pthread_mutex_lock(&lock);
    while (w->event->done < w->ticket)
        pthread_cond_wait(&changed, &lock);
    let_go(w->event);
    pthread_mutex_unlock(&lock);
}

static void perform(const work *w)
{
    switch (w->kind) {
    case COPY:
        memcpy(w->to, w->from, w->bytes);
        break;
    case FILL:
        memset(w->to, w->value, w->bytes);
        break;
    case HOLD:
        hold(w->to, w->bytes);
        break;
    case RECORD:
        record(w);
        break;
    case WAIT:
        await(w);
        break;
    case CALL:
        w->call(w->to);
        break;
    }
}

/* Now and then a stream is behind the others. */
static void dawdle(cuda_stream stream)
{
    stream->random = stream->random * 1664525 + 1013904223;
    if (stream->random >> 28 == 0)
        pause_until(now_ns() + (stream->random >> 12 & 0xffff) * 4);
}

static void *run_stream(void *argument)
{
    cuda_stream stream = argument;
    pthread_mutex_lock(&lock);
    while (stream->first || !stream->ends) {
        work *w = stream->first;
        if (!w) {
            pthread_cond_wait(&stream->more, &lock);
            continue;
        }
        stream->first = w->next;
        stream->busy = true;
        pthread_mutex_unlock(&lock);
        dawdle(stream);
        perform(w);
        free(w->snapshot);
        free(w);
        pthread_mutex_lock(&lock);
        stream->busy = false;
        pending--;
        if (!stream->first)
            pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    free(stream);
    return NULL;
}

static int give(cuda_stream stream, work w)
{
    if (!stream) {
        perform(&w);
        return 0;
    }
    work *own = malloc(sizeof *own);
    if (!own)
        return CUDA_OUT_OF_MEMORY;
    *own = w;
    own->next = NULL;
    pthread_mutex_lock(&lock);
    if (stream->first)
        stream->last->next = own;
    else
        stream->first = own;
    stream->last = own;
    pending++;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- The driver ---- */

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
    add_range(allocations, *out = memory, bytes);
    memset(memory, 0xff, bytes);
    return 0;
}

/* As CUDA's, after all work of the GPU. */
EXPORT int cuMemFree_v2(cuda_pointer at)
{
    pthread_mutex_lock(&lock);
    while (pending)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    remove_range(allocations, at);
    free(at);
    return 0;
}

EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    add_range(pinned, at, bytes);
    return (int)flags;
}

EXPORT int cuMemHostUnregister(void *at)
{
    remove_range(pinned, at);
    return 0;
}

EXPORT int cuPointerGetAttribute(void *out, int attribute, const void *at)
{
    *(unsigned *)out = CUDA_MEMORY_OF_DEVICE;
    return in_range(allocations, at) && attribute == CUDA_POINTER_MEMORY_TYPE ? 0 : 1;
}

/* Of memory that is not pinned, the driver takes a copy first. */
EXPORT int cuMemcpyHtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream)
{
    work w = {.kind = COPY, .to = to, .from = from, .bytes = bytes};
    if (stream && bytes && !in_range(pinned, from)) {
        w.snapshot = malloc(bytes);
        if (!w.snapshot)
            return CUDA_OUT_OF_MEMORY;
        w.from = memcpy(w.snapshot, from, bytes);
    }
    return give(stream, w);
}

/* And to such memory, it waits. */
EXPORT int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, cuda_stream stream)
{
    int code = give(stream, (work){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    if (!stream || in_range(pinned, to))
        return code;
    pthread_mutex_lock(&lock);
    while (stream->first || stream->busy)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return code;
}

/* To the GPU only. */
EXPORT int cuMemcpy2DAsync_v2(const cuda_copy_of_rows *copy, cuda_stream stream)
{
    const cuda_rows *from = &copy->from;
    const cuda_rows *to = &copy->to;
    if (from->memory != CUDA_MEMORY_OF_HOST || to->memory != CUDA_MEMORY_OF_DEVICE ||
        from->pitch < copy->bytes || to->pitch < copy->bytes)
        return CUDA_INVALID_VALUE;
    int code = 0;
    for (size_t r = 0; !code && r < copy->rows; r++) {
        const char *row = (const char *)from->host + (from->row + r) * from->pitch + from->column;
        char *target = (char *)to->device + (to->row + r) * to->pitch + to->column;
        code = cuMemcpyHtoDAsync_v2(target, row, copy->bytes, stream);
    }
    return code;
}

EXPORT int cuMemcpyDtoDAsync_v2(cuda_pointer to, const void *from, size_t bytes, cuda_stream stream)
{
    if (!current)
        return CUDA_INVALID_CONTEXT;
    return give(stream, (work){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

EXPORT int cuMemsetD8Async(cuda_pointer at, unsigned char value, size_t bytes, cuda_stream stream)
{
    if (!current)
        return CUDA_INVALID_CONTEXT;
    return give(stream, (work){.kind = FILL, .to = at, .value = value, .bytes = bytes});
}

EXPORT int cuLaunchHostFunc(cuda_stream stream, void (*call)(void *), void *argument)
{
    return give(stream, (work){.kind = CALL, .call = call, .to = argument});
}

EXPORT int cuStreamCreate(cuda_stream *out, unsigned flags)
{
    static uint32_t number;
    pthread_t thread;
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CUDA_OUT_OF_MEMORY;
    pthread_cond_init(&(*out)->more, NULL);
    pthread_mutex_lock(&lock);
    (*out)->random = number++;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, run_stream, *out))
        return CUDA_OUT_OF_MEMORY;
    pthread_detach(thread);
    return 0;
}

/* As CUDA's: it goes when its work is done. */
EXPORT int cuStreamDestroy_v2(cuda_stream stream)
{
    pthread_mutex_lock(&lock);
    stream->ends = true;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* From now on every look at the GPU's work says that it has failed, as after a fault of a kernel.
 */
static _Atomic int fault;

EXPORT void fakeCudaFault(void)
{
    fault = 700;
}

EXPORT int cuStreamQuery(cuda_stream stream)
{
    if (fault)
        return fault;
    pthread_mutex_lock(&lock);
    bool works = stream && (stream->first || stream->busy);
    pthread_mutex_unlock(&lock);
    return works ? CUDA_NOT_READY : 0;
}

EXPORT int cuEventCreate(cuda_event *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (*out)
        (*out)->holders = 1;
    return *out ? 0 : CUDA_OUT_OF_MEMORY;
}

EXPORT int cuEventDestroy_v2(cuda_event event)
{
    pthread_mutex_lock(&lock);
    let_go(event);
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuEventRecord(cuda_event event, cuda_stream stream)
{
    if (!current)
        return CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    work w = {.kind = RECORD, .event = event, .ticket = ++event->asked};
    event->holders++;
    pthread_mutex_unlock(&lock);
    return give(stream, w);
}

EXPORT int cuEventQuery(cuda_event event)
{
    if (fault)
        return fault;
    pthread_mutex_lock(&lock);
    bool done = event->done == event->asked;
    pthread_mutex_unlock(&lock);
    return done ? 0 : CUDA_NOT_READY;
}

EXPORT int cuEventElapsedTime(float *ms, cuda_event from, cuda_event to)
{
    pthread_mutex_lock(&lock);
    bool done = from->done == from->asked && to->done == to->asked;
    *ms = (float)((double)(int64_t)(to->at_ns - from->at_ns) * 1e-6);
    pthread_mutex_unlock(&lock);
    return done ? 0 : CUDA_NOT_READY;
}

/* For what was recorded by now. */
EXPORT int cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags)
{
    if (!current)
        return CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    work w = {.kind = WAIT, .event = event, .ticket = event->asked};
    event->holders++;
    pthread_mutex_unlock(&lock);
    int code = give(stream, w);
    return code ? code : (int)flags;
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

/* hold of device.c, or one of kernels.c. */
EXPORT int cuModuleGetFunction(cuda_function *out, cuda_module module, const char *name)
{
    const void *kernel = kernel_named((const char *)module, name);
    if (!kernel && !strcmp(name, "hold"))
        kernel = module;
    *out = (cuda_function)(void *)(uintptr_t)kernel;
    return kernel ? 0 : 500;
}

EXPORT int cuLaunchKernel(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, cuda_stream stream, void **parameters,
                          void **extra)
{
    (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)shared_bytes, (void)extra;
    if (!current)
        return CUDA_INVALID_CONTEXT;
    if (!is_kernel(function))
        return give(stream, (work){.kind = HOLD,
                                   .to = *(cuda_pointer *)parameters[0],
                                   .bytes = *(uint64_t *)parameters[1]});
    launched *kernel = kernel_launched(function, parameters, (uint64_t)grid_x * block_x);
    if (!kernel)
        return CUDA_INVALID_VALUE;
    return give(stream, (work){.kind = CALL, .call = kernel_run, .to = kernel});
}
