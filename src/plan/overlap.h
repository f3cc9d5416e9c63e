/* Internals of policy `overlap`. */
#ifndef MGW_PLAN_OVERLAP_H
#define MGW_PLAN_OVERLAP_H

#include "plan/sequence.h"

/* The tensors that are all-reduced, s+1..k, and the resulting period. */
typedef struct mgw_choice {
    size_t s;
    size_t k;
    double period_s;
} mgw_choice;

/*
 * Phi(k, t): the earliest time by which tensors k+1..n can be sent, in order, if the channel is
 * free from t on; for every k and t, on a + b*M. Ready times need not increase: an operation begins
 * when all of its tensors are ready. ends[m][k] is the earliest end with at most m operations if t
 * is -infinity.
 */
typedef struct mgw_layers {
    size_t n;
    size_t count; /* ends[0..count] */
    double a_s;
    double *work_s; /* b times the bytes of tensors k+1..n */
    double **ends;
} mgw_layers;

/* Stops at the first layer that changes nothing, or after `most` layers: then plans have at most
 * that many operations. `ready_s` and the prefix sums `work_s` are of tensors 1..n. */
MGW_CHECKED mgw_status mgw_layers_init(mgw_layers *layers, size_t n, const double *ready_s,
                                       const double *work_s, double a_s, size_t most,
                                       mgw_error *error);
void mgw_layers_fini(mgw_layers *layers);
double mgw_layers_end(const mgw_layers *layers, size_t k, double free_s);

/* The fewest operations of k+1..n that end by `end_s`; 0 if none do. */
size_t mgw_layers_fewest(const mgw_layers *layers, size_t k, double end_s);

/* The best choice on a + b*M for many tensors. */
MGW_CHECKED mgw_status mgw_overlap_line(mgw_sequence *sequence, mgw_choice *out, mgw_error *error);

/* Replaces the operations by those of a plan with gathers in order of need, if that is faster. */
MGW_CHECKED mgw_status mgw_overlap_compare(const mgw_problem *problem, mgw_operations *best,
                                           mgw_error *error);

#endif
