/* Computation and messages beside each other: each takes longer while the other goes on. */
#ifndef MGW_TUNE_BESIDE_H
#define MGW_TUNE_BESIDE_H

#include <stddef.h>

#include <mgwfbp/plan.h>

/* How many times as long as alone, while both are under way: both at least 1. */
typedef struct tune_beside {
    double message;
    double compute;
} tune_beside;

/* A step's messages: what each waits for, and how long it takes alone. Ownership: the caller's. */
typedef struct tune_messages {
    size_t count;
    mgw_operation *operations;
    double *alone_s; /* by operation */
} tune_messages;

/* What a step takes. */
typedef struct tune_step_times {
    double compute_s;
    double iteration_s;
} tune_step_times;

/*
 * Runs a step. alone_s: when each gradient would be ready without any message; it does not
 * decrease. ready_s: when it is, beside the messages. Sets start_s and end_s of these, too.
 */
tune_step_times tune_run_step(size_t tensors, const double *alone_s, const tune_messages *messages,
                              tune_beside beside, double *ready_s);

/* The inverse: from when gradients were ready beside these messages. */
void tune_undo_step(size_t tensors, const double *ready_s, const tune_messages *messages,
                    tune_beside beside, double *alone_s);

/* A plan whose steps were measured. */
typedef struct tune_note {
    tune_messages messages;
    double compute_s; /* 0: not known */
    double iteration_s;
    double within; /* the share by which they may be wrong */
} tune_note;

/*
 * The two numbers under which steps take what they took, in the least squares' sense, no larger
 * than they must be: `ready_s` were seen under the messages `now`, the notes are of any plans.
 * `room`: two numbers per tensor.
 */
tune_beside tune_fit_beside(size_t tensors, const double *ready_s, const tune_messages *now,
                            const tune_note *notes, size_t count, double *room);

#endif
