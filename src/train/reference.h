/* The share of oneDNN's slow reference code in a step, if it is large. */
#ifndef MGW_TRAIN_REFERENCE_H
#define MGW_TRAIN_REFERENCE_H

#include "nn/program.h"

/* Called with the operations ("softmax, pooling") and their share of a step's computation. */
typedef void train_warn(const char *what, double share);

/*
 * If at least `steps` steps were measured, calls `warn` (unless it is null) if reference code takes
 * more than 5%. Returns whether there were enough steps.
 */
bool train_judge_reference(const nn_program *program, unsigned steps, train_warn *warn);

#endif
