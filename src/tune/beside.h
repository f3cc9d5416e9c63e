/* Concurrent computation and messages: each takes longer while the other runs. */
#ifndef MGW_TUNE_BESIDE_H
#define MGW_TUNE_BESIDE_H

#include <stddef.h>

#include <mgwfbp/plan.h>

/* Slowdown factors while both run; both are at least 1. */
typedef struct tune_beside {
    double message;
    double compute;
} tune_beside;

/* The messages of a step: what each waits for, and how long it takes alone. Ownership: the
 * caller's. */
typedef struct tune_messages {
    size_t count;
    mgw_operation *operations;
    double *alone_s; /* by operation */
} tune_messages;

/* The times of a step. */
typedef struct tune_step_times {
    double compute_s;
    double iteration_s;
} tune_step_times;

/*
 * Simulates a step. alone_s: when each gradient would be ready without messages; must not decrease.
 * ready_s: when each is ready with these messages. Also sets start_s and end_s of the messages.
 */
tune_step_times tune_run_step(size_t tensors, const double *alone_s, const tune_messages *messages,
                              tune_beside beside, double *ready_s);

/* The inverse: computes alone_s from ready_s with these messages. */
void tune_undo_step(size_t tensors, const double *ready_s, const tune_messages *messages,
                    tune_beside beside, double *alone_s);

/* A plan whose steps were measured. */
typedef struct tune_note {
    tune_messages messages;
    double compute_s; /* 0: not known */
    double iteration_s;
    double within; /* relative uncertainty of these times */
} tune_note;

/*
 * Fits the two factors to measured steps, by least squares, with a prior that prefers small
 * factors. `ready_s` were measured with the messages `now`; notes may be of any plans. `room`:
 * space for two numbers per tensor.
 */
tune_beside tune_fit_beside(size_t tensors, const double *ready_s, const tune_messages *now,
                            const tune_note *notes, size_t count, double *room);

#endif
