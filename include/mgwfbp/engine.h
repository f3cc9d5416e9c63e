/*
 * The engine: gradients averaged across workers in merged messages, while the backward pass runs.
 *
 *     mgw_engine *engine;
 *     mgw_engine_open(NULL, &engine, &error);                    join the job
 *     for each tensor, in the order in which gradients become ready:
 *         mgw_engine_add(engine, name, count, MGW_F32, &id, &error);
 *     mgw_engine_start(engine, &error);                          agree, calibrate, allocate
 *     float *gradient = mgw_engine_gradient(engine, id);         where to write it
 *     for each step:
 *         mgw_engine_begin(engine, &error);
 *         forward, backward; as each gradient is done:
 *             mgw_engine_ready(engine, id);
 *         mgw_engine_wait(engine, &error);                       all gradients are averaged
 *     mgw_engine_close(engine);
 *
 * The rest is automatic: the first steps are measured, rank 0 plans, all switch between two steps,
 * and plan again when the measured times drift. examples/engine.c is a whole program.
 */
#ifndef MGWFBP_ENGINE_H
#define MGWFBP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/transport.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_engine mgw_engine;

/*
 * Options. All zero: the defaults, each of which an environment variable can set, too; what the
 * program sets goes first. Strings stay the caller's, and valid until mgw_engine_start returns.
 */
typedef struct mgw_engine_options {
    mgw_transport_options transport; /* MGWFBP_TRANSPORT, MGWFBP_TIMEOUT */
    const char *policy;              /* MGWFBP_POLICY; "optimal" */
    const char *cluster;             /* MGWFBP_CLUSTER: a file or built-in name; else calibrate */
    int profile_steps;               /* MGWFBP_PROFILE_STEPS; 5. Steps measured before planning */
    int replan_steps;                /* MGWFBP_REPLAN_STEPS; 100. Between two looks at drift */
    int replan_percent; /* MGWFBP_REPLAN_PERCENT; 3. Gain that a new plan must promise; -1: any */
    const char *wire;   /* MGWFBP_WIRE: "f16" or "bf16", what f32 gradients travel as */
    const char *device; /* MGWFBP_DEVICE: "cuda": gradients are in a GPU's memory; else "host" */
    int servers; /* MGWFBP_SERVERS; 0. Above 0: parameter-server aggregation, message m by worker
                    m modulo so many */
    mgw_op op;   /* MGW_AVERAGE (the default) or MGW_SUM */
    bool zero_unused; /* tensors not ready at wait count as zeros, not as an error */
} mgw_engine_options;

/* ---- Life ---- */

/*
 * Joins the job. Threads: all calls but mgw_engine_ready from one thread at a time; over MPI, if
 * that is left to us to initialise, the first call on the main thread, which will also end MPI.
 * Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_engine_open(const mgw_engine_options *options, mgw_engine **out,
                                       mgw_error *error);

unsigned mgw_engine_rank(const mgw_engine *engine);
unsigned mgw_engine_size(const mgw_engine *engine);

/* Describes the next tensor; ids count from 0. Before mgw_engine_start. The name is copied. */
MGW_CHECKED mgw_status mgw_engine_add(mgw_engine *engine, const char *name, size_t count,
                                      mgw_dtype dtype, unsigned *id, mgw_error *error);

/*
 * Makes sure that all workers have the same tensors, measures what messages cost (or takes the
 * cluster of the options), and allocates the gradients. Collective; may block.
 */
MGW_CHECKED mgw_status mgw_engine_start(mgw_engine *engine, mgw_error *error);

/* Where the gradient is, zero at first; 64-byte aligned. Valid from start to close. */
void *mgw_engine_gradient(const mgw_engine *engine, unsigned id);

/*
 * Lets a gradient stay at `where`, from the next step on: it is copied to and fro, which the
 * statistics count. Null ends that.
 */
MGW_CHECKED mgw_status mgw_engine_bind(mgw_engine *engine, unsigned id, void *where,
                                       mgw_error *error);

/* Leaves the job: also in the middle of a step, and after any error. Null is fine. */
void mgw_engine_close(mgw_engine *engine);

/* ---- Steps ---- */

/*
 * Begins a step: the clock of the timeline is at 0. First, after the steps that are measured and
 * from time to time, all workers look for a better plan together, and switch to it: then it is a
 * collective, waits for the GPU, and fails as mgw_engine_wait does.
 */
MGW_CHECKED mgw_status mgw_engine_begin(mgw_engine *engine, mgw_error *error);

/*
 * Says that a gradient of this step is done. Wait-free, and without a system call unless it
 * completes a message whose turn has come. Threads: any, several at once. Unknown tensors and
 * those that are ready twice are an error of mgw_engine_wait; those that are ready outside of a
 * step (before start, begin, or after wait), one of the next mgw_engine_begin.
 */
void mgw_engine_ready(mgw_engine *engine, unsigned id);

/*
 * The same, of a gradient that is at `source` in this step: it is copied to where it belongs first,
 * on a device on `stream` (as with mgw_engine_ready_on, below), behind what is there and before
 * what comes. The statistics count that.
 */
void mgw_engine_ready_at(mgw_engine *engine, unsigned id, const void *source, void *stream);

/*
 * Waits until all gradients of the step are reduced. Fails if another worker dies, leaves or hangs
 * (the error names it and the message), if a tensor was ready twice or is not ready within the
 * timeout. After a failure the engine can only be closed.
 */
MGW_CHECKED mgw_status mgw_engine_wait(mgw_engine *engine, mgw_error *error);

/*
 * On a device (docs/gpu.md). Gradients are done when the work that the program has given to a
 * stream so far is: mgw_engine_ready means the stream that was set (null at first, CUDA's default
 * one), mgw_engine_ready_on any other. mgw_engine_begin and mgw_engine_wait do not wait for the
 * GPU (but begin does to plan and when it is eight steps ahead, and wait where messages go through
 * the host: over shm or MPI): after wait, what is given to the set stream comes behind the
 * averages. Streams are CUstream or cudaStream_t. Set it
 * between steps. In the host's memory, streams are ignored.
 */
void mgw_engine_set_stream(mgw_engine *engine, void *stream);
void mgw_engine_ready_on(mgw_engine *engine, unsigned id, void *stream); /* Threads: any */

/*
 * Waits until the GPU has done all steps, too; an error of one of them shows here, or in a later
 * step. Between steps; nothing to wait for in the host's memory.
 */
MGW_CHECKED mgw_status mgw_engine_synchronize(mgw_engine *engine, mgw_error *error);

/* Returns when all workers have called it. Between steps. */
MGW_CHECKED mgw_status mgw_engine_barrier(mgw_engine *engine, mgw_error *error);

/*
 * Other numbers of the program's, in place: summed or averaged over all workers; or rank 0's for
 * all. Collective, between steps. With gradients on a device they may be in its memory, too: then
 * they come behind the work of the set stream, whose later work comes behind them, and the host
 * does not wait.
 */
MGW_CHECKED mgw_status mgw_engine_all_reduce(mgw_engine *engine, void *data, size_t count,
                                             mgw_dtype dtype, mgw_op op, mgw_error *error);
MGW_CHECKED mgw_status mgw_engine_broadcast(mgw_engine *engine, void *data, size_t bytes,
                                            mgw_error *error);

/* ---- What happened ---- */

typedef struct mgw_engine_statistics {
    uint64_t steps;
    uint64_t plans; /* how many plans were made, the first one included */
    size_t tensors;
    size_t messages;       /* per step, in the current plan */
    uint64_t arena_bytes;  /* memory of the gradients themselves */
    uint64_t extra_bytes;  /* what was allocated besides: for narrowing */
    uint64_t copied_bytes; /* of gradients that are elsewhere, in all steps */
    uint64_t device_waits; /* how often the host has waited for the GPU: to plan, when it was told
                              to, when it was eight steps ahead; in every step over shm or MPI */
    double iteration_s;    /* mean since the last plan: begin to the end of wait */
    double compute_s;      /* mean: begin to the last ready */
    double exposed_s;      /* iteration_s - compute_s */
    double predicted_s;    /* iteration_s by the current plan; 0 before the first */
    double slowdown;       /* how many times as long as alone messages take beside computation */
} mgw_engine_statistics;

/* Between steps. Means are of the steps since the last look at the plan, or before it. */
void mgw_engine_measure(const mgw_engine *engine, mgw_engine_statistics *out);

/* The last step as it was. Between steps. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_engine_timeline(const mgw_engine *engine, mgw_timeline **out,
                                           mgw_error *error);

/* The plan of the last step, or null before the first. Ownership: the engine's, until the next
 * step or mgw_engine_set_policy. */
const mgw_plan *mgw_engine_plan(const mgw_engine *engine);

/* What messages cost, as calibrated. Ownership: the engine's. */
const mgw_cluster *mgw_engine_cluster(const mgw_engine *engine);

/* The ready times that it was made from, as a trace; null before the first. Ownership: as above. */
const mgw_trace *mgw_engine_trace(const mgw_engine *engine);

/* From the next step on, this policy; plans anew from what was measured. Collective. */
MGW_CHECKED mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy,
                                             mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
