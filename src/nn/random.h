/* Random numbers that are the same on every machine: splitmix64. */
#ifndef MGW_NN_RANDOM_H
#define MGW_NN_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct nn_random {
    uint64_t state;
} nn_random;

static inline uint64_t nn_random_next(nn_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An independent stream of the same seed. */
static inline nn_random nn_random_of(uint64_t seed, uint64_t stream)
{
    nn_random random = {seed};
    random.state = nn_random_next(&random) ^ (stream * 0xd1342543de82ef95u);
    nn_random_next(&random);
    return random;
}

/* In [0, 1). */
static inline double nn_random_uniform(nn_random *random)
{
    return (double)(nn_random_next(random) >> 11) * 0x1p-53;
}

static inline uint32_t nn_random_below(nn_random *random, uint32_t limit)
{
    return (uint32_t)((nn_random_next(random) >> 32) * limit >> 32);
}

/* The numbers from 0 to count - 1 in uniformly random order. */
static inline void nn_random_order(nn_random *random, uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = nn_random_below(random, i + 1);
        order[i] = i; /* k may be i */
        order[i] = order[k];
        order[k] = i;
    }
}

/* Mean 0, standard deviation 1. */
static inline double nn_random_normal(nn_random *random)
{
    double radius = sqrt(-2 * log(1 - nn_random_uniform(random)));
    return radius * cos(6.283185307179586 * nn_random_uniform(random));
}

#endif
