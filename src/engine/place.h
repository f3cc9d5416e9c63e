/* Where gradients are, as a table: the host's memory, or a GPU's. Null: there is nothing to do. */
#ifndef MGW_ENGINE_PLACE_H
#define MGW_ENGINE_PLACE_H

#include "engine/engine.h"

/*
 * f32 gradients that travel as something narrower: elements first .. first+count-1 of a slice of
 * the arena. The pointers are to where the slice begins.
 */
typedef struct engine_cast {
    mgw_dtype wire;
    float *data;
    void *narrow;
    size_t first;
    size_t count;
    float *largest; /* of 8 bits: of each MGW_FP8_BLOCK elements, of all workers; else null */
    int headroom;   /* of 8 bits: see mgw_fp8_exponent */
} engine_cast;

struct engine_place {
    /* ---- Life. open and close on the caller's thread, enter and start on the communication
     * thread: before the transport is opened, and once the tensors are known ---- */
    engine_task *open;
    void (*close)(mgw_engine *engine);
    engine_task *enter;
    engine_task *start;

    /* ---- The caller's side of a step; none of them waits. `mark` and `complete` on any thread:
     * a gradient is there, on a stream; it was the last one of an operation ---- */
    engine_task *begin;
    double (*mark)(mgw_engine *engine, unsigned id, void *stream);  /* when, by the host's clock */
    unsigned (*samples)(const mgw_engine *engine, unsigned *share); /* null: marks cost nothing */
    void (*complete)(mgw_engine *engine, size_t operation);
    engine_task *join; /* what follows is behind averages */

    /* ---- With parameters. `over` on the communication thread: an operation is done or begun.
     * The others on the caller's: it updates what was averaged, or has done so; uses a parameter
     * whose gather is done or begun, for the first time in a step; uses all of them ---- */
    void (*over)(mgw_engine *engine, size_t operation);
    mgw_status (*averaged)(mgw_engine *engine, size_t operation, mgw_error *error);
    mgw_status (*updated)(mgw_engine *engine, size_t operation, mgw_error *error);
    mgw_status (*need)(mgw_engine *engine, unsigned id, mgw_error *error);
    engine_task *drain;

    /* ---- On any thread: copies on a stream; from null: zeros. A failure shows in the step ---- */
    void (*move)(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream);

    /* On any thread: to the host, once the stream has come there; false if that failed, which shows
     * in the step, too. Null: it is there. */
    bool (*read)(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream);

    /* ---- Before and behind a message that travels narrow: on the transport's stream, if it has
     * one. On the communication thread; a failure shows in the step ---- */
    engine_task *allow; /* before the first of them */
    void (*largest)(mgw_engine *engine, const engine_cast *cast);
    void (*narrow)(mgw_engine *engine, const engine_cast *cast);
    void (*widen)(mgw_engine *engine, const engine_cast *cast);

    /* ---- The communication thread's ---- */
    mgw_status (*admit)(mgw_engine *engine, size_t operation, mgw_error *error); /* it may begin */
    engine_task *posted; /* waits for it, if that is due now */
    engine_task *end;    /* all operations are done or begun */
    engine_task *watch;  /* whether what is under way can still end: to be asked now and then */
    engine_task *settle; /* waits until all that is under way is over */

    /* Around a collective of the program's numbers; not before the engine is started. */
    engine_task *ask;
    engine_task *answer;

    /* One tensor in so many is timed in a step; 0: all. And the same collective is timed so often
     * in a row where it is small, since the host is not what is measured. */
    int sampled;
    size_t back_to_back;
};

extern const engine_place engine_host;
extern const engine_place engine_cuda;

/* A slice of f32 gradients that travels narrow: narrowed, by scales that all agree on. Its `first`
 * and `count` may be changed, for widening a part. */
MGW_CHECKED mgw_status engine_narrow(mgw_engine *engine, mgw_dtype wire, void *data, size_t count,
                                     engine_cast *out, mgw_error *error);

/* Does what the place has to do here, if anything. */
static inline mgw_status engine_at_place(mgw_engine *engine, engine_task *what, mgw_error *error)
{
    return what ? what(engine, error) : MGW_OK;
}

#endif
