/* The median, in one place. */
#ifndef MGW_BASE_MEDIAN_H
#define MGW_BASE_MEDIAN_H

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

#endif
