/*
 * The operations of one period with fixed kinds and order, but variable boundaries: reduce-scatters
 * of tensors 1..s, all-reduces of s+1..k, reduce-scatters of k+1..n, then all-gathers of n..k+1 and
 * of s..1, the last ready first.
 */
#ifndef MGW_PLAN_SEQUENCE_H
#define MGW_PLAN_SEQUENCE_H

#include <stdbool.h>

#include "plan/problem.h"

/* Items begin+1..end are sent by operations of one kind; no operation extends into the next phase.
 */
typedef struct mgw_phase {
    mgw_collective kind;
    size_t begin;
    size_t end;
} mgw_phase;

enum { MGW_PHASES_MAX = 5 };

/* Items 1..count in the order in which they are sent. */
typedef struct mgw_lane {
    size_t count;
    size_t phase_count;
    mgw_phase phases[MGW_PHASES_MAX];
    uint32_t *tensor;
    double *ready_s;  /* does not decrease within a phase */
    double *needed_s; /* each operation must end by the period plus the minimum of these */
    uint64_t *prefix; /* bytes of items 1..i */
} mgw_lane;

typedef struct mgw_sequence {
    const mgw_problem *problem;
    size_t whole_begin; /* s */
    size_t whole_end;   /* k */
    double *needed_s;   /* of tensors 1..n */
    mgw_lane lane;
    mgw_lane mirror; /* only the gathers, backwards in time */
    /* scratch */
    double *ends;
    double *ends_before;
    uint32_t *from;
    uint32_t *window;
} mgw_sequence;

MGW_CHECKED mgw_status mgw_sequence_init(mgw_sequence *sequence, const mgw_problem *problem,
                                         mgw_error *error);
void mgw_sequence_fini(mgw_sequence *sequence);

/* Sets kinds and order, 0 <= s <= k <= n; s < k if s > 0. */
void mgw_sequence_set(mgw_sequence *sequence, size_t s, size_t k);

/* The shortest period over all boundaries: exact for every non-decreasing curve and every order of
 * need. */
double mgw_sequence_period(mgw_sequence *sequence);

/* The fewest operations with a period of at most `limit_s`; 0 if those are more than `most`. */
size_t mgw_sequence_fewest(mgw_sequence *sequence, double limit_s, size_t most);

/* Appends a plan with the fewest operations for that period or, if that would take too long, with
 * any number. */
MGW_CHECKED mgw_status mgw_sequence_plan(mgw_sequence *sequence, double period_s,
                                         mgw_operations *out, mgw_error *error);

#endif
