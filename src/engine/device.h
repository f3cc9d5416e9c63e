/* Gradients in a GPU's memory: what orders streams, and what measures steps without waiting. */
#ifndef MGW_ENGINE_DEVICE_H
#define MGW_ENGINE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/cuda.h"
#include "engine/engine.h"

enum {
    ENGINE_SLOTS = 8, /* steps that may be under way on the GPU while the host goes on */
    ENGINE_SHARE = 8, /* one tensor in so many is timed in a step: more would stretch it */
};

/* The events of one step, all with times. */
typedef struct engine_slot {
    cuda_event begin;    /* on the caller's stream */
    cuda_event computed; /* there, behind the last gradient */
    cuda_event end;      /* on the transport's, behind the last message */
    cuda_event *ready;   /* there, of tensors share, share + ENGINE_SHARE, ... */
    bool measures;       /* whether those are recorded in this step */
    unsigned share;
} engine_slot;

struct engine_device {
    /* ---- Constant after start ---- */
    const cuda *cuda;
    cuda_context context;
    cuda_stream channel; /* the transport's */
    cuda_stream merge;   /* waits for gradients of all streams, to know when they were there */
    size_t tensor_count;
    cuda_event *message; /* by operation: on the caller's stream, behind its last gradient */
    cuda_event *foreign; /* by tensor: where it was made ready on another stream */
    cuda_event handover; /* the caller's numbers that are no gradients are there */
    cuda_event answered; /* and reduced or told */

    /* ---- The step: ready() from any thread ---- */
    bool *is_foreign; /* by tensor */
    engine_slot slots[ENGINE_SLOTS];
    _Atomic uint32_t incomplete; /* operations */
    _Atomic int code;            /* the driver's first error in ready() */

    /* ---- The communication thread's; steps are numbered as the engine does ---- */
    uint32_t enqueued; /* all that is to be done on the GPU was told to it */
    uint32_t resolved; /* its times were taken down */
    bool open;         /* what was posted last was not seen to end */
    uint64_t waits;    /* of the host for the GPU */
    double *ready_s;   /* by tensor: of a step whose times are taken down */
};

#endif
