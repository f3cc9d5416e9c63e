/*
 * The engine averages gradients across workers in merged messages, during the backward pass.
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
 * With the option keeps_parameters, the engine also owns the parameters, and communication overlaps
 * the next forward pass:
 *
 *     mgw_engine_on_update(engine, update, context, &error);     updates the shards it is given
 *     mgw_engine_start(engine, &error);
 *     float *parameter = mgw_engine_parameter(engine, id);       write the initial values
 *     for each step:
 *         mgw_engine_begin(engine, &error);
 *         forward; before each parameter is used:
 *             mgw_engine_need(engine, id, &error);
 *         backward, ready; mgw_engine_wait(engine, &error);      averaged, and updated
 *     mgw_engine_drain(engine, &error);                          all parameters are complete
 *
 * The rest is automatic: the first steps are measured, rank 0 plans, plans are tried for a few
 * steps each, the best one stays, and all are tried again when the measured times drift.
 * examples/engine.c is a complete program.
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
#include <mgwfbp/text.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/transport.h>
#include <mgwfbp/tune.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

typedef struct mgw_engine mgw_engine;

/*
 * Options. A field that is zero means the value of its environment variable, or the default. Values
 * set by the program take precedence. The caller owns the strings, and keeps them valid until
 * mgw_engine_start returns.
 */
typedef struct mgw_engine_options {
    mgw_transport_options transport; /* MGWFBP_TRANSPORT, MGWFBP_TIMEOUT */
    const char *policy;              /* MGWFBP_POLICY; "optimal" */
    const char *cluster;             /* MGWFBP_CLUSTER: a file or built-in name; else calibrate */
    int profile_steps;               /* MGWFBP_PROFILE_STEPS; 5. Steps measured before planning */
    int replan_steps;                /* MGWFBP_REPLAN_STEPS; 100. Between two checks for drift */
    int replan_percent; /* MGWFBP_REPLAN_PERCENT; 3. Gain that a new plan must promise to be tried;
                           -1: any */
    const char *wire;   /* MGWFBP_WIRE: "f16", "bf16", "fp8" or "fp8-e5m2", the format in which f32
                           gradients of all messages are sent; else as the plan says */
    const char *device; /* MGWFBP_DEVICE: "cuda": gradients are in GPU memory; else "host" */
    int servers; /* MGWFBP_SERVERS; 0. Above 0: parameter-server aggregation, message m by worker m
                    modulo servers */
    mgw_op op;   /* MGW_AVERAGE (the default) or MGW_SUM */
    bool zero_unused;       /* tensors not ready at wait count as zeros, not as an error */
    bool keeps_parameters;  /* the engine also allocates the parameters, in the layout of the
                               gradients: see below */
    const char *parameters; /* their type, for f32 tensors: "f32" (null), or "bf16" or "f16", for
                               which the program keeps f32 masters of its shards */
    int trials; /* MGWFBP_TRIALS; 1. Plans of the policies "optimal", "overlap" and "sharded" are
                   tried on real steps, and the fastest stays. Above 1: a trial takes about so many
                   at most, else 2,400. -1 (0 in the variable): the model's plan is used */
    const char *plan; /* MGWFBP_PLAN: a plan file, used from the first step on, without tuning */
    int debug;        /* MGWFBP_DEBUG; 0. Above 0: checks for program errors that would otherwise go
                         unnoticed, at any cost in time; -1: off, even if the variable is set */
} mgw_engine_options;

/* ---- Opening and closing ---- */

/*
 * Joins the job. Threads: all calls except mgw_engine_ready from one thread at a time. If the
 * engine is to initialise MPI, make the first call on the main thread, which will also finalize
 * MPI. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status mgw_engine_open(const mgw_engine_options *options, mgw_engine **out,
                                       mgw_error *error);

unsigned mgw_engine_rank(const mgw_engine *engine);
unsigned mgw_engine_size(const mgw_engine *engine);

/* Describes the next tensor; ids count from 0. Before mgw_engine_start. The name is copied. */
MGW_CHECKED mgw_status mgw_engine_add(mgw_engine *engine, const char *name, size_t count,
                                      mgw_dtype dtype, unsigned *id, mgw_error *error);

/*
 * Checks that all workers have the same tensors, measures what messages cost (or uses the cluster
 * of the options), and allocates the gradients. Collective; may block.
 */
MGW_CHECKED mgw_status mgw_engine_start(mgw_engine *engine, mgw_error *error);

/* Where the gradient is, zero at first; 64-byte aligned. Valid from start to close. */
void *mgw_engine_gradient(const mgw_engine *engine, unsigned id);

/*
 * Keeps a gradient at `where`, from the next step on: it is copied back and forth, and the
 * statistics count the copies. One worker alone needs no copies. Null ends this. Not during a step;
 * also possible before start.
 */
MGW_CHECKED mgw_status mgw_engine_bind(mgw_engine *engine, unsigned id, void *where,
                                       mgw_error *error);

/* Leaves the job. May be called during a step and after any error. Null is fine. */
void mgw_engine_close(mgw_engine *engine);

/*
 * Lets the surviving workers continue after another worker has failed (MGW_ERR_PEER or
 * MGW_ERR_TIMEOUT; the error names it). They form a new job, with new ranks in the old order and
 * with the same tensors, bindings, callbacks and stream. The new engine is calibrated and planned
 * for the new number of workers. The failed step has failed on all survivors, and can be repeated.
 * Gradients, and with keeps_parameters also parameters and shards, are as after mgw_engine_start:
 * the program writes its parameters again, from a checkpoint or its own copy, since the failed step
 * may have updated some of them. Works over shm, over tcp, and over nccl on top of these. Over MPI
 * it fails, and the job must be restarted. Call it outside a step. It blocks until all live workers
 * have called it, for at most half a minute (over tcp twice that if rank 0 hangs), and then like
 * mgw_engine_open and mgw_engine_start. Workers that have not called it by then are excluded. Two
 * groups never continue separately: if a group cannot rule out that others continue, and has half
 * of the workers or fewer, it gets an error that says so.
 *
 * `options` are those of mgw_engine_open, which are not kept; rank, size and job are overwritten.
 * Ownership: the caller closes *out; `engine` is closed, unless it fails.
 */
MGW_CHECKED mgw_status mgw_engine_reform(mgw_engine *engine, const mgw_engine_options *options,
                                         mgw_engine **out, mgw_error *error);

/* ---- Steps ---- */

/*
 * Begins a step, at time 0 of the timeline. After the first measured steps, after each round of a
 * trial and from time to time, all workers first look for a better plan together and switch to it.
 * Then the call is a collective, waits for the GPU, and can fail as mgw_engine_wait does. Within a
 * round, all workers switch plans by counting steps.
 */
MGW_CHECKED mgw_status mgw_engine_begin(mgw_engine *engine, mgw_error *error);

/*
 * The forward pass is over, and the backward pass begins; with this call, timelines and traces show
 * them separately. During a step. On a device it does nothing, since the host does not know when
 * the GPU gets there.
 */
void mgw_engine_backward(mgw_engine *engine);

/*
 * Says that a gradient of this step is done. From now to the end of mgw_engine_wait the engine owns
 * it, and it must not be written to; otherwise workers continue with different averages, which only
 * the option `debug` detects. Wait-free, and without a system call unless it completes a message
 * whose turn has come. Threads: any, several at once. For an unknown tensor, or one that is ready
 * twice, mgw_engine_wait fails; for one that is ready outside a step (before start or begin, or
 * after wait), the next mgw_engine_begin fails.
 */
void mgw_engine_ready(mgw_engine *engine, unsigned id);

/* The same for tensors first .. first + count - 1, for example those of a layer. */
void mgw_engine_ready_range(mgw_engine *engine, unsigned first, unsigned count);

/*
 * The same for a gradient that is at `source` in this step: it is first copied to its place, on a
 * device on `stream` (as with mgw_engine_ready_on, below), after the work that is there and before
 * later work. The statistics count the copies.
 */
void mgw_engine_ready_at(mgw_engine *engine, unsigned id, const void *source, void *stream);

/*
 * The same for `count` tensors, so that a message costs one call. `at_s`, by tensor: when it was
 * ready, by CLOCK_MONOTONIC. `sources`, by index in `ids`: where the gradient is, null if it is in
 * its place; `sources` null: all are. On a device all are on `stream`, and the sampled ones were
 * marked. Threads: as mgw_engine_ready.
 */
void mgw_engine_ready_all(mgw_engine *engine, const unsigned *ids, size_t count, const double *at_s,
                          const void *const *sources, void *stream);

/*
 * On a device: returns n if this step times one tensor in n, those with id modulo n = *share; 0: it
 * times none, or gradients are in host memory. Mark: the work on the stream so far includes the
 * gradient, which mgw_engine_ready_all will report. During a step.
 */
unsigned mgw_engine_samples(const mgw_engine *engine, unsigned *share);
void mgw_engine_mark(mgw_engine *engine, unsigned id, void *stream);

/* The operations of this step, with predicted times; `plan` changes whenever they do. Between
 * steps, after start: those of the next step, unless mgw_engine_begin changes the plan; then `plan`
 * is 0. */
const mgw_operation *mgw_engine_operations(const mgw_engine *engine, size_t *count, uint64_t *plan);

/*
 * Waits until all gradients of the step are reduced. Fails if another worker dies, leaves or hangs
 * (the error names it and the message), or if a tensor was ready twice or is not ready within the
 * timeout. After a failure the engine can only be closed, or given to mgw_engine_reform.
 */
MGW_CHECKED mgw_status mgw_engine_wait(mgw_engine *engine, mgw_error *error);

/*
 * On a device (docs/guide/gpu.md). A gradient is done when the work that the program has put on a
 * stream so far is done: mgw_engine_ready refers to the stream that was set (null at first: CUDA's
 * default stream), mgw_engine_ready_on to any other. mgw_engine_begin and mgw_engine_wait do not
 * wait for the GPU, except that begin does to plan and when it is eight steps ahead, and wait does
 * if messages go through the host (over shm or MPI). After wait, work put on the set stream comes
 * after the averages. Streams are CUstream or cudaStream_t. Set the stream between steps. With
 * gradients in host memory, streams are ignored.
 */
void mgw_engine_set_stream(mgw_engine *engine, void *stream);
void mgw_engine_ready_on(mgw_engine *engine, unsigned id, void *stream); /* Threads: any */

/*
 * Waits until the GPU has finished all steps; an error of one of them shows here, or in a later
 * step. Between steps. With gradients in host memory there is nothing to wait for.
 */
MGW_CHECKED mgw_status mgw_engine_synchronize(mgw_engine *engine, mgw_error *error);

/* Returns when all workers have called it. Between steps. */
MGW_CHECKED mgw_status mgw_engine_barrier(mgw_engine *engine, mgw_error *error);

/*
 * For other data of the program, in place: the sum or average over all workers, or a broadcast from
 * rank 0. Collective, between steps. With gradients on a device, the numbers may be in its memory:
 * then the call runs after the earlier work of the set stream and before its later work, and the
 * host does not wait.
 */
MGW_CHECKED mgw_status mgw_engine_all_reduce(mgw_engine *engine, void *data, size_t count,
                                             mgw_dtype dtype, mgw_op op, mgw_error *error);
MGW_CHECKED mgw_status mgw_engine_broadcast(mgw_engine *engine, void *data, size_t bytes,
                                            mgw_error *error);

/*
 * ---- Parameters ----
 *
 * With keeps_parameters, plans may split an all-reduce into a reduce-scatter, which gives each
 * worker the averages of its shards, and an all-gather after these are updated. The all-gather may
 * last into the next step, until the forward pass needs its parameters. The plan decides which
 * worker has which shards. Tensors that are all-reduced are updated by every worker: then a shard
 * is a whole tensor. In parameter-server mode there are no parameters.
 */

/* Where the parameter is, like mgw_engine_gradient. The program writes the same initial values on
 * all workers, after start and before the first begin. Null without keeps_parameters. */
void *mgw_engine_parameter(const mgw_engine *engine, unsigned id);

/* All gradients, or parameters, of a dtype: shards say where they begin there. */
void *mgw_engine_gradient_memory(const mgw_engine *engine, mgw_dtype dtype);
void *mgw_engine_parameter_memory(const mgw_engine *engine, mgw_dtype dtype);

/* The type of the parameters of tensors of this dtype: the same, except that the options decide for
 * f32. */
mgw_dtype mgw_engine_parameter_dtype(const mgw_engine *engine, mgw_dtype dtype);

/* The shards that this worker updates under the current plan, in memory order, dtype by dtype; and
 * the number of elements of an array that holds all shards of a dtype. Ownership: the engine's,
 * until the next begin, mgw_engine_set_policy or mgw_engine_set_plan. */
const mgw_shard *mgw_engine_shards(const mgw_engine *engine, size_t *count);
size_t mgw_engine_shard_length(const mgw_engine *engine, mgw_dtype dtype);

/*
 * Updates shards: their gradients are averaged, and no other thread reads their parameters. Called
 * once for each operation that averages, with its shards (there may be none), on the communication
 * thread when it has nothing to send, or on the caller's thread in mgw_engine_wait; two calls may
 * run at once, for different operations. If it does not return 0, the step fails with that status.
 */
typedef mgw_status mgw_update(void *context, const mgw_shard *shards, size_t count,
                              mgw_error *error);

/* Before start. mgw_engine_wait then returns when all is averaged and updated. */
MGW_CHECKED mgw_status mgw_engine_on_update(mgw_engine *engine, mgw_update *update, void *context,
                                            mgw_error *error);

/*
 * Without mgw_engine_on_update, the program updates after mgw_engine_wait and before the next
 * begin. It reports each operation that averages (mgw_shard has its index), in the same order on
 * all workers, or all that are left with MGW_NO_OPERATION; also those of which it has no shard, or
 * which it did not change. On a device: it has put the update on the set stream.
 */
MGW_CHECKED mgw_status mgw_engine_update(mgw_engine *engine, size_t operation, mgw_error *error);

/*
 * Call it before a parameter is used. In a step, it waits until the update of earlier steps has
 * arrived; outside a step it does the same as mgw_engine_drain. On a device the set stream waits,
 * and the host only until the gather has begun. A parameter that was not asked for in a step may be
 * half updated.
 */
MGW_CHECKED mgw_status mgw_engine_need(mgw_engine *engine, unsigned id, mgw_error *error);

/*
 * Waits until all parameters are complete. Call it before checkpoints, evaluation, and everything
 * else that reads parameters outside a step; and before close, unless the others need nothing more
 * from this worker. Between steps, after the updates. On a device the set stream waits.
 */
MGW_CHECKED mgw_status mgw_engine_drain(mgw_engine *engine, mgw_error *error);

/*
 * A new plan has given this worker other shards; all parameters are complete (on a device in the
 * order of the set stream). The program calls mgw_engine_move for each array that it keeps for its
 * shards, in the same order on all workers, and uses the new arrays from then on. Called by
 * mgw_engine_begin, mgw_engine_set_policy and mgw_engine_set_plan, on the caller's thread.
 */
typedef mgw_status mgw_on_reshard(void *context, const mgw_shard *before, size_t before_count,
                                  const mgw_shard *after, size_t after_count, mgw_error *error);

/* Before start. Without it, shards move silently: for programs that keep no arrays. */
MGW_CHECKED mgw_status mgw_engine_on_reshard(mgw_engine *engine, mgw_on_reshard *on_reshard,
                                             void *context, mgw_error *error);

/*
 * Moves an array that has an element of 2, 4 or 8 bytes for each of this worker's elements of a
 * dtype, in the order of its shards: from the shards before the new plan to the shards after it,
 * bit for bit. The two arrays must not overlap. Collective, only from within mgw_on_reshard.
 */
MGW_CHECKED mgw_status mgw_engine_move(mgw_engine *engine, mgw_dtype dtype, const void *before,
                                       void *after, size_t element_bytes, mgw_error *error);

/* ---- Statistics and reports ---- */

typedef struct mgw_engine_statistics {
    uint64_t steps;
    uint64_t plans; /* number of plans made, including the first */
    size_t tensors;
    size_t messages;       /* per step, in the current plan */
    uint64_t arena_bytes;  /* memory of the gradients themselves */
    uint64_t extra_bytes;  /* additional memory, for narrower formats */
    uint64_t copied_bytes; /* of gradients that were not in the arena, in all steps */
    uint64_t device_waits; /* how often the host has waited for the GPU: to plan, when asked to,
                              when it was eight steps ahead; in every step over shm or MPI */
    double
        iteration_s;    /* mean since the last plan: from begin to the end of wait. In the steady
                           state, the period of steps except for what the program does between them */
    double compute_s;   /* mean: begin to the last ready, without waits for parameters */
    double exposed_s;   /* iteration_s - compute_s: what neither pass hides */
    double predicted_s; /* iteration_s by the current plan; 0 before the first, or if the plan does
                           not use all lanes */
    double slowdown;    /* how many times as long messages take during computation as alone */
    double stall_s; /* mean: how long the forward pass waited for parameters; part of exposed_s */
    uint64_t parameter_bytes; /* memory of the parameters, if the engine keeps them */
    uint64_t trials;          /* completed trials of plans */
    uint64_t trial_steps;     /* of all trials */
    double trial_cost_s;      /* how much longer they took than with the winners */
    size_t trying;            /* plans left in the current trial; 0: there is none now */
    unsigned lanes;           /* that move the parts of a long message (mgw_transport_lanes) */
} mgw_engine_statistics;

/* Between steps. Means are over the steps since the plan was last checked, or before it. */
void mgw_engine_measure(const mgw_engine *engine, mgw_engine_statistics *out);

/*
 * Appends the same as readable text, with the predicted step of each policy, an upper bound on what
 * any plan could gain, and the plans that were tried. Between steps, after start. On any worker;
 * nothing is sent. With MGWFBP_STATS=1 in the environment, rank 0 prints it to standard error when
 * it closes the engine; with MGWFBP_TIMELINE=FILE, each worker then saves its last step for
 * Perfetto: rank 0 as FILE, the others with their rank before the extension.
 */
MGW_CHECKED mgw_status mgw_engine_report(const mgw_engine *engine, mgw_text *out, mgw_error *error);

/* The measured timeline of the last step. Between steps. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_engine_timeline(const mgw_engine *engine, mgw_timeline **out,
                                           mgw_error *error);

/* The plan of the last step, or null before the first. Ownership: the engine's, until the next
 * step or mgw_engine_set_policy. */
const mgw_plan *mgw_engine_plan(const mgw_engine *engine);

/* The plans of the current trial or the last one; none before the first, or before start. Between
 * steps. Ownership: the engine's. */
const mgw_tried *mgw_engine_tried(const mgw_engine *engine, size_t *count);

/* The calibrated cost of messages. Ownership: the engine's. */
const mgw_cluster *mgw_engine_cluster(const mgw_engine *engine);

/* The ready times that the plan was made from, as a trace; null before the first. Tensors have the
 * type in which they are sent; with several dtypes, an element stands for two bytes. Ownership: as
 * above. */
const mgw_trace *mgw_engine_trace(const mgw_engine *engine);

/* Uses this policy from the next step on: makes a new plan from what was measured, and tries plans
 * if the policy is "optimal", "overlap" or "sharded". Before the first step nothing was measured:
 * until the first look the operations stay as they are. With keeps_parameters, report all updates
 * first. Collective. */
MGW_CHECKED mgw_status mgw_engine_set_policy(mgw_engine *engine, const char *policy,
                                             mgw_error *error);

/*
 * Uses these operations from the next step on, until a policy is set. They must be as
 * mgw_flow_adopt wants them, with all-gathers after all others and only with keeps_parameters.
 * Their times are ignored. Collective, the same on all workers.
 */
MGW_CHECKED mgw_status mgw_engine_set_plan(mgw_engine *engine, const mgw_operation *operations,
                                           size_t count, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
