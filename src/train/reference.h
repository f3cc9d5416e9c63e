/* What oneDNN's slow reference code takes of a step, if that is much. */
#ifndef MGW_TRAIN_REFERENCE_H
#define MGW_TRAIN_REFERENCE_H

#include "nn/program.h"

/* Told of the operations ("softmax, pooling") and their share of a step's computation. */
typedef void train_warn(const char *what, double share);

/*
 * Looks at it when at least so many steps were measured, and calls `warn` (unless it is null) if
 * reference code takes more than 5%. Whether there were as many steps.
 */
bool train_judge_reference(const nn_program *program, unsigned steps, train_warn *warn);

#endif
