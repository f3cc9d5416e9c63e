/*
 * The simulator: predicted timelines of plans, and scaling over the number of workers.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: the caller destroys or frees what a function creates.
 */
#ifndef MGWFBP_SIM_H
#define MGWFBP_SIM_H

#include <stddef.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/outlook.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/*
 * The predicted timeline of a plan. With the trace for which it was timed, the backward pass shows
 * every tensor; without one (null), it is a single span. To simulate another cluster, call
 * mgw_plan_time first. For a plan that overlaps the forward pass, the timeline shows the steady
 * state: the next forward pass and its stalls run during the gathers, and a period lasts from the
 * end of one forward pass to the end of the next. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_simulate(const mgw_plan *plan, const mgw_trace *trace,
                                    mgw_timeline **out, mgw_error *error);

/* Relative to one worker that computes the same batch alone; a step of N workers does the work of N
 * such steps. */
double mgw_speedup(const mgw_plan *plan);

/* Speed-up per worker, at most 1. */
double mgw_efficiency(const mgw_plan *plan);

/* One simulated point. */
typedef struct mgw_scaling_row {
    unsigned workers;
    const char *algorithm; /* "measured" if the cluster's cost does not come from link constants */
    mgw_policy policy;
    double iteration_s;
    double exposed_s;
    double speedup;
    double efficiency;
    size_t messages;
    mgw_outlook outlook; /* set if conditions were given */
    uint64_t bytes;      /* sent per step */
} mgw_scaling_row;

typedef struct mgw_scaling {
    const unsigned *workers;
    size_t worker_count;
    const mgw_algorithm *algorithms; /* none: the cluster's own */
    size_t algorithm_count;
    const mgw_policy *policies;
    size_t policy_count;
    const mgw_conditions *conditions; /* or null */
    unsigned wires;                   /* formats in which messages may be sent: see mgw_cost */
} mgw_scaling;

/*
 * Plans and predicts every combination of algorithm, number of workers and policy; the policy
 * varies fastest. The cluster is unchanged. Ownership: the caller frees *rows.
 */
MGW_CHECKED mgw_status mgw_scaling_run(const mgw_trace *trace, const mgw_cluster *cluster,
                                       const mgw_scaling *what, mgw_scaling_row **rows,
                                       size_t *count, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
