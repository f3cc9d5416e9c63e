/* The steps in a profile: where each begins, and when its gradients were ready and needed. */
#ifndef MGW_TRACE_PROFILE_STEPS_H
#define MGW_TRACE_PROFILE_STEPS_H

#include "trace/profile_rows.h"

/* A gradient of a step. */
typedef struct mgw_step_gradient {
    const mgw_row *row;
    const mgw_row *node; /* the node that computed it; null: unknown */
    double ready_s;      /* since the start of the backward pass; never decreases */
    double needed_s;     /* since the start of the forward pass, or MGW_TIME_UNKNOWN */
} mgw_step_gradient;

typedef struct mgw_step {
    size_t first; /* rows first .. stop-1 */
    size_t stop;
    size_t count; /* gradients */
    mgw_step_gradient *gradients;
    uint64_t samples; /* the first dimension of its first operation; 0: unknown */
    double begin_us;  /* start of its first pass, on the device if times are the device's */
    double forward_s;
    double compute_s; /* both passes */
    bool has_forward;
} mgw_step;

typedef struct mgw_steps {
    mgw_step *list;
    size_t count;
    bool on_device; /* times are those of kernels */
} mgw_steps;

/* Ownership: the caller calls mgw_steps_fini on *out, also after a failure; it borrows from the
 * rows. */
MGW_CHECKED mgw_status mgw_steps_find(const char *origin, const mgw_rows *rows, mgw_steps *out,
                                      mgw_error *error);
void mgw_steps_fini(mgw_steps *steps);

#endif
