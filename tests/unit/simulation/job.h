/* Random jobs, determined by a seed. */
#ifndef TESTS_SIMULATION_JOB_H
#define TESTS_SIMULATION_JOB_H

#include "simulation/simulation.h"

enum { MOST_TENSORS = 24 };

typedef struct job {
    scenario s;
    uint64_t random;
    uint64_t bytes[MOST_TENSORS];
    double forward_s[MOST_TENSORS];
    double backward_s[MOST_TENSORS];
    sim_update updates[MOST_TENSORS];
    mgw_operation operations[SIM_PLANS][2 * MOST_TENSORS];
} job;

void make_job(uint64_t seed, job *j);

/* Any plan that may be adopted, and which tensors it scatters; `early`: gathers between averages.
 * Returns the number of operations. */
size_t make_operations(uint64_t *random, size_t n, bool early, bool scattered[MOST_TENSORS],
                       mgw_operation *operations);

#endif
