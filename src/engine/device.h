/* The engine's state for a GPU: events that order streams, and that time steps without waiting. */
#ifndef MGW_ENGINE_DEVICE_H
#define MGW_ENGINE_DEVICE_H

#include "device/kernels.h"
#include "engine/engine.h"

enum {
    SLOTS = 9, /* one more than the number of steps that may be in flight on the GPU: the first of
                  them begins at the end of the previous one */
    SHARE = 8, /* one in SHARE tensors is timed per step: more would slow it down */
};

/* The events of one step, with times. */
enum {
    BEGIN,    /* on the caller's stream */
    COMPUTED, /* there, after the last gradient */
    END,      /* on the transport's, after the last message */
    READY,    /* on the caller's, of tensors share, share + SHARE, ... */
};

/* With parameters: events that order updates and gathers, and time the stalls of the forward pass.
 */
typedef struct slot_ahead {
    cuda_event *updated; /* by operation that averages, untimed: on the caller's stream */
    cuda_event *over;    /* by operation, untimed: on the transport's, after it */
    cuda_event *need;    /* on the caller's, of tensors share, share + SHARE, ... */
    cuda_event *stall;   /* there, before and after each wait for a gather */
    _Atomic uint32_t stall_count;
    uint32_t *stalls_at_ready; /* by sampled tensor: number of stalls until it was ready, */
    uint32_t *stalls_at_need;  /*   or needed; NOT_NEEDED: it was not */
} slot_ahead;

enum { NOT_NEEDED = UINT32_MAX };

typedef struct slot {
    cuda_event *at;
    cuda_event
        *message;  /* by operation, untimed: on the caller's stream, after its last gradient */
    bool measures; /* whether READY and the following are recorded in this step */
    unsigned share;
    slot_ahead ahead;
} slot;

struct engine_device {
    /* ---- Constant after start ---- */
    const cuda *cuda;
    cuda_context context;
    cuda_stream channel; /* the transport's */
    cuda_stream merge;   /* waits for gradients of all streams, to time when they are ready */
    size_t tensor_count;
    cuda_event *events; /* all of them: */
    size_t event_count;
    cuda_kernels kernels; /* for narrow wire formats; otherwise not open */
    cuda_event *foreign;  /*   by tensor: recorded if it was ready on another stream */
    cuda_event *handover; /*   for other data of the caller: it is ready, or the result is */

    /* ---- The step: ready() from any thread ---- */
    bool *is_foreign; /* by tensor */
    slot slots[SLOTS];
    _Atomic uint32_t incomplete; /* operations */
    _Atomic int code;            /* the first error of functions that cannot return it */

    /* ---- The communication thread's; steps are numbered as the flow does ---- */
    uint32_t enqueued; /* the last step whose work was enqueued on the GPU */
    uint32_t resolved; /* the last step whose times were recorded */
    double *ready_s;   /* by tensor: of the step whose times are recorded */
    double *need_s;    /*   and when it was needed; */
    double *stalled_s; /*   by stall: total until then */

    /* ---- The caller's ---- */
    uint32_t *waited_in; /* by operation: the last step in which the caller's stream waited for that
                            gather */
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

/* Creates the events for it in all slots. Returns a CUDA error code. */
int device_ahead_start(mgw_engine *engine);
void device_ahead_close(engine_device *device);
void device_ahead_begin(mgw_engine *engine);

/* Makes the transport's stream wait for the updates of a gather's data. */
int device_ahead_admit(mgw_engine *engine, size_t gather);

/* Subtracts the stalls of the forward pass from a step's times, and sets when it needed each
 * parameter. */
int device_ahead_take_down(const mgw_engine *engine, const slot *of, mgw_step_record *record);

/* Functions of engine_cuda: see place.h. */
void device_over(mgw_engine *engine, size_t operation);
mgw_status device_averaged(mgw_engine *engine, size_t operation, mgw_error *error);
mgw_status device_updated(mgw_engine *engine, size_t operation, mgw_error *error);
mgw_status device_need(mgw_engine *engine, unsigned id, mgw_error *error);
mgw_status device_drain(mgw_engine *engine, mgw_error *error);

/* ---- device.c: for callers on threads without a CUDA context ---- */
int device_record(const engine_device *device, cuda_event event, cuda_stream stream);
int device_wait(const engine_device *device, cuda_stream stream, cuda_event event);
int device_seconds(const engine_device *device, cuda_event from, cuda_event to, double *out);
mgw_status device_check(int code, const char *what, mgw_error *error);

/* Records the first error of functions that cannot return it. */
void device_note(engine_device *device, int code);

#endif
