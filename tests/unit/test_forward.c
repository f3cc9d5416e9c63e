/* The next forward pass: stalls solved by hand, and the period compared with many consecutive
 * steps. */
#include <math.h>

#include "support.h"

enum { MAX_N = 8, MAX_OPERATIONS = 2 * MAX_N, STEPS = 6 };

/* Four tensors of 4, 8, 4 and 12 bytes, ready at 4, 5, 6, 8; the forward pass takes 3. */
static mgw_trace *small_trace(double first, double second, double third, double fourth)
{
    mgw_tensor tensors[] = {{1, 1, first}, {2, 1, second}, {1, 1, third}, {3, 2, fourth}};
    return make_trace(3, 4, tensors);
}

/* All-reduces take 1 + M/4, the halves half of it. */
static const mgw_cost small_cost = {
    .of = {[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25},
           [MGW_REDUCE_SCATTER] = {.a_s = 0.5, .b_s_per_byte = 0.125},
           [MGW_ALL_GATHER] = {.a_s = 0.5, .b_s_per_byte = 0.125}},
    .workers = 4,
    .cluster = "c"};

static mgw_plan *plan_of(const mgw_trace *trace, const mgw_cost *cost,
                         const mgw_operation *operations, size_t count)
{
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_from_operations(trace, cost, "test", operations, count, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* {1, 2} scattered at 5-7, {3, 4} at 8-10.5; {4} gathered until 12.5, the others until 15. */
static const mgw_operation halves[] = {
    {.kind = MGW_REDUCE_SCATTER, .first = 0, .count = 2},
    {.kind = MGW_REDUCE_SCATTER, .first = 2, .count = 2},
    {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 3, .count = 1},
    {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = 3}};

#define STALLS_MAX 3

static void stalls_by_hand(void **unused)
{
    (void)unused;
    static const struct {
        double needed_s[4];
        double iteration_s;
        size_t count;
        mgw_stall stalls[STALLS_MAX];
    } cases[] = {
        /* at once: waits for the first gather, then for the other */
        {{2, 1, 1, 0}, 14, 2, {{3, 8, 12.5}, {1, 13.5, 15}}},
        /* the second needs nothing more */
        {{3, 3, 3, 0}, 12.5, 1, {{3, 8, 12.5}}},
        /* unknown: needed at the start of the pass */
        {{-1, -1, -1, -1}, 15, 1, {{0, 8, 15}}},
        /* what is never needed must be back when the pass ends, at 12.5 + 3 */
        {{-2, -2, -2, 0}, 12.5, 1, {{3, 8, 12.5}}},
        {{-2, -2, -2, -2}, 12, 1, {{0, 11, 15}}},
        /* a time after the forward pass is its end */
        {{9, 9, 9, 0}, 12.5, 1, {{3, 8, 12.5}}},
        /* in the order of need, which is not that of the tensors */
        {{1, 2.5, 0, 2}, 15, 1, {{2, 8, 15}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double *needed = cases[i].needed_s;
        mgw_trace *trace = small_trace(needed[0], needed[1], needed[2], needed[3]);
        mgw_plan *plan = plan_of(trace, &small_cost, halves, 4);
        assert_true(plan->overlaps_forward);
        assert_close(plan->operations[3].end_s, 15);
        assert_close(plan->iteration_s, cases[i].iteration_s);
        assert_close(plan->exposed_s, cases[i].iteration_s - 8);
        assert_int_equal(plan->stall_count, cases[i].count);
        for (size_t s = 0; s < plan->stall_count; s++) {
            assert_int_equal(plan->stalls[s].tensor, cases[i].stalls[s].tensor);
            assert_close(plan->stalls[s].start_s, cases[i].stalls[s].start_s);
            assert_close(plan->stalls[s].end_s, cases[i].stalls[s].end_s);
        }
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/* Gathers carry parameters only where they follow the update. */
static void bytes_by_kind(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace(2, 1, 1, 0);
    trace->parameter_dtype = MGW_BF16;
    mgw_operation operations[4];
    memcpy(operations, halves, sizeof halves);
    operations[2].release = MGW_AFTER_BACKWARD;
    mgw_plan *plan = plan_of(trace, &small_cost, operations, 4);
    static const uint64_t bytes[] = {12, 16, 12, 8};
    for (size_t m = 0; m < 4; m++)
        assert_int_equal(plan->operations[m].bytes, bytes[m]);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

static void only_gathers_overlap(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace(2, 1, 1, 0);
    const mgw_operation whole[] = {{.kind = MGW_ALL_REDUCE, .count = 4}};
    mgw_plan *plan = plan_of(trace, &small_cost, whole, 1);
    assert_true(!plan->overlaps_forward && plan->stall_count == 0);
    assert_close(plan->iteration_s, 8 + 8);
    plan->overlaps_forward = true; /* the owner may say so */
    assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
    assert_close(plan->iteration_s, 16);
    assert_int_equal(plan->stalls[0].tensor, 3);
    plan->overlaps_forward = false;
    assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
    assert_true(plan->stall_count == 0);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* ---- Many steps one after the other ---- */

typedef struct job {
    size_t n;
    double forward_s;
    double needed_s[MAX_N]; /* by the tensor */
    double ready_s[MAX_N];  /* from the start of a pass that does not stall */
    size_t count;
    mgw_operation operations[MAX_OPERATIONS];
    double took_s[MAX_OPERATIONS];
} job;

/* Stops at each tensor in the order of need until it is back; returns when the pass ends. */
static double run_forward(const job *j, double begin_s, const double *back_s)
{
    double now_s = begin_s;
    double position_s = 0;
    bool used[MAX_N] = {false};
    for (size_t step = 0; step < j->n; step++) {
        size_t next = MAX_N;
        for (size_t i = 0; i < j->n; i++)
            if (!used[i] && (next == MAX_N || j->needed_s[i] < j->needed_s[next]))
                next = i;
        used[next] = true;
        now_s = fmax(now_s + j->needed_s[next] - position_s, back_s[next]);
        position_s = j->needed_s[next];
    }
    return now_s + j->forward_s - position_s;
}

/* The operations of a step whose forward pass, less its stalls, began at `begin_s`. */
static void run_channel(const job *j, double begin_s, double *free_s, double *back_s)
{
    double averaged_s[MAX_N] = {0};
    double last_s = begin_s + j->ready_s[j->n - 1];
    for (size_t m = 0; m < j->count; m++) {
        const mgw_operation *o = &j->operations[m];
        double start_s = *free_s;
        for (size_t i = o->first; i < o->first + o->count; i++) {
            bool sends = o->kind != MGW_ALL_GATHER;
            start_s = fmax(start_s, sends ? begin_s + j->ready_s[i] : averaged_s[i]);
        }
        if (o->release != MGW_WHEN_READY)
            start_s = fmax(start_s, last_s);
        *free_s = start_s + j->took_s[m];
        for (size_t i = o->first; i < o->first + o->count; i++)
            averaged_s[i] = back_s[i] = *free_s;
    }
}

static double measure_period(const job *j)
{
    double back_s[MAX_N] = {0};
    double free_s = 0;
    double now_s = 0;
    double period_s = 0;
    for (int step = 0; step < STEPS; step++) {
        double end_s = run_forward(j, now_s, back_s);
        double begin_s = end_s - j->forward_s;
        run_channel(j, begin_s, &free_s, back_s);
        double next_s = begin_s + j->ready_s[j->n - 1];
        period_s = next_s - now_s;
        now_s = next_s;
    }
    return period_s;
}

static void make_tensors(job *j, mgw_tensor *tensors, uint64_t *state)
{
    j->n = 1 + random_below(state, MAX_N);
    j->forward_s = (double)random_below(state, 9);
    double now_s = j->forward_s;
    for (size_t i = 0; i < j->n; i++) {
        tensors[i] = (mgw_tensor){random_below(state, 5), (double)random_below(state, 4), 0};
        uint64_t kind = random_below(state, 8);
        double at = (double)random_below(state, 12);
        tensors[i].forward_start_s = kind == 0   ? MGW_NEVER_NEEDED
                                     : kind == 1 ? MGW_TIME_UNKNOWN
                                                 : at;
        j->needed_s[i] = kind == 0 ? j->forward_s : kind == 1 ? 0 : fmin(at, j->forward_s);
        now_s += tensors[i].backward_s;
        j->ready_s[i] = now_s;
    }
}

/* Neighbours as all-reduces or halves; gathers anywhere behind, in any order. */
static void make_operations(job *j, uint64_t *state)
{
    size_t gathers = 0;
    mgw_operation later[MAX_N];
    j->count = 0;
    for (size_t i = 0; i < j->n;) {
        size_t count = 1 + random_below(state, j->n - i);
        bool all = random_below(state, 3) == 0;
        j->operations[j->count++] =
            (mgw_operation){.kind = all ? MGW_ALL_REDUCE : MGW_REDUCE_SCATTER,
                            .release = random_below(state, 5) ? MGW_WHEN_READY : MGW_AFTER_BACKWARD,
                            .first = i,
                            .count = count};
        i += count;
        while (gathers && random_below(state, 4) == 0) /* some gathers in between */
            j->operations[j->count++] = later[--gathers];
        for (size_t k = i - count; !all && k < i;) {
            size_t part = 1 + random_below(state, i - k);
            later[gathers++] = (mgw_operation){.kind = MGW_ALL_GATHER,
                                               .release = random_below(state, 3) ? MGW_AFTER_UPDATE
                                                                                 : MGW_WHEN_READY,
                                               .first = k,
                                               .count = part};
            k += part;
        }
    }
    while (gathers)
        j->operations[j->count++] = later[--gathers];
}

static void the_period_is_that_of_many_steps(void **unused)
{
    (void)unused;
    uint64_t state = 11;
    size_t stalled = 0;
    for (int i = 0; i < 20000; i++) {
        job j;
        mgw_tensor tensors[MAX_N];
        make_tensors(&j, tensors, &state);
        make_operations(&j, &state);
        mgw_cost cost = {.workers = 2};
        for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
            cost.of[kind] = (mgw_curve){.a_s = 0.5 * (double)random_below(&state, 4),
                                        .b_s_per_byte = 0.0625 * (double)random_below(&state, 4)};
        mgw_trace *trace = make_trace(j.forward_s, j.n, tensors);
        mgw_plan *plan = plan_of(trace, &cost, j.operations, j.count);
        plan->overlaps_forward = true;
        assert_int_equal(mgw_plan_time(plan, trace, &cost, NULL), MGW_OK);
        for (size_t m = 0; m < j.count; m++)
            j.took_s[m] = plan->operations[m].end_s - plan->operations[m].start_s;
        assert_close(plan->iteration_s, measure_period(&j));
        double waited_s = 0;
        for (size_t s = 0; s < plan->stall_count; s++) {
            waited_s += plan->stalls[s].end_s - plan->stalls[s].start_s;
            assert_true(plan->stalls[s].start_s < plan->stalls[s].end_s);
            assert_true(plan->stalls[s].start_s >=
                        (s ? plan->stalls[s - 1].end_s : plan->compute_s));
        }
        assert_true(waited_s == plan->exposed_s);
        assert_true(plan->lower_bound_s <= plan->iteration_s);
        stalled += plan->stall_count > 1;
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_true(stalled > 1000);
}

/* ---- Files ---- */

static mgw_plan *parse(const char *text, const char *message)
{
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    mgw_status status = mgw_plan_parse("p.json", text, strlen(text), &plan, &error);
    if (!message && status)
        fail_msg("%s", error.message);
    if (message)
        assert_contains(status ? error.message : "accepted", message);
    return plan;
}

static void plans_read_back(void **unused)
{
    (void)unused;
    mgw_trace *trace = small_trace(2, 1, 1, 0);
    mgw_plan *plan = plan_of(trace, &small_cost, halves, 4);
    for (int overlaps = 1; overlaps >= 0; overlaps--) {
        plan->overlaps_forward = overlaps;
        assert_int_equal(mgw_plan_time(plan, trace, &small_cost, NULL), MGW_OK);
        mgw_text text;
        mgw_text_init(&text);
        mgw_plan_write(plan, &text);
        mgw_plan *again = parse(text.data, NULL);
        assert_int_equal(again->overlaps_forward, overlaps);
        assert_int_equal(again->stall_count, overlaps ? 2 : 0);
        for (size_t s = 0; s < again->stall_count; s++)
            assert_memory_equal(&again->stalls[s], &plan->stalls[s], sizeof *plan->stalls);
        assert_true(again->iteration_s == plan->iteration_s);
        mgw_plan_destroy(again);
        mgw_text_fini(&text);
    }
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

#define PLAN(members)                                                                              \
    "{\"format\": \"mgwfbp-plan-2\", \"policy\": \"p\", \"model\": \"m\", \"cluster\": \"c\", "    \
    "\"workers\": 2, \"operations\": ["                                                            \
    "{\"kind\": \"reduce-scatter\", \"release\": \"when-ready\", \"tensors\": [\"a\", \"b\"], "    \
    "\"bytes\": 4, \"start_s\": 1, \"end_s\": 2}, "                                                \
    "{\"kind\": \"all-gather\", \"release\": \"after-update\", \"tensors\": [\"a\", \"b\"], "      \
    "\"bytes\": 4, \"start_s\": 2, \"end_s\": 4}], \"compute_s\": 1, \"lower_bound_s\": 2" members \
    "}"
#define THREE           ", \"iteration_s\": 3, \"exposed_s\": 2"
#define STALLS(list)    THREE ", \"stalls\": [" list "]"
#define STALL(at, to)   "{\"tensor\": \"b\", \"start_s\": " at ", \"end_s\": " to "}"
#define NOT_OVERLAPPING ", \"overlaps_forward\": false"

static void bad_plans(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *message; /* null: it is good */
    } files[] = {
        {PLAN(THREE), NULL},
        {PLAN(", \"iteration_s\": 4, \"exposed_s\": 3"), NULL},
        {PLAN(STALLS(STALL("1", "3"))), NULL},
        {PLAN(STALLS(STALL("1", "2") ", " STALL("2.5", "3.5"))), NULL},
        {PLAN(STALLS("")), NULL},
        {PLAN(THREE NOT_OVERLAPPING), "iteration_s: must be the end of the last operation"},
        {PLAN(", \"iteration_s\": 4, \"exposed_s\": 3" NOT_OVERLAPPING), NULL},
        {PLAN(", \"iteration_s\": 5, \"exposed_s\": 4"), "iteration_s: must not be after the end"},
        {PLAN(", \"iteration_s\": 0.5, \"exposed_s\": 0"), "must not be below compute_s"},
        {PLAN(THREE ", \"overlaps_forward\": 1"), "overlaps_forward: must be true or false"},
        {PLAN(THREE ", \"stalls\": 3"), "stalls: must be an array"},
        {PLAN(", \"iteration_s\": 4, \"exposed_s\": 3, \"stalls\": [" STALL(
             "1", "4") "]" NOT_OVERLAPPING),
         "stalls: must be an array, and only in a plan that overlaps"},
        {PLAN(STALLS("7")), "stalls[0]: must be an object"},
        {PLAN(STALLS(STALL("0.5", "2.5"))), "stalls[0].start_s: must not be before compute_s"},
        {PLAN(STALLS(STALL("1", "2") ", " STALL("1.5", "2.5"))),
         "stalls[1].start_s: must not be before the end of the previous stall"},
        {PLAN(STALLS(STALL("3", "1"))), "stalls[0].end_s: must not be before start_s"},
        {PLAN(STALLS(STALL("1", "2.5"))), "stalls: must add up to exposed_s"},
        {PLAN(STALLS("{\"tensor\": \"z\", \"start_s\": 1, \"end_s\": 3}")),
         "stalls[0].tensor: 'z' is not a tensor of the plan"},
        {PLAN(STALLS("{\"start_s\": 1, \"end_s\": 3}")), "stalls[0].tensor: missing"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        mgw_plan_destroy(parse(files[i].text, files[i].message));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stalls_by_hand),       cmocka_unit_test(bytes_by_kind),
        cmocka_unit_test(only_gathers_overlap), cmocka_unit_test(the_period_is_that_of_many_steps),
        cmocka_unit_test(plans_read_back),      cmocka_unit_test(bad_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
