/* Where gradients are, as a table: the host's memory, or a GPU's. */
#ifndef MGW_ENGINE_PLACE_H
#define MGW_ENGINE_PLACE_H

#include "engine/engine.h"

struct engine_place {
    /* ---- Life. open and close on the caller's thread, enter and start on the communication
     * thread: before the transport is opened, and once the tensors are known ---- */
    mgw_status (*open)(mgw_engine *engine, mgw_error *error);
    void (*close)(mgw_engine *engine);
    void (*enter)(const mgw_engine *engine);
    mgw_status (*start)(mgw_engine *engine, mgw_error *error);

    /* ---- The caller's side of a step; none of them waits. `mark`, `take` and `complete` on any
     * thread: a gradient is there, on a stream; it is copied first, from elsewhere; it was the
     * last one of an operation ---- */
    mgw_status (*begin)(mgw_engine *engine, mgw_error *error);
    void (*take)(mgw_engine *engine, void *to, const void *from, size_t bytes, void *stream);
    double (*mark)(mgw_engine *engine, unsigned id, void *stream); /* when, by the host's clock */
    void (*complete)(mgw_engine *engine, size_t operation);
    void (*zero)(mgw_engine *engine, void *data, size_t bytes);
    mgw_status (*join)(mgw_engine *engine, mgw_error *error); /* what follows is behind averages */

    /* ---- The communication thread's ---- */
    mgw_status (*admit)(mgw_engine *engine, size_t operation, mgw_error *error); /* it may begin */
    mgw_status (*copy)(mgw_engine *engine, void *to, const void *from, size_t bytes,
                       mgw_error *error);
    mgw_status (*posted)(mgw_engine *engine,
                         mgw_error *error);                  /* waits for it, if that is due now */
    mgw_status (*end)(mgw_engine *engine, mgw_error *error); /* all operations are done or begun */

    /* Whether what is under way can still end: to be asked now and then, if `watched`. */
    bool watched;
    mgw_status (*watch)(mgw_engine *engine, mgw_error *error);

    /* Waits until all that is under way is over. */
    mgw_status (*settle)(mgw_engine *engine, mgw_error *error);

    /* Around a collective of the program's numbers. */
    mgw_status (*ask)(mgw_engine *engine, mgw_error *error);
    mgw_status (*answer)(mgw_engine *engine, mgw_error *error);
    bool asks_after_start; /* not before the engine is started */

    /* One tensor in so many is timed in a step; 0: all. And the same collective is timed so often
     * in a row where it is small, since the host is not what is measured. */
    int sampled;
    size_t back_to_back;

    uint64_t (*waits)(const mgw_engine *engine); /* of the host for the GPU */
};

extern const engine_place engine_host;
extern const engine_place engine_cuda;

#endif
