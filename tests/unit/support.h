/* Helpers of the unit tests: cmocka, reproducible random numbers, small traces. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mgwfbp/mgwfbp.h>

/* splitmix64 */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_bits(state) % limit;
}

/* Between 0 and 1. */
static inline double random_unit(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* A trace of f32 tensors "t0", "t1" … */
static inline mgw_trace *make_trace(double forward_s, size_t count, const mgw_tensor *tensors)
{
    char(*names)[24] = malloc(count * sizeof *names);
    const char **pointers = malloc(count * sizeof *pointers);
    assert_non_null(names);
    assert_non_null(pointers);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "t%zu", i);
        pointers[i] = names[i];
    }
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    mgw_status status =
        mgw_trace_create("test", MGW_F32, forward_s, count, pointers, tensors, &trace, &error);
    if (status)
        fail_msg("%s", error.message);
    free(pointers);
    free(names);
    return trace;
}

static inline mgw_plan *make_plan(const mgw_trace *trace, const mgw_cost *cost, const char *name)
{
    mgw_policy policy;
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_policy_parse(name, &policy, &error) ||
        mgw_plan_make(trace, cost, &policy, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* Equal but for the rounding of a few additions. */
static inline void assert_close(double actual, double expected)
{
    double scale = expected < 0 ? -expected : expected;
    double difference = actual < expected ? expected - actual : actual - expected;
    if (!(difference <= 1e-12 * (scale + 1e-300)))
        fail_msg("%.17g is not %.17g", actual, expected);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text ? text : "(null)");
}

#endif
