/* The input of a planner, and the planners. */
#ifndef MGW_PLAN_PROBLEM_H
#define MGW_PLAN_PROBLEM_H

#include <mgwfbp/plan.h>

/*
 * Tensors 1..n in ready order, as in docs/explanation/model.md: ready_s[j] is when tensor j is
 * ready, prefix[j] the bytes of gradients 1..j. Index 0 stands for "nothing yet": ready_s[0] =
 * prefix[0] = 0.
 */
typedef struct mgw_problem {
    size_t n;
    double *ready_s;
    uint64_t *prefix;
    const mgw_cost *given;
    const mgw_cost *cost; /* the same, with the fastest wire for each message */
    mgw_cost narrowed;    /* storage for `cost`, if it differs from `given` */
    const mgw_trace *trace;
    double forward_s;
    uint64_t gradient_bytes; /* per element */
    uint64_t parameter_bytes;
} mgw_problem;

/* Borrows trace and cost. It points into itself, so do not copy it. */
MGW_CHECKED mgw_status mgw_problem_init(mgw_problem *problem, const mgw_trace *trace,
                                        const mgw_cost *cost, mgw_error *error);
void mgw_problem_fini(mgw_problem *problem);

/* When a forward pass without stalls first needs tensor j: at its start if unknown, and never later
 * than its end. */
double mgw_problem_needed(const mgw_problem *problem, size_t j);

/* Bytes of an operation over tensors i+1..j: of updated parameters, or of gradients. */
static inline uint64_t mgw_problem_bytes(const mgw_problem *problem, mgw_collective kind,
                                         mgw_release release, size_t i, size_t j)
{
    uint64_t bytes = problem->prefix[j] - problem->prefix[i];
    if (mgw_collective_averages(kind) || release != MGW_AFTER_UPDATE)
        return bytes;
    return bytes / problem->gradient_bytes * problem->parameter_bytes;
}

/*
 * Relative rounding error of times, which depend on the order of additions. Plans whose ends differ
 * by less are equally good; among these, the fewest messages are preferred.
 */
#define MGW_ROUNDING 1e-13

/* T of an all-reduce of tensors i+1..j. Lines are computed inline: planners need this twice per
 * tensor. */
static inline double mgw_problem_seconds(const mgw_problem *problem, size_t i, size_t j)
{
    uint64_t bytes = problem->prefix[j] - problem->prefix[i];
    const mgw_curve *curve = &problem->cost->of[MGW_ALL_REDUCE];
    if (curve->sample_count)
        return mgw_cost_seconds(problem->cost, MGW_ALL_REDUCE, bytes);
    return curve->a_s + curve->b_s_per_byte * (double)bytes;
}

static inline double mgw_later(double a, double b)
{
    return a > b ? a : b;
}

/*
 * A planner writes the last tensor of each message into `ends` (room for n), in order, and their
 * number into *count.
 */
typedef mgw_status mgw_planner(const mgw_problem *problem, const mgw_policy *policy, size_t *ends,
                               size_t *count, mgw_error *error);

mgw_planner mgw_plan_each;      /* naive, wfbp */
mgw_planner mgw_plan_single;    /* single */
mgw_planner mgw_plan_greedy;    /* mgwfbp */
mgw_planner mgw_plan_optimal;   /* optimal */
mgw_planner mgw_plan_threshold; /* threshold, ddp */

/*
 * The planner of a policy that overlaps the next forward pass: appends operations, with kind,
 * release and tensors, in the order in which they start.
 */
typedef struct mgw_operations {
    size_t count;
    mgw_operation *list; /* room for 2 n */
} mgw_operations;

typedef mgw_status mgw_composer(const mgw_problem *problem, const mgw_policy *policy,
                                mgw_operations *out, mgw_error *error);

mgw_composer mgw_plan_peers;   /* fsdp, zero, dear */
mgw_composer mgw_plan_overlap; /* overlap */

static inline void mgw_operations_add(mgw_operations *operations, mgw_collective kind,
                                      mgw_release release, size_t first, size_t end)
{
    operations->list[operations->count++] =
        (mgw_operation){.kind = kind, .release = release, .first = first, .count = end - first};
}

/*
 * The optimum on any non-decreasing curve; mgw_plan_optimal calls it if there are samples.
 */
mgw_planner mgw_plan_optimal_curve;

/* Sets the operations of a plan by a policy, without times. */
MGW_CHECKED mgw_status mgw_plan_decide(const mgw_problem *problem, const mgw_policy *policy,
                                       mgw_plan *plan, mgw_error *error);

double mgw_problem_lower_bound(const mgw_problem *problem);

/* The least time of a step with `sent_s` seconds of messages, if these may run beside computation
 * from `from_s` on, and each slows down the other. */
double mgw_problem_least_beside(const mgw_problem *problem, double sent_s, double from_s);

/* The same for any schedule that overlaps the next forward pass; negative: out of memory. */
double mgw_problem_forward_bound(const mgw_problem *problem);

enum { MGW_CHANNELS_MAX = 8 };

/*
 * Times a plan's operations on 1 to MGW_CHANNELS_MAX channels with these costs, from the inside
 * out, and sets its period and stalls.
 */
MGW_CHECKED mgw_status mgw_channels_time(const mgw_problem *problem, const mgw_cost *costs,
                                         size_t count, mgw_plan *plan, mgw_error *error);

/* Whether the plan was made for the trace's tensors. */
MGW_CHECKED mgw_status mgw_plan_check_tensors(const mgw_plan *plan, const mgw_trace *trace,
                                              mgw_error *error);

/* Sets period and stalls of a plan that overlaps the next forward pass and whose operations are
 * timed. */
MGW_CHECKED mgw_status mgw_plan_time_forward(const mgw_problem *problem, mgw_plan *plan,
                                             mgw_error *error);

#endif
