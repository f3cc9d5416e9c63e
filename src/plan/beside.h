/* A step in which computation and messages slow each other down while both run. */
#ifndef MGW_PLAN_BESIDE_H
#define MGW_PLAN_BESIDE_H

#include "plan/problem.h"

/* Whether a cost says so at all. */
static inline bool mgw_beside_matters(const mgw_beside *beside)
{
    return beside->message > 1 || beside->compute > 1;
}

/* The messages of a step: what each waits for, and how long it takes alone. Ownership: the
 * caller's. */
typedef struct mgw_messages {
    size_t count;
    mgw_operation *operations;
    double *alone_s; /* by operation */
} mgw_messages;

/* The times of a step. */
typedef struct mgw_step_times {
    double compute_s;
    double iteration_s;
} mgw_step_times;

/*
 * Runs a step that ends with its last message. alone_s: when each gradient would be ready without
 * messages; must not decrease. ready_s: when each is ready with these messages. Also sets start_s
 * and end_s of the messages.
 */
mgw_step_times mgw_beside_run(size_t tensors, const double *alone_s, const mgw_messages *messages,
                              mgw_beside beside, double *ready_s);

/* The inverse: computes alone_s from ready_s with these messages. */
void mgw_beside_undo(size_t tensors, const double *ready_s, const mgw_messages *messages,
                     mgw_beside beside, double *alone_s);

/*
 * Times a plan whose operations were timed without factors: sets all its times again. ready_s:
 * room for one time per tensor; when each is ready.
 */
MGW_CHECKED mgw_status mgw_beside_time(const mgw_problem *problem, mgw_plan *plan, double *ready_s,
                                       mgw_error *error);

/*
 * Whether a policy looks for the best plan beside computation (others follow their rule), and that
 * plan's operations. Not exact: it plans for the ready times of the plan before, a few times over.
 * Changes the problem while it runs.
 */
bool mgw_beside_searches(const mgw_problem *problem, const mgw_policy *policy);
MGW_CHECKED mgw_status mgw_beside_search(mgw_problem *problem, const mgw_policy *policy,
                                         mgw_plan *plan, mgw_error *error);

#endif
