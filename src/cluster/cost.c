/* T(M): a line, or a curve through samples. */
#include <mgwfbp/cluster.h>

/* The first sample whose size exceeds `bytes`; `count` if none does. */
static size_t first_above(const mgw_sample *samples, size_t count, uint64_t bytes)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (samples[middle].bytes <= bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double mgw_cost_seconds(const mgw_cost *cost, uint64_t bytes)
{
    const mgw_sample *samples = cost->samples;
    size_t count = cost->sample_count;
    if (count == 0)
        return cost->a_s + cost->b_s_per_byte * (double)bytes;
    size_t above = first_above(samples, count, bytes);
    if (above == 0 || count == 1)
        return samples[0].seconds;
    const mgw_sample *right = &samples[above < count ? above : count - 1];
    const mgw_sample *left = right - 1;
    double slope = (right->seconds - left->seconds) / (double)(right->bytes - left->bytes);
    if (bytes >= right->bytes) { /* pooled samples are flat, but no network is */
        double beyond = slope > cost->b_s_per_byte ? slope : cost->b_s_per_byte;
        return right->seconds + beyond * (double)(bytes - right->bytes);
    }
    /* Rounding must not carry a point past its neighbours: the curve never falls. */
    double value = left->seconds + slope * (double)(bytes - left->bytes);
    return value < right->seconds ? value : right->seconds;
}
