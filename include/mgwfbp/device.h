/* A stream of work on a GPU, for programs without CUDA: to write and read gradients in its memory,
 * and to keep it busy. Programs with CUDA have streams of their own. */
#ifndef MGWFBP_DEVICE_H
#define MGWFBP_DEVICE_H

#include <stddef.h>

#include <mgwfbp/status.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_device mgw_device;

/*
 * Creates a stream on the GPU of the calling thread's CUDA context; without a context, on the GPU
 * whose number is this worker's local rank. MGW_ERR_UNSUPPORTED if there is no GPU. Threads: one at
 * a time for one stream. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_device_open(mgw_device **out, mgw_error *error);

/* Null is fine. */
void mgw_device_close(mgw_device *device);

/* The CUstream (cudaStream_t), for mgw_engine_set_stream. */
void *mgw_device_stream(const mgw_device *device);

/* Copies to GPU memory, in stream order. `from` may be reused when it returns. */
MGW_CHECKED mgw_status mgw_device_write(mgw_device *device, void *to, const void *from,
                                        size_t bytes, mgw_error *error);

/* Copies from GPU memory, after all earlier work of the stream, and waits for the copy. */
MGW_CHECKED mgw_status mgw_device_read(mgw_device *device, void *to, const void *from, size_t bytes,
                                       mgw_error *error);

/* Emulates computation on the stream, without blocking the caller: starts a schedule now ... */
MGW_CHECKED mgw_status mgw_device_begin(mgw_device *device, mgw_error *error);

/* ... and holds the stream until `until_s` seconds after the start of the schedule. */
MGW_CHECKED mgw_status mgw_device_hold(mgw_device *device, double until_s, mgw_error *error);

/* Waits until all work of the stream is done. */
MGW_CHECKED mgw_status mgw_device_finish(mgw_device *device, mgw_error *error);

/*
 * How many queues to a GPU each of the `workers` processes of a host should ask CUDA for, with
 * CUDA_DEVICE_MAX_CONNECTIONS in its environment before CUDA starts; 0: leave that to CUDA. Streams
 * that share a queue wait for each other, and NCCL has streams that wait for the end of a message:
 * with few queues, computation waits for messages, too. Under MPS, all processes share the queues
 * of a GPU. Threads: any.
 */
unsigned mgw_device_queues(unsigned workers);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
