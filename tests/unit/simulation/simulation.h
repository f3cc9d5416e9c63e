/*
 * Whole jobs in one thread, under a virtual clock: N workers, each a flow and a tuner, and one
 * channel that performs collectives at a cost. A scenario determines everything, including the
 * order of simultaneous events. Every event is checked: simulation_run reports the first error.
 */
#ifndef TESTS_SIMULATION_H
#define TESTS_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/mgwfbp.h>

enum { SIM_PLANS = 4, SIM_STALLS = 2, SIM_NOBODY = UINT32_MAX };

/* Mistakes that a driver makes on one worker, to see that they are caught. */
typedef enum sim_fault {
    SIM_RIGHT,
    SIM_DROP_WAKE,   /* a report that completes an operation does not wake the driver */
    SIM_SWAP,        /* two operations change places */
    SIM_ADOPT_EARLY, /* a plan comes one step early */
    SIM_TWICE,       /* an operation is done twice */
} sim_fault;

/* When the parameters of a tensor are updated. */
typedef enum sim_update { SIM_EARLY, SIM_AT_END, SIM_LATE } sim_update;

typedef struct sim_stall {
    unsigned worker;
    double at_s;
    double length_s; /* INFINITY: it is dead */
} sim_stall;

/* From a step on, these operations. */
typedef struct sim_plan {
    unsigned step;
    size_t count;
    mgw_operation *operations;
} sim_plan;

typedef struct scenario {
    uint64_t seed;
    unsigned workers;
    unsigned steps;
    size_t tensors;
    uint64_t *bytes;
    double *forward_s;  /* by tensor, in need order: the last one of the ready order first */
    double *backward_s; /* by tensor, in ready order */
    sim_update *updates;
    double update_s;
    mgw_cost cost;
    mgw_line believed; /* the tuner's cost of all-reduces; zeros: the true cost */
    double jitter;
    double noise;    /* of a worker's whole step: one sigma */
    unsigned hiccup; /* one step in so many takes a worker three times as long; 0: none does */
    double wander;   /* of the logarithm: all takes longer or shorter as time goes by, */
    double period;   /*   to and fro in so many steps; 0: one way */
    bool shuffles;   /* neighbours are ready in another order, now and then */
    bool overlaps;   /* a driver starts all it is given; else one after the other */
    bool drains;     /* no step begins before all operations of the one before are over */
    double one_lane; /* how much longer operations take that may use one lane only; 0: as long */
    double move_s;   /* when a tuner's plan changes, state moves for so long */

    size_t plan_count; /* 0: a tuner decides */
    sim_plan plans[SIM_PLANS];
    mgw_tuner_options options;
    unsigned policy_step; /* a new policy before this step; 0: never */
    const char *new_policy;

    double timeout_s; /* of a wait, */
    double look_s;    /*   which is looked at so often */
    sim_stall stalls[SIM_STALLS];
    size_t stall_count;
    unsigned victim; /* one that stops for longer than the timeout; or SIM_NOBODY */
    unsigned joiner; /* begins late */
    double joins_s;
    unsigned drift_step; /* from this step on: */
    double compute_drift;
    double network_drift;

    sim_fault fault;
    unsigned fault_worker;
    unsigned fault_step;
} scenario;

typedef struct sim_result {
    bool failed; /* a check: `what` says which */
    char what[256];
    bool faulted; /* the fault was made */
    uint64_t events;
    uint64_t digest; /* of all events in their order */
    unsigned plans;
    unsigned turns; /* changes without a look */
    unsigned gathers;
    unsigned failures;  /* workers that gave up */
    unsigned predicted; /* steps with gathers beside them, whose time was predicted */
} sim_result;

/* If not null, called when a worker has a step behind it, with its operations' times. */
typedef void sim_watch(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                       const mgw_tuner *tuner, double end_s);

void simulation_run(const scenario *s, bool verbose, sim_watch *watch, void *context,
                    sim_result *out);

#endif
