/* A small job under a virtual clock, for tests of the closed loop: its tuner may have a wrong
 * model. */
#ifndef TESTS_TUNE_JOB_H
#define TESTS_TUNE_JOB_H

#include <math.h>

#include "simulation/simulation.h"
#include "support.h"

enum { WORKERS = 3, TENSORS = 20 };

static const uint64_t half_megabyte = 500000;

typedef struct job {
    scenario s;
    uint64_t bytes[TENSORS];
    double forward_s[TENSORS];
    double backward_s[TENSORS];
    sim_update updates[TENSORS];
} job;

/* 20 tensors of half a megabyte, a gradient every 5 ms: DDP cuts them into four. */
static inline job *make_job(uint64_t seed, mgw_line cost, mgw_line believed, double jitter)
{
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    for (size_t i = 0; i < TENSORS; i++) {
        j->bytes[i] = i ? half_megabyte : 4 * half_megabyte;
        j->forward_s[i] = 2e-3;
        j->backward_s[i] = 5e-3;
        j->updates[i] = SIM_AT_END;
    }
    j->s = (scenario){.seed = seed,
                      .workers = WORKERS,
                      .steps = 400,
                      .tensors = TENSORS,
                      .bytes = j->bytes,
                      .forward_s = j->forward_s,
                      .backward_s = j->backward_s,
                      .updates = j->updates,
                      .update_s = 1e-3,
                      .cost = {.workers = WORKERS, .cluster = "sim"},
                      .believed = believed,
                      .jitter = jitter,
                      .victim = SIM_NOBODY,
                      .joiner = SIM_NOBODY,
                      .compute_drift = 1,
                      .network_drift = 1,
                      .timeout_s = 1e6,
                      .look_s = 1e6,
                      .options = {.policy = "optimal",
                                  .profile_steps = 5,
                                  .replan_steps = 20,
                                  .replan_percent = 3,
                                  .whole_steps = true,
                                  .crowd = 1,
                                  .size = WORKERS,
                                  .trials = 1}};
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        j->s.cost.of[kind] = (mgw_curve){.a_s = cost.a_s, .b_s_per_byte = cost.b_s_per_byte};
    return j;
}

#endif
