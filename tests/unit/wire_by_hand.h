/*
 * The time of a message by wire format, written out: casts, T of the bytes sent, and of scales.
 */
#ifndef TESTS_WIRE_BY_HAND_H
#define TESTS_WIRE_BY_HAND_H

#include <math.h>

#include "support.h"

/* T, walked from the left. */
static inline double by_hand_curve(const mgw_curve *curve, double bytes)
{
    size_t n = curve->sample_count;
    const mgw_sample *s = curve->samples;
    if (!n)
        return curve->a_s + curve->b_s_per_byte * bytes;
    if (n == 1 || bytes <= (double)s[0].bytes)
        return s[0].seconds;
    for (size_t i = 1; i < n; i++)
        if (bytes <= (double)s[i].bytes)
            return s[i - 1].seconds + (s[i].seconds - s[i - 1].seconds) *
                                          (bytes - (double)s[i - 1].bytes) /
                                          (double)(s[i].bytes - s[i - 1].bytes);
    size_t from = n - 1;
    while (from > 0 && s[from].bytes > s[n - 1].bytes / 4)
        from--;
    double rise_s = s[n - 1].seconds - s[from].seconds;
    double slope =
        rise_s > 0 ? rise_s / (double)(s[n - 1].bytes - s[from].bytes) : curve->b_s_per_byte;
    return s[n - 1].seconds + slope * (bytes - (double)s[n - 1].bytes);
}

static inline double by_hand_wire(const mgw_cost *cost, mgw_collective kind, mgw_dtype wire,
                                  uint64_t bytes)
{
    double m = (double)bytes;
    const mgw_cast *cast = &cost->casts[wire];
    switch (wire) {
    case MGW_F32:
        return by_hand_curve(&cost->of[kind], m);
    case MGW_F16:
    case MGW_BF16:
        return by_hand_curve(&cost->of[kind], m / 2) + cast->a_s + cast->c_s_per_byte * m;
    default:
        return by_hand_curve(&cost->of[kind], m / 4) + cast->a_s + cast->c_s_per_byte * m +
               by_hand_curve(&cost->of[MGW_ALL_REDUCE], m / 1024);
    }
}

/* The least of those that are allowed; gathers are as they are. */
static inline double by_hand_least(const mgw_cost *cost, mgw_collective kind, uint64_t bytes)
{
    double least_s = INFINITY;
    if (!cost->wires || kind == MGW_ALL_GATHER || kind == MGW_PULL)
        return by_hand_curve(&cost->of[kind], (double)bytes);
    for (int wire = 0; wire < MGW_DTYPE_COUNT; wire++)
        if (cost->wires >> wire & 1)
            least_s = fmin(least_s, by_hand_wire(cost, kind, (mgw_dtype)wire, bytes));
    return least_s;
}

/* Some wires, and what casts to them take, in the units of the test. */
static inline void by_hand_random(mgw_cost *cost, double most_s, double most_per_byte, bool whole,
                                  uint64_t *state)
{
    static const mgw_dtype all[] = {MGW_F32, MGW_F16, MGW_BF16, MGW_FP8, MGW_FP8_E5M2};
    cost->wires = 0;
    for (size_t i = 0; i < 5; i++) {
        double a = whole ? (double)random_below(state, 4) / 3 : random_unit(state);
        double c = whole ? (double)random_below(state, 4) / 3 : random_unit(state);
        if (random_below(state, 3))
            cost->wires |= 1u << all[i];
        cost->casts[all[i]] = (mgw_cast){random_below(state, 4) ? a * most_s : 0,
                                         random_below(state, 4) ? c * most_per_byte : 0};
    }
}

#endif
