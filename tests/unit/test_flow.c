/* The step as a state machine: cases solved by hand. */
#include "flow_steps.h"

/* ---- Order and release rules ---- */

/* Gradients in any order, operations in the plan's. */
static void test_order(void **state)
{
    (void)state;
    mgw_flow *flow = make(4);
    PLAN(flow, reduce(0, 1), reduce(1, 2), reduce(3, 1));
    expect_none(flow);
    assert_int_equal(mgw_flow_turn(flow), MGW_NO_OPERATION);
    assert_false(mgw_flow_averaged(flow));
    begin(flow, 10);
    assert_int_equal(mgw_flow_turn(flow), 0);
    assert_true(mgw_flow_ready(flow, 3, 10.5)); /* complete, but not its turn */
    expect_none(flow);
    assert_false(mgw_flow_ready(flow, 2, 11));
    assert_true(mgw_flow_has(flow, 2));
    assert_false(mgw_flow_has(flow, 1));
    assert_false(mgw_flow_has(flow, 4));
    assert_true(mgw_flow_ready(flow, 0, 12));
    expect_next(flow, 0);
    expect_none(flow);
    assert_true(mgw_flow_ready(flow, 1, 13));
    expect_next(flow, 1); /* before 0 is over: that is the driver's business */
    expect_next(flow, 2);
    expect_none(flow);
    assert_int_equal(mgw_flow_turn(flow), MGW_NO_OPERATION);
    mgw_flow_done(flow, 2, 17, 18);
    mgw_flow_done(flow, 0, 14, 15);
    assert_false(mgw_flow_averaged(flow));
    mgw_flow_done(flow, 1, 15, 16);
    assert_true(mgw_flow_averaged(flow));
    expect_no_trouble(flow);

    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(flow, &count);
    assert_int_equal(count, 3);
    assert_true(operations[0].start_s == 14 && operations[0].end_s == 15);
    assert_true(operations[1].start_s == 15 && operations[1].end_s == 16);
    assert_true(operations[2].start_s == 17 && operations[2].end_s == 18);
    static const double expected_s[] = {2, 3, 1, 0.5};
    for (size_t i = 0; i < 4; i++)
        assert_true(mgw_flow_ready_times(flow)[i] == expected_s[i]);
    assert_true(mgw_flow_begun_s(flow) == 10);
    assert_int_equal(mgw_flow_step(flow), 1);
    begin(flow, 20);
    assert_int_equal(mgw_flow_step(flow), 2);
    assert_true(mgw_flow_begun_s(flow) == 20);
    assert_false(mgw_flow_has(flow, 3));
    assert_false(mgw_flow_averaged(flow));
    expect_none(flow);
    mgw_flow_destroy(flow);
}

/* Nothing before the last gradient of all is there; then everything, in order. */
static void test_after_backward(void **state)
{
    (void)state;
    mgw_flow *flow = make(3);
    PLAN(flow, last(0, 1), reduce(1, 1), last(2, 1));
    for (int step = 0; step < 3; step++) {
        begin(flow, 0);
        assert_true(mgw_flow_ready(flow, 0, 1));
        expect_none(flow);
        assert_true(mgw_flow_ready(flow, 1, 2));
        expect_none(flow); /* it is complete, but its turn has not come */
        assert_true(mgw_flow_ready(flow, 2, 3));
        for (size_t m = 0; m < 3; m++)
            run(flow, m);
        assert_true(mgw_flow_averaged(flow));
    }
    mgw_flow_destroy(flow);
}

/* The parts of `ready`: between arrive and release the operation does not start. */
static void test_parts(void **state)
{
    (void)state;
    mgw_flow *flow = make(3);
    PLAN(flow, last(0, 2), reduce(2, 1));
    begin(flow, 5);
    assert_true(mgw_flow_claim(flow, 0));
    assert_int_equal(mgw_flow_arrive(flow, 0, 6), MGW_NO_OPERATION);
    assert_true(mgw_flow_claim(flow, 2));
    assert_int_equal(mgw_flow_arrive(flow, 2, 6), 1);
    assert_true(mgw_flow_claim(flow, 1));
    assert_int_equal(mgw_flow_arrive(flow, 1, 7), 0);
    expect_none(flow);
    mgw_flow_release(flow, 0);
    expect_none(flow); /* all are there, but 1 is not released */
    mgw_flow_release(flow, 1);
    run(flow, 0);
    run(flow, 1);
    assert_true(mgw_flow_averaged(flow));
    expect_no_trouble(flow);
    mgw_flow_destroy(flow);
}

/* ---- Reports that are not due ---- */

static void test_not_due(void **state)
{
    (void)state;
    mgw_flow *flow = make(2);
    assert_false(mgw_flow_ready(flow, 1, 0)); /* before there is anything */
    expect_trouble(flow, 1);
    assert_false(mgw_flow_updated(flow, 0));
    expect_trouble(flow, 0);
    mgw_flow_destroy(flow);

    flow = make(2);
    PLAN(flow, reduce(0, 2));
    assert_false(mgw_flow_claim(flow, 1)); /* outside of a step */
    expect_trouble(flow, 1);
    assert_false(mgw_flow_has(flow, 1));
    begin(flow, 0);
    assert_true(mgw_flow_claim(flow, 1));
    assert_false(mgw_flow_claim(flow, 1)); /* twice */
    assert_int_equal(mgw_flow_arrive(flow, 1, 1), MGW_NO_OPERATION);
    assert_false(mgw_flow_ready(flow, 1, 1));
    assert_false(mgw_flow_ready(flow, 2, 1)); /* unknown */
    expect_trouble(flow, 2);
    assert_false(mgw_flow_ready(flow, UINT32_MAX, 1));
    unsigned id = 0;
    assert_true(mgw_flow_trouble(flow, &id));
    expect_none(flow); /* none of these counts for 0 */
    assert_true(mgw_flow_ready(flow, 0, 1));
    run(flow, 0);
    assert_false(mgw_flow_ready(flow, 0, 2)); /* behind the step */
    expect_trouble(flow, 0);
    begin(flow, 3);
    assert_true(mgw_flow_claim(flow, 0)); /* once per step */
    mgw_flow_destroy(flow);
}

/* An update comes once, behind the gradient that it is made of. */
static void test_updates_not_due(void **state)
{
    (void)state;
    mgw_flow *flow = make(2);
    PLAN(flow, scatter(0, 2), gather(0, 2));
    begin(flow, 0);
    assert_false(mgw_flow_updated(flow, 1)); /* its gradient was not there */
    expect_trouble(flow, 1);
    mgw_flow_ready(flow, 0, 0);
    mgw_flow_ready(flow, 1, 0);
    run(flow, 0);
    assert_false(mgw_flow_updated(flow, 2)); /* unknown */
    expect_trouble(flow, 2);
    assert_false(mgw_flow_updated(flow, 0));
    assert_false(mgw_flow_updated(flow, 0)); /* twice */
    expect_trouble(flow, 0);
    expect_none(flow);
    assert_true(mgw_flow_updated(flow, 1));
    run(flow, 1);
    begin(flow, 1);
    assert_false(mgw_flow_updated(flow, 1));
    expect_trouble(flow, 1);
    mgw_flow_destroy(flow);
}

/* ---- All-gathers ---- */

/* Gathers of a step stay open while the next one begins; what is needed waits for its own. */
static void test_gathers_over_begin(void **state)
{
    (void)state;
    mgw_flow *flow = make(3);
    PLAN(flow, scatter(0, 1), reduce(1, 1), scatter(2, 1), gather(2, 1), gather(0, 1));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(mgw_flow_need(flow, i), MGW_NO_OPERATION);
    begin(flow, 0);
    for (int step = 1; step <= 4; step++) {
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(mgw_flow_need(flow, i), MGW_NO_OPERATION);
        for (unsigned i = 0; i < 3; i++)
            assert_true(mgw_flow_ready(flow, i, step));
        for (size_t m = 0; m < 3; m++)
            run(flow, m);
        assert_true(mgw_flow_averaged(flow)); /* gathers are no averages */
        expect_none(flow);
        assert_true(mgw_flow_updated(flow, 0));
        expect_none(flow); /* it is 2's turn */
        assert_false(mgw_flow_updated(flow, 1));
        assert_true(mgw_flow_updated(flow, 2));
        expect_next(flow, 3);
        begin(flow, step);
        assert_int_equal(mgw_flow_need(flow, 2), 3); /* handed out is not over */
        assert_int_equal(mgw_flow_need(flow, 0), 4);
        assert_int_equal(mgw_flow_need(flow, 1), MGW_NO_OPERATION);
        mgw_flow_done(flow, 3, 1, 2);
        assert_int_equal(mgw_flow_need(flow, 2), MGW_NO_OPERATION);
        assert_int_equal(mgw_flow_need(flow, 0), 4);
        assert_int_equal(mgw_flow_turn(flow), 4);
        run(flow, 4);
        assert_int_equal(mgw_flow_turn(flow), 0);
        expect_none(flow); /* of the new step: nothing is ready */
    }
    expect_no_trouble(flow);
    mgw_flow_destroy(flow);
}

/* An update during the next forward pass belongs to the step of its gradient. */
static void test_updates_over_begin(void **state)
{
    (void)state;
    mgw_flow *flow = make(1);
    PLAN(flow, scatter(0, 1), gather(0, 1));
    begin(flow, 0);
    for (int step = 1; step <= 6; step++) {
        bool late = step % 3;
        assert_true(mgw_flow_ready(flow, 0, 0));
        run(flow, 0);
        if (!late)
            assert_true(mgw_flow_updated(flow, 0));
        begin(flow, 0);
        assert_int_equal(mgw_flow_need(flow, 0), 1);
        if (late)
            assert_true(mgw_flow_updated(flow, 0));
        run(flow, 1);
        assert_int_equal(mgw_flow_need(flow, 0), MGW_NO_OPERATION);
    }
    expect_no_trouble(flow);
    mgw_flow_destroy(flow);
}

/* An update beside the backward pass: parameters are overwritten behind it only. */
static void test_gather_waits_for_backward(void **state)
{
    (void)state;
    mgw_flow *flow = make(2);
    PLAN(flow, scatter(0, 1), gather(0, 1), reduce(1, 1));
    for (int step = 0; step < 3; step++) {
        begin(flow, 0);
        assert_true(mgw_flow_ready(flow, 0, 1));
        run(flow, 0);
        assert_true(mgw_flow_updated(flow, 0));
        expect_none(flow);
        assert_true(mgw_flow_ready(flow, 1, 2));
        run(flow, 1);
        run(flow, 2);
    }
    expect_no_trouble(flow);
    mgw_flow_destroy(flow);
}

/* Those of the steps before, and of this one: over the begin of the next, and under another plan.
 */
static void test_gathered(void **state)
{
    (void)state;
    mgw_flow *flow = make(2);
    assert_true(mgw_flow_gathered(flow, true) && mgw_flow_gathered(flow, false));
    PLAN(flow, scatter(0, 2), gather(1, 1), gather(0, 1));
    begin(flow, 0);
    for (int step = 0; step < 3; step++) {
        assert_false(mgw_flow_gathered(flow, true));
        assert_int_equal(mgw_flow_gathered(flow, false), step == 0);
        for (size_t i = 1; step > 0 && i < 3; i++) { /* those of the step before */
            assert_false(mgw_flow_gathered(flow, false));
            run(flow, i);
        }
        assert_true(mgw_flow_gathered(flow, false));
        mgw_flow_ready(flow, 0, 1);
        mgw_flow_ready(flow, 1, 1);
        run(flow, 0);
        mgw_flow_updated(flow, 1);
        mgw_flow_updated(flow, 0);
        assert_false(mgw_flow_gathered(flow, true));
        if (step < 2)
            begin(flow, 1);
    }
    run(flow, 1);
    assert_false(mgw_flow_gathered(flow, true));
    run(flow, 2);
    assert_true(mgw_flow_gathered(flow, true));
    PLAN(flow, reduce(0, 2));
    begin(flow, 2);
    assert_true(mgw_flow_gathered(flow, true) && mgw_flow_gathered(flow, false));
    mgw_flow_destroy(flow);
}

/* ---- Plans ---- */

static void expect_refused(size_t count, const mgw_operation *operations, const char *part)
{
    mgw_error error = {0};
    mgw_flow *flow = make(4);
    assert_int_equal(mgw_flow_adopt(flow, operations, count, &error), MGW_ERR_INPUT);
    assert_contains(error.message, part);
    assert_int_equal(mgw_flow_begin(flow, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "no plan");
    mgw_flow_destroy(flow);
}

#define REFUSED(part, ...)                                                                         \
    do {                                                                                           \
        const mgw_operation plan_[] = {__VA_ARGS__};                                               \
        expect_refused(sizeof plan_ / sizeof *plan_, plan_, part);                                 \
    } while (0)

static mgw_operation with(mgw_operation o, mgw_collective kind, mgw_release release)
{
    o.kind = kind;
    o.release = release;
    return o;
}

static void test_plans_that_are_refused(void **state)
{
    (void)state;
    const mgw_operation whole = reduce(0, 4);
    expect_refused(0, &whole, "0 operations for 4 tensors");
    REFUSED("9 operations for 4 tensors", reduce(0, 1), reduce(0, 1), reduce(0, 1), reduce(0, 1),
            reduce(0, 1), reduce(0, 1), reduce(0, 1), reduce(0, 1), reduce(0, 1));
    REFUSED("operation 1 has tensors 0 to 0 of 4", reduce(0, 0));
    REFUSED("operation 1 has tensors", reduce(0, 5));
    REFUSED("operation 2 has tensors", reduce(0, 3), reduce(3, 2));
    REFUSED("operation 1 has tensors", reduce(SIZE_MAX, 2));
    REFUSED("operation 1 has tensors", reduce(2, SIZE_MAX));
}

static void test_kinds_that_are_refused(void **state)
{
    (void)state;
    const mgw_operation whole = reduce(0, 4);
    REFUSED("operation 1: all-gathers are", with(whole, MGW_PUSH, MGW_WHEN_READY));
    REFUSED("operation 1: all-gathers are", with(whole, MGW_PULL, MGW_WHEN_READY));
    REFUSED("operation 1: all-gathers are", with(whole, MGW_ALL_REDUCE, MGW_AFTER_UPDATE));
    REFUSED("operation 1: all-gathers are", with(whole, MGW_REDUCE_SCATTER, MGW_AFTER_UPDATE));
    REFUSED("operation 1: all-gathers are",
            with(whole, MGW_ALL_REDUCE, (mgw_release)MGW_RELEASE_COUNT));
    REFUSED("operation 2: all-gathers are", scatter(0, 4),
            with(whole, MGW_ALL_GATHER, MGW_WHEN_READY));
}

/* Averages that a plan gathers after the backward pass are gathered as parameters, after their
 * update. */
static void test_gathers_wait_for_updates(void **state)
{
    (void)state;
    mgw_error error = {0};
    mgw_flow *flow = make(2);
    const mgw_operation whole = reduce(0, 2);
    const mgw_operation plan[] = {with(whole, MGW_REDUCE_SCATTER, MGW_WHEN_READY),
                                  with(whole, MGW_ALL_GATHER, MGW_AFTER_BACKWARD)};
    size_t operation = 0;
    assert_int_equal(mgw_flow_adopt(flow, plan, 2, &error), MGW_OK);
    assert_int_equal(mgw_flow_begin(flow, 0, &error), MGW_OK);
    mgw_flow_ready(flow, 0, 1);
    mgw_flow_ready(flow, 1, 2);
    assert_true(mgw_flow_next(flow, &operation));
    assert_int_equal(operation, 0);
    mgw_flow_done(flow, 0, 2, 3);
    assert_false(mgw_flow_updated(flow, 0));
    assert_false(mgw_flow_next(flow, &operation));
    assert_true(mgw_flow_updated(flow, 1));
    assert_true(mgw_flow_next(flow, &operation));
    assert_int_equal(operation, 1);
    mgw_flow_destroy(flow);
}

static void test_tensors_that_are_refused(void **state)
{
    (void)state;
    REFUSED("tensor 2 is in operations 1 and 2", reduce(0, 3), reduce(2, 2));
    REFUSED("tensor 1 is in operations 2 and 3", scatter(0, 4), gather(0, 2), gather(1, 3));
    REFUSED("tensor 3 is in no operation", reduce(0, 3));
    REFUSED("operation 2 gathers tensor 0, which no earlier operation scatters", reduce(0, 4),
            gather(0, 4));
    REFUSED("operation 2 gathers tensor 2, which no earlier", scatter(0, 2), gather(0, 4),
            scatter(2, 2));
    REFUSED("tensor 3 is scattered but not gathered", scatter(0, 4), gather(0, 3));
}

static void test_sizes_that_are_refused(void **state)
{
    (void)state;
    mgw_flow *flow = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_flow_create(0, &flow, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_flow_create((size_t)UINT32_MAX, &flow, &error), MGW_ERR_ARGUMENT);
    assert_null(flow);
    mgw_flow_destroy(NULL);
}

/* A new plan counts from the next begin on; the last one that was adopted before it. */
static void test_adoption(void **state)
{
    (void)state;
    mgw_error error = {0};
    mgw_flow *flow = make(4);
    size_t count = 7;
    assert_null(mgw_flow_operations(flow, &count));
    assert_int_equal(count, 0);
    PLAN(flow, reduce(0, 4));
    PLAN(flow, reduce(0, 3), reduce(3, 1));
    assert_null(mgw_flow_operations(flow, &count));
    begin(flow, 0);
    mgw_flow_operations(flow, &count);
    assert_int_equal(count, 2);
    PLAN(flow, reduce(0, 1), reduce(1, 1), reduce(2, 1), reduce(3, 1));
    const mgw_operation bad = reduce(0, 5);
    assert_int_equal(mgw_flow_adopt(flow, &bad, 1, &error), MGW_ERR_INPUT); /* changes nothing */
    mgw_flow_operations(flow, &count);
    assert_int_equal(count, 2);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(mgw_flow_ready(flow, i, 0), i >= 2);
    run(flow, 0);
    run(flow, 1);
    begin(flow, 0);
    mgw_flow_operations(flow, &count);
    assert_int_equal(count, 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(mgw_flow_ready(flow, i, 0));
        run(flow, i);
    }
    begin(flow, 0); /* and it stays */
    mgw_flow_operations(flow, &count);
    assert_int_equal(count, 4);
    mgw_flow_destroy(flow);
}

/* What is open of the plan before must be over first; then the new one needs nothing of it. */
static void test_adoption_waits_for_gathers(void **state)
{
    (void)state;
    mgw_error error = {0};
    mgw_flow *flow = make(2);
    PLAN(flow, scatter(0, 2), gather(0, 2));
    begin(flow, 0);
    mgw_flow_ready(flow, 0, 0);
    assert_int_equal(mgw_flow_begin(flow, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "gradients of step 1 are not averaged yet");
    mgw_flow_ready(flow, 1, 0);
    run(flow, 0);
    PLAN(flow, scatter(0, 1), scatter(1, 1), gather(1, 1), gather(0, 1));
    assert_int_equal(mgw_flow_begin(flow, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "operations of the previous one are open");
    mgw_flow_updated(flow, 0);
    mgw_flow_updated(flow, 1);
    expect_next(flow, 1);
    assert_int_equal(mgw_flow_begin(flow, 0, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "operations of the previous one are open");
    mgw_flow_done(flow, 1, 1, 2);
    begin(flow, 0);
    assert_int_equal(mgw_flow_step(flow), 2);
    assert_int_equal(mgw_flow_need(flow, 0), MGW_NO_OPERATION);
    assert_int_equal(mgw_flow_need(flow, 1), MGW_NO_OPERATION);
    mgw_flow_ready(flow, 0, 0);
    mgw_flow_ready(flow, 1, 0);
    run(flow, 0);
    run(flow, 1);
    begin(flow, 0);
    assert_int_equal(mgw_flow_need(flow, 0), 3);
    assert_int_equal(mgw_flow_need(flow, 1), 2);
    mgw_flow_destroy(flow);
}

/* ---- Several reports in one call ---- */

static void test_several_at_once(void **unused)
{
    (void)unused;
    mgw_flow *flow = make(4);
    PLAN(flow, reduce(0, 2), reduce(2, 2));
    assert_int_equal(mgw_flow_plans(flow), 0); /* it comes into force with a step */
    begin(flow, 10);
    assert_int_equal(mgw_flow_plans(flow), 1);
    const double at_s[] = {11, 12, 13, 14}; /* by tensor */
    const unsigned some[] = {3, 0};
    size_t operation = 9;
    assert_false(mgw_flow_ready_all(flow, some, 2, at_s));
    assert_false(mgw_flow_next(flow, &operation));
    const unsigned rest[] = {1, 2};
    assert_true(mgw_flow_ready_all(flow, rest, 2, at_s));
    for (size_t i = 0; i < 2; i++) {
        assert_true(mgw_flow_next(flow, &operation));
        assert_int_equal(operation, i);
        mgw_flow_done(flow, i, 4, 5);
    }
    for (size_t i = 0; i < 4; i++)
        assert_true(mgw_flow_ready_times(flow)[i] == at_s[i] - 10);
    unsigned id = 9;
    assert_false(mgw_flow_trouble(flow, &id));
    begin(flow, 20); /* the same plan */
    assert_int_equal(mgw_flow_plans(flow), 1);
    const unsigned twice[] = {2, 2};
    assert_false(mgw_flow_ready_all(flow, twice, 2, at_s));
    assert_true(mgw_flow_trouble(flow, &id));
    assert_int_equal(id, 2);
    mgw_flow_destroy(flow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_after_backward),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_not_due),
        cmocka_unit_test(test_updates_not_due),
        cmocka_unit_test(test_gathers_over_begin),
        cmocka_unit_test(test_updates_over_begin),
        cmocka_unit_test(test_gather_waits_for_backward),
        cmocka_unit_test(test_gathered),
        cmocka_unit_test(test_plans_that_are_refused),
        cmocka_unit_test(test_kinds_that_are_refused),
        cmocka_unit_test(test_gathers_wait_for_updates),
        cmocka_unit_test(test_tensors_that_are_refused),
        cmocka_unit_test(test_sizes_that_are_refused),
        cmocka_unit_test(test_adoption),
        cmocka_unit_test(test_adoption_waits_for_gathers),
        cmocka_unit_test(test_several_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
