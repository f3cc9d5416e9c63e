/* The planner of each policy. */
#ifndef MGW_PLAN_POLICY_H
#define MGW_PLAN_POLICY_H

#include <stdbool.h>

#include "plan/problem.h"

mgw_planner *mgw_policy_planner(const mgw_policy *policy);

#endif
