/*
 * The simulator: plans as predicted timelines, and how a model scales with the number of workers.
 *
 * Threads: any, on objects that no other thread is changing; reading one from several is fine.
 * Ownership: what a function makes, the caller destroys or frees.
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
 * The timeline that the plan predicts. With the trace it was timed for, the backward pass shows
 * every tensor; without (null) it is one span. mgw_plan_time puts a plan on another cluster first.
 * Of a plan that overlaps the forward pass it shows the steady state: the next forward pass and its
 * stalls follow beside the gathers. From the end of one forward pass to the end of the other is a
 * period.
 * Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status mgw_simulate(const mgw_plan *plan, const mgw_trace *trace,
                                    mgw_timeline **out, mgw_error *error);

/* Against one worker that computes the same batch alone: N steps' worth of work per step. */
double mgw_speedup(const mgw_plan *plan);

/* Speed-up per worker, at most 1. */
double mgw_efficiency(const mgw_plan *plan);

/* One simulated point. */
typedef struct mgw_scaling_row {
    unsigned workers;
    const char *algorithm; /* "measured" where the cluster's cost is not from link constants */
    mgw_policy policy;
    double iteration_s;
    double exposed_s;
    double speedup;
    double efficiency;
    size_t messages;
    mgw_outlook outlook; /* if conditions are given */
    uint64_t bytes;      /* of a step, as they travel */
} mgw_scaling_row;

typedef struct mgw_scaling {
    const unsigned *workers;
    size_t worker_count;
    const mgw_algorithm *algorithms; /* none: the cluster's own */
    size_t algorithm_count;
    const mgw_policy *policies;
    size_t policy_count;
    const mgw_conditions *conditions; /* or null */
    unsigned wires;                   /* what messages may travel as: see mgw_cost */
} mgw_scaling;

/*
 * Plans and predicts every combination: for each algorithm, each number of workers, each policy,
 * in this order. The cluster is left as it was.
 * Ownership: the caller frees *rows.
 */
MGW_CHECKED mgw_status mgw_scaling_run(const mgw_trace *trace, const mgw_cluster *cluster,
                                       const mgw_scaling *what, mgw_scaling_row **rows,
                                       size_t *count, mgw_error *error);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
