/* Kinds of collectives by name, and T(M) of each: a line, or a curve through samples. */
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/cluster.h>

#include "base/status.h"
#include "cluster/fit.h"

static const char *const names[] = {
#define X(constant, name) [constant] = name,
    MGW_COLLECTIVE_LIST(X)
#undef X
};

const char *mgw_collective_name(mgw_collective kind)
{
    return names[kind];
}

mgw_status mgw_collective_parse(const char *name, mgw_collective *out, mgw_error *error)
{
    char known[128] = "";
    for (size_t i = 0; i < MGW_COLLECTIVE_COUNT; i++) {
        if (!strcmp(names[i], name)) {
            *out = (mgw_collective)i;
            return MGW_OK;
        }
        strcat(strcat(known, i ? ", " : ""), names[i]);
    }
    return mgw_fail(error, MGW_ERR_ARGUMENT, "unknown collective '%.40s'; choose one of %s", name,
                    known);
}

bool mgw_collective_averages(mgw_collective kind)
{
    return kind != MGW_ALL_GATHER && kind != MGW_PULL;
}

/* The first sample whose size exceeds `bytes`; `count` if none does. */
static size_t first_above(const mgw_sample *samples, size_t count, double bytes)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((double)samples[middle].bytes <= bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double mgw_curve_at(const mgw_curve *curve, double bytes)
{
    const mgw_sample *samples = curve->samples;
    size_t count = curve->sample_count;
    if (count == 0)
        return curve->a_s + curve->b_s_per_byte * bytes;
    size_t above = first_above(samples, count, bytes);
    if (above == 0 || count == 1)
        return samples[0].seconds;
    const mgw_sample *right = &samples[above < count ? above : count - 1];
    const mgw_sample *left = right - 1;
    if (bytes >= (double)right->bytes)
        return right->seconds + mgw_curve_slope_beyond(curve) * (bytes - (double)right->bytes);
    double slope = (right->seconds - left->seconds) / (double)(right->bytes - left->bytes);
    /* Rounding must not carry a point past its neighbours: the curve never falls. */
    double value = left->seconds + slope * (bytes - (double)left->bytes);
    return value < right->seconds ? value : right->seconds;
}

double mgw_cost_seconds(const mgw_cost *cost, mgw_collective kind, uint64_t bytes)
{
    return mgw_curve_at(&cost->of[kind], (double)bytes);
}

mgw_status mgw_cost_scale(mgw_cost *cost, double factor, mgw_sample **samples, mgw_error *error)
{
    size_t count = 0;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        count += cost->of[kind].sample_count;
    *samples = count ? malloc(count * sizeof **samples) : NULL;
    if (count && !*samples)
        return mgw_fail_memory(error, "cost");
    mgw_sample *next = *samples;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        mgw_curve *curve = &cost->of[kind];
        const mgw_sample *before = curve->samples;
        curve->a_s *= factor;
        curve->b_s_per_byte *= factor;
        curve->samples = curve->sample_count ? next : NULL;
        for (size_t i = 0; i < curve->sample_count; i++)
            *next++ = (mgw_sample){before[i].bytes, before[i].seconds * factor};
    }
    return MGW_OK;
}
