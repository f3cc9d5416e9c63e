/* Optimizers: plain loops that compilers vectorize. */
#include "nn/optimizer.h"

#include <math.h>
#include <string.h>

/* Stochastic gradient descent with momentum, as in PyTorch. */
static void descend(const nn_rule *rule, float *restrict weights, const float *restrict gradients,
                    float *const *arrays, size_t count)
{
    float *restrict velocity = arrays[0];
    const float rate = (float)rule->rate;
    const float momentum = (float)rule->momentum;
    const float decay = (float)rule->decay;
    for (size_t i = 0; i < count; i++) {
        velocity[i] = momentum * velocity[i] + gradients[i] + decay * weights[i];
        weights[i] -= rate * velocity[i];
    }
}

/* Adam with decoupled weight decay. In the order of torch.optim.AdamW, with everything that is the
 * same for all elements computed in double precision, so that rounding is the same. */
static void adamw(const nn_rule *rule, float *restrict weights, const float *restrict gradients,
                  float *const *arrays, size_t count)
{
    float *restrict mean = arrays[0];
    float *restrict square = arrays[1];
    const double steps = (double)rule->step;
    const float keep = (float)(1 - rule->rate * rule->decay);
    const float beta1 = (float)rule->beta1;
    const float rest1 = (float)(1 - rule->beta1);
    const float beta2 = (float)rule->beta2;
    const float rest2 = (float)(1 - rule->beta2);
    const float rate = (float)(rule->rate / (1 - pow(rule->beta1, steps)));
    const float corrected = (float)sqrt(1 - pow(rule->beta2, steps));
    const float epsilon = (float)rule->epsilon;
    for (size_t i = 0; i < count; i++) {
        const float gradient = gradients[i];
        mean[i] = beta1 * mean[i] + rest1 * gradient;
        square[i] = beta2 * square[i] + rest2 * gradient * gradient;
        weights[i] =
            keep * weights[i] - rate * (mean[i] / (sqrtf(square[i]) / corrected + epsilon));
    }
}

const nn_optimizer nn_optimizers[] = {
    {.name = "sgd",
     .array_count = 1,
     .usual = {.rate = 0.05, .decay = 5e-4, .momentum = 0.9},
     .update = descend},
    {.name = "adamw",
     .array_count = 2,
     .usual = {.rate = 1e-3, .decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
     .update = adamw},
};
const size_t nn_optimizer_count = sizeof nn_optimizers / sizeof *nn_optimizers;

const nn_optimizer *nn_optimizer_find(const char *name)
{
    for (size_t i = 0; i < nn_optimizer_count; i++)
        if (!strcmp(name, nn_optimizers[i].name))
            return &nn_optimizers[i];
    return NULL;
}
