/* The planner and the release rule of each policy. */
#ifndef MGW_PLAN_POLICY_H
#define MGW_PLAN_POLICY_H

#include "plan/problem.h"

/* The planner for policies of whole all-reduces, and the composer for all others; one of them is
 * null. */
mgw_planner *mgw_policy_planner(const mgw_policy *policy);
mgw_composer *mgw_policy_composer(const mgw_policy *policy);

/* When the all-reduces of its plans may start. */
mgw_release mgw_policy_release(const mgw_policy *policy);

/* Whether the plan has all-gathers, so that the next forward pass can wait for single tensors. */
bool mgw_plan_has_gathers(const mgw_plan *plan);

#endif
