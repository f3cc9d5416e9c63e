/* The planner and the release rule of each policy. */
#ifndef MGW_PLAN_POLICY_H
#define MGW_PLAN_POLICY_H

#include "plan/problem.h"

mgw_planner *mgw_policy_planner(const mgw_policy *policy);

/* When the operations of its plans may start. */
mgw_release mgw_policy_release(const mgw_policy *policy);

#endif
