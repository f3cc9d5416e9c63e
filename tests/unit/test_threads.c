/* "Threads: any": the same trace read, planned and drawn by several threads at once. */
#include <pthread.h>

#include "support.h"

enum { THREADS = 4, ROUNDS = 5 };

typedef struct shared {
    const mgw_trace *trace;
    const mgw_cost *cost;
    double expected_s;
    int failures[THREADS];
} shared;

typedef struct work {
    shared *common;
    int *failures;
} work;

/* Asserting is for the main thread; here failures are counted. */
static void *use_everything(void *argument)
{
    work *w = argument;
    for (int i = 0; i < ROUNDS; i++) {
        mgw_policy policy;
        mgw_plan *plan = NULL;
        mgw_timeline *timeline = NULL;
        mgw_trace *own = NULL;
        mgw_error error;
        mgw_text text;
        mgw_text_init(&text);
        if (mgw_policy_parse("optimal", &policy, &error) ||
            mgw_plan_make(w->common->trace, w->common->cost, &policy, &plan, &error) ||
            mgw_simulate(plan, w->common->trace, &timeline, &error) ||
            mgw_trace_load("resnet50-b32-fp32-h200", &own, &error) ||
            plan->iteration_s != w->common->expected_s) {
            ++*w->failures;
        } else {
            mgw_plan_write(plan, &text);
            mgw_draw_timeline_svg(timeline, &text);
            mgw_timeline_write_chrome(timeline, &text);
            mgw_draw_sizes_text(own, &text);
            *w->failures += text.failed;
        }
        mgw_text_fini(&text);
        mgw_trace_destroy(own);
        mgw_timeline_destroy(timeline);
        mgw_plan_destroy(plan);
    }
    return NULL;
}

static void threads_share_a_trace(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_cost cost = {
        .of[MGW_ALL_REDUCE] = {.a_s = 9e-4, .b_s_per_byte = 7e-10}, .workers = 16, .cluster = "c"};
    assert_int_equal(mgw_trace_load("densenet201-b64-fp32-h200", &trace, NULL), MGW_OK);
    mgw_plan *plan = make_plan(trace, &cost, "optimal");
    shared common = {.trace = trace, .cost = &cost, .expected_s = plan->iteration_s};
    pthread_t threads[THREADS];
    work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = (work){&common, &common.failures[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, use_everything, &works[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(common.failures[i], 0);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_a_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
