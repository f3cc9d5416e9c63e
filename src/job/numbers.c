/* Integers as gradients and parameters. */
#include "job/numbers.h"

enum {
    PERIOD = 16,    /* period of the values within a tensor */
    STEPS = 7,      /* period of the values over steps */
    SPREAD = 16,    /* minimum number of sampled elements, if there are as many */
    WRAP = 1 << 20, /* parameters stay below this */
};

job_stretch job_all(size_t begin, size_t length)
{
    return (job_stretch){begin, length, 1};
}

job_stretch job_some(size_t begin, size_t length, size_t count)
{
    size_t distance = count / SPREAD > 1 ? count / SPREAD : 1;
    size_t first = (begin + distance - 1) / distance * distance;
    size_t end = begin + length;
    return (job_stretch){first, first < end ? (end - first + distance - 1) / distance : 0,
                         distance};
}

void job_fill(float *tensor, job_stretch s, unsigned rank, unsigned size, unsigned step)
{
    float base = (float)(rank + step % STEPS);
    for (size_t i = s.first; s.count-- > 0; i += s.distance)
        tensor[i] = (base + (float)(i % PERIOD)) * (float)size;
}

/* The average of the first number of each period. */
static unsigned base_of(unsigned size, unsigned step)
{
    return size * (size - 1) / 2 + size * (step % STEPS);
}

bool job_check(const float *tensor, job_stretch s, unsigned size, unsigned step)
{
    float base = (float)base_of(size, step);
    size_t wrong = 0;
    for (size_t i = s.first; s.count-- > 0; i += s.distance)
        wrong += tensor[i] != base + (float)(i % PERIOD) * (float)size;
    return wrong == 0;
}

void job_sum_add(job_sum *sum, unsigned size, unsigned step)
{
    sum->base += base_of(size, step);
    sum->slope += size;
}

void job_add(float *parameters, const float *averages, job_stretch s)
{
    for (size_t i = s.first; s.count-- > 0; i += s.distance) {
        float sum = parameters[i] + averages[i];
        parameters[i] = sum < WRAP ? sum : sum - WRAP;
    }
}

bool job_check_sum(const float *parameters, job_stretch s, const job_sum *sum)
{
    float expected[PERIOD];
    for (uint64_t k = 0; k < PERIOD; k++)
        expected[k] = (float)((sum->base + k * sum->slope) % WRAP);
    size_t wrong = 0;
    for (size_t i = s.first; s.count-- > 0; i += s.distance)
        wrong += parameters[i] != expected[i % PERIOD];
    return wrong == 0;
}
