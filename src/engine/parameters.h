/* Parameters beside the gradients: who updates what, and gathers that last into the next step. */
#ifndef MGW_ENGINE_PARAMETERS_H
#define MGW_ENGINE_PARAMETERS_H

#include "engine/engine.h"

/* What a plan means for parameters: which operations average, and whose the shards are. */
typedef struct engine_ownership {
    size_t operation_count;
    size_t *averages; /* the operations that average, in plan order */
    size_t average_count;
    size_t *gathered_by; /* by tensor; MGW_NO_OPERATION: it is all-reduced */
    mgw_shards *shards;
    mgw_shard *own; /* this worker's, in memory order; */
    size_t count;
    mgw_shard *by_operation; /*   the same, operation by operation, */
    size_t *begins;          /*   of which each begins here; one more than there are */
} engine_ownership;

/* The forward pass of a step: when parameters were needed, and what it waited for them. */
typedef struct engine_needs {
    double *need_s; /* by tensor, from begin, without the waits before it; or MGW_NEVER_NEEDED */
    mgw_stall *stalls;
    size_t stall_count;
    double stalled_s; /* in all */
    double step_s;    /* how long the step took */
    double *ready_s;  /* by tensor: room for times without them */
} engine_needs;

/* An array of the program's that moves. */
typedef struct engine_moved {
    mgw_dtype dtype;
    const void *before;
    void *after;
    size_t element_bytes;
} engine_moved;

struct engine_parameters {
    /* ---- Constant after start ---- */
    mgw_dtype dtype;      /* of the parameters of f32 tensors */
    char *memory[DTYPES]; /* the transport's; elements lie as the gradients' */
    mgw_update *update;   /* null: the program says what it has updated */
    void *update_context;
    mgw_on_reshard *on_reshard;
    void *reshard_context;

    /* ---- Between steps, when all gathers are over ---- */
    engine_ownership now;
    engine_ownership next;   /* from adopt to reshard */
    engine_ownership before; /* in on_reshard */
    bool moving;
    engine_moved moved;
    char *scratch; /* for that; the transport's */
    size_t scratch_bytes;

    /*
     * ---- Under the lock; and with it all that is the driver's in the flow, since the
     * communication thread goes on with gathers while the caller begins the next step ----
     */
    pthread_mutex_t lock;
    pthread_cond_t news; /* something is over, or has failed */
    mgw_status status;   /* of what went on by itself */
    mgw_error error;
    size_t averaged;       /* of `averages`, those that are over in this step, */
    size_t taken;          /*   of these, those whose update was begun, */
    size_t said;           /*   and those whose update is done */
    bool *is_said;         /* by operation */
    bool sends;            /* an operation is under way */
    double begun_s[2];     /* of this step and the one before, by its number modulo 2; */
    engine_span *spans[2]; /*   and when its operations were done, by the clock */
    uint64_t first_step;   /* with this plan */

    /* ---- The communication thread's ---- */
    bool started;
    uint64_t step; /* of which it does an operation */

    /* ---- Posts of the semaphore `work`: those that were had, and that must come ---- */
    uint64_t had;
    uint64_t posts;

    engine_needs needs; /* the caller's */
};

/* ---- parameters.c: life, memory, ownership ---- */

MGW_CHECKED mgw_status engine_parameters_open(mgw_engine *engine, mgw_error *error);
void engine_parameters_close(mgw_engine *engine);

/* Fails for policies whose plans gather parameters, if the engine does not keep them. */
MGW_CHECKED mgw_status engine_check_policy(const mgw_engine *engine, const char *name,
                                           mgw_error *error);

/* On the communication thread, once there is a layout. */
MGW_CHECKED mgw_status engine_parameters_allocate(mgw_engine *engine, mgw_error *error);

/* How many bytes of them there are for one of gradients that travels, of most: 0.5, 1 or 2; 0:
 * the program keeps them. */
double engine_parameter_ratio(const mgw_engine *engine);

/* Of all of them; 0 where the program keeps them. */
uint64_t engine_parameter_bytes(const mgw_engine *engine);

/* How many operations of the plan average: with or without parameters. */
size_t engine_average_count(const mgw_engine *engine);

/* These operations will be the plan's: behind mgw_flow_adopt, before engine_reshard. */
MGW_CHECKED mgw_status engine_parameters_adopt(mgw_engine *engine, const mgw_operation *operations,
                                               size_t count, mgw_error *error);

/* ---- reshard.c ---- */

/* On the caller's thread: shards are the new plan's from now on, and the program's state moves. */
MGW_CHECKED mgw_status engine_reshard(mgw_engine *engine, mgw_error *error);
void engine_ownership_fini(engine_ownership *ownership);

/* ---- halves.c ---- */

/* A reduce-scatter of gradients or an all-gather of parameters, of one dtype. */
MGW_CHECKED mgw_status engine_send_half(mgw_engine *engine, size_t index, mgw_dtype dtype,
                                        mgw_error *error);

/* Averages that the caller keeps elsewhere: of this worker's shards. */
void engine_return_shards(mgw_engine *engine, size_t index);

/* ---- ahead.c: the communication thread's side ---- */

/* There is a task. The caller's. */
void engine_call(mgw_engine *engine);

/* Does what the flow hands out, and updates, until there is a task; and before that, all gathers
 * that may start: all workers have the same behind them. */
void engine_attend(mgw_engine *engine);

/* The last posts of `work` have come, so that nobody is about to make one. */
void engine_take_posts(mgw_engine *engine);

/* ---- and the caller's ---- */

/* Fails if an update was not said, or if what went on by itself has failed. */
MGW_CHECKED mgw_status engine_check_updates(mgw_engine *engine, const char *call, mgw_error *error);

/* Fails if the engine keeps no parameters, is not started, or has failed. */
MGW_CHECKED mgw_status engine_check_call(const mgw_engine *engine, const char *call,
                                         mgw_error *error);

MGW_CHECKED mgw_status engine_begin_flow(mgw_engine *engine, double now_s, mgw_error *error);
MGW_CHECKED mgw_status engine_await_step(mgw_engine *engine, mgw_error *error);

/* In a step, until what the step before has made of the parameter is there. */
MGW_CHECKED mgw_status engine_await_gather(mgw_engine *engine, unsigned id, bool *waited,
                                           mgw_error *error);

/* ---- needs.c: when the forward pass needs what ---- */

void engine_begin_needs(mgw_engine *engine);

/* Of the last step, between steps: the forward pass until its last stall, whose end is returned;
 * and the gathers of the step before, as far as they were in this one. */
double engine_add_stalls(const mgw_engine *engine, mgw_timeline *timeline);
void engine_add_gathers(const mgw_engine *engine, mgw_timeline *timeline);

/* Tells the tuner about a step, with what the forward pass waited taken out of its times. Also of
 * engines without parameters. */
void engine_observe(mgw_engine *engine, mgw_step_record *record);

#endif
