/*
 * The planner's interface for browsers: the library's own sources, behind functions that take and
 * return plain numbers. One trace, one cluster and one result at a time; planner.js calls them.
 *
 * Functions that return a status return 0 on success; otherwise `error_message` has the reason.
 * Returned arrays are valid until the next call.
 */
#ifndef MGW_WEB_PLANNER_H
#define MGW_WEB_PLANNER_H

#include <stddef.h>

#ifdef __wasm__
#define PLANNER(name) __attribute__((export_name(#name))) planner_##name
#else
#define PLANNER(name) planner_##name
#endif

/* Memory for the arrays that the functions below take. */
void *PLANNER(allocate)(size_t bytes);
void PLANNER(release)(void *memory);

const char *PLANNER(error_message)(void);

/* A trace; the arrays have a number for each tensor, `names` the null-terminated names, one after
 * the other. */
int PLANNER(set_trace)(size_t count, const double *counts, const double *backward_s,
                       const double *forward_start_s, const char *names, double forward_s);

/* A cluster: a and b, link constants with an algorithm, or samples. */
int PLANNER(set_cost)(unsigned workers, double a_s, double b_s_per_byte);
int PLANNER(set_link)(unsigned workers, double alpha_s, double beta_s_per_byte,
                      double gamma_s_per_byte, int algorithm, unsigned servers);
int PLANNER(set_samples)(unsigned workers, size_t count, const double *bytes,
                         const double *seconds);

/* The cost of another kind of collective: a and b, or samples if there are any. */
int PLANNER(set_collective)(int kind, double a_s, double b_s_per_byte, size_t count,
                            const double *bytes, const double *seconds);

/* How computation and messages slow each other down: factors of at least 1. */
int PLANNER(set_beside)(double message, double compute);

/* The alpha and beta for which an algorithm costs a and b, as in `mgwfbp fit --as`; null if there
 * are none. */
const double *PLANNER(find_link)(int algorithm, double a_s, double b_s_per_byte, unsigned workers,
                                 unsigned servers);

/* a and b of each kind of collective on the cluster. */
const double *PLANNER(find_lines)(void);

/* Plans the trace on the cluster, with computation `factor` times as long, and the given types of
 * gradients and gathered parameters. */
int PLANNER(plan)(double factor, int gradients, int parameters);

/* The plans: forward_s, compute_s, iteration_s, exposed_s, lower_bound_s, whether it overlaps the
 * forward pass, the numbers of operations and of stalls; then for each operation kind (as in
 * spans), first, count, bytes, ready_s, start_s, end_s; for each stall tensor, start_s, end_s. */
size_t PLANNER(plan_count)(void);
const char *PLANNER(plan_policy)(size_t index);
const double *PLANNER(plan_numbers)(size_t index);

/* Scaling, which takes longer than planning: after `scale`, for each row workers, messages,
 * iteration_s, exposed_s, speedup, efficiency. */
int PLANNER(scale)(void);
size_t PLANNER(scaling_count)(void);
const char *PLANNER(scaling_algorithm)(void);
const char *PLANNER(scaling_policy)(size_t index);
const double *PLANNER(scaling_numbers)(void);

#endif
