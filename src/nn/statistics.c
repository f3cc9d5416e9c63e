/* Batch statistics: plain loops that compilers vectorize. */
#include "nn/statistics.h"

#include <string.h>

enum { CHANNELS = 64, ROWS = 4 };

/*
 * A few channels at a time, so that their sums stay in the L1 cache. Values are taken relative to
 * the first pixel, which is as good as the mean: squares of small numbers lose no precision.
 */
static void add_up(const float *data, size_t rows, size_t stride, size_t channels, double *sum,
                   double *squares)
{
    memset(sum, 0, channels * sizeof *sum);
    memset(squares, 0, channels * sizeof *squares);
    size_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) {
        const float *row = data + r * stride;
        for (size_t c = 0; c < channels; c++) {
            double origin = data[c];
            double a = row[c] - origin;
            double b = row[stride + c] - origin;
            double d = row[2 * stride + c] - origin;
            double e = row[3 * stride + c] - origin;
            sum[c] += (a + b) + (d + e);
            squares[c] += (a * a + b * b) + (d * d + e * e);
        }
    }
    for (; r < rows; r++)
        for (size_t c = 0; c < channels; c++) {
            double a = data[r * stride + c] - (double)data[c];
            sum[c] += a;
            squares[c] += a * a;
        }
}

void nn_mean_variance(const float *data, size_t rows, size_t channels, float *mean, float *variance)
{
    for (size_t first = 0; first < channels; first += CHANNELS) {
        double sum[CHANNELS];
        double squares[CHANNELS];
        size_t count = channels - first < CHANNELS ? channels - first : CHANNELS;
        add_up(data + first, rows, channels, count, sum, squares);
        for (size_t c = 0; c < count; c++) {
            double offset = sum[c] / (double)rows;
            double spread = squares[c] / (double)rows - offset * offset;
            mean[first + c] = (float)(data[first + c] + offset);
            variance[first + c] = (float)(spread > 0 ? spread : 0);
        }
    }
}

void nn_follow(float *running, const float *mean, const float *variance, size_t rows,
               size_t channels)
{
    float unbiased = rows > 1 ? (float)rows / (float)(rows - 1) : 1;
    for (size_t c = 0; c < channels; c++) {
        running[c] += 0.1f * (mean[c] - running[c]);
        running[channels + c] += 0.1f * (variance[c] * unbiased - running[channels + c]);
    }
}
