/* Common parts of transports for GPU memory: a stream, memory, and waiting. */
#ifndef MGW_TRANSPORT_ON_DEVICE_H
#define MGW_TRANSPORT_ON_DEVICE_H

#include <stdbool.h>

#include "device/cuda.h"
#include "transport/transport.h"

/* An allocation, freed on close. */
typedef struct device_block {
    struct device_block *next;
    cuda_pointer at;
    size_t bytes;
} device_block;

/* Where a collective begins and ends on the stream. Its events are reused. */
typedef struct device_mark {
    cuda_event begun;
    cuda_event ended;
    cuda_event gate; /* the only event it waits for, if known: this then serves as `begun` */
    double begun_s;  /* when it was first seen to have begun; 0: not yet */
} device_mark;

typedef struct on_device {
    const cuda *cuda; /* null: not open */
    cuda_context context;
    cuda_stream stream; /* collectives and subsequent work, in order */
    device_block *blocks;
    device_mark *marks; /* of collectives over+1 … posted: number n is at n % room, */
    size_t room;        /*   a power of two, or 0 */
    uint64_t posted;
    uint64_t over;
    cuda_event gate; /* the last event that the stream waits for, for the next collective */
    unsigned gates;  /* and the number of such events */
} on_device;

MGW_CHECKED mgw_status on_device_open(on_device *device, mgw_error *error);

/* Also if it was never open. */
void on_device_close(on_device *device);

/* The memory is zeroed once the stream has reached this point. */
MGW_CHECKED mgw_status on_device_allocate(on_device *device, size_t bytes, void **out,
                                          mgw_error *error);

/* Like mgw_transport_follow. Returns CUDA's code, as do the functions below. */
int on_device_follow(on_device *device, cuda_event event);

/*
 * Call around work that is enqueued on the stream: it has the number `posted` from then on. Whether
 * it has started is only tracked if that `matters`: every event costs the program, which itself
 * needs the driver's lock.
 */
int on_device_mark_begun(on_device *device, bool matters);
int on_device_mark_ended(on_device *device);

/* Whether it is over, and with it all earlier ones. *code is CUDA's. */
bool on_device_is_over(on_device *device, uint64_t number, int *code);

/*
 * When the oldest open collective was first seen to have started, if that matters; 0: it has not,
 * or none is open.
 */
double on_device_oldest_s(on_device *device, int *code);

/* Whether it is GPU memory, whoever allocated it. */
bool on_device_has(const on_device *device, const void *data);

/* One iteration of a wait that began at `begun_s`: spins at first, then sleeps briefly. */
void on_device_pause(double begun_s);

/* Between two checks that the workers are alive. */
static const double on_device_between_s = 50e-3;

#endif
