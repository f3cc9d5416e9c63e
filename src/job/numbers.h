/*
 * The numbers of a replay: gradients with known averages, and parameters to which every average is
 * added. All are integers that are small enough to be exact.
 */
#ifndef MGW_JOB_NUMBERS_H
#define MGW_JOB_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Elements of a tensor: all, or about 16 to 32 at equal distances. */
typedef struct job_stretch {
    size_t first; /* index in the tensor */
    size_t count;
    size_t distance;
} job_stretch;

/* For elements begin .. begin+length-1 of a tensor with `count` elements. */
job_stretch job_all(size_t begin, size_t length);
job_stretch job_some(size_t begin, size_t length, size_t count);

/* Writes a rank's gradient in a step of `size` workers. */
void job_fill(float *tensor, job_stretch stretch, unsigned rank, unsigned size, unsigned step);

/* Whether these are the correct averages. */
bool job_check(const float *tensor, job_stretch stretch, unsigned size, unsigned step);

/* The sum of what was added to parameters, which start at 0. */
typedef struct job_sum {
    uint64_t base;  /* added to each */
    uint64_t slope; /* added to each, times its index modulo 16 */
} job_sum;

void job_sum_add(job_sum *sum, unsigned size, unsigned step);

/* Adds averages to parameters; checks that parameters equal the sum so far. */
void job_add(float *parameters, const float *averages, job_stretch stretch);
bool job_check_sum(const float *parameters, job_stretch stretch, const job_sum *sum);

#endif
