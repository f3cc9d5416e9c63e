/* What transports for the memory of GPUs have in common: a stream, memory, and a way to wait. */
#ifndef MGW_TRANSPORT_ON_DEVICE_H
#define MGW_TRANSPORT_ON_DEVICE_H

#include <stdbool.h>

#include "device/cuda.h"
#include "transport/transport.h"

/* What was allocated, to be freed at the end. */
typedef struct device_block {
    struct device_block *next;
    cuda_pointer at;
} device_block;

typedef struct on_device {
    const cuda *cuda; /* null: not open */
    cuda_context context;
    cuda_stream stream; /* what is begun, or follows, is in order here */
    device_block *blocks;
} on_device;

MGW_CHECKED mgw_status on_device_open(on_device *device, mgw_error *error);

/* Also if it was never open. */
void on_device_close(on_device *device);

/* Zero once the stream has come there. */
MGW_CHECKED mgw_status on_device_allocate(on_device *device, size_t bytes, void **out,
                                          mgw_error *error);

/* Whether it is memory of a GPU, whoever allocated it. */
bool on_device_has(const on_device *device, const void *data);

/* One round of waiting for something since `begun_s`: awake at first, then in short sleeps. */
void on_device_pause(double begun_s);

/* Between two looks at who is alive. */
static const double on_device_between_s = 50e-3;

#endif
