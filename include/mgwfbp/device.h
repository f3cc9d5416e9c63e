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
 * Makes a stream on the GPU of the calling thread's CUDA context, or else on the one whose number
 * is this worker's on its host. MGW_ERR_UNSUPPORTED if there is no GPU.
 * Threads: one at a time for one stream. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_device_open(mgw_device **out, mgw_error *error);

/* Null is fine. */
void mgw_device_close(mgw_device *device);

/* The CUstream (cudaStream_t), for mgw_engine_set_stream. */
void *mgw_device_stream(const mgw_device *device);

/* Copies into the GPU's memory, in turn with the stream's other work. `from` may be used again. */
MGW_CHECKED mgw_status mgw_device_write(mgw_device *device, void *to, const void *from,
                                        size_t bytes, mgw_error *error);

/* Copies out of the GPU's memory, after all work of the stream. Waits for it. */
MGW_CHECKED mgw_status mgw_device_read(mgw_device *device, void *to, const void *from, size_t bytes,
                                       mgw_error *error);

/* Computation that the stream waits for, not the caller: begins a schedule now ... */
MGW_CHECKED mgw_status mgw_device_begin(mgw_device *device, mgw_error *error);

/* ... and holds the stream until `until_s` seconds after its start. */
MGW_CHECKED mgw_status mgw_device_hold(mgw_device *device, double until_s, mgw_error *error);

/* Waits until all work of the stream is done. */
MGW_CHECKED mgw_status mgw_device_finish(mgw_device *device, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
