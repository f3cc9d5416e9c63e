/*
 * The numbers of a replay: gradients whose averages are known, and parameters to which every
 * average is added. All are whole and small enough that nothing is rounded.
 */
#ifndef MGW_JOB_NUMBERS_H
#define MGW_JOB_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Elements of a tensor: all, or those spread over it at equal distances, some 16 to 32. */
typedef struct job_stretch {
    size_t first; /* in the tensor */
    size_t count;
    size_t distance;
} job_stretch;

/* Of elements begin .. begin+length-1 of a tensor of `count`. */
job_stretch job_all(size_t begin, size_t length);
job_stretch job_some(size_t begin, size_t length, size_t count);

/* A rank's gradient in a step, of `size` workers. */
void job_fill(float *tensor, job_stretch stretch, unsigned rank, unsigned size, unsigned step);

/* Whether these are the averages. */
bool job_check(const float *tensor, job_stretch stretch, unsigned size, unsigned step);

/* What was added to parameters, which begin at 0. */
typedef struct job_sum {
    uint64_t base;  /* to each */
    uint64_t slope; /* to each, times its index modulo 16 */
} job_sum;

void job_sum_add(job_sum *sum, unsigned size, unsigned step);

/* Adds the averages to the parameters; and whether these are what was added so far. */
void job_add(float *parameters, const float *averages, job_stretch stretch);
bool job_check_sum(const float *parameters, job_stretch stretch, const job_sum *sum);

#endif
