/* Plans as lists of operations: release rules by hand, and plan files of both versions. */
#include "support.h"

#define READY_N 4

/* Four tensors of 4, 8, 4 and 12 bytes, ready at 2, 3, 4, 6. */
static mgw_trace *small_trace(void)
{
    mgw_tensor tensors[READY_N] = {{1, 1, MGW_TIME_UNKNOWN},
                                   {2, 1, MGW_TIME_UNKNOWN},
                                   {1, 1, MGW_TIME_UNKNOWN},
                                   {3, 2, MGW_TIME_UNKNOWN}};
    return make_trace(1, READY_N, tensors);
}

/* All-reduces take 1 + M/4, reduce-scatters 0.5 + M/8, all-gathers 1, pushes M/4, pulls M/2. */
static const mgw_cost small_cost = {
    .of = {[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25},
           [MGW_REDUCE_SCATTER] = {.a_s = 0.5, .b_s_per_byte = 0.125},
           [MGW_ALL_GATHER] = {.a_s = 1},
           [MGW_PUSH] = {.b_s_per_byte = 0.25},
           [MGW_PULL] = {.b_s_per_byte = 0.5}},
    .workers = 4,
    .cluster = "c"};

#define OPERATIONS_MAX 6

typedef struct by_hand {
    const char *about;
    size_t count;
    mgw_operation
        operations[OPERATIONS_MAX]; /* kind, release, first, count, bytes, times, wire, lanes */
} by_hand;

static const by_hand cases[] = {
    {"all-reduces when ready",
     2,
     {{MGW_ALL_REDUCE, MGW_WHEN_READY, 0, 2, 12, 3, 3, 7, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 2, 2, 16, 6, 7, 12, MGW_F32, 0}}},
    {"all-reduces after the backward pass",
     2,
     {{MGW_ALL_REDUCE, MGW_AFTER_BACKWARD, 0, 2, 12, 3, 6, 10, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_AFTER_BACKWARD, 2, 2, 16, 6, 10, 15, MGW_F32, 0}}},
    {"one rule for each: the second waits for all gradients, the third for the second",
     3,
     {{MGW_ALL_REDUCE, MGW_WHEN_READY, 0, 1, 4, 2, 2, 4, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_AFTER_BACKWARD, 1, 1, 8, 3, 6, 9, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 2, 2, 16, 6, 9, 14, MGW_F32, 0}}},
    {"reduce-scatters, then all-gathers in reverse order",
     5,
     {{MGW_REDUCE_SCATTER, MGW_WHEN_READY, 0, 1, 4, 2, 2, 3, MGW_F32, 0},
      {MGW_REDUCE_SCATTER, MGW_WHEN_READY, 1, 2, 12, 4, 4, 6, MGW_F32, 0},
      {MGW_REDUCE_SCATTER, MGW_WHEN_READY, 3, 1, 12, 6, 6, 8, MGW_F32, 0},
      {MGW_ALL_GATHER, MGW_AFTER_UPDATE, 3, 1, 12, 8, 8, 9, MGW_F32, 0},
      {MGW_ALL_GATHER, MGW_AFTER_UPDATE, 0, 3, 16, 6, 9, 10, MGW_F32, 0}}},
    {"an update waits for the backward pass, even if its tensors were averaged long before",
     4,
     {{MGW_REDUCE_SCATTER, MGW_WHEN_READY, 0, 1, 4, 2, 2, 3, MGW_F32, 0},
      {MGW_ALL_GATHER, MGW_AFTER_UPDATE, 0, 1, 4, 6, 6, 7, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 1, 2, 12, 4, 7, 11, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 3, 1, 12, 6, 11, 15, MGW_F32, 0}}},
    {"a gather when ready waits for its averages only",
     4,
     {{MGW_REDUCE_SCATTER, MGW_WHEN_READY, 0, 1, 4, 2, 2, 3, MGW_F32, 0},
      {MGW_ALL_GATHER, MGW_WHEN_READY, 0, 1, 4, 3, 3, 4, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 1, 2, 12, 4, 4, 8, MGW_F32, 0},
      {MGW_ALL_REDUCE, MGW_WHEN_READY, 3, 1, 12, 6, 8, 12, MGW_F32, 0}}},
    {"pushes and pulls",
     4,
     {{MGW_PUSH, MGW_WHEN_READY, 0, 3, 16, 4, 4, 8, MGW_F32, 0},
      {MGW_PULL, MGW_WHEN_READY, 0, 3, 16, 8, 8, 16, MGW_F32, 0},
      {MGW_PUSH, MGW_WHEN_READY, 3, 1, 12, 6, 16, 19, MGW_F32, 0},
      {MGW_PULL, MGW_AFTER_BACKWARD, 3, 1, 12, 19, 19, 25, MGW_F32, 0}}},
};

/* A plan of any operations: a made one whose list is replaced. */
static mgw_plan *plan_of(const mgw_trace *trace, const by_hand *wanted)
{
    mgw_plan *plan = make_plan(trace, &small_cost, "wfbp");
    free(plan->operations);
    plan->operations = calloc(wanted->count, sizeof *plan->operations);
    plan->operation_count = wanted->count;
    for (size_t m = 0; m < wanted->count; m++) {
        plan->operations[m].kind = wanted->operations[m].kind;
        plan->operations[m].release = wanted->operations[m].release;
        plan->operations[m].first = wanted->operations[m].first;
        plan->operations[m].count = wanted->operations[m].count;
    }
    return plan;
}

static void compare_operations(const char *about, const mgw_plan *plan,
                               const mgw_operation *expected)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *got = &plan->operations[m];
        const mgw_operation *want = &expected[m];
        if (got->kind != want->kind || got->release != want->release || got->first != want->first ||
            got->count != want->count || got->bytes != want->bytes ||
            got->ready_s != want->ready_s || got->start_s != want->start_s ||
            got->end_s != want->end_s)
            fail_msg("%s: operation %zu: tensors %zu+%zu, ready %g, %g to %g", about, m, got->first,
                     got->count, got->ready_s, got->start_s, got->end_s);
    }
}

static void release_rules_by_hand(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_plan *plan = plan_of(trace, &cases[i]);
        assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
        compare_operations(cases[i].about, plan, cases[i].operations);
        double end_s = cases[i].operations[cases[i].count - 1].end_s;
        assert_true(plan->compute_s == 6 && plan->iteration_s == end_s);
        assert_true(plan->exposed_s == end_s - 6);
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

static void gathers_of_what_nobody_averaged_are_refused(void **unused)
{
    (void)unused;
    static const by_hand bad[] = {
        {"",
         2,
         {{MGW_ALL_GATHER, MGW_AFTER_UPDATE, 0, 4, 0, 0, 0, 0, MGW_F32, 0},
          {MGW_ALL_REDUCE, MGW_WHEN_READY, 0, 4, 0, 0, 0, 0, MGW_F32, 0}}},
        {"",
         2,
         {{MGW_REDUCE_SCATTER, MGW_WHEN_READY, 0, 2, 0, 0, 0, 0, MGW_F32, 0},
          {MGW_ALL_GATHER, MGW_WHEN_READY, 0, 3, 0, 0, 0, 0, MGW_F32, 0}}},
        {"", 1, {{MGW_ALL_REDUCE, MGW_AFTER_UPDATE, 0, 4, 0, 0, 0, 0, MGW_F32, 0}}},
    };
    mgw_trace *trace = small_trace();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mgw_plan *plan = plan_of(trace, &bad[i]);
        mgw_error error = {0};
        assert_int_equal(mgw_plan_time(plan, trace, &small_cost, &error), MGW_ERR_ARGUMENT);
        assert_contains(error.message, "do not average its tensors");
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

static mgw_plan *parse_good(const char *text)
{
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_parse("p.json", text, strlen(text), &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

static void plans_read_back(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_plan *plan = plan_of(trace, &cases[i]);
        assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
        mgw_text text;
        mgw_text_init(&text);
        mgw_plan_write(plan, &text);
        assert_contains(text.data, "\"format\": \"mgwfbp-plan-2\"");
        mgw_plan *again = parse_good(text.data);
        assert_int_equal(again->operation_count, plan->operation_count);
        compare_operations(cases[i].about, again, plan->operations);
        mgw_text_fini(&text);
        mgw_plan_destroy(again);
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

#define OLD(policy)                                                                                \
    "{\"format\": \"mgwfbp-plan-1\", \"policy\": \"" policy "\", \"model\": \"m\", \"cluster\": "  \
    "\"c\", \"workers\": 4, \"messages\": [{\"tensors\": [\"t0\"], \"bytes\": 4, \"ready_s\": 2, " \
    "\"start_s\": 6, \"end_s\": 8}, {\"tensors\": [\"t1\", \"t2\", \"t3\"], \"bytes\": 24, "       \
    "\"ready_s\": 6, \"start_s\": 8, \"end_s\": 15}], \"compute_s\": 6, \"iteration_s\": 15, "     \
    "\"exposed_s\": 9, \"lower_bound_s\": 10}"

/* Version 1 knew all-reduces only, and one policy that waits for the backward pass. */
static void old_plans_are_read(void **unused)
{
    (void)unused;
    static const mgw_operation waiting[] = {
        {MGW_ALL_REDUCE, MGW_AFTER_BACKWARD, 0, 1, 4, 2, 6, 8, MGW_F32, 0},
        {MGW_ALL_REDUCE, MGW_AFTER_BACKWARD, 1, 3, 24, 6, 8, 15, MGW_F32, 0}};
    static const mgw_operation prompt[] = {
        {MGW_ALL_REDUCE, MGW_WHEN_READY, 0, 1, 4, 2, 2, 4, MGW_F32, 0},
        {MGW_ALL_REDUCE, MGW_WHEN_READY, 1, 3, 24, 6, 6, 13, MGW_F32, 0}};
    mgw_trace *trace = small_trace();
    mgw_plan *naive = parse_good(OLD("naive"));
    compare_operations("naive", naive, waiting);
    assert_int_equal(mgw_plan_time(naive, trace, &small_cost, NULL), MGW_OK);
    compare_operations("naive, timed again", naive, waiting);
    mgw_plan *other = parse_good(OLD("mine"));
    assert_int_equal(other->operations[0].release, MGW_WHEN_READY);
    assert_true(other->operations[0].start_s == 6); /* as the file says */
    assert_int_equal(mgw_plan_time(other, trace, &small_cost, NULL), MGW_OK);
    compare_operations("mine, timed again", other, prompt);
    mgw_plan_destroy(naive);
    mgw_plan_destroy(other);
    mgw_trace_destroy(trace);
}

#define PLAN(operations)                                                                           \
    "{\"format\": \"mgwfbp-plan-2\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "    \
    "\"workers\": 2, \"operations\": [" operations "], \"compute_s\": 1, \"iteration_s\": 3, "     \
    "\"exposed_s\": 2, \"lower_bound_s\": 2}"
#define OPERATION(kind, release, tensors, start, end)                                              \
    "{\"kind\": \"" kind "\", \"release\": \"" release "\", \"tensors\": [" tensors                \
    "], \"bytes\": 4, "                                                                            \
    "\"start_s\": " start ", \"end_s\": " end "}"
#define SCATTER         OPERATION("reduce-scatter", "when-ready", "\"a\", \"b\", \"c\"", "1", "2") ", "
#define GATHER(tensors) PLAN(SCATTER OPERATION("all-gather", "after-update", tensors, "2", "3"))

static void bad_plans(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *message; /* null: it is good */
    } files[] = {
        {GATHER("\"a\", \"b\", \"c\""), NULL},
        {GATHER("\"b\", \"c\""), NULL},
        {GATHER("\"a\""), NULL},
        {GATHER("\"a\", \"c\""), "operations[1].tensors: must be neighbours"},
        {GATHER("\"b\", \"a\""), "operations[1].tensors: must be neighbours"},
        {GATHER("\"d\""), "operations[1].tensors: must be neighbours"},
        {GATHER("\"c\", \"d\""), "operations[1].tensors: must be neighbours"},
        {GATHER("\"a\", \"b\", \"c\", \"d\""), "operations[1].tensors: must be neighbours"},
        {GATHER("1"), "operations[1].tensors: must be neighbours"},
        {GATHER(""), "operations[1].tensors: must not be empty"},
        {PLAN(OPERATION("all-gather", "after-update", "\"a\"", "1", "3")), "must be neighbours"},
        {PLAN(OPERATION("broadcast", "when-ready", "\"a\"", "1", "3")),
         "operations[0].kind: unknown collective 'broadcast'"},
        {PLAN(OPERATION("all-reduce", "soon", "\"a\"", "1", "3")),
         "operations[0].release: unknown release rule 'soon'; choose one of"},
        {PLAN(OPERATION("all-reduce", "after-update", "\"a\"", "1", "3")),
         "operations[0].release: must not be \"after-update\" for all-reduce"},
        {PLAN("{\"release\": \"when-ready\", \"tensors\": [\"a\"]}"),
         "operations[0].kind: missing"},
        {PLAN("{\"kind\": \"all-reduce\", \"tensors\": [\"a\"]}"),
         "operations[0].release: missing"},
        {PLAN("3"), "operations[0]: must be an object"},
        {PLAN(""), "operations: must not be empty"},
        {PLAN(SCATTER OPERATION("push", "when-ready", "\"b\"", "2", "3")),
         "operations: tensor 'b' is averaged twice"},
        {"{\"format\": \"mgwfbp-plan-2\", \"messages\": []}", "operations: missing"},
        {"{\"format\": \"mgwfbp-plan-3\"}", "format: must be \"mgwfbp-plan-2\""},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        mgw_plan *plan = NULL;
        mgw_error error = {0};
        mgw_status status =
            mgw_plan_parse("p.json", files[i].text, strlen(files[i].text), &plan, &error);
        assert_int_equal(status, files[i].message ? MGW_ERR_INPUT : MGW_OK);
        if (files[i].message)
            assert_contains(error.message, files[i].message);
        mgw_plan_destroy(plan);
    }
}

/* A limit on lanes is kept by files, and changes no time. */
static void lanes(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"0", "9", "-1", "1.5", "\"1\""};
    mgw_trace *trace = small_trace();
    for (unsigned limit = 0; limit <= MGW_LANES_MAX; limit++) {
        mgw_plan *plan = plan_of(trace, &cases[0]);
        plan->operations[1].lanes = limit;
        assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
        compare_operations("limited", plan, cases[0].operations);
        mgw_text text;
        mgw_text_init(&text);
        mgw_plan_write(plan, &text);
        mgw_plan *again = parse_good(text.data);
        assert_int_equal(again->operations[0].lanes, 0);
        assert_int_equal(again->operations[1].lanes, limit);
        for (size_t i = 0; limit == 7 && i < sizeof bad / sizeof *bad; i++) {
            char *at = strstr(text.data, "\"lanes\": 7");
            char file[4096];
            mgw_plan *none = NULL;
            mgw_error error = {0};
            assert_non_null(at);
            snprintf(file, sizeof file, "%.*s%s%s", (int)(at + 9 - text.data), text.data, bad[i],
                     at + 10);
            assert_int_equal(mgw_plan_parse("p.json", file, strlen(file), &none, &error),
                             MGW_ERR_INPUT);
            assert_contains(error.message, "operations[1].lanes: must ");
        }
        mgw_text_fini(&text);
        mgw_plan_destroy(again);
        mgw_plan_destroy(plan);
    }
    by_hand many = cases[0];
    mgw_plan *none = NULL;
    mgw_error error = {0};
    many.operations[1].lanes = MGW_LANES_MAX + 1;
    assert_int_equal(mgw_plan_from_operations(trace, &small_cost, "p", many.operations, many.count,
                                              &none, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "operation 2 of 2 is invalid");
    mgw_trace_destroy(trace);
}

static void names(void **unused)
{
    (void)unused;
    mgw_error error = {0};
    for (int k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        mgw_collective kind = MGW_ALL_REDUCE;
        assert_int_equal(mgw_collective_parse(mgw_collective_name(k), &kind, &error), MGW_OK);
        assert_int_equal(kind, k);
    }
    for (int k = 0; k < MGW_RELEASE_COUNT; k++) {
        mgw_release release = MGW_WHEN_READY;
        assert_int_equal(mgw_release_parse(mgw_release_name(k), &release, &error), MGW_OK);
        assert_int_equal(release, k);
    }
    mgw_collective kind;
    assert_int_equal(mgw_collective_parse("gather", &kind, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "all-reduce, reduce-scatter, all-gather, push, pull");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_rules_by_hand),
        cmocka_unit_test(gathers_of_what_nobody_averaged_are_refused),
        cmocka_unit_test(plans_read_back),
        cmocka_unit_test(old_plans_are_read),
        cmocka_unit_test(bad_plans),
        cmocka_unit_test(lanes),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
