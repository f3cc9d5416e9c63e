/* Internals of the engine. Fields are grouped by the threads that may access them. */
#ifndef MGW_ENGINE_ENGINE_H
#define MGW_ENGINE_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include <mgwfbp/engine.h>
#include <mgwfbp/flow.h>
#include <mgwfbp/layout.h>
#include <mgwfbp/tune.h>

#include "base/names.h"

enum { DTYPES = MGW_F64 + 1 };

/* Constant from mgw_engine_start on, except `bound`, which may change between steps. */
typedef struct engine_tensor {
    size_t count;
    mgw_dtype dtype;
    void *bound; /* where the caller keeps it, or null */
} engine_tensor;

/* The tensors and their memory: constant after start. */
typedef struct engine_arena {
    size_t count; /* number of tensors */
    size_t capacity;
    engine_tensor *tensors;
    mgw_names *names;
    mgw_layout *layout;
    char *memory[DTYPES]; /* owned by the transport */
    void *narrow;         /* for f32 operations with another wire format, */
    float *largest;       /*   and for their scales: owned by the transport. Null: unused */
    size_t narrow_bytes;  /* total of both */
    _Atomic uint64_t copied_bytes;
} engine_arena;

/* Work for the communication thread, which alone uses the transport. */
typedef mgw_status engine_task(mgw_engine *engine, mgw_error *error);

/* The communication thread and its tasks: `go` hands a task over, `done` returns it. */
typedef struct engine_thread {
    bool threaded; /* otherwise the caller's thread does everything in wait, without overlap */
    pthread_t thread;
    sem_t go;
    sem_t done;
    sem_t work;                 /* posted for every operation that becomes complete */
    size_t taken;               /* posts of this step that the thread has received */
    engine_task *task;          /* null: exit */
    mgw_call numbers;           /* argument of a task about the program's data; */
    bool may_stay;              /*   or about the plan, which may stay, */
    const mgw_operation *given; /*   or is given by the program */
    size_t given_count;
    mgw_status status; /* of the task */
    mgw_error error;
    _Atomic bool waiting; /* the caller is in wait, and the timeout for gradients runs */
    _Atomic bool closing;
} engine_thread;

/* Measurements of a step in host memory; owned by the communication thread. */
typedef struct engine_times {
    double *took_s;   /* by operation */
    double *busy_s;   /* by operation: core time used meanwhile */
    double end_s;     /* when the last operation of the last step ended, by the clock; 0 at first */
    double late_s;    /* how long after that this step began; written by begin */
    double over_s;    /* when the last step was over for the caller; 0 at first */
    double forward_s; /* when the backward pass began, from begin; 0: not reported */
} engine_times;

/* The last operations, to explain why workers wait. */
enum { ENGINE_HISTORY = 64 };

typedef struct engine_deed {
    uint64_t step;
    size_t index;
    mgw_collective kind;
    size_t first;
    size_t tensors;
    double begun_s; /* by the clock */
    double ended_s; /* 0: not finished */
} engine_deed;

typedef struct engine_history {
    pthread_mutex_t lock; /* of the next two, which any thread that fails may read */
    engine_deed done[ENGINE_HISTORY];
    uint64_t count;
    bool open;        /* the engine was started, so there is something to report */
    bool explained;   /* only once */
    const char *said; /* the missing tensor that was reported to others; the thread's */
} engine_history;

typedef struct engine_place engine_place;           /* place.h: where gradients are */
typedef struct engine_device engine_device;         /* device.c: state for a GPU */
typedef struct engine_parameters engine_parameters; /* parameters.h */
typedef struct engine_debug engine_debug;           /* debug.c */

struct mgw_engine {
    /* ---- Constant after open ---- */
    mgw_engine_options options;       /* with all defaults filled in */
    const char *servers_from;         /* the environment variable, if it sets the number */
    char policy[MGW_POLICY_NAME_MAX]; /* current; "given": a plan of the program or of a file */
    mgw_dtype wire;                   /* wire format of f32 gradients; MGW_F32: unchanged */
    unsigned rank;
    unsigned size;
    pid_t process;
    const engine_place *place;
    engine_device *device;    /* null: gradients are in host memory */
    mgw_transport *transport; /* the communication thread's, */
    mgw_request last;         /*   and its last request; 0: over */
    uint64_t waits;           /*   how often the host waited for a GPU */

    engine_parameters *parameters; /* null: the program keeps them */
    engine_debug *debug;           /* null: off */

    engine_arena arena;
    engine_thread thread;
    mgw_flow *flow;
    mgw_tuner *tuner;
    engine_times times;
    engine_history history;

    _Atomic uint32_t early; /* id + 1 of a tensor that was ready before start */

    /* ---- Used by the caller's thread ---- */
    void *stream; /* its stream, if gradients are on a GPU; may change between steps */
    bool started;
    bool in_step;
    bool failed;
    unsigned reforms; /* number of re-formations before this engine */
};

/* ---- engine.c ---- */

/* Fails if there is no engine, or if it belongs to another process, of which this one is a fork: a
 * fork has the memory, but neither the thread nor a place in the job. */
MGW_CHECKED mgw_status engine_check(const mgw_engine *engine, const char *call, mgw_error *error);

/* The same without an error message, for functions that return nothing. */
bool engine_is_ours(const mgw_engine *engine);

/* Gives the communication thread a task; waits until it is done; or both. */
void engine_hand_over(mgw_engine *engine, engine_task *task);
MGW_CHECKED mgw_status engine_await(mgw_engine *engine, mgw_error *error);
MGW_CHECKED mgw_status engine_run(mgw_engine *engine, engine_task *task, mgw_error *error);

/* ---- options.c ---- */
MGW_CHECKED mgw_status engine_complete_options(const mgw_engine_options *given,
                                               mgw_engine_options *out, mgw_error *error);

/* The name of an option in error messages: the variable, if its value comes from the environment.
 * And an error about its value, then prefixed with the variable. */
const char *engine_option_name(const char *value, const char *variable, const char *option);
MGW_CHECKED mgw_status engine_blame(const char *value, const char *variable, mgw_status status,
                                    const mgw_error *why, mgw_error *error);

/* Fails if there are more servers than workers. */
MGW_CHECKED mgw_status engine_check_servers(const mgw_engine *engine, mgw_error *error);

/* The format in which f32 numbers are kept or sent; null: f32. */
MGW_CHECKED mgw_status engine_read_dtype(const char *option, const char *name, mgw_dtype *out,
                                         mgw_error *error);
MGW_CHECKED mgw_status engine_read_wire(const char *name, mgw_dtype *out, mgw_error *error);

/* ---- arena.c ---- */
MGW_CHECKED mgw_status engine_arena_allocate(mgw_engine *engine, mgw_error *error);

/* Allocates memory for a wire format, if there is none yet. On all workers, on the communication
 * thread. */
MGW_CHECKED mgw_status engine_allow_wire(mgw_engine *engine, mgw_dtype wire, mgw_error *error);
void engine_arena_fini(engine_arena *arena);

/* Where the gradient is when it is ready: in the arena, or where the caller keeps it. */
void *engine_home(const mgw_engine *engine, size_t id);

/* Bytes of a tensor, and of all tensors of a dtype including gaps. */
size_t engine_tensor_bytes(const engine_tensor *tensor);
size_t engine_arena_bytes(const engine_arena *arena, mgw_dtype dtype);

/* The wire format of gradients unless the plan sets another: f32 may be narrower. */
static inline mgw_dtype engine_travels_as(const mgw_engine *engine, mgw_dtype dtype)
{
    return dtype == MGW_F32 ? engine->wire : dtype;
}

/* The wire format of an operation: that of the option, which applies to all messages, or that of
 * the plan. */
static inline mgw_dtype engine_wire(const mgw_engine *engine, const mgw_operation *operation,
                                    mgw_dtype dtype)
{
    bool planned = dtype == MGW_F32 && engine->wire == MGW_F32;
    return planned ? operation->wire : engine_travels_as(engine, dtype);
}

/* ---- aggregate.c: performing one operation ---- */

/* Averages all gradients of the operation, which are ready. */
MGW_CHECKED mgw_status engine_send(mgw_engine *engine, size_t index, mgw_error *error);

/* Runs a collective: when it returns, it is over or, on a GPU, in flight. */
MGW_CHECKED mgw_status engine_post(mgw_engine *engine, const mgw_call *call, mgw_error *error);

/* The same for an operation; a push or a pull uses the server that owns it. */
MGW_CHECKED mgw_status engine_collect(mgw_engine *engine, mgw_collective kind, size_t index,
                                      void *data, size_t count, mgw_dtype dtype, mgw_error *error);

/* ---- step.c: one step, on the communication thread ---- */

/* Waits for a semaphore for a limited time; returns whether it was posted. */
bool engine_sleep_on(sem_t *semaphore, long ns);

/* When an operation was done, and how long it kept a core busy. */
typedef struct engine_span {
    double start_s;
    double end_s;
    double busy_s;
} engine_span;

/* Performs an operation; times are relative to `begun_s`. */
MGW_CHECKED mgw_status engine_perform(mgw_engine *engine, size_t index, double begun_s,
                                      engine_span *out, mgw_error *error);

/* Records that an operation is over. */
void engine_note(mgw_engine *engine, size_t index, const engine_span *span);

/* Fails if the caller has waited longer than the timeout, with nothing in flight. */
MGW_CHECKED mgw_status engine_check_patience(const mgw_engine *engine, double since_s,
                                             mgw_error *error);

/* ---- explain.c: why workers wait ---- */

/* Around an operation, on the communication thread. */
void engine_history_begin(mgw_engine *engine, size_t index);
void engine_history_end(mgw_engine *engine);

/* Once, if a wait for others has failed: writes a file, and adds its path to the error. */
void engine_explain(mgw_engine *engine, mgw_error *error);

/* A tensor that is still missing: of the operation whose turn it is, or of a later one; or null. */
const char *engine_missing_tensor(const mgw_engine *engine, size_t turn);

/* Reports the missing tensor to workers that wait for this one. On the communication thread, in a
 * step. */
void engine_say_missing(mgw_engine *engine);

/* ---- adopt.c: the current plan ---- */

/* Passes the tuner's operations to the flow, from the next step on. On the communication thread. */
MGW_CHECKED mgw_status engine_adopt(mgw_engine *engine, mgw_error *error);

/* All workers look for a better plan, and follow it. */
MGW_CHECKED mgw_status engine_look(mgw_engine *engine, bool may_stay, mgw_error *error);

/* Before a step: looks if it is time, or switches to the next candidate of a trial. */
MGW_CHECKED mgw_status engine_take_turn(mgw_engine *engine, mgw_error *error);

/* Sets the policy name in the report; null: a given plan. */
void engine_name_policy(mgw_engine *engine, const char *name);

/* Loads the plan file of the options, which must be the same on all workers. On the communication
 * thread, before the first step. */
MGW_CHECKED mgw_status engine_pin(mgw_engine *engine, mgw_error *error);

/* ---- debug.c: these do nothing unless the option is set ---- */
MGW_CHECKED mgw_status engine_debug_open(mgw_engine *engine, mgw_error *error);
void engine_debug_close(mgw_engine *engine);

/* A gradient is ready; called before it is reported. On any thread. */
void engine_debug_ready(mgw_engine *engine, size_t id, void *stream);

/* Before an operation that averages: fails if its gradients have changed since they were ready.
 * After it, if it was an all-reduce. */
MGW_CHECKED mgw_status engine_debug_send(mgw_engine *engine, const mgw_operation *operation,
                                         mgw_error *error);
void engine_debug_sent(mgw_engine *engine, const mgw_operation *operation);

/* After a step, on the caller's thread: checks that all workers have the same averages. */
MGW_CHECKED mgw_status engine_debug_end(mgw_engine *engine, mgw_error *error);

/* ---- statistics.c ---- */

/* When the last of these tensors was ready in the last step. */
double engine_last_ready_s(const mgw_engine *engine, size_t first, size_t count);

/* ---- report.c ---- */

/* Output that the environment asks for (MGWFBP_STATS, MGWFBP_TIMELINE): the library prints nothing
 * else. */
void engine_last_words(const mgw_engine *engine);

/* ---- agree.c, calibrate.c: before the first step ---- */
mgw_status engine_agree(mgw_engine *engine, double *crowd, mgw_error *error);
MGW_CHECKED mgw_status engine_calibrate(mgw_engine *engine, mgw_cluster **out, mgw_error *error);

/* Compares a hash among all ranks; *differs is the first rank that differs from rank 0, or 0. */
MGW_CHECKED mgw_status engine_same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs,
                                        mgw_error *error);

/* The first rank for which `so` is true; the number of ranks if there is none. */
MGW_CHECKED mgw_status engine_first_rank(mgw_engine *engine, bool so, unsigned *first,
                                         mgw_error *error);

#endif
