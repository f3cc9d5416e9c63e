/* A GPU's share of the books: what orders streams, and what measures steps without waiting. */
#ifndef MGW_ENGINE_DEVICE_H
#define MGW_ENGINE_DEVICE_H

#include "device/kernels.h"
#include "engine/engine.h"

enum {
    SLOTS = 9, /* one more than the steps that may be under way on the GPU while the host goes on:
                  the end of the one before is where the first of them begins */
    SHARE = 8, /* one tensor in so many is timed in a step: more would stretch it */
};

/* The events of one step, with times. */
enum {
    BEGIN,    /* on the caller's stream */
    COMPUTED, /* there, behind the last gradient */
    END,      /* on the transport's, behind the last message */
    READY,    /* on the caller's, of tensors share, share + SHARE, ... */
};

/* With parameters: what orders updates and gathers, and what the forward pass waited for. */
typedef struct slot_ahead {
    cuda_event *updated; /* by operation that averages, untimed: on the caller's stream */
    cuda_event *over;    /* by operation, untimed: on the transport's, behind it */
    cuda_event *need;    /* on the caller's, of tensors share, share + SHARE, ... */
    cuda_event *stall;   /* there, before and behind each wait for a gather */
    _Atomic uint32_t stall_count;
    uint32_t *stalls_at_ready; /* of those tensors: how many there were by then */
    uint32_t *stalls_at_need;  /*   NOT_NEEDED: it was not */
} slot_ahead;

enum { NOT_NEEDED = UINT32_MAX };

typedef struct slot {
    cuda_event *at;
    cuda_event
        *message;  /* by operation, untimed: on the caller's stream, behind its last gradient */
    bool measures; /* whether READY and those behind it are recorded in this step */
    unsigned share;
    slot_ahead ahead;
} slot;

struct engine_device {
    /* ---- Constant after start ---- */
    const cuda *cuda;
    cuda_context context;
    cuda_stream channel; /* the transport's */
    cuda_stream merge;   /* waits for gradients of all streams, to know when they were there */
    size_t tensor_count;
    cuda_event *events; /* all there are: */
    size_t event_count;
    cuda_kernels kernels; /* for gradients that travel narrow; else not open */
    cuda_event *foreign;  /*   by tensor: where it was made ready on another stream */
    cuda_event *handover; /*   the caller's numbers that are no gradients are there, or back */

    /* ---- The step: ready() from any thread ---- */
    bool *is_foreign; /* by tensor */
    slot slots[SLOTS];
    _Atomic uint32_t incomplete; /* operations */
    _Atomic int code;            /* the driver's first error in what cannot return it */

    /* ---- The communication thread's; steps are numbered as the flow does ---- */
    uint32_t enqueued; /* all that is to be done on the GPU was told to it */
    uint32_t resolved; /* its times were taken down */
    double *ready_s;   /* by tensor: of a step whose times are taken down */
    double *need_s;    /*   and when it was needed; */
    double *stalled_s; /*   by stall: all until then */

    /* ---- The caller's ---- */
    uint32_t *waited_in; /* by operation: the step in which its stream waits for that gather */
};

static inline uint32_t step_of(const mgw_engine *engine)
{
    return (uint32_t)mgw_flow_step(engine->flow);
}

static inline slot *slot_of(const mgw_engine *engine, uint32_t step)
{
    return &engine->device->slots[step % SLOTS];
}

static inline slot *slot_now(const mgw_engine *engine)
{
    return slot_of(engine, step_of(engine));
}

/* ---- device_ahead.c: parameters in a GPU's memory ---- */

/* Events for that, in all slots; CUDA's code. */
int device_ahead_start(mgw_engine *engine);
void device_ahead_close(engine_device *device);
void device_ahead_begin(mgw_engine *engine);

/* The transport's stream waits for the updates of what a gather sends. */
int device_ahead_admit(mgw_engine *engine, size_t gather);

/* Takes what the forward pass waited out of a step's times, and tells when it needed what. */
int device_ahead_take_down(const mgw_engine *engine, const slot *of, mgw_step_record *record);

/* The place's. */
void device_over(mgw_engine *engine, size_t operation);
mgw_status device_averaged(mgw_engine *engine, size_t operation, mgw_error *error);
mgw_status device_updated(mgw_engine *engine, size_t operation, mgw_error *error);
mgw_status device_need(mgw_engine *engine, unsigned id, mgw_error *error);
mgw_status device_drain(mgw_engine *engine, mgw_error *error);

/* ---- device.c: for callers on threads that never met the GPU ---- */
int device_record(const engine_device *device, cuda_event event, cuda_stream stream);
int device_wait(const engine_device *device, cuda_stream stream, cuda_event event);
int device_seconds(const engine_device *device, cuda_event from, cuda_event to, double *out);
mgw_status device_check(int code, const char *what, mgw_error *error);

/* Keeps the first error of what cannot return it. */
void device_note(engine_device *device, int code);

#endif
