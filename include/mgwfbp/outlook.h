/*
 * A step in a large job, with stragglers, failures and costs. Computed, not sampled.
 *
 * Threads: any, on objects that no other thread is changing. Ownership: no references are kept.
 */
#ifndef MGWFBP_OUTLOOK_H
#define MGWFBP_OUTLOOK_H

#include <stddef.h>
#include <stdint.h>

#include <mgwfbp/cluster.h>
#include <mgwfbp/plan.h>
#include <mgwfbp/status.h>
#include <mgwfbp/trace.h>

#pragma GCC visibility push(default)
MGW_BEGIN_DECLS

/* How a worker's computation varies from step to step, as a factor of the trace's time. */
typedef enum mgw_jitter_kind {
    MGW_JITTER_NONE,
    MGW_JITTER_NORMAL,    /* mean 1; never below 0 */
    MGW_JITTER_LOGNORMAL, /* mean 1 */
    MGW_JITTER_MEASURED,  /* one of the trace's measured steps, all equally likely */
} mgw_jitter_kind;

/* The conditions of a job. All zero: an ideal job. */
typedef struct mgw_conditions {
    mgw_jitter_kind jitter;
    double deviation;    /* standard deviation of the factor: NORMAL, LOGNORMAL */
    double mtbf_s;       /* of one worker: mean time between its failures; 0: it never fails */
    double checkpoint_s; /* time to save a checkpoint, during which training stops */
    double restart_s;    /* from a failure to the first step after the last checkpoint */
    double interval_s;   /* training time between two checkpoints; 0: the best */
    double price;        /* of a worker for an hour */
    uint64_t samples;    /* in an epoch; 0: unknown */
} mgw_conditions;

typedef struct mgw_outlook {
    double slowest;     /* the expected factor of the slowest worker of a step */
    double iteration_s; /* expected */
    double failure_s;   /* mean time between failures of the job; 0: it has none */
    double trains;      /* share of time spent on steps that count */
    double interval_s;  /* training between two checkpoints, a whole number of steps; 0: none */
    double interval_steps;
    double daly_s;      /* Daly's estimate of the best interval, to compare with */
    double daly_trains; /* the share with that */
    double speedup;     /* over one worker that never fails, with the same jitter */
    double efficiency;
    double samples_per_s;
    double epoch_s;    /* 0 if the number of samples is unknown */
    double epoch_cost; /* 0 without a price */
} mgw_outlook;

/*
 * Predicts steps with this policy. The plan is made once, for the expected slowest worker. In each
 * step, the computation time of a worker is the trace's, multiplied by a random factor; operations
 * begin when the slowest worker is ready. Failures are random: a job of N workers has N times as
 * many as one worker. A failure loses the work since the last checkpoint.
 */
MGW_CHECKED mgw_status mgw_outlook_make(const mgw_trace *trace, const mgw_cost *cost,
                                        const mgw_policy *policy, const mgw_conditions *conditions,
                                        mgw_outlook *out, mgw_error *error);

/*
 * The share of time spent training, with `failure_s` between failures (exponentially distributed)
 * and `interval_s` of training between two checkpoints. Exact, also for failures during checkpoints
 * and restarts.
 */
double mgw_training_share(double failure_s, double checkpoint_s, double restart_s,
                          double interval_s);

/* The interval with which that share is largest: exactly, and as Daly estimates it (2006). */
double mgw_best_interval(double failure_s, double checkpoint_s);
double mgw_daly_interval(double failure_s, double checkpoint_s);

MGW_END_DECLS
#pragma GCC visibility pop

#endif
