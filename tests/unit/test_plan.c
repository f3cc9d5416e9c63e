/* Planners against exhaustive search, dynamic programming and the algorithm as published. */
#include <math.h>

#include "published.h"
#include "support.h"

enum { MAX_N = 2048 };

/* A random problem; `whole` makes all times whole numbers, so that ties are exact. */
typedef struct problem {
    size_t n;
    mgw_tensor tensors[MAX_N];
    double ready_s[MAX_N + 1];
    uint64_t prefix[MAX_N + 1];
    double forward_s;
    mgw_cost cost;
    mgw_sample samples[8];
} problem;

static void add_up(problem *p)
{
    double now = p->forward_s;
    p->ready_s[0] = 0;
    p->prefix[0] = 0;
    for (size_t j = 1; j <= p->n; j++) {
        now += p->tensors[j - 1].backward_s;
        p->ready_s[j] = now;
        p->prefix[j] = p->prefix[j - 1] + 4 * p->tensors[j - 1].count;
    }
}

static void make_whole(problem *p, uint64_t *state)
{
    p->forward_s = (double)random_below(state, 3);
    for (size_t i = 0; i < p->n; i++)
        p->tensors[i] =
            (mgw_tensor){random_below(state, 4), (double)random_below(state, 4), MGW_TIME_UNKNOWN};
    p->cost =
        (mgw_cost){.of[MGW_ALL_REDUCE] = {.a_s = (double)random_below(state, 4),
                                          .b_s_per_byte = 0.25 * (double)random_below(state, 3)},
                   .workers = 2};
}

static void make_real(problem *p, uint64_t *state)
{
    p->forward_s = random_unit(state);
    for (size_t i = 0; i < p->n; i++)
        p->tensors[i] =
            (mgw_tensor){random_below(state, 5) ? random_below(state, 1000000) : 0,
                         random_below(state, 5) ? random_unit(state) : 0, MGW_TIME_UNKNOWN};
    p->cost = (mgw_cost){
        .of[MGW_ALL_REDUCE] = {.a_s = random_below(state, 6) ? 2 * random_unit(state) : 0,
                               .b_s_per_byte =
                                   random_below(state, 6) ? random_unit(state) * 4e-7 : 0},
        .workers = 2};
}

static void make_random(problem *p, size_t max_n, uint64_t *state)
{
    p->n = 1 + random_below(state, max_n);
    if (random_below(state, 2))
        make_whole(p, state);
    else
        make_real(p, state);
    add_up(p);
}

/* A curve with jumps and flat parts, as protocols make them. */
static void add_curve(problem *p, uint64_t *state)
{
    size_t count = 1 + random_below(state, 8);
    uint64_t bytes = random_below(state, 4);
    double seconds = (double)random_below(state, 3);
    for (size_t i = 0; i < count; i++) {
        p->samples[i] = (mgw_sample){bytes, seconds};
        bytes += 1 + random_below(state, 12);
        seconds += random_below(state, 3) ? (double)random_below(state, 4) : 0;
    }
    p->cost.of[MGW_ALL_REDUCE].samples = p->samples;
    p->cost.of[MGW_ALL_REDUCE].sample_count = count;
}

/* The best end over all partitions, and the fewest messages of those that reach it. */
typedef struct found {
    double end_s;
    size_t messages;
} found;

static void search(const problem *p, size_t i, double free_s, size_t messages, found *best)
{
    if (i == p->n) {
        double tolerance = 1e-12 * best->end_s;
        if (free_s < best->end_s - tolerance ||
            (free_s <= best->end_s + tolerance && messages < best->messages))
            best->messages = messages;
        best->end_s = fmin(best->end_s, free_s);
        return;
    }
    for (size_t j = i + 1; j <= p->n; j++) {
        double start_s = fmax(p->ready_s[j], free_s);
        search(p, j,
               start_s + mgw_cost_seconds(&p->cost, MGW_ALL_REDUCE, p->prefix[j] - p->prefix[i]),
               messages + 1, best);
    }
}

static void compare_with_search(const problem *p)
{
    found best = {1e300, SIZE_MAX};
    search(p, 0, 0, 0, &best);
    mgw_trace *trace = make_trace(p->forward_s, p->n, p->tensors);
    mgw_plan *plan = make_plan(trace, &p->cost, "optimal");
    assert_close(plan->iteration_s, best.end_s);
    assert_int_equal(plan->operation_count, best.messages);
    if (plan->lower_bound_s > plan->iteration_s * (1 + 1e-12))
        fail_msg("lower bound %.17g above %.17g", plan->lower_bound_s, plan->iteration_s);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

static void optimal_is_the_best_of_all_partitions(void **unused)
{
    (void)unused;
    static problem p;
    uint64_t state = 1;
    for (int i = 0; i < 12000; i++) {
        p.cost = (mgw_cost){0};
        make_random(&p, 14, &state);
        compare_with_search(&p);
    }
}

static void optimal_on_curves_is_the_best_of_all_partitions(void **unused)
{
    (void)unused;
    static problem p;
    uint64_t state = 2;
    for (int i = 0; i < 4000; i++) {
        p.n = 1 + random_below(&state, 12);
        make_whole(&p, &state);
        add_up(&p);
        add_curve(&p, &state);
        compare_with_search(&p);
    }
}

/* The least of its end and what its messages must gain, over all partitions. */
static void search_worth(const problem *p, size_t i, double free_s, double worth_s, double *least)
{
    if (i == p->n) {
        *least = fmin(*least, free_s + worth_s);
        return;
    }
    for (size_t j = i + 1; j <= p->n; j++) {
        double start_s = fmax(p->ready_s[j], free_s);
        search_worth(
            p, j, start_s + mgw_cost_seconds(&p->cost, MGW_ALL_REDUCE, p->prefix[j] - p->prefix[i]),
            worth_s + p->cost.worth_s, least);
    }
}

static void a_message_more_must_gain_its_worth(void **unused)
{
    (void)unused;
    static problem p;
    uint64_t state = 5;
    for (int i = 0; i < 6000; i++) {
        p.cost = (mgw_cost){0};
        make_random(&p, 12, &state);
        if (i % 3 == 0)
            add_curve(&p, &state);
        p.cost.worth_s = random_unit(&state) * (double)random_below(&state, 4) / 2;
        double least = INFINITY;
        search_worth(&p, 0, 0, 0, &least);
        mgw_trace *trace = make_trace(p.forward_s, p.n, p.tensors);
        mgw_plan *plan = make_plan(trace, &p.cost, "optimal");
        double worth_s = plan->iteration_s + p.cost.worth_s * (double)plan->operation_count;
        if (worth_s > least * (1 + 1e-8) || worth_s < least * (1 - 1e-8))
            fail_msg("%.17g instead of %.17g", worth_s, least);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/* F(j) = min over i of max(R_j, F(i)) + T(P_j - P_i), written down. */
static double dynamic_program(const problem *p)
{
    static double earliest[MAX_N + 1];
    earliest[0] = 0;
    for (size_t j = 1; j <= p->n; j++) {
        earliest[j] = INFINITY;
        for (size_t i = 0; i < j; i++) {
            double start_s = fmax(p->ready_s[j], earliest[i]);
            double end_s =
                start_s + mgw_cost_seconds(&p->cost, MGW_ALL_REDUCE, p->prefix[j] - p->prefix[i]);
            earliest[j] = fmin(earliest[j], end_s);
        }
    }
    return earliest[p->n];
}

static void optimal_equals_the_quadratic_program(void **unused)
{
    (void)unused;
    static problem p;
    uint64_t state = 3;
    for (int i = 0; i < 1000; i++) {
        p.cost = (mgw_cost){0};
        make_random(&p, 2000, &state);
        mgw_trace *trace = make_trace(p.forward_s, p.n, p.tensors);
        mgw_plan *plan = make_plan(trace, &p.cost, "optimal");
        assert_close(plan->iteration_s, dynamic_program(&p));
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/*
 * Very many tensors, and a channel that is busy exactly as long as gradients take to come: every
 * message of the optimum is tight, and what rounding does adds up.
 */
static void large_problems_stay_optimal(void **unused)
{
    (void)unused;
    static const struct {
        size_t count;
        double gap_s, a_s, b_s_per_byte;
    } cases[] = {{10000, 0.001, 0.0036, 2.5e-5},
                 {100000, 0.001, 0.0036, 2.5e-5},
                 {1000000, 0.001, 0.0036, 2.5e-5},
                 {1000000, 1e-7, 1e-4, 1e-11},
                 {300000, 3e-6, 1e-5, 1e-7}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n = cases[c].count;
        mgw_tensor *tensors = calloc(n, sizeof *tensors);
        for (size_t i = 0; i < n; i++)
            tensors[i] = (mgw_tensor){1, cases[c].gap_s, MGW_TIME_UNKNOWN};
        mgw_trace *trace = make_trace(0, n, tensors);
        mgw_cost cost = {
            .of[MGW_ALL_REDUCE] = {.a_s = cases[c].a_s, .b_s_per_byte = cases[c].b_s_per_byte},
            .workers = 2};
        mgw_plan *plan = make_plan(trace, &cost, "optimal");
        /* F by the two-candidate recurrence, without any merging. */
        double *earliest = calloc(n + 1, sizeof *earliest);
        double ready_s = 0;
        size_t done = 0;
        for (size_t j = 1; j <= n; j++) {
            ready_s += cases[c].gap_s;
            while (done + 1 < j && earliest[done + 1] <= ready_s)
                done++;
            earliest[j] = ready_s + mgw_cost_seconds(&cost, MGW_ALL_REDUCE, 4 * (j - done));
            if (done + 1 < j)
                earliest[j] =
                    fmin(earliest[j], earliest[done + 1] + mgw_cost_seconds(&cost, MGW_ALL_REDUCE,
                                                                            4 * (j - done - 1)));
        }
        double ratio = plan->iteration_s / earliest[n];
        assert_true(ratio > 1 - 1e-10 && ratio < 1 + 1e-10);
        free(earliest);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
        free(tensors);
    }
}

static void greedy_is_the_published_algorithm(void **unused)
{
    (void)unused;
    static problem p;
    static size_t ends[MAX_N];
    published_work work = published_work_create(MAX_N);
    uint64_t state = 4;
    for (int i = 0; i < 2000; i++) {
        p.cost = (mgw_cost){0};
        p.n = 1 + random_below(&state, 60);
        make_whole(&p, &state); /* whole numbers: no rounding at the comparison */
        add_up(&p);
        size_t count =
            published_plan(&work, p.n, p.ready_s, p.prefix, p.cost.of[MGW_ALL_REDUCE].a_s,
                           p.cost.of[MGW_ALL_REDUCE].b_s_per_byte, ends);
        mgw_trace *trace = make_trace(p.forward_s, p.n, p.tensors);
        mgw_plan *plan = make_plan(trace, &p.cost, "mgwfbp");
        assert_int_equal(plan->operation_count, count);
        for (size_t m = 0; m < count; m++)
            assert_int_equal(plan->operations[m].first + plan->operations[m].count, ends[m]);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    published_work_destroy(&work);
}

/* a = b = 1, R = (0, 0.9, 1.8), p = (0.8, 1, 1), in units of 20 bytes. */
static void the_counter_example(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {
        {4, 0, MGW_TIME_UNKNOWN}, {5, 0.9, MGW_TIME_UNKNOWN}, {5, 0.9, MGW_TIME_UNKNOWN}};
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.05}, .workers = 2};
    mgw_trace *trace = make_trace(0, 3, tensors);
    mgw_plan *greedy = make_plan(trace, &cost, "mgwfbp");
    mgw_plan *optimal = make_plan(trace, &cost, "optimal");
    assert_close(greedy->iteration_s, 5.6);
    assert_int_equal(greedy->operation_count, 1);
    assert_close(optimal->iteration_s, 4.8);
    assert_int_equal(optimal->operation_count, 2);
    assert_int_equal(optimal->operations[0].count, 1);
    assert_int_equal(optimal->operations[1].count, 2);
    mgw_plan_destroy(greedy);
    mgw_plan_destroy(optimal);
    mgw_trace_destroy(trace);
}

static void check_cover(const mgw_plan *plan, const mgw_trace *trace)
{
    size_t next = 0;
    uint64_t bytes = 0;
    for (size_t m = 0; m < plan->operation_count; m++) {
        if (!mgw_collective_averages(plan->operations[m].kind))
            continue;
        assert_int_equal(plan->operations[m].first, next);
        assert_true(plan->operations[m].count > 0);
        next += plan->operations[m].count;
        bytes += plan->operations[m].bytes;
    }
    assert_int_equal(next, trace->tensor_count);
    assert_int_equal(bytes, mgw_trace_bytes(trace));
}

/* Every policy on a trace and a cost: none of whole all-reduces beats `optimal`, none goes below
 * the bound. (`overlap` is in test_overlap.c.) */
static void check_policies(const mgw_trace *trace, const mgw_cost *cost)
{
    mgw_plan *optimal = make_plan(trace, cost, "optimal");
    size_t count = 0;
    const mgw_policy *policies = mgw_policy_list(&count);
    for (size_t i = 0; i < count; i++) {
        char name[MGW_POLICY_NAME_MAX];
        mgw_plan *plan = make_plan(trace, cost, mgw_policy_name(&policies[i], name));
        check_cover(plan, trace);
        assert_true(plan->overlaps_forward ||
                    optimal->iteration_s <= plan->iteration_s * (1 + 1e-12));
        assert_true(plan->lower_bound_s <= plan->iteration_s * (1 + 1e-12));
        mgw_plan_destroy(plan);
    }
    mgw_plan_destroy(optimal);
}

static void no_policy_beats_optimal_on_shipped_data(void **unused)
{
    (void)unused;
    size_t count = 0;
    size_t combinations = 0;
    const mgw_builtin *list = mgw_builtin_list(&count);
    for (size_t t = 0; t < count; t++)
        for (size_t c = 0; list[t].kind == MGW_DATA_TRACE && c < count; c++) {
            if (list[c].kind != MGW_DATA_CLUSTER)
                continue;
            mgw_trace *trace = NULL;
            mgw_cluster *cluster = NULL;
            assert_int_equal(mgw_trace_load(list[t].name, &trace, NULL), MGW_OK);
            assert_int_equal(mgw_cluster_load(list[c].name, &cluster, NULL), MGW_OK);
            bool links = cluster->kind == MGW_CLUSTER_LINK;
            for (int g = 0; g < (links ? MGW_ALGORITHM_COUNT : 1); g++)
                for (unsigned n = links ? 2 : 16; n <= (links ? 2048 : 16); n *= 2) {
                    mgw_algorithm algorithm = (mgw_algorithm)g;
                    mgw_cost cost;
                    assert_int_equal(
                        mgw_cluster_rescale(cluster, n, links ? &algorithm : NULL, NULL), MGW_OK);
                    mgw_cluster_cost(cluster, &cost);
                    check_policies(trace, &cost);
                    combinations++;
                }
            mgw_cluster_destroy(cluster);
            mgw_trace_destroy(trace);
        }
    assert_int_equal(combinations, 17 * (3 + 6 * 11));
}

/* Four tensors of 4, 8, 4 and 12 bytes, ready at 2, 3, 4, 6; T(M) = 1 + M/4. */
static void fixed_policies_by_hand(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{1, 1, MGW_TIME_UNKNOWN},
                            {2, 1, MGW_TIME_UNKNOWN},
                            {1, 1, MGW_TIME_UNKNOWN},
                            {3, 2, MGW_TIME_UNKNOWN}};
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25}, .workers = 4};
    static const struct {
        const char *policy;
        double iteration_s;
        size_t messages;
        double first_start_s;
    } expected[] = {
        /* 6 + 2 + 3 + 2 + 4 */
        {"naive", 17, 4, 6},
        /* 2-4, 4-7, 7-9, 9-13 */
        {"wfbp", 13, 4, 2},
        /* 6 + 1 + 7 */
        {"single", 14, 1, 6},
        /* {4, 8} at 3-7, {4, 12} at 7-12 */
        {"threshold:12B", 12, 2, 3},
        /* {4} at 2-4, {8, 4} at 4-8, {12} at 8-12 */
        {"ddp:4B,12B", 12, 3, 2},
        /* {4} at 2-4, {8, 4, 12} at 6-13 */
        {"ddp:4B,100B", 13, 2, 2},
        {"threshold:0", 13, 4, 2},
        {"threshold:1G", 14, 1, 6},
        /* R_2 = 3 < 2 + 1 fails, so {1} at 2-4; R_3 = 4 < 4 + 1 merges 2 with 3; R_4 = 6 < 4 + 1
           fails, so {2, 3} at 4-8 and {4} at 8-12 */
        {"mgwfbp", 12, 3, 2},
    };
    mgw_trace *trace = make_trace(1, 4, tensors);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        mgw_plan *plan = make_plan(trace, &cost, expected[i].policy);
        assert_close(plan->iteration_s, expected[i].iteration_s);
        assert_int_equal(plan->operation_count, expected[i].messages);
        assert_close(plan->operations[0].start_s, expected[i].first_start_s);
        assert_close(plan->exposed_s, expected[i].iteration_s - 6);
        assert_close(plan->compute_s, 6);
        /* max(6 + 4, 2 + 8) */
        assert_close(plan->lower_bound_s, 10);
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

static void policies_by_name(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        const char *name; /* null: an error */
    } cases[] = {
        {"optimal", "optimal"},
        {"mgwfbp", "mgwfbp"},
        {"threshold:64MiB", "threshold:67108864"},
        {"threshold:1", "threshold:1048576"},
        {"threshold:1B", "threshold:1B"},
        {"threshold:2.5", "threshold:2621440"},
        {"threshold:1023", "threshold:1072693248"},
        {"threshold:1024", "threshold:1024"},
        {"threshold:1023B", "threshold:1023B"},
        {"ddp", "ddp"},
        {"ddp:1M,25M", "ddp"},
        {"ddp:1,2K", "ddp:1048576,2048"},
        {"threshold", "threshold:67108864"},
        {"threshold:", NULL},
        {"threshold:1,2", NULL},
        {"threshold:-1", NULL},
        {"threshold:1T", NULL},
        {"threshold:99999999999999999999", NULL},
        {"ddp:25", "ddp"},
        {"ddp:1", "ddp:1048576,1048576"},
        {"ddp:", NULL},
        {"ddp:1,2,3", NULL},
        {"optimal:1", NULL},
        {"Optimal", NULL},
        {"", NULL},
        {"opt", NULL},
        {"overlap", "overlap"},
        {"overlap:1", NULL},
        {"fsdp", "fsdp"},
        {"fsdp:25MiB", "fsdp:26214400"},
        {"fsdp:", NULL},
        {"zero", "zero"},
        {"zero:25MiB", "zero"},
        {"zero:1", "zero:1048576"},
        {"zero:1B", "zero:1B"},
        {"zero:1,2", NULL},
        {"dear:2K", "dear:2048"},
        {"dear:-1", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mgw_policy policy;
        mgw_error error = {0};
        char name[MGW_POLICY_NAME_MAX];
        mgw_status status = mgw_policy_parse(cases[i].text, &policy, &error);
        assert_int_equal(status, cases[i].name ? MGW_OK : MGW_ERR_ARGUMENT);
        if (cases[i].name)
            assert_string_equal(mgw_policy_name(&policy, name), cases[i].name);
        else
            assert_true(strlen(error.message) > 10);
    }
}

static void timing_follows_the_cost(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{1, 1, MGW_TIME_UNKNOWN}, {2, 1, MGW_TIME_UNKNOWN}};
    mgw_trace *trace = make_trace(0, 2, tensors);
    mgw_cost slow = {
        .of[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 1}, .workers = 2, .cluster = "slow"};
    mgw_cost fast = {
        .of[MGW_ALL_REDUCE] = {.a_s = 0.5, .b_s_per_byte = 0}, .workers = 8, .cluster = "fast"};
    mgw_plan *plan = make_plan(trace, &slow, "wfbp");
    assert_close(plan->iteration_s, 1 + 5 + 9);
    assert_int_equal(mgw_plan_time(plan, trace, &fast, NULL), MGW_OK);
    assert_close(plan->iteration_s, 2.5);
    assert_int_equal(plan->workers, 8);
    assert_string_equal(plan->cluster, "fast");
    mgw_trace *other = make_trace(0, 1, tensors);
    mgw_error error = {0};
    assert_int_equal(mgw_plan_time(plan, other, &fast, &error), MGW_ERR_ARGUMENT);
    assert_contains(error.message, "2 tensors");
    mgw_trace_destroy(other);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

static void endless_times_are_refused(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{1, 1, MGW_TIME_UNKNOWN}};
    mgw_trace *trace = make_trace(0, 1, tensors);
    mgw_cost cost = {
        .of[MGW_ALL_REDUCE] = {.a_s = 1e308, .b_s_per_byte = 1e308}, .workers = 2, .cluster = "c"};
    cost.of[MGW_REDUCE_SCATTER] = cost.of[MGW_ALL_GATHER] = cost.of[MGW_ALL_REDUCE];
    static const char *const names[] = {"optimal", "wfbp", "overlap", "zero", "dear", "fsdp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mgw_policy policy;
        mgw_plan *plan = NULL;
        mgw_error error = {0};
        assert_int_equal(mgw_policy_parse(names[i], &policy, &error), MGW_OK);
        assert_int_equal(mgw_plan_make(trace, &cost, &policy, &plan, &error), MGW_ERR_UNSUPPORTED);
        assert_contains(error.message, "not finite");
    }
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimal_is_the_best_of_all_partitions),
        cmocka_unit_test(optimal_on_curves_is_the_best_of_all_partitions),
        cmocka_unit_test(a_message_more_must_gain_its_worth),
        cmocka_unit_test(optimal_equals_the_quadratic_program),
        cmocka_unit_test(large_problems_stay_optimal),
        cmocka_unit_test(greedy_is_the_published_algorithm),
        cmocka_unit_test(the_counter_example),
        cmocka_unit_test(no_policy_beats_optimal_on_shipped_data),
        cmocka_unit_test(fixed_policies_by_hand),
        cmocka_unit_test(policies_by_name),
        cmocka_unit_test(timing_follows_the_cost),
        cmocka_unit_test(endless_times_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
