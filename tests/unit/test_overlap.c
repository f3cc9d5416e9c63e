/* Policy `overlap` compared with exhaustive search, straightforward dynamic programs, and all other
 * policies. */
#include "any_schedule.h"

static size_t count_whole(const mgw_plan *plan)
{
    size_t whole = 0;
    for (size_t m = 0; m < plan->operation_count; m++)
        whole += plan->operations[m].kind == MGW_ALL_REDUCE ? plan->operations[m].count : 0;
    return whole;
}

static void check_not_above(const mgw_trace *trace, const mgw_cost *cost, const mgw_plan *plan,
                            const char *policy)
{
    mgw_plan *other = make_plan(trace, cost, policy);
    if (plan->iteration_s > other->iteration_s * (1 + 1e-12))
        fail_msg("overlap %.17g, %s %.17g", plan->iteration_s, policy, other->iteration_s);
    mgw_plan_destroy(other);
}

/* Whether no tensor is needed before one that is ready later. */
static bool needs_reverse(const overlap_problem *p)
{
    for (size_t i = 1; i < p->n; i++)
        if (p->needed_s[i] > p->needed_s[i - 1])
            return false;
    return true;
}

/* The best of its class or, where gathers in order of need are faster, one of these. Returns
 * whether it is of the class. */
static bool check_best(const overlap_problem *p, const mgw_plan *plan, const overlap_found *best)
{
    bool in_class = overlap_in_class(plan);
    assert_true(plan->overlaps_forward);
    if (in_class) {
        assert_close(plan->iteration_s, best->period_s);
        assert_int_equal(plan->operation_count, best->operations);
        assert_int_equal(count_whole(plan), best->whole);
    } else {
        assert_true(plan->iteration_s < best->period_s);
        assert_false(needs_reverse(p));
    }
    if (plan->lower_bound_s > plan->iteration_s * (1 + 1e-12))
        fail_msg("bound %.17g, period %.17g", plan->lower_bound_s, plan->iteration_s);
    return in_class;
}

static bool check_small(const overlap_problem *p)
{
    overlap_found best = overlap_search(p, true);
    mgw_trace *trace = overlap_trace(p);
    mgw_plan *plan = make_plan(trace, &p->cost, "overlap");
    bool in_class = check_best(p, plan, &best);
    check_not_above(trace, &p->cost, plan, "optimal");
    check_not_above(trace, &p->cost, plan, "sharded");
    check_not_above(trace, &p->cost, plan, "zero");
    check_not_above(trace, &p->cost, plan, "fsdp");
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
    return in_class;
}

static void overlap_is_the_best_of_its_class(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 1;
    size_t in_class = 0;
    for (int i = 0; i < 10000; i++) {
        overlap_random(&p, 1 + random_below(&state, 6), false, &state);
        in_class += check_small(&p);
    }
    assert_in_range(in_class, 9500, 9999);
}

static void overlap_on_curves_is_the_best_of_its_class(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 2;
    size_t in_class = 0;
    for (int i = 0; i < 4000; i++) {
        overlap_random(&p, 1 + random_below(&state, 6), true, &state);
        in_class += check_small(&p);
    }
    assert_in_range(in_class, 3800, 3999);
}

/* Nothing is all-reduced; no buckets of halves are better. */
static void sharded_is_the_best_of_halves(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 3;
    size_t in_class = 0;
    for (int i = 0; i < 10000; i++) {
        overlap_random(&p, 1 + random_below(&state, 6), i % 3 == 0, &state);
        overlap_found best = overlap_search_up_to(&p, 0, false);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *plan = make_plan(trace, &p.cost, "sharded");
        in_class += check_best(&p, plan, &best);
        assert_int_equal(count_whole(plan), 0);
        check_not_above(trace, &p.cost, plan, "zero");
        check_not_above(trace, &p.cost, plan, "fsdp");
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_in_range(in_class, 9000, 9999);
}

/* Four tensors of 4, 8, 4 and 12 bytes, ready at 4, 5, 6, 8, needed at 3, 2, 1 and 0; half of
 * 1 + M/4 each way. */
static void peers_by_hand(void **unused)
{
    (void)unused;
    static const char *const names[] = {"head.weight", "body.2.bias", "body.2.weight", "stem"};
    const mgw_tensor tensors[] = {{1, 1, 3}, {2, 1, 2}, {1, 1, 1}, {3, 2, 0}};
    mgw_cost cost = {.of = {[MGW_ALL_REDUCE] = {.a_s = 1, .b_s_per_byte = 0.25},
                            [MGW_REDUCE_SCATTER] = {.a_s = 0.5, .b_s_per_byte = 0.125},
                            [MGW_ALL_GATHER] = {.a_s = 0.5, .b_s_per_byte = 0.125}},
                     .workers = 4};
    static const struct {
        const char *policy;
        size_t count;
        size_t firsts[8];
        uint64_t bytes[8];
        mgw_release release; /* of gathers */
        double end_s;
        double iteration_s;
    } expected[] = {
        /* 4-5, 6-8, 8-10; gathers of 6, 6 and 2 bytes: until 11.25, 12.5, 13.25 */
        {"fsdp", 6, {0, 1, 3, 3, 1, 0}, {4, 12, 12, 6, 6, 2}, MGW_AFTER_UPDATE, 13.25, 11.5},
        /* {head, body} at 6-8.5, stem until 10.5; gathers until 11.75 and 13.25 */
        {"fsdp:16B", 4, {0, 3, 3, 0}, {16, 12, 6, 8}, MGW_AFTER_UPDATE, 13.25, 12.25},
        {"fsdp:15B", 6, {0, 1, 3, 3, 1, 0}, {4, 12, 12, 6, 6, 2}, MGW_AFTER_UPDATE, 13.25, 11.5},
        /* {1, 2} at 5-7, {3, 4} at 8-10.5; gathers until 12 and 13.25 */
        {"zero:12B", 4, {0, 2, 2, 0}, {12, 16, 8, 6}, MGW_AFTER_UPDATE, 13.25, 12},
        /* gradients: until 13 and 15 */
        {"dear:12B", 4, {0, 2, 2, 0}, {12, 16, 16, 12}, MGW_AFTER_BACKWARD, 15, 13},
    };
    mgw_trace *trace = NULL;
    assert_int_equal(mgw_trace_create("m", MGW_F32, 3, 4, names, tensors, &trace, NULL), MGW_OK);
    trace->parameter_dtype = MGW_BF16;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        mgw_plan *plan = make_plan(trace, &cost, expected[i].policy);
        assert_int_equal(plan->operation_count, expected[i].count);
        for (size_t m = 0; m < plan->operation_count; m++) {
            const mgw_operation *o = &plan->operations[m];
            bool gathers = m >= plan->operation_count / 2;
            assert_int_equal(o->kind, gathers ? MGW_ALL_GATHER : MGW_REDUCE_SCATTER);
            assert_int_equal(o->release, gathers ? expected[i].release : MGW_WHEN_READY);
            assert_int_equal(o->first, expected[i].firsts[m]);
            assert_int_equal(o->bytes, expected[i].bytes[m]);
        }
        assert_close(plan->operations[plan->operation_count - 1].end_s, expected[i].end_s);
        assert_close(plan->iteration_s, expected[i].iteration_s);
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

/* The least of its period and what its operations cost: with the tensors all-reduced that are if
 * they cost nothing, or with all of them. */
static double search_worth(const overlap_problem *p, const mgw_plan *plan)
{
    overlap_found best = {INFINITY, 0, 0};
    size_t s = 0;
    while (s < plan->operation_count && plan->operations[s].kind != MGW_ALL_REDUCE)
        s++;
    s = s < plan->operation_count ? plan->operations[s].first : 0;
    overlap_visit v = {p, s, s + count_whole(plan), INFINITY, &best, p->cost.worth_s};
    overlap_cut(&v, 0, 0, 0, p->ready_s[p->n - 1], 0);
    v.s = 0;
    v.k = p->n;
    overlap_cut(&v, 0, 0, 0, p->ready_s[p->n - 1], 0);
    return best.period_s;
}

static void operations_must_gain_their_worth(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 6;
    size_t fewer = 0;
    size_t equal = 0;
    for (int i = 0; i < 2000; i++) {
        overlap_random(&p, 1 + random_below(&state, 6), i % 5 == 0, &state);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *before = make_plan(trace, &p.cost, "overlap");
        p.cost.worth_s = random_unit(&state) * (double)random_below(&state, 4) / 2;
        mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
        double takes_s = plan->iteration_s + p.cost.worth_s * (double)plan->operation_count;
        double least_s = search_worth(&p, before);
        if (takes_s > least_s * (1 + 1e-8))
            fail_msg("%.17g instead of %.17g", takes_s, least_s);
        equal += takes_s > least_s * (1 - 1e-8); /* the rest: groups of equal size are better */
        fewer += plan->operation_count < before->operation_count;
        mgw_plan_destroy(plan);
        mgw_plan_destroy(before);
        mgw_trace_destroy(trace);
    }
    assert_true(fewer > 100);
    assert_in_range(equal, 1800, 2000);
}

/* Of sets of tensors in any order: none is below the bound, and the best is not above the plan. */
static void the_bound_holds_for_any_schedule(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 5;
    size_t reached = 0;
    for (int i = 0; i < 4000; i++) {
        overlap_random(&p, 1 + random_below(&state, 4), i % 4 == 0, &state);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
        double least_s = any_schedule(&p);
        if (plan->lower_bound_s > least_s * (1 + 1e-12))
            fail_msg("bound %.17g, schedule %.17g", plan->lower_bound_s, least_s);
        assert_true(least_s <= plan->iteration_s * (1 + 1e-12));
        reached += plan->lower_bound_s >= least_s * (1 - 1e-12);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_true(reached > 2000); /* a bound of nothing would hold, too */
}

/* ---- Shipped traces, clusters and numbers of workers ---- */

/* No policy is better, nor is any schedule below the bound. Returns what `optimal` takes beside it.
 */
static double compare_policies(const mgw_trace *trace, const mgw_cost *cost)
{
    static const char *const others[] = {"naive",      "wfbp",      "single",     "mgwfbp",
                                         "optimal",    "threshold", "ddp",        "fsdp",
                                         "fsdp:25MiB", "zero",      "zero:4MiB",  "zero:100MiB",
                                         "dear",       "dear:4MiB", "dear:100MiB"};
    double optimal_s = 0;
    mgw_plan *overlap = make_plan(trace, cost, "overlap");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        mgw_plan *plan = make_plan(trace, cost, others[i]);
        if (overlap->iteration_s > plan->iteration_s * (1 + 1e-12))
            fail_msg("%s on %s, %u workers: overlap %.9g, %s %.9g", trace->model, cost->cluster,
                     cost->workers, overlap->iteration_s, others[i], plan->iteration_s);
        assert_true(overlap->lower_bound_s <= plan->iteration_s * (1 + 1e-12));
        if (!strcmp(others[i], "optimal"))
            optimal_s = plan->iteration_s;
        mgw_plan_destroy(plan);
    }
    mgw_plan *sharded = make_plan(trace, cost, "sharded");
    assert_true(overlap->iteration_s <= sharded->iteration_s * (1 + 1e-12));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(others[i], "zero", 4) || !strncmp(others[i], "fsdp", 4))
            check_not_above(trace, cost, sharded, others[i]);
    mgw_plan_destroy(sharded);
    double ratio = optimal_s / overlap->iteration_s;
    mgw_plan_destroy(overlap);
    return ratio;
}

/* The cluster as links of a ring, which any number of workers can share. */
static mgw_cluster *load_ring(const char *name)
{
    mgw_cluster *cluster = NULL;
    mgw_cluster *ring = NULL;
    mgw_link link;
    assert_int_equal(mgw_cluster_load(name, &cluster, NULL), MGW_OK);
    if (cluster->kind == MGW_CLUSTER_LINK)
        return cluster;
    assert_int_equal(mgw_algorithm_link(MGW_RING, &cluster->cost, cluster->workers, 1, &link, NULL),
                     MGW_OK);
    assert_int_equal(mgw_cluster_from_link(name, cluster->workers, &link, MGW_RING, 1, &ring, NULL),
                     MGW_OK);
    mgw_cluster_destroy(cluster);
    return ring;
}

static void no_policy_beats_overlap_on_shipped_data(void **unused)
{
    (void)unused;
    static const unsigned workers[] = {2, 4, 8, 16, 64, 256, 2048};
    size_t count = 0;
    size_t cases = 0;
    double most = 0;
    const mgw_builtin *list = mgw_builtin_list(&count);
    for (size_t t = 0; t < count; t++)
        for (size_t c = 0; list[t].kind == MGW_DATA_TRACE && c < count; c++) {
            if (list[c].kind != MGW_DATA_CLUSTER)
                continue;
            mgw_trace *trace = NULL;
            mgw_cluster *ring = load_ring(list[c].name);
            assert_int_equal(mgw_trace_load(list[t].name, &trace, NULL), MGW_OK);
            for (size_t w = 0; w < sizeof workers / sizeof *workers; w++, cases++) {
                mgw_cost cost;
                trace->parameter_dtype = cases % 3 ? trace->gradient_dtype : MGW_BF16;
                assert_int_equal(mgw_cluster_rescale(ring, workers[w], NULL, NULL), MGW_OK);
                mgw_cluster_cost(ring, &cost);
                most = fmax(most, compare_policies(trace, &cost));
            }
            mgw_cluster_destroy(ring);
            mgw_trace_destroy(trace);
        }
    assert_int_equal(cases, 17 * 4 * 7);
    assert_true(most > 1.5);
}

/* ---- How far from any schedule: test_overlap --gap CASES ---- */

/* A forward pass of 1, a backward pass of 2, communication of 0.5 to 9. */
static void make_natural(overlap_problem *p, size_t n, int order, uint64_t *state)
{
    double gaps[ANY_MAX + 1];
    double sums[2] = {0, 0};
    double all = 0;
    *p = (overlap_problem){.n = n, .forward_s = 1, .parameters = MGW_F32};
    for (size_t i = 0; i <= n; i++)
        sums[0] += gaps[i] = 0.01 + random_unit(state) * random_unit(state);
    for (size_t i = 0; i < n; i++) {
        sums[1] += gaps[i] / (sums[0] - gaps[n]);
        double jitter = order == 1 ? 0.4 * (random_unit(state) - 0.5) : 0;
        double needed_s = order == 2 ? random_unit(state) : 1 - sums[1] + jitter;
        needed_s = fmin(1, fmax(0, needed_s));
        p->tensors[i] = (mgw_tensor){1 + (uint64_t)(1e6 * pow(random_unit(state), 3)),
                                     2 * gaps[i] / (sums[0] - gaps[n]),
                                     order == 0 && i + 1 == n ? 0 : needed_s};
        all += 4 * (double)p->tensors[i].count;
    }
    double a = 0.01 + 0.39 * pow(random_unit(state), 2);
    double b = (0.5 + 8.5 * random_unit(state)) / all;
    p->cost = (mgw_cost){.of = {[MGW_ALL_REDUCE] = {.a_s = a, .b_s_per_byte = b},
                                [MGW_REDUCE_SCATTER] = {.a_s = a / 2, .b_s_per_byte = b / 2},
                                [MGW_ALL_GATHER] = {.a_s = a / 2, .b_s_per_byte = b / 2}},
                         .workers = 2};
    overlap_add_up(p);
}

static int print_gaps(int cases)
{
    static const char *const orders[] = {"the reverse of ready order", "nearly the reverse", "any"};
    static overlap_problem p;
    uint64_t state = 7;
    printf("| order of need | tensors | `optimal` | `overlap` | lower bound "
           "|\n|---|---|---|---|---|\n");
    for (int order = 0; order < 3; order++)
        for (size_t n = 3; n <= ANY_MAX; n++) {
            double sums[3] = {0};
            double most[3] = {0};
            for (int i = 0; i < cases; i++) {
                make_natural(&p, n, order, &state);
                double least_s = any_schedule(&p);
                mgw_trace *trace = overlap_trace(&p);
                mgw_plan *optimal = make_plan(trace, &p.cost, "optimal");
                mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
                double ratios[3] = {optimal->iteration_s / least_s, plan->iteration_s / least_s,
                                    least_s / plan->lower_bound_s};
                for (int r = 0; r < 3; r++) {
                    sums[r] += ratios[r] / cases;
                    most[r] = fmax(most[r], ratios[r]);
                }
                mgw_plan_destroy(plan);
                mgw_plan_destroy(optimal);
                mgw_trace_destroy(trace);
            }
            printf("| %s | %zu | %.3f (%.2f) | %.4f (%.3f) | %.3f (%.2f) |\n", orders[order], n,
                   sums[0], most[0], sums[1], most[1], 1 / sums[2], 1 / most[2]);
        }
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3 && !strcmp(arguments[1], "--gap"))
        return print_gaps(atoi(arguments[2]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_is_the_best_of_its_class),
        cmocka_unit_test(peers_by_hand),
        cmocka_unit_test(overlap_on_curves_is_the_best_of_its_class),
        cmocka_unit_test(sharded_is_the_best_of_halves),
        cmocka_unit_test(operations_must_gain_their_worth),
        cmocka_unit_test(the_bound_holds_for_any_schedule),
        cmocka_unit_test(no_policy_beats_overlap_on_shipped_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
