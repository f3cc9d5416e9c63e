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
    size_t bytes;
} device_block;

/* Where a collective begins and ends on the stream. Its events are used again. */
typedef struct device_mark {
    cuda_event begun;
    cuda_event ended;
    cuda_event gate; /* the one thing it waits for, if that is known: then it is `begun` enough */
    double begun_s;  /* when it was seen that it has begun; 0: not yet */
} device_mark;

typedef struct on_device {
    const cuda *cuda; /* null: not open */
    cuda_context context;
    cuda_stream stream; /* what is begun, or follows, is in order here */
    device_block *blocks;
    device_mark *marks; /* of collectives over+1 … posted: that of number n is at n % room, */
    size_t room;        /*   a power of two, or 0 */
    uint64_t posted;
    uint64_t over;
    cuda_event gate; /* what the stream was told last to wait for, for the next collective */
    unsigned gates;  /*   and how often it was told to */
} on_device;

MGW_CHECKED mgw_status on_device_open(on_device *device, mgw_error *error);

/* Also if it was never open. */
void on_device_close(on_device *device);

/* Zero once the stream has come there. */
MGW_CHECKED mgw_status on_device_allocate(on_device *device, size_t bytes, void **out,
                                          mgw_error *error);

/* As mgw_transport_follow. Returns CUDA's code, as those below. */
int on_device_follow(on_device *device, cuda_event event);

/*
 * Around what is begun on the stream: it has the number `posted` from then on. Whether it had its
 * turn is only known if that `matters`; every event costs the program, which needs the driver's
 * lock itself.
 */
int on_device_mark_begun(on_device *device, bool matters);
int on_device_mark_ended(on_device *device);

/* Whether it is over, and so all before it. *code is of CUDA's. */
bool on_device_is_over(on_device *device, uint64_t number, int *code);

/* When it was seen that the oldest that is not over had its turn, if that matters; 0: it has not,
 * or none is open. */
double on_device_oldest_s(on_device *device, int *code);

/* Whether it is memory of a GPU, whoever allocated it. */
bool on_device_has(const on_device *device, const void *data);

/* One round of waiting for something since `begun_s`: awake at first, then in short sleeps. */
void on_device_pause(double begun_s);

/* Between two looks at who is alive. */
static const double on_device_between_s = 50e-3;

#endif
