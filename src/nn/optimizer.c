/* Stochastic gradient descent: a plain loop that compilers turn into vector instructions. */
#include "nn/optimizer.h"

void nn_descend(float *restrict weights, float *restrict velocity, const float *restrict gradient,
                size_t count, float rate, float momentum, float decay)
{
    for (size_t i = 0; i < count; i++) {
        velocity[i] = momentum * velocity[i] + gradient[i] + decay * weights[i];
        weights[i] -= rate * velocity[i];
    }
}
