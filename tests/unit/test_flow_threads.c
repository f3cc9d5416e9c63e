/* The step as a state machine, with reports from several threads at once. */
#include <pthread.h>

#include "flow_steps.h"

enum { REPORTERS = 4, TENSORS = 64, STEPS = 200 };

typedef struct reporter {
    mgw_flow *flow;
    pthread_barrier_t *barrier;
    unsigned first;
    unsigned wakes;
    double *gradients; /* written by reporters, read by the driver */
} reporter;

/* Each reports its share of the tensors. */
static void *report(void *argument)
{
    reporter *r = argument;
    for (int step = 0; step < STEPS; step++) {
        pthread_barrier_wait(r->barrier);
        for (unsigned i = r->first; i < TENSORS; i += REPORTERS) {
            r->gradients[i] = step + i;
            r->wakes += mgw_flow_ready(r->flow, i, step);
        }
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

/* Four reporters at once, a driver that spins: every operation once and in order, its gradients
 * there, and one report in each that says so. */
static void test_threads(void **state)
{
    (void)state;
    static double gradients[TENSORS];
    pthread_barrier_t barrier;
    pthread_t threads[REPORTERS];
    reporter reporters[REPORTERS];
    mgw_flow *flow = make(TENSORS);
    PLAN(flow, reduce(0, 1), last(1, 20), scatter(21, 40), reduce(61, 3), gather(21, 40));
    pthread_barrier_init(&barrier, NULL, REPORTERS + 1);
    for (unsigned r = 0; r < REPORTERS; r++) {
        reporters[r] = (reporter){flow, &barrier, r, 0, gradients};
        assert_int_equal(pthread_create(&threads[r], NULL, report, &reporters[r]), 0);
    }
    for (int step = 0; step < STEPS; step++) {
        begin(flow, 0);
        pthread_barrier_wait(&barrier);
        for (size_t m = 0; m < 4; m++) {
            size_t given = MGW_NO_OPERATION;
            while (!mgw_flow_next(flow, &given))
                ;
            assert_int_equal(given, m);
            size_t count = 0;
            const mgw_operation *o = &mgw_flow_operations(flow, &count)[m];
            for (size_t i = o->first; i < o->first + o->count; i++) {
                assert_true(gradients[i] == (double)(step + (int)i));
                assert_true(mgw_flow_ready_times(flow)[i] == step);
            }
            mgw_flow_done(flow, m, 0, 1);
        }
        pthread_barrier_wait(&barrier);
        for (unsigned i = 0; i < TENSORS; i++)
            mgw_flow_updated(flow, i);
        run(flow, 4);
    }
    unsigned wakes = 0;
    for (unsigned r = 0; r < REPORTERS; r++) {
        pthread_join(threads[r], NULL);
        wakes += reporters[r].wakes;
    }
    assert_int_equal(wakes, 4 * STEPS);
    expect_no_trouble(flow);
    pthread_barrier_destroy(&barrier);
    mgw_flow_destroy(flow);
}

static void *claim_all(void *argument)
{
    reporter *r = argument;
    pthread_barrier_wait(r->barrier);
    for (unsigned i = 0; i < TENSORS; i++)
        r->wakes += mgw_flow_claim(r->flow, i);
    return NULL;
}

/* Of several that claim a tensor at once, one gets it. */
static void test_one_claim(void **state)
{
    (void)state;
    pthread_barrier_t barrier;
    pthread_t threads[REPORTERS];
    reporter reporters[REPORTERS];
    unsigned claimed = 0;
    mgw_flow *flow = make(TENSORS);
    PLAN(flow, reduce(0, TENSORS));
    begin(flow, 0);
    pthread_barrier_init(&barrier, NULL, REPORTERS);
    for (unsigned r = 0; r < REPORTERS; r++) {
        reporters[r] = (reporter){.flow = flow, .barrier = &barrier};
        assert_int_equal(pthread_create(&threads[r], NULL, claim_all, &reporters[r]), 0);
    }
    for (unsigned r = 0; r < REPORTERS; r++) {
        pthread_join(threads[r], NULL);
        claimed += reporters[r].wakes;
    }
    assert_int_equal(claimed, TENSORS);
    unsigned id = 0;
    assert_true(mgw_flow_trouble(flow, &id));
    pthread_barrier_destroy(&barrier);
    mgw_flow_destroy(flow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_claim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
