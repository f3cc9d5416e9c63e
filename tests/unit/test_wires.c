/* Plans that choose the wire format of each message, compared with exhaustive search over
 * boundaries and wires. */
#include "overlap_search.h"

/* ---- Names, bytes, files ---- */

static void wires_by_name(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        unsigned wires;
    } known[] = {{"auto", 1u << MGW_F32 | 1u << MGW_BF16 | 1u << MGW_FP8},
                 {"f32", 1u << MGW_F32},
                 {"bf16", 1u << MGW_BF16},
                 {"f16", 1u << MGW_F16},
                 {"fp8", 1u << MGW_FP8},
                 {"fp8-e5m2", 1u << MGW_FP8_E5M2},
                 {"bf16,f32", 1u << MGW_F32 | 1u << MGW_BF16}};
    static const struct {
        const char *name;
        const char *says;
    } unknown[] = {{"", "unknown wire format ''; choose auto"},
                   {"f64", "unknown wire format 'f64'; choose auto"},
                   {"fp16", "unknown wire format 'fp16'; did you mean 'f16'?"},
                   {"bf16,fp7", "unknown wire format 'fp7'; did you mean 'fp8' or 'fp8-e5m2'?"},
                   {"bf16,", "unknown wire format ''"},
                   {",f32", "unknown wire format ''"},
                   {"f32 ,", "unknown wire format 'f32 '; did you mean 'f32'?"},
                   {"Auto", "did you mean 'auto'?"},
                   {"a-name-that-is-much-too-long", "f16, fp8 and fp8-e5m2, separated by commas"}};
    unsigned wires = 77;
    mgw_error error;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(mgw_wires_parse(known[i].name, &wires, &error), MGW_OK);
        assert_int_equal(wires, known[i].wires);
    }
    wires = 77;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_int_equal(mgw_wires_parse(unknown[i].name, &wires, &error), MGW_ERR_ARGUMENT);
        if (!strstr(error.message, unknown[i].says))
            fail_msg("%s", error.message);
        assert_int_equal(wires, 77);
    }
}

static void bytes_that_travel(void **unused)
{
    (void)unused;
    assert_int_equal(mgw_wire_bytes(MGW_F32, 1025), 4100);
    assert_int_equal(mgw_wire_bytes(MGW_BF16, 1025), 2050);
    assert_int_equal(mgw_wire_bytes(MGW_F16, 1025), 2050);
    assert_int_equal(mgw_wire_bytes(MGW_FP8, 0), 0);
    assert_int_equal(mgw_wire_bytes(MGW_FP8, 1024), 1024 + 4); /* a scale for every block */
    assert_int_equal(mgw_wire_bytes(MGW_FP8_E5M2, 1025), 1025 + 8);
}

static const mgw_tensor three[] = {
    {1000, 1, MGW_TIME_UNKNOWN}, {500, 1, MGW_TIME_UNKNOWN}, {2048, 1, MGW_TIME_UNKNOWN}};

static void plan_files_say_the_wire(void **unused)
{
    (void)unused;
    mgw_trace *trace = make_trace(1, 3, three);
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.a_s = 0.1, .b_s_per_byte = 1e-3},
                     .workers = 2,
                     .cluster = "c",
                     .casts = {[MGW_BF16] = {0.5, 1e-4}, [MGW_FP8] = {0.25, 2e-4}}};
    const mgw_operation given[] = {
        {.kind = MGW_ALL_REDUCE, .first = 0, .count = 1, .wire = MGW_BF16},
        {.kind = MGW_ALL_REDUCE, .first = 1, .count = 1},
        {.kind = MGW_ALL_REDUCE, .first = 2, .count = 1, .wire = MGW_FP8}};
    mgw_plan *plan = NULL;
    mgw_plan *read = NULL;
    mgw_error error;
    mgw_text text;
    mgw_text_init(&text);
    assert_int_equal(mgw_plan_from_operations(trace, &cost, "mine", given, 3, &plan, &error),
                     MGW_OK);
    /* ready at 2, 3, 4: 0.1 + 2 + 0.5 + 0.4 until 5; 2.1 until 7.1; 0.1 + 2.048 + casts of 0.25 +
     * 1.6384 + scales of 0.1 + 0.008 */
    assert_close(plan->operations[0].end_s, 5);
    assert_close(plan->operations[1].end_s, 7.1);
    assert_close(plan->operations[2].end_s, 7.1 + 2.148 + 1.8884 + 0.108);
    assert_true(plan->lower_bound_s <= plan->iteration_s);
    assert_int_equal(plan->operations[0].bytes, 2000);
    assert_int_equal(plan->operations[1].bytes, 2000);
    assert_int_equal(plan->operations[2].bytes, 2048 + 8);
    assert_int_equal(mgw_plan_bytes(plan), 6056);
    for (size_t m = 0; m < 3; m++)
        assert_close(mgw_operation_seconds(&cost, &plan->operations[m]),
                     plan->operations[m].end_s - plan->operations[m].start_s);
    mgw_plan_write(plan, &text);
    assert_non_null(strstr(text.data, "\"bytes\": 2000, \"wire\": \"bf16\""));
    assert_int_equal(mgw_plan_parse("p", text.data, text.size, &read, &error), MGW_OK);
    for (size_t m = 0; m < 3; m++) {
        assert_int_equal(read->operations[m].wire, given[m].wire);
        assert_int_equal(read->operations[m].bytes, plan->operations[m].bytes);
    }
    assert_int_equal(mgw_plan_time(read, trace, &cost, &error), MGW_OK);
    assert_close(read->iteration_s, plan->iteration_s);
    mgw_text_fini(&text);
    mgw_plan_destroy(read);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

static void wires_that_are_none(void **unused)
{
    (void)unused;
    mgw_trace *trace = make_trace(1, 3, three);
    mgw_cost cost = {.workers = 2, .cluster = "c"};
    mgw_operation given[] = {
        {.kind = MGW_REDUCE_SCATTER, .count = 3},
        {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .count = 3, .wire = MGW_BF16}};
    mgw_plan *plan = NULL;
    mgw_error error;
    assert_int_equal(mgw_plan_from_operations(trace, &cost, "x", given, 2, &plan, &error),
                     MGW_ERR_ARGUMENT); /* parameters are as they are */
    given[1].wire = MGW_F32;
    given[0].wire = MGW_F64;
    assert_int_equal(mgw_plan_from_operations(trace, &cost, "x", given, 2, &plan, &error),
                     MGW_ERR_ARGUMENT);
    static const char *const bad[] = {"\"f64\"", "\"int4\"", "7"};
    for (size_t i = 0; i < 3; i++) {
        char text[512];
        int size = snprintf(text, sizeof text,
                            "{\"format\": \"mgwfbp-plan-2\", \"policy\": \"p\", \"model\": \"m\", "
                            "\"cluster\": \"c\", \"workers\": 2, \"compute_s\": 1, "
                            "\"iteration_s\": 2, \"exposed_s\": 1, \"lower_bound_s\": 1, "
                            "\"operations\": [{\"kind\": \"all-reduce\", \"release\": "
                            "\"when-ready\", \"tensors\": [\"t\"], \"bytes\": 4, \"wire\": %s, "
                            "\"start_s\": 1, \"end_s\": 2}]}",
                            bad[i]);
        assert_int_equal(mgw_plan_parse("p", text, (size_t)size, &plan, &error), MGW_ERR_INPUT);
        assert_non_null(strstr(error.message, "operations[0].wire"));
    }
    mgw_trace_destroy(trace);
}

static void cluster_files_say_what_casts_take(void **unused)
{
    (void)unused;
    mgw_cluster *cluster = NULL;
    mgw_cluster *read = NULL;
    mgw_error error;
    mgw_text text;
    mgw_text_init(&text);
    const mgw_link link = {1e-5, 1e-9, 0};
    const mgw_cast cast = {2e-6, 3e-10};
    assert_int_equal(mgw_cluster_from_link("c", 4, &link, MGW_RING, 1, &cluster, &error), MGW_OK);
    mgw_cluster_write(cluster, &text);
    assert_null(strstr(text.data, "casts")); /* what is typical is not said to be measured */
    mgw_text_fini(&text);
    assert_int_equal(mgw_cluster_set_cast(cluster, MGW_BF16, &cast, &error), MGW_OK);
    assert_int_equal(mgw_cluster_set_cast(cluster, MGW_F32, &cast, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_cluster_set_cast(cluster, MGW_F64, &cast, &error), MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_cluster_set_cast(cluster, MGW_BF16, &(mgw_cast){-1, 0}, &error),
                     MGW_ERR_ARGUMENT);
    assert_int_equal(mgw_cluster_rescale(cluster, 8, NULL, &error), MGW_OK);
    mgw_cluster_write(cluster, &text);
    assert_int_equal(mgw_cluster_parse("c", text.data, text.size, &read, &error), MGW_OK);
    mgw_cost cost;
    mgw_cluster_cost(read, &cost);
    assert_int_equal(cost.wires, 0);
    assert_close(cost.casts[MGW_BF16].a_s, 2e-6);
    assert_close(cost.casts[MGW_BF16].c_s_per_byte, 3e-10);
    assert_true(cost.casts[MGW_FP8].a_s > 0); /* typical */
    mgw_text_fini(&text);
    mgw_cluster_destroy(read);
    mgw_cluster_destroy(cluster);
}

/* ---- Exhaustive search ---- */

static mgw_dtype allowed[] = {MGW_F32, MGW_F16, MGW_BF16, MGW_FP8, MGW_FP8_E5M2};

typedef struct found {
    double end_s;
    size_t messages;
} found;

/* Every cut, and every wire for each message. */
static void search(const overlap_problem *p, size_t i, double free_s, size_t messages, found *best)
{
    if (i == p->n) {
        double tolerance = 1e-12 * best->end_s;
        if (free_s < best->end_s - tolerance ||
            (free_s <= best->end_s + tolerance && messages < best->messages))
            best->messages = messages;
        best->end_s = fmin(best->end_s, free_s);
        return;
    }
    uint64_t bytes = 0;
    for (size_t j = i; j < p->n; j++) {
        bytes += 4 * p->tensors[j].count;
        double start_s = fmax(p->ready_s[j], free_s);
        for (size_t w = 0; w < sizeof allowed / sizeof *allowed; w++)
            if (p->cost.wires >> allowed[w] & 1)
                search(p, j + 1,
                       start_s + by_hand_wire(&p->cost, MGW_ALL_REDUCE, allowed[w], bytes),
                       messages + 1, best);
    }
}

/* Its wires are allowed, and its times are what those take. */
static void check_wires(const overlap_problem *p, const mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *o = &plan->operations[m];
        uint64_t elements = 0;
        for (size_t i = o->first; i < o->first + o->count; i++)
            elements += p->tensors[i].count;
        if (o->kind == MGW_ALL_GATHER) {
            assert_int_equal(o->wire, MGW_F32);
            continue;
        }
        assert_true(p->cost.wires >> o->wire & 1);
        assert_int_equal(o->bytes, mgw_wire_bytes(o->wire, elements));
        double took_s = o->end_s - o->start_s;
        double least_s = by_hand_least(&p->cost, o->kind, 4 * elements);
        if (fabs(took_s - least_s) > 1e-12 * fmax(o->end_s, 1))
            fail_msg("operation %zu as %s: %.17g, not %.17g", m, mgw_dtype_name(o->wire), took_s,
                     least_s);
    }
}

static void random_problem(overlap_problem *p, size_t n, bool curves, uint64_t *state)
{
    bool whole = random_below(state, 2);
    overlap_random(p, n, curves, state);
    if (random_below(state, 3) == 0) /* large messages: scales count */
        for (size_t i = 0; i < n; i++)
            p->tensors[i].count *= 1000;
    do
        by_hand_random(&p->cost, 3, 0.2, whole, state);
    while (!p->cost.wires);
}

static void optimal_is_the_best_of_all_cuts_and_wires(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 1;
    size_t mixed = 0;
    for (int i = 0; i < 3000; i++) {
        random_problem(&p, 1 + random_below(&state, 5), i % 2, &state);
        found best = {1e300, SIZE_MAX};
        search(&p, 0, 0, 0, &best);
        mgw_trace *trace = make_trace(p.forward_s, p.n, p.tensors);
        mgw_plan *plan = make_plan(trace, &p.cost, "optimal");
        assert_close(plan->iteration_s, fmax(best.end_s, plan->compute_s));
        assert_int_equal(plan->operation_count, best.messages);
        if (plan->lower_bound_s > plan->iteration_s * (1 + 1e-12))
            fail_msg("lower bound %.17g above %.17g", plan->lower_bound_s, plan->iteration_s);
        check_wires(&p, plan);
        for (size_t m = 1; m < plan->operation_count; m++)
            mixed += plan->operations[m].wire != plan->operations[m - 1].wire;
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_true(mixed > 100); /* the choice is by message */
}

static void overlap_is_the_best_of_its_class_with_wires(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 2;
    size_t in_class = 0;
    for (int i = 0; i < 3000; i++) {
        random_problem(&p, 1 + random_below(&state, 5), i % 2, &state);
        overlap_found best = overlap_search(&p, true);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
        if (overlap_in_class(plan)) {
            assert_close(plan->iteration_s, best.period_s);
            assert_int_equal(plan->operation_count, best.operations);
            in_class++;
        } else {
            assert_true(plan->iteration_s < best.period_s);
        }
        if (plan->lower_bound_s > plan->iteration_s * (1 + 1e-12))
            fail_msg("bound %.17g, period %.17g", plan->lower_bound_s, plan->iteration_s);
        check_wires(&p, plan);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_true(in_class > 2850);
}

/* ---- Curves ---- */

/* The one curve is the least of all wires, at every size. */
static void the_curve_is_the_least_of_all(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 3;
    size_t lines = 0;
    for (int i = 0; i < 2000; i++) {
        random_problem(&p, 1, i % 2, &state);
        for (int kind = 0; kind <= MGW_REDUCE_SCATTER; kind++) {
            mgw_error error;
            mgw_cost cost = p.cost;
            mgw_curve curve = {0};
            assert_int_equal(mgw_wire_curve(&p.cost, (mgw_collective)kind, &curve, &error), MGW_OK);
            cost.of[kind] = curve;
            lines += !curve.sample_count;
            for (int k = 0; k < 60; k++) {
                uint64_t bytes = random_below(&state, (uint64_t)1 << random_below(&state, 44));
                double least_s = by_hand_least(&p.cost, (mgw_collective)kind, bytes);
                double seconds = mgw_cost_seconds(&cost, (mgw_collective)kind, bytes);
                if (fabs(seconds - least_s) > 1e-11 * least_s)
                    fail_msg("%llu bytes: %.17g, not %.17g", (unsigned long long)bytes, seconds,
                             least_s);
            }
            free((void *)curve.samples);
        }
    }
    assert_true(lines > 200); /* where one wire is always the best, linear time stays */
}

/* A message of 4 KB is not worth a cast, one of 4 MB is: by hand, on 10 Gbit/s. */
static void small_messages_stay_wide(void **unused)
{
    (void)unused;
    const mgw_tensor tensors[] = {{1000000, 0.1, 0}, {1000, 0.1, 0}};
    mgw_trace *trace = make_trace(0.1, 2, tensors);
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.a_s = 1e-4, .b_s_per_byte = 8e-10},
                     .workers = 2,
                     .wires = 1u << MGW_F32 | 1u << MGW_BF16,
                     .casts[MGW_BF16] = {1e-5, 1e-12}};
    mgw_plan *plan = make_plan(trace, &cost, "wfbp");
    assert_int_equal(plan->operations[0].wire, MGW_BF16);
    assert_int_equal(plan->operations[0].bytes, 2000000);
    assert_int_equal(plan->operations[1].wire, MGW_F32);
    assert_int_equal(plan->operations[1].bytes, 4000);
    assert_int_equal(mgw_wire_choose(&cost, MGW_ALL_REDUCE, 25063), MGW_BF16); /* 1e-5 / 3.99e-10 */
    assert_int_equal(mgw_wire_choose(&cost, MGW_ALL_REDUCE, 25062), MGW_F32);
    mgw_plan_destroy(plan);
    trace->gradient_dtype = MGW_BF16; /* these travel as they are */
    plan = make_plan(trace, &cost, "wfbp");
    assert_int_equal(plan->operations[0].wire, MGW_F32);
    assert_int_equal(plan->operations[0].bytes, 2000000);
    assert_close(plan->operations[0].end_s, 0.2 + 1e-4 + 2e6 * 8e-10);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wires_by_name),
        cmocka_unit_test(bytes_that_travel),
        cmocka_unit_test(plan_files_say_the_wire),
        cmocka_unit_test(wires_that_are_none),
        cmocka_unit_test(cluster_files_say_what_casts_take),
        cmocka_unit_test(optimal_is_the_best_of_all_cuts_and_wires),
        cmocka_unit_test(overlap_is_the_best_of_its_class_with_wires),
        cmocka_unit_test(the_curve_is_the_least_of_all),
        cmocka_unit_test(small_messages_stay_wide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
