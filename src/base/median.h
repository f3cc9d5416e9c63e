/* The median, and how well it is known. */
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

/* Sorts the values, of which there is at least one. */
static inline double mgw_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, mgw_compare_doubles);
    return values[count / 2];
}

/*
 * An interval that holds the median of all values that there might be, with 95%, however they are
 * distributed: from the k-th least to the k-th largest. It misses if fewer than k are below that
 * median, or above; how many are is binomial, and k the most at which either has a chance of at
 * most 2.5%. Of fewer than six values it is all of them, which may be less than 95%. They are
 * sorted, and there is at least one.
 */
static inline void mgw_median_interval(const double *values, size_t count, double *low,
                                       double *high)
{
    size_t k = 0;
    double log_chance = -(double)count * log(2); /* that k are below */
    double chance = exp(log_chance);             /* that at most k are */
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
