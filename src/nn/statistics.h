/* Statistics of a batch, more precise than oneDNN's. */
#ifndef MGW_NN_STATISTICS_H
#define MGW_NN_STATISTICS_H

#include <stddef.h>

/*
 * Mean and (biased) variance of each channel of `rows` pixels, summed in double: oneDNN sums in
 * float, which loses digits over a large batch.
 */
void nn_mean_variance(const float *data, size_t rows, size_t channels, float *mean,
                      float *variance);

/* Moves the running statistics (means, then variances) a tenth of the way towards the batch's. */
void nn_follow(float *running, const float *mean, const float *variance, size_t rows,
               size_t channels);

#endif
