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
 * With the option keeps_parameters, parameters are the engine's, too, and communication goes on
 * beside the next forward pass:
 *
 *     mgw_engine_on_update(engine, update, context, &error);     updates the shards it is given
 *     mgw_engine_start(engine, &error);
 *     float *parameter = mgw_engine_parameter(engine, id);       write the initial values
 *     for each step:
 *         mgw_engine_begin(engine, &error);
 *         forward; before each parameter is used:
 *             mgw_engine_need(engine, id, &error);
 *         backward, ready; mgw_engine_wait(engine, &error);      averaged, and updated
 *     mgw_engine_drain(engine, &error);                          all parameters are whole
 *
 * The rest is automatic: the first steps are measured, rank 0 plans, plans are tried a few steps
 * each, the best one stays, and all is tried again when the measured times drift. examples/engine.c
 * is a whole program.
 */
#ifndef MGWFBP_ENGINE_H
#define MGWFBP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/shards.h>
#include <mgwfbp/status.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/transport.h>
#include <mgwfbp/tune.h>

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
    bool zero_unused;       /* tensors not ready at wait count as zeros, not as an error */
    bool keeps_parameters;  /* parameters lie beside the gradients, in the same layout: see below */
    const char *parameters; /* what those of f32 tensors are: "f32" (null), or "bf16" or "f16",
                               where the program keeps f32 masters of its shards */
    int trials; /* MGWFBP_TRIALS; 1. Plans of the policy "optimal" are tried on real steps, and the
                   one that takes least stays; -1 (0 in the variable): the model's plan */
    const char
        *plan; /* MGWFBP_PLAN: a plan file, in force from the first step on; nothing is tuned */
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
 * Begins a step: the clock of the timeline is at 0. First, after the steps that are measured,
 * behind each round of a trial and from time to time, all workers look for a better plan together,
 * and switch to it: then it is a collective, waits for the GPU, and fails as mgw_engine_wait does.
 * Inside of a round all switch by counting.
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
 * The same, of so many tensors, so that a message costs one call. By tensor: when it was there, by
 * CLOCK_MONOTONIC. For each of the ids: where it is, null if that is where it belongs; `sources`
 * null: all are. On a device all are on `stream`, and what is sampled was marked. Threads: as
 * mgw_engine_ready.
 */
void mgw_engine_ready_all(mgw_engine *engine, const unsigned *ids, size_t count, const double *at_s,
                          const void *const *sources, void *stream);

/*
 * On a device: one tensor in so many is timed in this step, those with id modulo that = *share; 0:
 * none is, or gradients are in the host's memory. Mark: what is on the stream by now includes the
 * gradient, of which mgw_engine_ready_all will hear. In a step.
 */
unsigned mgw_engine_samples(const mgw_engine *engine, unsigned *share);
void mgw_engine_mark(mgw_engine *engine, unsigned id, void *stream);

/* The operations of the step that was begun last; another `plan`, other operations. */
const mgw_operation *mgw_engine_operations(const mgw_engine *engine, size_t *count, uint64_t *plan);

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

/*
 * ---- Parameters ----
 *
 * With keeps_parameters, plans may divide an all-reduce into a reduce-scatter, which leaves each
 * worker with the averages of its shards, and an all-gather, behind the update of those: it may
 * last into the next step, until the forward pass needs what it brings. Which shards are whose is
 * the plan's matter. Tensors that are all-reduced are updated by everybody: then a shard is all of
 * a tensor. In parameter-server mode there are no parameters.
 */

/* Where the parameter is, as mgw_engine_gradient; the program writes the same initial values on all
 * workers, after start and before the first begin. Null without keeps_parameters. */
void *mgw_engine_parameter(const mgw_engine *engine, unsigned id);

/* All gradients, or parameters, of a dtype: shards say where they begin there. */
void *mgw_engine_gradient_memory(const mgw_engine *engine, mgw_dtype dtype);
void *mgw_engine_parameter_memory(const mgw_engine *engine, mgw_dtype dtype);

/* What parameters of tensors of this dtype are: itself, but for f32 as the options say. */
mgw_dtype mgw_engine_parameter_dtype(const mgw_engine *engine, mgw_dtype dtype);

/* The shards that this worker updates under the plan in force, in memory order, dtype by dtype; and
 * the elements of an array that holds all of a dtype. Ownership: the engine's, until the next
 * begin or mgw_engine_set_policy. */
const mgw_shard *mgw_engine_shards(const mgw_engine *engine, size_t *count);
size_t mgw_engine_shard_length(const mgw_engine *engine, mgw_dtype dtype);

/*
 * Updates shards: their gradients are averaged, and nobody reads their parameters. Called once for
 * each operation that averages, with its shards (there may be none), on the communication thread
 * when it has nothing to send, or on the caller's in mgw_engine_wait; two may run at once, for
 * different operations. What it returns, if not 0, is the step's failure.
 */
typedef mgw_status mgw_update(void *context, const mgw_shard *shards, size_t count,
                              mgw_error *error);

/* Before start. mgw_engine_wait then returns when all is averaged and updated. */
MGW_CHECKED mgw_status mgw_engine_on_update(mgw_engine *engine, mgw_update *update, void *context,
                                            mgw_error *error);

/*
 * Without mgw_engine_on_update the program updates after mgw_engine_wait, before the next begin. It
 * says so of each operation that averages (mgw_shard has its index), in the same order on all
 * workers; or of all that are left: MGW_NO_OPERATION. Also of those it has nothing of, or did not
 * change. On a device: it has given the update to the set stream.
 */
MGW_CHECKED mgw_status mgw_engine_update(mgw_engine *engine, size_t operation, mgw_error *error);

/*
 * Before a parameter is used: in a step, waits until what the steps before have made of it is
 * there; outside of one as mgw_engine_drain. On a device the set stream waits, and the host only
 * until the gather was begun. What a step has not asked for may be in the middle of a change.
 */
MGW_CHECKED mgw_status mgw_engine_need(mgw_engine *engine, unsigned id, mgw_error *error);

/*
 * Waits until all parameters are whole: before checkpoints, evaluation, and all that reads
 * parameters outside of a step; and before close, unless the others need nothing more from this
 * worker. Between steps, after the updates. On a device the set stream waits.
 */
MGW_CHECKED mgw_status mgw_engine_drain(mgw_engine *engine, mgw_error *error);

/*
 * A new plan makes other shards this worker's; all parameters are whole. The program calls
 * mgw_engine_move for each of the arrays that it has for its shards, in the same order on all
 * workers, and uses the new ones from then on. Called by mgw_engine_begin and
 * mgw_engine_set_policy, on the caller's thread.
 */
typedef mgw_status mgw_on_reshard(void *context, const mgw_shard *before, size_t before_count,
                                  const mgw_shard *after, size_t after_count, mgw_error *error);

/* Before start. Without it shards move, too: for programs that keep nothing. */
MGW_CHECKED mgw_status mgw_engine_on_reshard(mgw_engine *engine, mgw_on_reshard *on_reshard,
                                             void *context, mgw_error *error);

/*
 * Of an array with an element of 2, 4 or 8 bytes for each of this worker's elements of a dtype, in
 * the order of its shards: from what was its own before the new plan to what is now, bit for bit.
 * The two do not overlap. Collective, only from within mgw_on_reshard.
 */
MGW_CHECKED mgw_status mgw_engine_move(mgw_engine *engine, mgw_dtype dtype, const void *before,
                                       void *after, size_t element_bytes, mgw_error *error);

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
    double iteration_s; /* mean since the last plan: begin to the end of wait. In steady state the
                           period of steps, but for what the program does between them */
    double compute_s;   /* mean: begin to the last ready, without waits for parameters */
    double exposed_s;   /* iteration_s - compute_s: what neither pass hides */
    double predicted_s; /* iteration_s by the current plan; 0 before the first */
    double slowdown;    /* how many times as long as alone messages take beside computation */
    double stall_s;     /* mean: what the forward pass waited for parameters; of exposed_s */
    uint64_t parameter_bytes; /* memory of the parameters, if the engine keeps them */
    uint64_t trials;          /* of plans, that are over */
    uint64_t trial_steps;     /* of all trials */
    double trial_cost_s;      /* what those took longer than with the winners */
    size_t trying; /* plans of the trial that goes on; 0: the one in force is the best known */
} mgw_engine_statistics;

/* Between steps. Means are of the steps since the last look at the plan, or before it. */
void mgw_engine_measure(const mgw_engine *engine, mgw_engine_statistics *out);

/* The last step as it was. Between steps. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_engine_timeline(const mgw_engine *engine, mgw_timeline **out,
                                           mgw_error *error);

/* The plan of the last step, or null before the first. Ownership: the engine's, until the next
 * step or mgw_engine_set_policy. */
const mgw_plan *mgw_engine_plan(const mgw_engine *engine);

/* What was tried, in the trial that goes on or the last one; none before the first, or before
 * start. Between steps. Ownership: the engine's. */
const mgw_tried *mgw_engine_tried(const mgw_engine *engine, size_t *count);

/* What messages cost, as calibrated. Ownership: the engine's. */
const mgw_cluster *mgw_engine_cluster(const mgw_engine *engine);

/* The ready times that it was made from, as a trace; null before the first. Ownership: as above. */
const mgw_trace *mgw_engine_trace(const mgw_engine *engine);

/* From the next step on, this policy; plans anew from what was measured, and tries that if it is
 * "optimal". Collective. */
MGW_CHECKED mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy,
                                             mgw_error *error);

/*
 * From the next step on, these operations, until a policy is set: as mgw_flow_adopt wants them,
 * with all-gathers behind all others, and only with keeps_parameters. Their times are not read.
 * Collective, the same on all workers.
 */
MGW_CHECKED mgw_status mgw_engine_set_plan(mgw_engine *engine, const mgw_operation *operations,
                                           size_t count, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
