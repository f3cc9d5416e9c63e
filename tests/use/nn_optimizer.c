/*
 * Steps of an optimizer, for a test that knows better what they must give.
 *
 *     nn_optimizer NAME COUNT STEPS PARTS RATE DECAY MOMENTUM BETA1 BETA2 EPSILON < weights,
 * gradients > results
 *
 * In: the weights, then each step's gradients. Out: the weights after each step, then the arrays
 * that the optimizer remembers. All are floats. The weights are updated in so many parts, last part
 * first: that makes no difference.
 */
#include <stdio.h>
#include <stdlib.h>

#include "nn/kernel.h"
#include "nn/optimizer.h"

int main(int argc, char **argv)
{
    const nn_optimizer *optimizer = argc == 11 ? nn_optimizer_find(argv[1]) : NULL;
    if (!optimizer)
        return 2;
    size_t count = strtoul(argv[2], NULL, 10);
    size_t steps = strtoul(argv[3], NULL, 10);
    size_t parts = strtoul(argv[4], NULL, 10);
    nn_rule rule = {.rate = strtod(argv[5], NULL),
                    .decay = strtod(argv[6], NULL),
                    .momentum = strtod(argv[7], NULL),
                    .beta1 = strtod(argv[8], NULL),
                    .beta2 = strtod(argv[9], NULL),
                    .epsilon = strtod(argv[10], NULL)};
    float *weights = nn_allocate(count);
    float *gradients = nn_allocate(count);
    float *arrays[NN_ARRAYS_MAX] = {nn_allocate(count), nn_allocate(count)};
    if (fread(weights, sizeof *weights, count, stdin) != count)
        return 2;
    while (rule.step++ < steps) {
        if (fread(gradients, sizeof *gradients, count, stdin) != count)
            return 2;
        for (size_t p = parts; p-- > 0;) {
            size_t first = p * count / parts;
            float *const there[NN_ARRAYS_MAX] = {arrays[0] + first, arrays[1] + first};
            optimizer->update(&rule, weights + first, gradients + first, there,
                              (p + 1) * count / parts - first);
        }
        fwrite(weights, sizeof *weights, count, stdout);
    }
    for (int k = 0; k < optimizer->array_count && k < NN_ARRAYS_MAX; k++)
        fwrite(arrays[k], sizeof *weights, count, stdout);
    for (int k = 0; k < NN_ARRAYS_MAX; k++)
        free(arrays[k]);
    free(weights);
    free(gradients);
    return 0;
}
