/* The slowest of N workers: the mean of a function of its factor. */
#ifndef MGW_SIM_STRAGGLE_H
#define MGW_SIM_STRAGGLE_H

#include <mgwfbp/outlook.h>

#include "base/status.h"

/* Evaluates a convex, piecewise linear function at `x`. */
typedef mgw_status mgw_pieces(void *context, double x, double *y, mgw_error *error);

typedef struct mgw_slowest {
    mgw_jitter_kind kind;
    double deviation;
    const double *factors; /* MEASURED: sorted */
    size_t factor_count;
    unsigned workers;
} mgw_slowest;

/* The mean of `function` at the largest of N factors, and the mean of that factor itself. */
MGW_CHECKED mgw_status mgw_slowest_mean(const mgw_slowest *slowest, mgw_pieces *function,
                                        void *context, double *mean, double *factor,
                                        mgw_error *error);

#endif
