/* The CUDA driver, loaded at run time: one binary runs with and without a GPU, and building needs
 * no CUDA. The declarations are the driver's stable ABI. */
#ifndef MGW_DEVICE_CUDA_H
#define MGW_DEVICE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/status.h>

typedef struct CUctx_st *cuda_context;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef void *cuda_pointer; /* CUdeviceptr: an integer in the ABI, which is passed alike */

enum {
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_READY = 600,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_TIMED = 0,
    CUDA_EVENT_UNTIMED = 2,
    CUDA_POINTER_MEMORY_TYPE = 2,
    CUDA_MEMORY_OF_HOST = 1,
    CUDA_MEMORY_OF_DEVICE = 2,
};

/* One side of a 2D copy: CUDA_MEMCPY2D has two, a width in bytes and a number of rows. */
typedef struct cuda_rows {
    size_t column; /* bytes */
    size_t row;
    int memory; /* CUDA_MEMORY_OF_… */
    const void *host;
    cuda_pointer device;
    void *array;
    size_t pitch; /* from one row to the next */
} cuda_rows;

typedef struct cuda_copy_of_rows {
    cuda_rows from;
    cuda_rows to;
    size_t bytes;
    size_t rows;
} cuda_copy_of_rows;

/* X(our name, CUDA's name, parameters). All return 0 or an error. */
#define CUDA_FUNCTIONS(X)                                                                          \
    X(init, cuInit, (unsigned flags))                                                              \
    X(error_text, cuGetErrorString, (int code, const char **text))                                 \
    X(device_count, cuDeviceGetCount, (int *count))                                                \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                         \
    X(context_retain, cuDevicePrimaryCtxRetain, (cuda_context * context, int device))              \
    X(context_get, cuCtxGetCurrent, (cuda_context * context))                                      \
    X(context_set, cuCtxSetCurrent, (cuda_context context))                                        \
    X(allocate, cuMemAlloc_v2, (cuda_pointer * out, size_t bytes))                                 \
    X(release, cuMemFree_v2, (cuda_pointer at))                                                    \
    X(host_register, cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags))               \
    X(host_unregister, cuMemHostUnregister, (void *at))                                            \
    X(pointer_attribute, cuPointerGetAttribute, (void *out, int attribute, const void *at))        \
    X(copy_in, cuMemcpyHtoDAsync_v2,                                                               \
      (cuda_pointer to, const void *from, size_t bytes, cuda_stream stream))                       \
    X(copy_out, cuMemcpyDtoHAsync_v2,                                                              \
      (void *to, const void *from, size_t bytes, cuda_stream stream))                              \
    X(copy, cuMemcpyDtoDAsync_v2,                                                                  \
      (cuda_pointer to, const void *from, size_t bytes, cuda_stream stream))                       \
    X(copy_rows, cuMemcpy2DAsync_v2, (const cuda_copy_of_rows *copy, cuda_stream stream))          \
    X(fill, cuMemsetD8Async,                                                                       \
      (cuda_pointer at, unsigned char value, size_t bytes, cuda_stream stream))                    \
    X(stream_create, cuStreamCreate, (cuda_stream * out, unsigned flags))                          \
    X(stream_destroy, cuStreamDestroy_v2, (cuda_stream stream))                                    \
    X(stream_query, cuStreamQuery, (cuda_stream stream))                                           \
    X(stream_wait, cuStreamWaitEvent, (cuda_stream stream, cuda_event event, unsigned flags))      \
    X(event_create, cuEventCreate, (cuda_event * out, unsigned flags))                             \
    X(event_destroy, cuEventDestroy_v2, (cuda_event event))                                        \
    X(event_record, cuEventRecord, (cuda_event event, cuda_stream stream))                         \
    X(event_query, cuEventQuery, (cuda_event event))                                               \
    X(event_elapsed, cuEventElapsedTime, (float *ms, cuda_event from, cuda_event to))              \
    X(module_load, cuModuleLoadData, (cuda_module * out, const void *image))                       \
    X(module_unload, cuModuleUnload, (cuda_module module))                                         \
    X(module_function, cuModuleGetFunction,                                                        \
      (cuda_function * out, cuda_module module, const char *name))                                 \
    X(launch, cuLaunchKernel,                                                                      \
      (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                  \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       cuda_stream stream, void **parameters, void **extra))

typedef struct cuda {
#define X(name, symbol, parameters) int(*name) parameters;
    CUDA_FUNCTIONS(X)
#undef X
} cuda;

/*
 * Loads the driver and makes sure that this thread has a context: its current one, or that of the
 * GPU selected by the local rank modulo the number of GPUs. *out is the same for the whole process.
 * Threads: any.
 */
MGW_CHECKED mgw_status mgw_cuda_enter(const cuda **out, cuda_context *context, mgw_error *error);

/* Reports a driver error as text. Only once the driver is loaded. */
MGW_CHECKED mgw_status mgw_cuda_fail(int code, const char *what, mgw_error *error);

/* Fills a table of function pointers from a library: `names` in the order of the table. */
MGW_CHECKED mgw_status mgw_device_library(const char *file, const char *advice,
                                          const char *const *names, size_t count, void *table,
                                          mgw_error *error);

#endif
