/* Timelines, scaling and plan files, against numbers solved by hand. */
#include <math.h>

#include "support.h"

/* Ready at 2, 3, 5 with 4, 8 and 4 bytes; T(M) = 1 + M/4; forward 1. */
static mgw_trace *small_trace(void)
{
    mgw_tensor tensors[] = {
        {1, 1, MGW_TIME_UNKNOWN}, {2, 1, MGW_TIME_UNKNOWN}, {1, 2, MGW_TIME_UNKNOWN}};
    return make_trace(1, 3, tensors);
}

static const mgw_cost small_cost = {
    .of[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25}, .workers = 8, .cluster = "c"};

static mgw_timeline *simulate(const mgw_plan *plan, const mgw_trace *trace)
{
    mgw_timeline *timeline = NULL;
    mgw_error error = {0};
    if (mgw_simulate(plan, trace, &timeline, &error))
        fail_msg("%s", error.message);
    return timeline;
}

/* Messages at 2-4, 4-7, 7-9: of 7 s, 3 are hidden behind computation that ends at 5. */
static void a_timeline_by_hand(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace();
    mgw_plan *plan = make_plan(trace, &small_cost, "wfbp");
    mgw_timeline *timeline = simulate(plan, trace);
    static const struct {
        mgw_span_kind kind;
        double start_s, end_s;
    } expected[] = {{MGW_SPAN_FORWARD, 0, 1},  {MGW_SPAN_BACKWARD, 1, 2}, {MGW_SPAN_BACKWARD, 2, 3},
                    {MGW_SPAN_BACKWARD, 3, 5}, {MGW_SPAN_MESSAGE, 2, 4},  {MGW_SPAN_MESSAGE, 4, 7},
                    {MGW_SPAN_MESSAGE, 7, 9}};
    assert_int_equal(timeline->span_count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < timeline->span_count; i++) {
        assert_int_equal(timeline->spans[i].kind, expected[i].kind);
        assert_close(timeline->spans[i].start_s, expected[i].start_s);
        assert_close(timeline->spans[i].end_s, expected[i].end_s);
    }
    assert_close(timeline->spans[5].ready_s, 3);
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    assert_close(stats.iteration_s, 9);
    assert_close(stats.compute_s, 5);
    assert_close(stats.exposed_s, 4);
    assert_close(stats.communication_s, 7);
    assert_close(stats.overlap, 3.0 / 7);
    assert_int_equal(stats.messages, 3);
    assert_close(mgw_efficiency(plan), 5.0 / 9);
    assert_close(mgw_speedup(plan), 40.0 / 9);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* Four tensors of 4, 8, 4 and 12 bytes, ready at 4, 5, 6, 8; the forward pass takes 3. */
static mgw_trace *needed_trace(double first, double second, double third, double fourth)
{
    mgw_tensor tensors[] = {{1, 1, first}, {2, 1, second}, {1, 1, third}, {3, 2, fourth}};
    return make_trace(3, 4, tensors);
}

/* All-reduces take 1 + M/4, the halves half of it. */
static const mgw_cost halves_cost = {
    .of = {[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25},
           [MGW_REDUCE_SCATTER] = {.a_s = 0.5, .b_s_per_byte = 0.125},
           [MGW_ALL_GATHER] = {.a_s = 0.5, .b_s_per_byte = 0.125}},
    .workers = 4,
    .cluster = "c"};

static mgw_plan *plan_halves(const mgw_trace *trace)
{
    static const mgw_operation operations[] = {
        {.kind = MGW_ALL_REDUCE, .first = 0, .count = 1},
        {.kind = MGW_REDUCE_SCATTER, .first = 1, .count = 3},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 3, .count = 1},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 1, .count = 2}};
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_from_operations(trace, &halves_cost, "test", operations, 4, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

typedef struct expected_span {
    mgw_span_kind kind;
    double start_s, end_s;
    size_t first, count;
} expected_span;

static void assert_spans(const mgw_timeline *timeline, const expected_span *expected, size_t count)
{
    assert_int_equal(timeline->span_count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(timeline->spans[i].kind, expected[i].kind);
        assert_close(timeline->spans[i].start_s, expected[i].start_s);
        assert_close(timeline->spans[i].end_s, expected[i].end_s);
        assert_int_equal(timeline->spans[i].first, expected[i].first);
        assert_int_equal(timeline->spans[i].count, expected[i].count);
    }
}

/*
 * {1} at 4-6; {2, 3, 4} scattered at 8-11.5, {4} gathered until 13.5, {2, 3} until 15.5. The next
 * pass begins at 8 and needs {4} at once, then {3} after 1 s, at 14.5: it ends 2 s later, at 17.5.
 */
static void two_passes_by_hand(void **unused)
{
    (void)unused;
    mgw_trace *trace = needed_trace(2.5, 2, 1, 0);
    mgw_plan *plan = plan_halves(trace);
    mgw_timeline *timeline = simulate(plan, trace);
    static const expected_span expected[] = {{MGW_SPAN_FORWARD, 0, 3, 0, 0},
                                             {MGW_SPAN_BACKWARD, 3, 4, 0, 1},
                                             {MGW_SPAN_BACKWARD, 4, 5, 1, 1},
                                             {MGW_SPAN_BACKWARD, 5, 6, 2, 1},
                                             {MGW_SPAN_BACKWARD, 6, 8, 3, 1},
                                             {MGW_SPAN_MESSAGE, 4, 6, 0, 1},
                                             {MGW_SPAN_REDUCE_SCATTER, 8, 11.5, 1, 3},
                                             {MGW_SPAN_ALL_GATHER, 11.5, 13.5, 3, 1},
                                             {MGW_SPAN_ALL_GATHER, 13.5, 15.5, 1, 2},
                                             {MGW_SPAN_STALL, 8, 13.5, 3, 1},
                                             {MGW_SPAN_NEXT_FORWARD, 13.5, 14.5, 0, 0},
                                             {MGW_SPAN_STALL, 14.5, 15.5, 2, 1},
                                             {MGW_SPAN_NEXT_FORWARD, 15.5, 17.5, 0, 0}};
    assert_spans(timeline, expected, sizeof expected / sizeof *expected);
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    assert_close(stats.iteration_s, 14.5);
    assert_close(stats.compute_s, 8);
    assert_close(stats.stalled_s, 6.5);
    assert_close(stats.exposed_s, 6.5);
    assert_close(stats.end_s, 17.5);
    assert_close(stats.communication_s, 2 + 3.5 + 2 + 2);
    assert_close(stats.overlap, 3 / 9.5); /* the all-reduce, and 1 s of the last gather */
    assert_int_equal(stats.messages, 4);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* Where nothing is waited for, the pass follows as if there were no gathers. */
static void a_pass_without_stalls(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{1, 10, 20}, {1, 10, 15}};
    mgw_trace *trace = make_trace(20, 2, tensors);
    static const mgw_operation operations[] = {
        {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 2}};
    mgw_plan *plan = NULL;
    assert_int_equal(
        mgw_plan_from_operations(trace, &halves_cost, "test", operations, 2, &plan, NULL), MGW_OK);
    mgw_timeline *timeline = simulate(plan, NULL);
    static const expected_span expected[] = {{MGW_SPAN_FORWARD, 0, 20, 0, 0},
                                             {MGW_SPAN_BACKWARD, 20, 40, 0, 2},
                                             {MGW_SPAN_REDUCE_SCATTER, 40, 41.5, 0, 2},
                                             {MGW_SPAN_ALL_GATHER, 41.5, 43, 0, 2},
                                             {MGW_SPAN_NEXT_FORWARD, 40, 60, 0, 0}};
    assert_spans(timeline, expected, sizeof expected / sizeof *expected);
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    assert_true(stats.iteration_s == 40 && stats.exposed_s == 0 && stats.overlap == 1);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* Stalls of the step's own forward pass, as an engine measures them, count the same. */
static void stalls_in_front(void **unused)
{
    (void)unused;
    mgw_span spans[] = {{.kind = MGW_SPAN_STALL, .start_s = 0, .end_s = 2, .count = 1},
                        {.kind = MGW_SPAN_FORWARD, .start_s = 2, .end_s = 4},
                        {.kind = MGW_SPAN_BACKWARD, .start_s = 4, .end_s = 9},
                        {.kind = MGW_SPAN_REDUCE_SCATTER, .start_s = 8, .end_s = 10, .count = 1},
                        {.kind = MGW_SPAN_ALL_GATHER, .start_s = 10, .end_s = 13, .count = 1}};
    mgw_timeline timeline = {.spans = spans, .span_count = 5, .period_s = 10};
    mgw_timeline_stats stats = mgw_timeline_measure(&timeline);
    assert_close(stats.iteration_s, 10);
    assert_close(stats.compute_s, 7);
    assert_close(stats.exposed_s, 3);
    assert_close(stats.stalled_s, 2);
    assert_close(stats.overlap, 2.0 / 5);
}

/* A plan file need not say where the pass waits: how long a step takes is known all the same. */
static void a_file_without_stalls(void **unused)
{
    (void)unused;
    static const char text[] =
        "{\"format\": \"mgwfbp-plan-2\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "
        "\"workers\": 2, \"operations\": [{\"kind\": \"reduce-scatter\", \"release\": "
        "\"when-ready\", \"tensors\": [\"a\"], \"bytes\": 4, \"start_s\": 1, \"end_s\": 2}, "
        "{\"kind\": \"all-gather\", \"release\": \"after-update\", \"tensors\": [\"a\"], "
        "\"bytes\": 4, \"start_s\": 2, \"end_s\": 3}], \"compute_s\": 1, \"iteration_s\": 2.5, "
        "\"exposed_s\": 1.5, \"lower_bound_s\": 2}";
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_parse("p.json", text, strlen(text), &plan, &error))
        fail_msg("%s", error.message);
    mgw_timeline *timeline = simulate(plan, NULL);
    static const expected_span expected[] = {{MGW_SPAN_BACKWARD, 0, 1, 0, 1},
                                             {MGW_SPAN_REDUCE_SCATTER, 1, 2, 0, 1},
                                             {MGW_SPAN_ALL_GATHER, 2, 3, 0, 1}};
    assert_spans(timeline, expected, sizeof expected / sizeof *expected);
    mgw_timeline_stats stats = mgw_timeline_measure(timeline);
    assert_true(stats.iteration_s == 2.5 && stats.exposed_s == 1.5 && stats.end_s == 3);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
}

/* The stalls of any plan of halves add up, and what is not a stall is the two passes. */
static void stalls_add_up(void **unused)
{
    (void)unused;
    uint64_t random = 1;
    for (unsigned n = 1; n <= 500; n++) {
        double needed_s[4];
        for (size_t i = 0; i < 4; i++)
            needed_s[i] = random_below(&random, 7) == 0 ? MGW_NEVER_NEEDED
                                                        : (double)random_below(&random, 13) / 4.0;
        mgw_trace *trace = needed_trace(needed_s[0], needed_s[1], needed_s[2], needed_s[3]);
        for (size_t i = 0; i < 4; i++)
            trace->tensors[i].backward_s = (double)random_below(&random, 9);
        mgw_plan *plan = plan_halves(trace);
        mgw_timeline *timeline = simulate(plan, n % 2 ? trace : NULL);
        mgw_timeline_stats stats = mgw_timeline_measure(timeline);
        double pass_s = 0;
        for (size_t i = 0; i < timeline->span_count; i++)
            if (timeline->spans[i].kind == MGW_SPAN_NEXT_FORWARD)
                pass_s += timeline->spans[i].end_s - timeline->spans[i].start_s;
        assert_close(pass_s, trace->forward_s);
        assert_close(stats.compute_s + stats.stalled_s, stats.iteration_s);
        assert_true(stats.iteration_s == plan->iteration_s);
        assert_true(stats.exposed_s == plan->exposed_s);
        assert_close(stats.end_s, plan->iteration_s + plan->forward_s);
        mgw_timeline_destroy(timeline);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/* For every policy: statistics of the timeline and the plan's own numbers are the same. */
static void timelines_agree_with_plans(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_cost cost;
    assert_int_equal(mgw_trace_load("resnet50-b32-fp32-h200", &trace, NULL), MGW_OK);
    assert_int_equal(mgw_cluster_load("paper-3-56gbib", &cluster, NULL), MGW_OK);
    mgw_cluster_cost(cluster, &cost);
    size_t count = 0;
    const mgw_policy *policies = mgw_policy_all(&count);
    for (size_t i = 0; i < count; i++) {
        char name[MGW_POLICY_NAME_MAX];
        mgw_plan *plan = make_plan(trace, &cost, mgw_policy_name(&policies[i], name));
        for (int with_trace = 0; with_trace < 2; with_trace++) {
            mgw_timeline *timeline = simulate(plan, with_trace ? trace : NULL);
            mgw_timeline_stats stats = mgw_timeline_measure(timeline);
            assert_true(stats.iteration_s == plan->iteration_s);
            assert_true(stats.compute_s == plan->compute_s);
            assert_true(stats.exposed_s == plan->exposed_s);
            assert_int_equal(stats.messages, plan->operation_count);
            assert_true(stats.overlap >= 0 && stats.overlap <= 1);
            mgw_timeline_destroy(timeline);
        }
        mgw_plan_destroy(plan);
    }
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

static void plan_files_read_back(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace();
    mgw_plan *plan = make_plan(trace, &small_cost, "ddp:4B,8B");
    mgw_plan *again = NULL;
    mgw_error error = {0};
    mgw_text text;
    mgw_text_init(&text);
    mgw_plan_write(plan, &text);
    if (mgw_plan_parse("p.json", text.data, text.size, &again, &error))
        fail_msg("%s", error.message);
    assert_string_equal(again->policy, "ddp:4B,8B");
    assert_string_equal(again->model, "test");
    assert_string_equal(again->cluster, "c");
    assert_int_equal(again->workers, 8);
    assert_int_equal(again->operation_count, plan->operation_count);
    for (size_t m = 0; m < plan->operation_count; m++)
        assert_memory_equal(&again->operations[m], &plan->operations[m], sizeof *plan->operations);
    assert_string_equal(mgw_plan_tensor_name(again, 2), "t2");
    assert_true(again->forward_s == 1);
    assert_true(again->lower_bound_s == plan->lower_bound_s);
    /* A plan that was read can be put on the trace again. */
    assert_int_equal(mgw_plan_time(again, trace, &small_cost, &error), MGW_OK);
    assert_true(again->iteration_s == plan->iteration_s);
    mgw_plan_destroy(again);
    mgw_plan_destroy(plan);
    mgw_text_fini(&text);
    mgw_trace_destroy(trace);
}

#define PLAN(messages)                                                                             \
    "{\"format\": \"mgwfbp-plan-1\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "    \
    "\"workers\": 2, \"messages\": [" messages "], \"compute_s\": 1, \"iteration_s\": 3, "         \
    "\"exposed_s\": 2, \"lower_bound_s\": 2}"
#define MESSAGE(name, start, end)                                                                  \
    "{\"tensors\": [\"" name "\"], \"bytes\": 4, \"start_s\": " start ", \"end_s\": " end "}"

static void bad_plans(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *message; /* null: it is good */
    } cases[] = {
        {PLAN(MESSAGE("a", "1", "2") "," MESSAGE("b", "2", "3")), NULL},
        {"{\"format\": \"mgwfbp-plan-1\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "
         "\"workers\": 2, \"messages\": [" MESSAGE(
             "a", "1", "2") "], \"compute_s\": 10, "
                            "\"iteration_s\": 2, \"exposed_s\": 0, \"lower_bound_s\": 2}",
         "iteration_s: must not be below compute_s"},
        {"{\"format\": \"mgwfbp-plan-1\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "
         "\"workers\": 2, \"messages\": [" MESSAGE(
             "a", "1", "2") "], \"compute_s\": 1, "
                            "\"iteration_s\": 2, \"exposed_s\": 99, \"lower_bound_s\": 2}",
         "exposed_s: must be iteration_s minus compute_s"},
        {PLAN("{\"tensors\": [\"a\"], \"bytes\": 4, \"ready_s\": 2, \"start_s\": 1, \"end_s\": 3}"),
         "messages[0].ready_s: must not be after start_s"},
        {PLAN(""), "messages: must not be empty"},
        {PLAN("3"), "messages[0]: must be an object"},
        {PLAN("{\"tensors\": []}"), "messages[0].tensors: must not be empty"},
        {PLAN("{\"tensors\": [1]}"), "element 0 must be a string"},
        {PLAN("{\"tensors\": [\"a\"]}"), "messages[0].bytes: missing"},
        {PLAN(MESSAGE("a", "2", "1")), "messages[0].end_s: must not be before start_s"},
        {PLAN(MESSAGE("a", "1", "2.5") "," MESSAGE("b", "2", "3")), "messages[1].start_s"},
        {PLAN(MESSAGE("a", "1", "2") "," MESSAGE("a", "2", "3")), "'a' is averaged twice"},
        {PLAN(MESSAGE("a", "1", "2")), "iteration_s: must be the end of the last operation"},
        {PLAN("{\"tensors\": [\"a\"], \"bytes\": 9223372036854775807, \"start_s\": 1, \"end_s\": 2}"
              ", {\"tensors\": [\"b\"], \"bytes\": 1, \"start_s\": 2, \"end_s\": 3}"),
         "messages[1].bytes: the sum"},
        {"{\"format\": \"mgwfbp-plan-1\"}", "messages: missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_plan *plan = NULL;
        mgw_error error = {0};
        mgw_status status =
            mgw_plan_parse("p.json", cases[i].text, strlen(cases[i].text), &plan, &error);
        assert_int_equal(status, cases[i].message ? MGW_ERR_INPUT : MGW_OK);
        if (cases[i].message)
            assert_contains(error.message, cases[i].message);
        mgw_plan_destroy(plan);
    }
}

static void scaling_rows(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    assert_int_equal(mgw_trace_load("googlenet-b64-fp32-h200", &trace, NULL), MGW_OK);
    assert_int_equal(mgw_cluster_load("paper-1-10gbe-link", &cluster, NULL), MGW_OK);
    const unsigned workers[] = {4, 64};
    const mgw_algorithm algorithms[] = {MGW_RING, MGW_DOUBLE_BINARY_TREES};
    const mgw_policy policies[] = {{.kind = MGW_SINGLE}, {.kind = MGW_OPTIMAL}};
    mgw_scaling what = {workers, 2, algorithms, 2, policies, 2, NULL, 0};
    mgw_scaling_row *rows = NULL;
    size_t count = 0;
    assert_int_equal(mgw_scaling_run(trace, cluster, &what, &rows, &count, NULL), MGW_OK);
    assert_int_equal(count, 8);
    assert_int_equal(cluster->workers, 16);
    double compute_s = mgw_trace_compute_s(trace);
    double bytes = (double)mgw_trace_bytes(trace);
    /* single among 64 on a ring: one message behind everything */
    const mgw_scaling_row *row = &rows[2];
    assert_int_equal(row->workers, 64);
    assert_string_equal(row->algorithm, "ring");
    assert_close(row->exposed_s, 2 * 63 * cluster->link.alpha_s +
                                     2 * 63 / 64.0 * cluster->link.beta_s_per_byte * bytes);
    assert_close(row->iteration_s, compute_s + row->exposed_s);
    assert_close(row->efficiency, compute_s / row->iteration_s);
    assert_close(row->speedup, 64 * row->efficiency);
    assert_int_equal(row->messages, 1);
    assert_string_equal(rows[4].algorithm, "double-binary-trees");
    free(rows);
    const unsigned bad[] = {12};
    what.workers = bad;
    what.worker_count = 1;
    mgw_error error = {0};
    assert_int_equal(mgw_scaling_run(trace, cluster, &what, &rows, &count, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "power of two");
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

/* What was measured of one kind holds for the cluster as it is; elsewhere its links count. */
static void scaling_leaves_measured_kinds_alone(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace();
    mgw_cluster *cluster = NULL;
    const mgw_link link = {1e-5, 1e-9, 0};
    const mgw_sample samples[] = {{1024, 1e-4}, {1 << 20, 1e-3}};
    assert_int_equal(mgw_cluster_from_link("c", 16, &link, MGW_RING, 1, &cluster, NULL), MGW_OK);
    for (mgw_collective kind = MGW_REDUCE_SCATTER; kind <= MGW_ALL_GATHER; kind++)
        assert_int_equal(mgw_cluster_set_samples(cluster, kind, samples, 2, NULL), MGW_OK);
    const unsigned workers[] = {4, 16, 64, 16};
    const mgw_policy policy = {.kind = MGW_SINGLE};
    mgw_scaling what = {workers, 4, NULL, 0, &policy, 1, NULL, 0};
    mgw_scaling_row *rows = NULL;
    size_t count = 0;
    assert_int_equal(mgw_scaling_run(trace, cluster, &what, &rows, &count, NULL), MGW_OK);
    assert_int_equal(count, 4);
    assert_true(rows[0].iteration_s < rows[1].iteration_s);
    assert_true(rows[1].iteration_s == rows[3].iteration_s);
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    assert_close(mgw_cost_seconds(&cost, MGW_REDUCE_SCATTER, 1024), 1e-4);
    free(rows);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeline_by_hand),
        cmocka_unit_test(two_passes_by_hand),
        cmocka_unit_test(a_pass_without_stalls),
        cmocka_unit_test(stalls_in_front),
        cmocka_unit_test(a_file_without_stalls),
        cmocka_unit_test(stalls_add_up),
        cmocka_unit_test(timelines_agree_with_plans),
        cmocka_unit_test(plan_files_read_back),
        cmocka_unit_test(bad_plans),
        cmocka_unit_test(scaling_rows),
        cmocka_unit_test(scaling_leaves_measured_kinds_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
