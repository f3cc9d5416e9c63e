/* The inside of the engine, in parts. Fields are grouped by who may touch them. */
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

/* Constant from mgw_engine_start on, but for `bound`, which changes between steps. */
typedef struct engine_tensor {
    size_t count;
    mgw_dtype dtype;
    void *bound; /* where the caller keeps it, or null */
} engine_tensor;

/* The tensors and their memory: constant after start. */
typedef struct engine_arena {
    size_t count; /* of tensors */
    size_t capacity;
    engine_tensor *tensors;
    mgw_names *names;
    mgw_layout *layout;
    char *memory[DTYPES]; /* the transport's */
    void *narrow;         /* for f32 operations that travel as something else, */
    float *largest;       /*   and for their scales: the transport's, too. Null: none does */
    size_t narrow_bytes;  /* of both */
    _Atomic uint64_t copied_bytes;
} engine_arena;

/* Work for the communication thread: all use of the transport is its. */
typedef mgw_status engine_task(mgw_engine *engine, mgw_error *error);

/* The communication thread, and what it is given: `go` hands over, `done` gives back. */
typedef struct engine_thread {
    bool threaded; /* else the caller's thread does it all, in wait: nothing is hidden */
    pthread_t thread;
    sem_t go;
    sem_t done;
    sem_t work;                 /* posted for every operation that becomes complete */
    size_t taken;               /* posts of this step that the thread has had */
    engine_task *task;          /* null: end */
    mgw_call numbers;           /* what a task is about, if it is about the program's numbers; */
    bool may_stay;              /*   or about the plan, which may be good enough, */
    const mgw_operation *given; /*   or is the program's */
    size_t given_count;
    mgw_status status; /* of the task */
    mgw_error error;
    _Atomic bool waiting; /* the caller is in wait: the timeout for gradients runs */
    _Atomic bool closing;
} engine_thread;

/* What is measured of a step in the host's memory; the communication thread's. */
typedef struct engine_times {
    double *took_s;   /* by operation */
    double *busy_s;   /* by operation: of a core, meanwhile */
    double end_s;     /* when the last operation of the last step ended, by the clock; 0 at first */
    double late_s;    /* how long after that this step was begun: written by begin */
    double over_s;    /* when the last step was over for the caller; 0 at first */
    double forward_s; /* when the backward pass began, from begin; 0: the program did not say */
} engine_times;

/* What was done last: for who wants to know why workers wait. */
enum { ENGINE_HISTORY = 64 };

typedef struct engine_deed {
    uint64_t step;
    size_t index;
    mgw_collective kind;
    size_t first;
    size_t tensors;
    double begun_s; /* by the clock */
    double ended_s; /* 0: it is not over */
} engine_deed;

typedef struct engine_history {
    pthread_mutex_t lock; /* of the two below: read by who fails, on any thread */
    engine_deed done[ENGINE_HISTORY];
    uint64_t count;
    bool open;        /* there is something to tell: the engine was started */
    bool explained;   /* once is enough */
    const char *said; /* the tensor that others were told we wait for; the thread's */
} engine_history;

typedef struct engine_place engine_place;           /* place.h: where gradients are */
typedef struct engine_device engine_device;         /* device.c: a GPU's share of the books */
typedef struct engine_parameters engine_parameters; /* parameters.h */
typedef struct engine_debug engine_debug;           /* debug.c */

struct mgw_engine {
    /* ---- Constant after open ---- */
    mgw_engine_options options;       /* complete */
    const char *servers_from;         /* the variable, if that says how many */
    char policy[MGW_POLICY_NAME_MAX]; /* in force; "given": a plan of the program's, or a file's */
    mgw_dtype wire;                   /* what f32 gradients travel as; MGW_F32: as they are */
    unsigned rank;
    unsigned size;
    pid_t process;
    const engine_place *place;
    engine_device *device;    /* null: gradients are in the host's memory */
    mgw_transport *transport; /* the communication thread's, */
    mgw_request last;         /*   and what it has posted last; 0: that is over */
    uint64_t waits;           /*   of the host for a GPU */

    engine_parameters *parameters; /* null: the program keeps them */
    engine_debug *debug;           /* null: programs are trusted */

    engine_arena arena;
    engine_thread thread;
    mgw_flow *flow;
    mgw_tuner *tuner;
    engine_times times;
    engine_history history;

    _Atomic uint32_t early; /* id + 1 of a tensor that was ready before start */

    /* ---- The caller's ---- */
    void *stream; /* on which it computes, if gradients are a GPU's: changes between steps */
    bool started;
    bool in_step;
    bool failed;
    unsigned reforms; /* how often workers were lost before this engine was made */
};

/* ---- engine.c ---- */

/* Fails if there is no engine, or if it is another process's, of which this one is a fork: that has
 * the memory, but neither the thread nor a place in the job. */
MGW_CHECKED mgw_status engine_check(const mgw_engine *engine, const char *call, mgw_error *error);

/* The same without words, for who returns nothing. */
bool engine_is_ours(const mgw_engine *engine);

/* Gives the communication thread a task; waits until it has done that; or both. */
void engine_hand_over(mgw_engine *engine, engine_task *task);
MGW_CHECKED mgw_status engine_await(mgw_engine *engine, mgw_error *error);
MGW_CHECKED mgw_status engine_run(mgw_engine *engine, engine_task *task, mgw_error *error);

/* ---- options.c ---- */
MGW_CHECKED mgw_status engine_complete_options(const mgw_engine_options *given,
                                               mgw_engine_options *out, mgw_error *error);

/* What errors call an option: the variable, if its value is that of the environment. And an error
 * of what was made of it, with the variable before it then. */
const char *engine_option_name(const char *value, const char *variable, const char *option);
MGW_CHECKED mgw_status engine_blame(const char *value, const char *variable, mgw_status status,
                                    const mgw_error *why, mgw_error *error);

/* Fails if there are more servers than workers. */
MGW_CHECKED mgw_status engine_check_servers(const mgw_engine *engine, mgw_error *error);

/* What f32 numbers are kept or sent as; null: as they are. */
MGW_CHECKED mgw_status engine_read_dtype(const char *option, const char *name, mgw_dtype *out,
                                         mgw_error *error);
MGW_CHECKED mgw_status engine_read_wire(const char *name, mgw_dtype *out, mgw_error *error);

/* ---- arena.c ---- */
MGW_CHECKED mgw_status engine_arena_allocate(mgw_engine *engine, mgw_error *error);

/* Room for what travels so, if there is none yet. On all workers, on the communication thread. */
MGW_CHECKED mgw_status engine_allow_wire(mgw_engine *engine, mgw_dtype wire, mgw_error *error);
void engine_arena_fini(engine_arena *arena);

/* Where the gradient is when it is ready: in the arena, or where the caller keeps it. */
void *engine_home(const mgw_engine *engine, size_t id);

/* Bytes of a tensor, and of all of a dtype with the gaps between them. */
size_t engine_tensor_bytes(const engine_tensor *tensor);
size_t engine_arena_bytes(const engine_arena *arena, mgw_dtype dtype);

/* What gradients travel as if the plan says nothing else: f32 perhaps narrower. */
static inline mgw_dtype engine_travels_as(const mgw_engine *engine, mgw_dtype dtype)
{
    return dtype == MGW_F32 ? engine->wire : dtype;
}

/* What those of an operation do: as the option says, of all messages, or else as the plan says. */
static inline mgw_dtype engine_wire(const mgw_engine *engine, const mgw_operation *operation,
                                    mgw_dtype dtype)
{
    bool planned = dtype == MGW_F32 && engine->wire == MGW_F32;
    return planned ? operation->wire : engine_travels_as(engine, dtype);
}

/* ---- aggregate.c: how one operation is done ---- */

/* All gradients of the operation, which are ready: afterwards they are averaged. */
MGW_CHECKED mgw_status engine_send(mgw_engine *engine, size_t index, mgw_error *error);

/* A collective: it is over, or on a GPU on its way. */
MGW_CHECKED mgw_status engine_post(mgw_engine *engine, const mgw_call *call, mgw_error *error);

/* The same for an operation: of a push or a pull, with the server that owns it. */
MGW_CHECKED mgw_status engine_collect(mgw_engine *engine, mgw_collective kind, size_t index,
                                      void *data, size_t count, mgw_dtype dtype, mgw_error *error);

/* ---- step.c: one step, on the communication thread ---- */

/* Sleeps on a semaphore for a while at most; whether it was posted. */
bool engine_sleep_on(sem_t *semaphore, long ns);

/* When an operation was done, and how long it kept a core busy. */
typedef struct engine_span {
    double start_s;
    double end_s;
    double busy_s;
} engine_span;

/* Does an operation; its times are from `begun_s`. */
MGW_CHECKED mgw_status engine_perform(mgw_engine *engine, size_t index, double begun_s,
                                      engine_span *out, mgw_error *error);

/* It is over. */
void engine_note(mgw_engine *engine, size_t index, const engine_span *span);

/* Fails if the caller has waited for longer than the timeout, though nothing is under way. */
MGW_CHECKED mgw_status engine_check_patience(const mgw_engine *engine, double since_s,
                                             mgw_error *error);

/* ---- explain.c: why workers wait ---- */

/* Around an operation, on the communication thread. */
void engine_history_begin(mgw_engine *engine, size_t index);
void engine_history_end(mgw_engine *engine);

/* If others were waited for in vain, once: writes a file, and where it is into the error. */
void engine_explain(mgw_engine *engine, mgw_error *error);

/* A tensor that is still missing: of the operation whose turn it is, or behind it; or null. */
const char *engine_missing_tensor(const mgw_engine *engine, size_t turn);

/* Tells those who wait for this worker. On the communication thread, in a step. */
void engine_say_missing(mgw_engine *engine);

/* ---- adopt.c: which plan is in force ---- */

/* The tuner's operations become the flow's, from the next step on. On the communication thread. */
MGW_CHECKED mgw_status engine_adopt(mgw_engine *engine, mgw_error *error);

/* All workers look for a better plan, and follow it. */
MGW_CHECKED mgw_status engine_look(mgw_engine *engine, bool may_stay, mgw_error *error);

/* Before a step: a look if one is due, or the next one's turn in a trial. */
MGW_CHECKED mgw_status engine_take_turn(mgw_engine *engine, mgw_error *error);

/* What the report calls the policy in force; null: a given plan's. */
void engine_name_policy(mgw_engine *engine, const char *name);

/* The plan of the options' file, on the communication thread: before the first step, and the same
 * on all workers. */
MGW_CHECKED mgw_status engine_pin(mgw_engine *engine, mgw_error *error);

/* ---- debug.c: nothing, unless the option is set ---- */
MGW_CHECKED mgw_status engine_debug_open(mgw_engine *engine, mgw_error *error);
void engine_debug_close(mgw_engine *engine);

/* A gradient is ready: before anybody hears of it. On any thread. */
void engine_debug_ready(mgw_engine *engine, size_t id, void *stream);

/* An operation that averages is about to be done: it fails if what was ready is another now. It was
 * an all-reduce, and is done. */
MGW_CHECKED mgw_status engine_debug_send(mgw_engine *engine, const mgw_operation *operation,
                                         mgw_error *error);
void engine_debug_sent(mgw_engine *engine, const mgw_operation *operation);

/* Behind a step, on the caller's thread: whether all workers have the same averages. */
MGW_CHECKED mgw_status engine_debug_end(mgw_engine *engine, mgw_error *error);

/* ---- statistics.c ---- */

/* When the last of these tensors was ready in the step before. */
double engine_last_ready_s(const mgw_engine *engine, size_t first, size_t count);

/* ---- report.c ---- */

/* What the environment asks for (MGWFBP_STATS, MGWFBP_TIMELINE): the only thing that the library
 * ever prints. */
void engine_last_words(const mgw_engine *engine);

/* ---- agree.c, calibrate.c: before the first step ---- */
mgw_status engine_agree(mgw_engine *engine, double *crowd, mgw_error *error);
MGW_CHECKED mgw_status engine_calibrate(mgw_engine *engine, mgw_cluster **out, mgw_error *error);

/* Whether all ranks have the same hash; *differs is the first that has not rank 0's, or 0. */
MGW_CHECKED mgw_status engine_same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs,
                                        mgw_error *error);

/* The first rank for which it is so; their number if there is none. */
MGW_CHECKED mgw_status engine_first_rank(mgw_engine *engine, bool so, unsigned *first,
                                         mgw_error *error);

#endif
