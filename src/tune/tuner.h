/* The inside of the tuner. */
#ifndef MGW_TUNE_TUNER_H
#define MGW_TUNE_TUNER_H

#include <mgwfbp/tune.h>

#include "base/names.h"

enum { TUNE_RECENT = 8 }; /* steps that are kept */

/* This worker's recent steps. */
typedef struct tune_recent {
    double *row;      /* what it will tell of them: recent.c */
    size_t steps;     /* since the last look */
    uint32_t *counts; /* by tensor: how often it was measured since then */
} tune_recent;

/* Of all workers together. */
typedef struct tune_learned {
    double *ready_s;      /* by tensor: the median over steps */
    double *need_s;       /* the same; MGW_TIME_UNKNOWN, or MGW_NEVER_NEEDED */
    double *step_ready_s; /* the steps behind it, one after the other */
    size_t steps;         /* how many those are; none where tensors take turns */
    double slowdown;
    double worth_s;
} tune_learned;

/* Sums since the last look, and the means before it. */
typedef struct tune_window {
    size_t steps;
    double iteration_sum_s;
    double compute_sum_s;
    double stall_sum_s;
    double last_iteration_s;
    double last_compute_s;
    double last_stall_s;
} tune_window;

struct mgw_tuner {
    mgw_tuner_options options;
    mgw_policy policy;
    size_t tensor_count;
    mgw_cluster *cluster;

    mgw_trace *untimed;  /* all tensors, as bytes: they may differ in dtype */
    mgw_plan *first;     /* until there is a plan */
    mgw_plan *plan;      /* in force */
    bool given;          /*   by somebody else, who knows why: it stays */
    mgw_trace *trace;    /* behind it */
    mgw_plan *proposed;  /* between propose and follow; null: the plan in force stays */
    mgw_trace *proposal; /* the median step by then */

    uint64_t steps;
    uint64_t plans;
    size_t looks;
    size_t since_look;
    tune_window window;
    tune_recent recent;
    tune_learned learned;
};

/* ---- recent.c: what the last steps have shown ---- */

/* Whether the driver gathers parameters. */
static inline bool tune_gathers(const mgw_tuner *tuner)
{
    return tuner->options.parameter_ratio > 0;
}

MGW_CHECKED mgw_status tune_recent_init(mgw_tuner *tuner, mgw_error *error);
void tune_recent_fini(mgw_tuner *tuner);
void tune_recent_forget(mgw_tuner *tuner);

/* What all workers have seen goes to `learned`. */
MGW_CHECKED mgw_status tune_learn(mgw_tuner *tuner, const double *combined, mgw_error *error);

/* ---- choose.c: which plan is best by what was learned ---- */

/* A step as a trace. */
MGW_CHECKED mgw_status tune_make_trace(const mgw_tuner *tuner, const double *ready_s,
                                       mgw_trace **out, mgw_error *error);

/* T(M) as it is in steps, `slowdown` times as long as alone. Ownership: the caller frees *samples,
 * after use. */
MGW_CHECKED mgw_status tune_cost(const mgw_tuner *tuner, double slowdown, mgw_cost *cost,
                                 mgw_sample **samples, mgw_error *error);

/* Sets `proposed`, or leaves it null where the plan in force may stay and is good enough; and
 * `proposal`. */
MGW_CHECKED mgw_status tune_choose(mgw_tuner *tuner, bool may_stay, mgw_error *error);

#endif
