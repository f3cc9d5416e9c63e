/* Where gradients are, as a function table: host memory, or a GPU's. Null entries: nothing to do.
 */
#ifndef MGW_ENGINE_PLACE_H
#define MGW_ENGINE_PLACE_H

#include "engine/engine.h"

/*
 * f32 gradients with a narrower wire format: elements first .. first+count-1 of a slice of the
 * arena. The pointers point to the start of the slice.
 */
typedef struct engine_cast {
    mgw_dtype wire;
    float *data;
    void *narrow;
    size_t first;
    size_t count;
    float *largest; /* 8 bits: maximum of each MGW_FP8_BLOCK elements over all workers; else null */
    int headroom;   /* 8 bits: see mgw_fp8_exponent */
} engine_cast;

struct engine_place {
    /* ---- Opening and closing. open and close run on the caller's thread; enter and start on the
     * communication thread, before the transport is opened and when the tensors are known ---- */
    engine_task *open;
    void (*close)(mgw_engine *engine);
    engine_task *enter;
    engine_task *start;

    /* ---- The caller's side of a step; none of them waits. `mark` and `complete` run on any
     * thread: a gradient is ready on a stream; it was the last one of an operation ---- */
    engine_task *begin;
    double (*mark)(mgw_engine *engine, unsigned id, void *stream);  /* time, by the host's clock */
    unsigned (*samples)(const mgw_engine *engine, unsigned *share); /* null: marks are free */
    void (*complete)(mgw_engine *engine, size_t operation);
    engine_task *join; /* later work is ordered after the averages */

    /* ---- With parameters. `over` runs on the communication thread: an operation is done or
     * started. The others run on the caller's thread: it is about to update an averaged operation,
     * or has done so; it first uses, in a step, a parameter whose gather is done or started; it
     * uses all of them ---- */
    void (*over)(mgw_engine *engine, size_t operation);
    mgw_status (*averaged)(mgw_engine *engine, size_t operation, mgw_error *error);
    mgw_status (*updated)(mgw_engine *engine, size_t operation, mgw_error *error);
    mgw_status (*need)(mgw_engine *engine, unsigned id, mgw_error *error);
    engine_task *drain;

    /* ---- On any thread: copies on a stream; from null: zeros. A failure is reported by the step
     * ---- */
    void (*move)(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream);

    /* On any thread: copies to the host, in stream order; false if that failed, which the step also
     * reports. Null: it is in host memory. */
    bool (*read)(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream);

    /* ---- Before and after a message in a narrow format: on the transport's stream, if it has one.
     * On the communication thread; a failure is reported by the step ---- */
    engine_task *allow; /* before the first such message */
    void (*largest)(mgw_engine *engine, const engine_cast *cast);
    void (*narrow)(mgw_engine *engine, const engine_cast *cast);
    void (*widen)(mgw_engine *engine, const engine_cast *cast);

    /* ---- On the communication thread ---- */
    mgw_status (*admit)(mgw_engine *engine, size_t operation, mgw_error *error); /* to start */
    engine_task *posted; /* waits for the collective, if necessary now */
    engine_task *end;    /* all operations are done or started */
    engine_task *watch;  /* checks that work in flight can still finish; call it periodically */
    engine_task *settle; /* waits for all work in flight */

    /* Before and after a collective on the program's data; only after the engine is started. */
    engine_task *ask;
    engine_task *answer;

    /* One in `sampled` tensors is timed per step; 0: all. Small collectives are timed
     * `back_to_back` times in a row, so that the host's time is not measured. */
    int sampled;
    size_t back_to_back;
};

extern const engine_place engine_host;
extern const engine_place engine_cuda;

/* Narrows a slice of f32 gradients, with scales that all workers agree on. `first` and `count` of
 * *out may be changed, to widen a part. */
MGW_CHECKED mgw_status engine_narrow(mgw_engine *engine, mgw_dtype wire, void *data, size_t count,
                                     engine_cast *out, mgw_error *error);

/* Calls a function of the place, if it is not null. */
static inline mgw_status engine_at_place(mgw_engine *engine, engine_task *what, mgw_error *error)
{
    return what ? what(engine, error) : MGW_OK;
}

#endif
