/*
 * A plan: which neighbouring gradients are sent together, how, and when.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller destroys what a function creates; nothing is borrowed.
 */
#ifndef MGWFBP_PLAN_H
#define MGWFBP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/status.h>
#include <mgwfbp/text.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* ---- Policies ---- */

/* X(constant, name, what it does). */
#define MGW_POLICY_LIST(X)                                                                         \
    X(MGW_NAIVE, "naive", "one message per tensor, all after the backward pass")                   \
    X(MGW_WFBP, "wfbp", "one message per tensor, as soon as it is ready")                          \
    X(MGW_SINGLE, "single", "one message, after the backward pass")                                \
    X(MGW_GREEDY, "mgwfbp", "the published rule, which only compares neighbours")                  \
    X(MGW_OPTIMAL, "optimal", "the shortest step of all plans, with the fewest messages")          \
    X(MGW_THRESHOLD, "threshold", "threshold:SIZE closes a message once it holds that much")       \
    X(MGW_DDP, "ddp", "PyTorch DDP's buckets; ddp:FIRST,CAP sets the first and the other limits")  \
    X(MGW_FSDP, "fsdp", "a reduce-scatter and an all-gather per module; fsdp:CAP merges up to it") \
    X(MGW_ZERO, "zero", "zero:CAP, buckets of that size; gathers parameters in the order of need") \
    X(MGW_DEAR, "dear", "dear:CAP, the same, but gathers gradients; every worker updates all")     \
    X(MGW_SHARDED, "sharded", "the best plan of halves alone: every worker keeps its shares only") \
    X(MGW_OVERLAP, "overlap", "all-reduces, or halves during the backward and next forward pass")

typedef enum mgw_policy_kind {
#define X(constant, name, about) constant,
    MGW_POLICY_LIST(X)
#undef X
} mgw_policy_kind;

#define MGW_POLICY_COUNT (MGW_OVERLAP + 1)

#define MGW_DDP_FIRST_BYTES ((uint64_t)1 << 20)
#define MGW_DDP_CAP_BYTES   ((uint64_t)25 << 20)

typedef struct mgw_policy {
    mgw_policy_kind kind;
    uint64_t first_bytes; /* limit of the first message, for policies that take sizes */
    uint64_t cap_bytes;   /* limit of the others; 0: none (FSDP) */
} mgw_policy;

#define MGW_POLICY_NAME_MAX 64

/* Reads "optimal", "threshold:64MiB", "ddp", "ddp:1048576,26214400", "zero:25MiB". A size that is a
 * number alone is MiB below 1024, else bytes; "ddp:25" leaves the first limit at 1 MiB. */
MGW_CHECKED mgw_status mgw_policy_parse(const char *text, mgw_policy *out, mgw_error *error);

/* The name that mgw_policy_parse reads back, with sizes in bytes. */
const char *mgw_policy_name(const mgw_policy *policy, char out[MGW_POLICY_NAME_MAX]);

/* Whether its plans may gather updated parameters, so that the driver must keep parameters. */
bool mgw_policy_gathers(const mgw_policy *policy);

/* The policies that send whole all-reduces, with their usual sizes; comparisons of runs show these.
 * Ownership: the library's. */
const mgw_policy *mgw_policy_list(size_t *count);

/* These, followed by those that overlap the next forward pass; predictions show all of them. */
const mgw_policy *mgw_policy_all(size_t *count);

/* ---- Plans ---- */

/* When an operation may start, once the one before it has ended. X(constant, name). */
#define MGW_RELEASE_LIST(X)                                                                        \
    X(MGW_WHEN_READY, "when-ready")         /* its gradients are ready */                          \
    X(MGW_AFTER_BACKWARD, "after-backward") /* all gradients are ready */                          \
    X(MGW_AFTER_UPDATE, "after-update")     /* and its tensors are averaged */

typedef enum mgw_release {
#define X(constant, name) constant,
    MGW_RELEASE_LIST(X)
#undef X
} mgw_release;

#define MGW_RELEASE_COUNT (MGW_AFTER_UPDATE + 1)

const char *mgw_release_name(mgw_release release);
MGW_CHECKED mgw_status mgw_release_parse(const char *name, mgw_release *out, mgw_error *error);

enum { MGW_LANES_MAX = 8 };

/*
 * One collective over tensors first .. first+count-1, in ready order. Times count from the start of
 * the forward pass.
 */
typedef struct mgw_operation {
    mgw_collective kind;
    mgw_release release;
    size_t first;
    size_t count;   /* at least 1 */
    uint64_t bytes; /* as sent */
    double
        ready_s; /* when the data that it sends is ready: its last gradient, or its last update */
    double start_s; /* not before its release, nor before the end of the previous operation */
    double end_s;
    mgw_dtype wire; /* format in which f32 gradients are sent, if it averages; MGW_F32: unchanged */
    unsigned lanes; /* moved over at most so many lanes (mgw_transport_lanes); 0: as many as there
                       are. Predicted times do not depend on it */
} mgw_operation;

/*
 * The forward pass of the next step needs a tensor before it is back. Times are on the clock of the
 * operations: the pass begins at the plan's compute_s and ends at iteration_s + forward_s. The end
 * of the pass waits for tensors that it never needs.
 */
typedef struct mgw_stall {
    size_t tensor;
    double start_s; /* when the pass gets there */
    double end_s;   /* when it continues: the end of the tensor's all-reduce or all-gather */
} mgw_stall;

/* The operations of one period, in the order in which every worker starts them. */
typedef struct mgw_plan {
    char *policy;
    char *model;
    char *cluster;
    unsigned workers;
    size_t operation_count;
    mgw_operation *operations;
    struct mgw_names *names; /* of the tensors */
    double forward_s;        /* MGW_TIME_UNKNOWN if the file does not say */
    double alone_s;          /* forward and backward pass if nothing is sent; */
    double compute_s;   /*   with messages beside them, which may slow them down (mgw_beside) */
    double iteration_s; /* to the end of the last operation; see overlaps_forward */
    double exposed_s;   /* iteration_s - compute_s: communication that computation does not hide */
    double lower_bound_s; /* of iteration_s: for any plan of whole all-reduces, or for any
                             schedule at all of a plan that overlaps the forward pass */
    /*
     * The next forward pass waits for each tensor where it uses it, instead of for the whole step.
     * Then iteration_s is the period of the steady state, in which each step repeats the one
     * before: max(compute_s, longest time from a tensor's first use to its return). The stalls are
     * its exposed parts, in order.
     */
    bool overlaps_forward;
    size_t stall_count;
    mgw_stall *stalls; /* null if there are none, or if the file does not say */
} mgw_plan;

/*
 * Plans a trace's messages for a cost; if gradients are f32, each message has the fastest of the
 * cost's wire formats. For a + b*M, `optimal` takes time linear in the number of tensors. On a
 * measured curve it takes up to quadratic time, for at most 20,000 tensors; finding the fewest
 * messages costs as much again for each of them, and stops after some seconds. Threads: any.
 * Ownership: the caller destroys *out; nothing is borrowed.
 */
MGW_CHECKED mgw_status mgw_plan_make(const mgw_trace *trace, const mgw_cost *cost,
                                     const mgw_policy *policy, mgw_plan **out, mgw_error *error);

/* A plan of given operations, under a name, with predicted times.
 * It overlaps the forward pass if there is an all-gather among them. The operations are copied.
 * Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_plan_from_operations(const mgw_trace *trace, const mgw_cost *cost,
                                                const char *name, const mgw_operation *operations,
                                                size_t count, mgw_plan **out, mgw_error *error);

/* How long an operation takes by itself, by its kind, bytes and wire. */
double mgw_operation_seconds(const mgw_cost *cost, const mgw_operation *operation);

/*
 * Predicts the plan's times again for another cost, or for a trace with other times: on one
 * channel, operations run in order, each when its release rule holds and for as long as its kind
 * takes. The trace must have the tensors that the plan was made for, in number and order.
 * All-gathers after the update carry parameters, all other operations gradients.
 */
MGW_CHECKED mgw_status mgw_plan_time(mgw_plan *plan, const mgw_trace *trace, const mgw_cost *cost,
                                     mgw_error *error);

/*
 * The same two for a cluster with levels that work at the same time: while one message travels
 * between nodes, the next one is reduced inside them, and each level serves messages one at a time.
 * `optimal`, `overlap` and `sharded` look for the best cuts; other policies cut as always.
 * lower_bound_s holds for any schedule in which levels work at the same time. The engine does not
 * run plans this way: it sends one collective at a time, over all levels.
 */
MGW_CHECKED mgw_status mgw_plan_make_levels(const mgw_trace *trace, const mgw_cluster *cluster,
                                            const mgw_policy *policy, mgw_plan **out,
                                            mgw_error *error);
MGW_CHECKED mgw_status mgw_plan_time_levels(mgw_plan *plan, const mgw_trace *trace,
                                            const mgw_cluster *cluster, mgw_error *error);

/* Reads a plan file. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status mgw_plan_load(const char *path, mgw_plan **out, mgw_error *error);
MGW_CHECKED mgw_status mgw_plan_parse(const char *origin, const char *text, size_t size,
                                      mgw_plan **out, mgw_error *error);
void mgw_plan_destroy(mgw_plan *plan);

/* Appends the plan as JSON. */
void mgw_plan_write(const mgw_plan *plan, mgw_text *text);

const char *mgw_plan_tensor_name(const mgw_plan *plan, size_t index);
size_t mgw_plan_tensor_count(const mgw_plan *plan);

/* Bytes of all operations, as they are sent. */
uint64_t mgw_plan_bytes(const mgw_plan *plan);

/*
 * No plan of whole collectives on one channel ends a step sooner: the last gradient must be sent
 * after the backward pass, and all bytes after the first gradient is ready.
 */
MGW_CHECKED mgw_status mgw_lower_bound(const mgw_trace *trace, const mgw_cost *cost, double *out_s,
                                       mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
