/* Fits how computation and messages slow each other down to measured steps. */
#ifndef MGW_TUNE_BESIDE_H
#define MGW_TUNE_BESIDE_H

#include "plan/beside.h"

/* A plan whose steps were measured. */
typedef struct tune_note {
    mgw_messages messages;
    double compute_s; /* 0: not known */
    double iteration_s;
    double within; /* relative uncertainty of these times */
} tune_note;

/*
 * Fits the two factors to measured steps, by least squares, with a prior that prefers small
 * factors. `ready_s` were measured with the messages `now`; notes may be of any plans. `room`:
 * space for two numbers per tensor.
 */
mgw_beside tune_fit_beside(size_t tensors, const double *ready_s, const mgw_messages *now,
                           const tune_note *notes, size_t count, double *room);

#endif
