/* Parameters kept by the engine: ownership of shards, and gathers that last into the next step. */
#ifndef MGW_ENGINE_PARAMETERS_H
#define MGW_ENGINE_PARAMETERS_H

#include "engine/engine.h"

/* What a plan means for parameters: the operations that average, and the ownership of shards. */
typedef struct engine_ownership {
    size_t operation_count;
    size_t *averages; /* the operations that average, in plan order */
    size_t average_count;
    size_t *gathered_by; /* by tensor; MGW_NO_OPERATION: it is all-reduced */
    mgw_shards *shards;
    mgw_shard *own; /* this worker's shards, in memory order; */
    size_t count;
    mgw_shard *by_operation; /*   the same, by operation, */
    size_t *begins;          /*   whose shards begin here; with one more entry */
} engine_ownership;

/* The forward pass of a step: when parameters were needed, and how long it waited. */
typedef struct engine_needs {
    double *need_s; /* by tensor, from begin, minus earlier waits; or MGW_NEVER_NEEDED */
    mgw_stall *stalls;
    size_t stall_count;
    double stalled_s; /* total */
    double step_s;    /* how long the step took */
    double *ready_s;  /* by tensor: scratch for times without stalls */
} engine_needs;

/* An array of the program that is being moved. */
typedef struct engine_moved {
    mgw_dtype dtype;
    const void *before;
    void *after;
    size_t element_bytes;
} engine_moved;

struct engine_parameters {
    /* ---- Constant after start ---- */
    mgw_dtype dtype;      /* of the parameters of f32 tensors */
    char *memory[DTYPES]; /* owned by the transport, with the layout of the gradients */
    mgw_update *update;   /* null: the program reports its updates */
    void *update_context;
    mgw_on_reshard *on_reshard;
    void *reshard_context;

    /* ---- Between steps, when all gathers are over ---- */
    engine_ownership now;
    engine_ownership next;   /* from adopt to reshard */
    engine_ownership before; /* in on_reshard */
    bool moving;
    engine_moved moved;
    char *scratch; /* scratch for moving; owned by the transport */
    size_t scratch_bytes;

    /*
     * ---- Protected by the lock, as is the driver's part of the flow, since the communication
     * thread continues with gathers while the caller begins the next step ----
     */
    pthread_mutex_t lock;
    pthread_cond_t news; /* something is done, or has failed */
    mgw_status status;   /* of background work */
    mgw_error error;
    size_t averaged;       /* number of `averages` that are done in this step, */
    size_t taken;          /*   of these, number whose update has begun, */
    size_t said;           /*   and number whose update is done */
    bool *is_said;         /* by operation */
    bool sends;            /* an operation is running */
    double begun_s[2];     /* start of this step and the previous one, by number modulo 2; */
    engine_span *spans[2]; /*   and the clock times of its operations */
    uint64_t first_step;   /* with this plan */

    /* ---- Used by the communication thread ---- */
    bool started;
    uint64_t step; /* of its current operation */

    /* ---- Posts of the semaphore `work`: received, and expected ---- */
    uint64_t had;
    uint64_t posts;

    engine_needs needs; /* used by the caller's thread */
};

/* ---- parameters.c: opening, memory, ownership ---- */

MGW_CHECKED mgw_status engine_parameters_open(mgw_engine *engine, mgw_error *error);
void engine_parameters_close(mgw_engine *engine);

/* Fails for policies whose plans gather parameters, if the engine does not keep them. */
MGW_CHECKED mgw_status engine_check_policy(const mgw_engine *engine, const char *name,
                                           mgw_error *error);

/* On the communication thread, when there is a layout. */
MGW_CHECKED mgw_status engine_parameters_allocate(mgw_engine *engine, mgw_error *error);

/* Bytes of parameters per byte of gradients sent, for the majority: 0.5, 1 or 2; 0: the program
 * keeps them. */
double engine_parameter_ratio(const mgw_engine *engine);

/* Total bytes of parameters; 0 if the program keeps them. */
uint64_t engine_parameter_bytes(const mgw_engine *engine);

/* Number of operations of the plan that average; also without parameters. */
size_t engine_average_count(const mgw_engine *engine);

/* Without a callback, parameters are updated when everything is averaged. So an operation that
 * averages must not come after a gather: it would wait for ever. */
MGW_CHECKED mgw_status engine_check_order(const mgw_operation *operations, size_t count,
                                          mgw_error *error);

/* Prepares these operations as the next plan; call it after mgw_flow_adopt and before
 * engine_reshard. */
MGW_CHECKED mgw_status engine_parameters_adopt(mgw_engine *engine, const mgw_operation *operations,
                                               size_t count, mgw_error *error);

/* ---- reshard.c ---- */

/* On the caller's thread: switches to the shards of the new plan, and moves the program's state. */
MGW_CHECKED mgw_status engine_reshard(mgw_engine *engine, mgw_error *error);
void engine_ownership_fini(engine_ownership *ownership);

/* ---- halves.c ---- */

/* A reduce-scatter of gradients or an all-gather of parameters, of one dtype. */
MGW_CHECKED mgw_status engine_send_half(mgw_engine *engine, size_t index, mgw_dtype dtype,
                                        mgw_error *error);

/* Copies averages of this worker's shards back to bound gradients. */
void engine_return_shards(mgw_engine *engine, size_t index);

/* ---- ahead.c: the communication thread's side ---- */

/* Announces a task. On the caller's thread. */
void engine_call(mgw_engine *engine);

/* Runs operations and updates until there is a task; before that, finishes all gathers that may
 * start, so that all workers are at the same point. */
void engine_attend(mgw_engine *engine);

/* Waits for the last posts of `work`, so that no thread is about to make one. */
void engine_take_posts(mgw_engine *engine);

/* ---- and the caller's ---- */

/* Fails if an update was not reported, or if background work has failed. */
MGW_CHECKED mgw_status engine_check_updates(mgw_engine *engine, const char *call, mgw_error *error);

/* Fails if the engine keeps no parameters, is not started, or has failed. */
MGW_CHECKED mgw_status engine_check_call(const mgw_engine *engine, const char *call,
                                         mgw_error *error);

MGW_CHECKED mgw_status engine_begin_flow(mgw_engine *engine, double now_s, mgw_error *error);
MGW_CHECKED mgw_status engine_await_step(mgw_engine *engine, mgw_error *error);

/* In a step: waits until the parameter has the update of the previous step. */
MGW_CHECKED mgw_status engine_await_gather(mgw_engine *engine, unsigned id, bool *waited,
                                           mgw_error *error);

/* ---- needs.c: when the forward pass needs parameters ---- */

void engine_begin_needs(mgw_engine *engine);

/* For the last step, between steps: adds the forward pass until its last stall, whose end is
 * returned; and the gathers of the previous step that ran in this one. */
double engine_add_stalls(const mgw_engine *engine, mgw_timeline *timeline);
void engine_add_gathers(const mgw_engine *engine, mgw_timeline *timeline);

/* Reports a step to the tuner, with stalls subtracted from its times. Also for engines without
 * parameters. */
void engine_observe(mgw_engine *engine, mgw_step_record *record);

#endif
