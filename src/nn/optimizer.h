/* The optimizer: stochastic gradient descent with momentum and weight decay. */
#ifndef MGW_NN_OPTIMIZER_H
#define MGW_NN_OPTIMIZER_H

#include <stddef.h>

/* One step: velocity = momentum * velocity + gradient + decay * weights;
 * weights -= rate * velocity. */
void nn_descend(float *weights, float *velocity, const float *gradient, size_t count, float rate,
                float momentum, float decay);

#endif
