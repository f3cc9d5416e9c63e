/* Operations and steps of a flow, in few words. */
#ifndef TESTS_FLOW_STEPS_H
#define TESTS_FLOW_STEPS_H

#include <stdbool.h>

#include "support.h"

static inline mgw_operation reduce(size_t first, size_t count)
{
    return (mgw_operation){
        .kind = MGW_ALL_REDUCE, .release = MGW_WHEN_READY, .first = first, .count = count};
}

static inline mgw_operation last(size_t first, size_t count) /* behind the backward pass */
{
    mgw_operation o = reduce(first, count);
    o.release = MGW_AFTER_BACKWARD;
    return o;
}

static inline mgw_operation scatter(size_t first, size_t count)
{
    mgw_operation o = reduce(first, count);
    o.kind = MGW_REDUCE_SCATTER;
    return o;
}

static inline mgw_operation gather(size_t first, size_t count)
{
    mgw_operation o = reduce(first, count);
    o.kind = MGW_ALL_GATHER;
    o.release = MGW_AFTER_UPDATE;
    return o;
}

static inline void adopt(mgw_flow *flow, const mgw_operation *operations, size_t count)
{
    mgw_error error = {0};
    if (mgw_flow_adopt(flow, operations, count, &error))
        fail_msg("%s", error.message);
}

static inline void begin(mgw_flow *flow, double now_s)
{
    mgw_error error = {0};
    if (mgw_flow_begin(flow, now_s, &error))
        fail_msg("%s", error.message);
}

#define PLAN(flow, ...)                                                                            \
    do {                                                                                           \
        const mgw_operation plan_[] = {__VA_ARGS__};                                               \
        adopt(flow, plan_, sizeof plan_ / sizeof *plan_);                                          \
    } while (0)

static inline mgw_flow *make(size_t tensors)
{
    mgw_flow *flow = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_flow_create(tensors, &flow, &error), MGW_OK);
    return flow;
}

static inline void expect_next(mgw_flow *flow, size_t expected)
{
    size_t operation = MGW_NO_OPERATION;
    assert_int_equal(mgw_flow_turn(flow), expected);
    assert_true(mgw_flow_next(flow, &operation));
    assert_int_equal(operation, expected);
}

static inline void expect_none(mgw_flow *flow)
{
    size_t operation = 77;
    assert_false(mgw_flow_next(flow, &operation));
    assert_int_equal(operation, 77);
}

static inline void run(mgw_flow *flow, size_t expected)
{
    expect_next(flow, expected);
    mgw_flow_done(flow, expected, 1, 2);
}

static inline void expect_no_trouble(const mgw_flow *flow)
{
    unsigned id = 0;
    assert_false(mgw_flow_trouble(flow, &id));
}

static inline void expect_trouble(const mgw_flow *flow, unsigned expected)
{
    unsigned id = ~expected;
    assert_true(mgw_flow_trouble(flow, &id));
    assert_int_equal(id, expected);
}

#endif
