/* The inside of the engine. Fields are grouped by who may touch them. */
#ifndef MGW_ENGINE_ENGINE_H
#define MGW_ENGINE_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include <mgwfbp/engine.h>

#include "base/names.h"

enum { DTYPES = MGW_F64 + 1 };

/* Constant from mgw_engine_start on, but for `bound`, which changes between steps. */
typedef struct engine_tensor {
    size_t count;
    mgw_dtype dtype;
    size_t offset; /* elements, in the arena of its dtype */
    void *bound;   /* where the caller keeps it, or null */
} engine_tensor;

/* A message as it is sent: tensors first..first+count-1, contiguous in the arena of each dtype. */
typedef struct engine_message {
    size_t first;
    size_t count;
    size_t begin[DTYPES]; /* elements in each arena */
    size_t length[DTYPES];
    double start_s; /* of the last step, from its begin */
    double end_s;
    double busy_s; /* of a core, meanwhile */
} engine_message;

/* Where gradients are a GPU's: device.h. */
typedef struct engine_device engine_device;

/* Work for the communication thread: all use of the transport is its. */
typedef mgw_status engine_task(mgw_engine *engine, mgw_error *error);

/* Numbers of the program's that are no gradients. */
typedef struct engine_numbers {
    void *data;
    size_t count;
    mgw_dtype dtype;
    mgw_op op;
    bool told; /* by rank 0, as so many bytes; else reduced */
} engine_numbers;

struct mgw_engine {
    /* ---- Constant after open ---- */
    mgw_engine_options options; /* complete */
    mgw_policy policy;          /* changed by set_policy, between steps */
    mgw_dtype wire;             /* MGW_F32: as they are */
    unsigned rank;
    unsigned size;
    pid_t process;
    bool threaded;         /* else the caller's thread does it all, in wait: nothing is hidden */
    engine_device *device; /* null: gradients are in the host's memory */

    /* ---- Constant after start ---- */
    size_t tensor_count;
    size_t tensor_capacity;
    size_t element_count; /* of all tensors, and what aligning may add */
    engine_tensor *tensors;
    mgw_names *names;
    char *arena[DTYPES];
    size_t arena_count[DTYPES];
    void *narrow; /* for f32 messages that travel as 16 bits; the transport's, like the arenas */
    size_t narrow_bytes;
    mgw_cluster *cluster;
    bool started;

    /* ---- The plan: changed between steps, by the communication thread ---- */
    size_t message_count;
    engine_message *messages; /* one of the two rows: */
    engine_message *rows[2];  /* a new plan is written beside what the last step has sent */
    uint32_t *message_of;     /* by tensor */
    bool after_backward;      /* naive: nothing is sent before all is ready */
    mgw_plan *plan;           /* null before the first */
    mgw_trace *trace;         /* the ready times behind it */

    /* ---- The step: ready() from any thread, and the communication thread ---- */
    _Atomic uint32_t *ready_step; /* by tensor: the last step in which it was ready */
    double *ready_s;              /* by tensor: written by who makes it ready, read when all are */
    _Atomic uint32_t *remaining;  /* by message: tensors that are not ready yet; and 1 until who
                                     made the last one ready has seen to the message */
    _Atomic uint32_t trouble;     /* id + 1 of a tensor that is unknown or was not due */
    size_t taken;                 /* posts of this step that the communication thread has had */
    sem_t work;                   /* posted for every message that becomes complete */
    uint32_t step;                /* counts from 1; written by begin, before anything is ready */
    double begin_s;

    /* ---- Caller and communication thread, in turn: go hands over, done gives back ---- */
    pthread_t thread;
    sem_t go;
    sem_t done;
    engine_task *task;      /* null: end */
    engine_numbers numbers; /* what a task is about, if it is about the program's numbers */
    mgw_status status;      /* of the task */
    mgw_error error;
    _Atomic bool waiting; /* the caller is in wait: the timeout for gradients runs */
    _Atomic bool closing;
    mgw_transport *transport;

    /* ---- The caller's ---- */
    bool in_step;
    bool failed;

    /* ---- Measured: written at the end of steps, by the communication thread ---- */
    size_t since_look;      /* steps since the last look at the plan */
    size_t window;          /* steps in the sums below; on a device some are still under way */
    double *recent_s;       /* rows of the columns in recent.c, a step each */
    uint32_t *recent_count; /* by column: how often it was measured since the last look */
    double *known_ready_s;  /* by tensor: as all saw them at the last look, the median over steps */
    double *step_ready_s;   /* the steps behind it, one after the other */
    size_t known_steps;     /* how many those are; none on a device */
    double slowdown;        /* how many times as long as alone messages take in steps */
    double crowd;           /* workers on a core, where they are most */
    double worth_s;         /* what a message more takes from computation */
    double end_s;           /* when the last message of the last step ended; 0 at first */
    double late_s;          /* how long after that this step was begun: written by begin */
    double iteration_sum_s;
    double compute_sum_s;
    double last_compute_s;
    const engine_message *sent; /* in the last step: the row with its times */
    size_t sent_count;
    double last_iteration_mean_s; /* of the window before */
    double last_compute_mean_s;
    uint64_t steps;
    uint64_t plans;
    _Atomic uint64_t copied_bytes;
};

/* Runs a task on the communication thread and waits for it. */
MGW_CHECKED mgw_status engine_run(mgw_engine *engine, engine_task *task, mgw_error *error);

/* ---- options.c ---- */
MGW_CHECKED mgw_status engine_complete_options(const mgw_engine_options *given,
                                               mgw_engine_options *out, mgw_error *error);

/* ---- aggregate.c: how one message is averaged ---- */

/*
 * All-reduce; or push to the server that owns message m, and pull. Times of the two go to `push_s`
 * and `pull_s` if there are servers and the pointers are not null.
 */
MGW_CHECKED mgw_status engine_aggregate(mgw_engine *engine, size_t m, void *data, size_t count,
                                        mgw_dtype dtype, double *push_s, double *pull_s,
                                        mgw_error *error);

/* ---- step.c: one step, on the communication thread ---- */

/* Sleeps on a semaphore for a while at most; whether it was posted. */
bool engine_sleep_on(sem_t *semaphore, long ns);

/* A step has ended: for the means. */
void engine_add_times(mgw_engine *engine, double iteration_s, double compute_s);

mgw_status engine_run_step(mgw_engine *engine, mgw_error *error);

/* ---- statistics.c ---- */

/* As it travels: f32 perhaps as 16 bits. */
uint64_t engine_message_bytes(const mgw_engine *engine, const engine_message *message);

/* ---- Tasks between steps ---- */
mgw_status engine_agree(mgw_engine *engine, mgw_error *error);
mgw_status engine_calibrate(mgw_engine *engine, mgw_error *error);
mgw_status engine_replan(mgw_engine *engine, mgw_error *error); /* from what was measured */

/* ---- choose.c ---- */

/* The plan that is best by what was measured, and the ready times behind it. Null: the one in
 * force may stay, and is good enough. Ownership: the caller destroys both. */
MGW_CHECKED mgw_status engine_choose(mgw_engine *engine, bool may_stay, mgw_trace **trace,
                                     mgw_plan **plan, mgw_error *error);

/* ---- agree.c ---- */

uint64_t engine_hash(const void *data, size_t size);

/* Whether all ranks have the same hash; *differs is the first that has not rank 0's. */
MGW_CHECKED mgw_status engine_same_hash(mgw_engine *engine, uint64_t hash, unsigned *differs,
                                        mgw_error *error);

/*
 * What every rank has to say, for all to see. Ownership: the caller frees *rows, of size * columns
 * numbers.
 */
MGW_CHECKED mgw_status engine_exchange(mgw_engine *engine, const double *own, size_t columns,
                                       double **rows, mgw_error *error);

/* ---- recent.c: what the last steps have shown ---- */

enum { ENGINE_RECENT = 8 }; /* steps that are kept */

MGW_CHECKED mgw_status engine_recent_allocate(mgw_engine *engine, mgw_error *error);
void engine_recent_free(mgw_engine *engine);

void engine_note_ready(mgw_engine *engine, size_t tensor, double seconds);
void engine_note_step(mgw_engine *engine); /* on the host: the times of all that was sent */

/* What all workers have seen goes to known_ready_s, step_ready_s, slowdown and worth_s. */
MGW_CHECKED mgw_status engine_recent_gather(mgw_engine *engine, mgw_error *error);
void engine_recent_forget(mgw_engine *engine);

/* Cuts the tensors into messages: ends[m] is one past the last tensor of message m. */
MGW_CHECKED mgw_status engine_cut(mgw_engine *engine, const size_t *ends, size_t count,
                                  mgw_error *error);

#endif
