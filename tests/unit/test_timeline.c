/* Timelines: written files are read back, and all others rejected. */
#include <math.h>

#include "support.h"

static mgw_timeline *simulate(const char *model, mgw_policy_kind kind)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_plan *plan = NULL;
    mgw_timeline *timeline = NULL;
    mgw_cost cost;
    mgw_error error;
    assert_int_equal(mgw_trace_load(model, &trace, &error), MGW_OK);
    assert_int_equal(mgw_cluster_load("paper-2-10gbe", &cluster, &error), MGW_OK);
    mgw_cluster_cost(cluster, &cost);
    assert_int_equal(mgw_plan_make(trace, &cost, &(mgw_policy){.kind = kind}, &plan, &error),
                     MGW_OK);
    assert_int_equal(mgw_simulate(plan, trace, &timeline, &error), MGW_OK);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return timeline;
}

/* Two tensors scattered and gathered on the built-in cluster, needed at once by the next pass. */
static mgw_timeline *simulate_halves(void)
{
    mgw_tensor tensors[] = {{1 << 20, 1e-3, 5e-4}, {1 << 20, 1e-3, 0}};
    mgw_trace *trace = make_trace(1e-3, 2, tensors);
    mgw_cluster *cluster = NULL;
    mgw_plan *plan = NULL;
    mgw_timeline *timeline = NULL;
    mgw_cost cost;
    mgw_error error;
    assert_int_equal(mgw_cluster_load("paper-2-10gbe", &cluster, &error), MGW_OK);
    mgw_cluster_cost(cluster, &cost);
    static const mgw_operation operations[] = {
        {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 1, .count = 1},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 1}};
    assert_int_equal(mgw_plan_from_operations(trace, &cost, "p", operations, 3, &plan, &error),
                     MGW_OK);
    assert_int_equal(mgw_simulate(plan, trace, &timeline, &error), MGW_OK);
    assert_int_equal(plan->stall_count, 2);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return timeline;
}

static void assert_same(const mgw_timeline *a, const mgw_timeline *b)
{
    assert_string_equal(a->title, b->title);
    assert_int_equal(a->span_count, b->span_count);
    assert_true(fabs(a->period_s - b->period_s) < 1.1e-9);
    for (size_t i = 0; i < a->span_count; i++) {
        const mgw_span *x = &a->spans[i];
        const mgw_span *y = &b->spans[i];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->first, y->first);
        assert_int_equal(x->count, y->count);
        assert_int_equal(x->bytes, y->bytes);
        assert_true(fabs(x->start_s - y->start_s) < 1.1e-9);
        assert_true(fabs(x->end_s - y->end_s) < 1.6e-9);
        if (mgw_span_is_operation(x->kind))
            assert_true(fabs(x->ready_s - y->ready_s) < 1.6e-9);
        if (x->count)
            assert_string_equal(mgw_timeline_tensor_name(a, x->first + x->count - 1),
                                mgw_timeline_tensor_name(b, y->first + y->count - 1));
    }
}

static void several_are_read_back(void **unused)
{
    (void)unused;
    mgw_timeline *written[] = {simulate("resnet50-b32-fp32-h200", MGW_WFBP),
                               simulate("resnet50-b32-fp32-h200", MGW_OPTIMAL),
                               simulate("gpt2-b8-fp32-h200", MGW_SINGLE), simulate_halves()};
    enum { COUNT = sizeof written / sizeof *written };
    mgw_timeline_shift(written[1], 0.25);
    mgw_text text;
    mgw_text_init(&text);
    mgw_timelines_write((const mgw_timeline *const *)written, COUNT, &text);
    mgw_timeline **read = NULL;
    size_t count = 0;
    mgw_error error;
    assert_int_equal(mgw_timelines_parse("t", text.data, text.size, &read, &count, &error), MGW_OK);
    assert_int_equal(count, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        assert_same(written[i], read[i]);
        mgw_timeline_destroy(written[i]);
    }
    mgw_timelines_destroy(read, count);
    mgw_text_fini(&text);
}

#define EVENTS(events) "{\"format\": \"mgwfbp-timelines-1\", \"traceEvents\": [" events "]}"
#define PROCESS(pid, tensors)                                                                      \
    "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " pid                                    \
    ", \"tid\": 0, \"args\": {\"name\": \"x\"" tensors "}}"
#define TENSORS ", \"tensors\": [\"a\", \"b\"]"
#define SPAN(kind, pid, ts, args)                                                                  \
    "{\"name\": \"m\", \"cat\": \"" kind "\", \"ph\": \"X\", \"pid\": " pid                        \
    ", \"tid\": 2, \"ts\": " ts ", \"dur\": 1, \"args\": {" args "}}"
#define MESSAGE(pid, ts, args) SPAN("communication", pid, ts, args)
#define STALL(pid, ts, args)   SPAN("stall", pid, ts, args)
#define WHICH                  "\"index\": 1, \"tensors\": 1"
#define ARGUMENTS              "\"index\": 0, \"tensors\": 2, \"bytes\": 8, \"waited_us\": 0"

static void others_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *says; /* null: it is good */
    } cases[] = {
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE("1", "1", ARGUMENTS)), NULL},
        {EVENTS(PROCESS("1", TENSORS ", \"period_us\": 7") "," STALL("1", "1", WHICH)), NULL},
        {EVENTS(PROCESS("1", TENSORS ", \"period_us\": -7")), "period_us"},
        {EVENTS(PROCESS("1", TENSORS) "," STALL("1", "1", "")), "index"},
        {EVENTS(PROCESS("1", TENSORS) "," STALL("1", "1", WHICH) "," STALL("1", "0", WHICH)),
         "in order"},
        {EVENTS(PROCESS("1", TENSORS) "," SPAN("all-to-all", "1", "1", ARGUMENTS)),
         "forward, backward, communication, reduce-scatter, all-gather, push, pull, stall, "
         "next-forward"},
        {"{\"traceEvents\": []}", "format"},
        {EVENTS(""), "no timeline"},
        {EVENTS(PROCESS("2", TENSORS)), "pid"},
        {EVENTS(PROCESS("1", "")), "tensors"},
        {EVENTS(PROCESS("1", ", \"tensors\": [1]")), "strings"},
        {EVENTS(MESSAGE("1", "1", ARGUMENTS)), "pid"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE("2", "1", ARGUMENTS)), "pid"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE("1", "-1", ARGUMENTS)), "ts"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE("1", "1", "")), "index"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE(
             "1", "1", "\"index\": 1, \"tensors\": 2, \"bytes\": 8, \"waited_us\": 0")),
         "only 2 tensors"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE(
             "1", "1",
             "\"index\": 9223372036854775807, \"tensors\": 1, \"bytes\": 8, "
             "\"waited_us\": 0")),
         "only 2 tensors"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE(
             "1", "1", "\"index\": 1, \"tensors\": 0, \"bytes\": 8, \"waited_us\": 0")),
         "at least one"},
        {EVENTS(PROCESS("1", TENSORS) "," MESSAGE("1", "5", ARGUMENTS) "," MESSAGE("1", "1",
                                                                                   ARGUMENTS)),
         "in order"},
        {EVENTS(PROCESS("1", TENSORS) ",{\"ph\": \"B\", \"pid\": 1}"), "ph"},
        {EVENTS(PROCESS("1", TENSORS) ",7"), "object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_timeline **read = NULL;
        size_t count = 0;
        mgw_error error = {0};
        mgw_status status = mgw_timelines_parse("t.json", cases[i].text, strlen(cases[i].text),
                                                &read, &count, &error);
        if (!cases[i].says) {
            assert_int_equal(status, MGW_OK);
            mgw_timelines_destroy(read, count);
            continue;
        }
        assert_int_equal(status, MGW_ERR_INPUT);
        assert_non_null(strstr(error.message, "t.json"));
        assert_non_null(strstr(error.message, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_are_read_back),
                                       cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
