/* The median and its confidence interval. */
#ifndef MGW_BASE_MEDIAN_H
#define MGW_BASE_MEDIAN_H

#include <math.h>
#include <stdlib.h>

static inline int mgw_compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts the values; there must be at least one. */
static inline double mgw_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, mgw_compare_doubles);
    return values[count / 2];
}

/*
 * A 95% confidence interval of the median, for any distribution: from the k-th smallest to the k-th
 * largest value. It misses if fewer than k values are below the true median, or above it. These
 * numbers are binomial, and k is the largest at which either has a probability of at most 2.5%. For
 * fewer than six values it is the whole range, which may be less than 95%. The values are sorted,
 * and there is at least one.
 */
static inline void mgw_median_interval(const double *values, size_t count, double *low,
                                       double *high)
{
    size_t k = 0;
    double log_chance = -(double)count * log(2); /* of k values below */
    double chance = exp(log_chance);             /* of at most k values below */
    while (chance <= 0.025) {
        log_chance += log((double)(count - k) / (double)(k + 1));
        chance += exp(log_chance);
        k++;
    }
    k = k ? k : 1;
    *low = values[k - 1];
    *high = values[count - k];
}

#endif
