/* The search of policy `overlap` for many tensors: compared with exhaustive search for few tensors,
 * and with straightforward chains for every s and k for many. */
#include "overlap_search.h"
#include "plan/overlap.h"

typedef struct found {
    mgw_choice choice;
    double period_s; /* of the plan */
    size_t operations;
} found;

/* What mgw_plan_overlap does for many tensors. */
static found run_line(const overlap_problem *p, const mgw_trace *trace)
{
    mgw_problem problem;
    mgw_sequence sequence;
    found f = {0};
    assert_int_equal(mgw_problem_init(&problem, trace, &p->cost, NULL), MGW_OK);
    assert_int_equal(mgw_sequence_init(&sequence, &problem, NULL), MGW_OK);
    assert_int_equal(mgw_overlap_line(&sequence, &f.choice, NULL), MGW_OK);
    mgw_operations made = {.list = calloc(2 * p->n, sizeof *made.list)};
    mgw_sequence_set(&sequence, f.choice.s, f.choice.k);
    assert_int_equal(mgw_sequence_plan(&sequence, f.choice.period_s, &made, NULL), MGW_OK);
    mgw_plan *plan = NULL;
    assert_int_equal(
        mgw_plan_from_operations(trace, &p->cost, "line", made.list, made.count, &plan, NULL),
        MGW_OK);
    plan->overlaps_forward = true;
    assert_int_equal(mgw_plan_time(plan, trace, &p->cost, NULL), MGW_OK);
    f.period_s = plan->iteration_s;
    f.operations = plan->operation_count;
    mgw_plan_destroy(plan);
    free(made.list);
    mgw_sequence_fini(&sequence);
    mgw_problem_fini(&problem);
    return f;
}

static double find_bound(const overlap_problem *p, const mgw_trace *trace)
{
    mgw_problem problem;
    assert_int_equal(mgw_problem_init(&problem, trace, &p->cost, NULL), MGW_OK);
    double bound_s = mgw_problem_forward_bound(&problem);
    mgw_problem_fini(&problem);
    return bound_s;
}

static void the_line_is_the_best_of_its_class(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 3;
    size_t intervals = 0;
    for (int i = 0; i < 10000; i++) {
        overlap_random(&p, 1 + random_below(&state, 6), false, &state);
        mgw_trace *trace = overlap_trace(&p);
        overlap_found best = overlap_search(&p, false);
        overlap_found any = overlap_search(&p, true);
        found f = run_line(&p, trace);
        assert_close(f.choice.period_s, f.period_s);
        assert_true(f.period_s <= best.period_s * (1 + 1e-12));
        assert_true(f.period_s >= any.period_s * (1 - 1e-12));
        if (f.choice.s == 0) { /* no pair of s and k was better, or none was looked at */
            assert_close(f.period_s, best.period_s);
            assert_int_equal(f.operations, best.operations);
            assert_int_equal(f.choice.k, best.whole);
        }
        intervals += f.choice.s > 0;
        mgw_trace_destroy(trace);
    }
    assert_true(intervals > 100);
}

/* ---- Many tensors ---- */

static double prefix_s[MGW_COLLECTIVE_COUNT][SEARCH_MAX + 1]; /* b times bytes */

static void add_up(const overlap_problem *p)
{
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        for (size_t i = 0; i < p->n; i++)
            prefix_s[kind][i + 1] =
                prefix_s[kind][i] +
                (overlap_seconds(p, (mgw_collective)kind, i, i + 1) - p->cost.of[kind].a_s);
}

/* The earliest ends of first..i, for all i, if the channel is free from `free_s` on. */
static void chain(const overlap_problem *p, mgw_collective kind, const double *ready_s,
                  size_t first, double free_s, double *ends)
{
    ends[first] = free_s;
    for (size_t j = first + 1; j <= p->n; j++) {
        double latest_s = -INFINITY;
        ends[j] = INFINITY;
        for (size_t i = j; i > first; i--) {
            latest_s = fmax(latest_s, ready_s[i - 1]);
            double took_s = p->cost.of[kind].sample_count
                                ? overlap_seconds(p, kind, i - 1, j)
                                : p->cost.of[kind].a_s + prefix_s[kind][j] - prefix_s[kind][i - 1];
            ends[j] = fmin(ends[j], fmax(latest_s, ends[i - 1]) + took_s);
        }
    }
}

/* The best period of all k, or of all s and k; all-reduces must not decide. */
static double best_of_all(const overlap_problem *p, bool pairs)
{
    static double due_s[SEARCH_MAX];
    static double reduced[SEARCH_MAX + 1];
    static double scattered[SEARCH_MAX + 1];
    static double gathered[SEARCH_MAX + 1];
    static double ends[SEARCH_MAX + 1];
    static double leads[SEARCH_MAX + 1];
    double best = INFINITY;
    for (size_t i = 0; i < p->n; i++)
        due_s[i] = -p->needed_s[i];
    chain(p, MGW_REDUCE_SCATTER, p->ready_s, 0, 0, scattered);
    chain(p, MGW_ALL_GATHER, due_s, 0, -INFINITY, gathered);
    for (size_t s = 0; s < (pairs ? p->n : 1); s++) {
        chain(p, MGW_ALL_REDUCE, p->ready_s, s, s ? scattered[s] : 0, reduced);
        for (size_t k = s ? s + 1 : 0; k <= p->n; k++) {
            chain(p, MGW_REDUCE_SCATTER, p->ready_s, k, reduced[k], ends);
            chain(p, MGW_ALL_GATHER, due_s, k, s ? gathered[s] : -INFINITY, leads);
            double period_s = fmax(p->ready_s[p->n - 1], ends[p->n] + leads[p->n]);
            if (k == p->n)
                period_s = fmax(period_s, ends[p->n] - p->needed_s[p->n - 1]);
            best = fmin(best, period_s);
        }
    }
    return best;
}

/* Tensors needed in the reverse of ready order, so that an all-reduce decides only at k = n. */
static void make_many(overlap_problem *p, size_t n, uint64_t *state)
{
    overlap_random(p, n, false, state);
    double at = p->forward_s = 0.5 * (double)n * random_unit(state);
    for (size_t i = 0; i < n; i++) {
        at *= random_unit(state) < 0.5 ? 1 : 1 - 2 / (double)n;
        p->tensors[i].forward_start_s = i + 1 < n ? at : 0;
        p->tensors[i].count = random_below(state, 8) ? 1 + random_below(state, 20) : 400;
    }
    overlap_add_up(p);
    double total_s = p->ready_s[n - 1] * (0.3 + 2 * random_unit(state));
    uint64_t elements = 0;
    for (size_t i = 0; i < n; i++)
        elements += p->tensors[i].count;
    double a = total_s * (random_below(state, 4) ? 0.05 : 0.002) * random_unit(state);
    double b = total_s / (4 * (double)elements);
    p->cost.of[MGW_ALL_REDUCE] = (mgw_curve){.a_s = a, .b_s_per_byte = b};
    p->cost.of[MGW_REDUCE_SCATTER] = p->cost.of[MGW_ALL_GATHER] =
        (mgw_curve){.a_s = a / 2, .b_s_per_byte = b / 2};
    add_up(p);
}

static void assert_nearly(double actual, double expected)
{
    if (fabs(actual - expected) > 1e-10 * expected)
        fail_msg("%.17g is not %.17g", actual, expected);
}

static void many_tensors_equal_the_chains(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 4;
    size_t pairs = 0;
    for (int i = 0; i < 400; i++) {
        make_many(&p, 49 + random_below(&state, SEARCH_MAX - 48), &state);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
        double best_s = best_of_all(&p, false);
        double bound_s = find_bound(&p, trace);
        assert_true(bound_s == plan->lower_bound_s && bound_s <= plan->iteration_s * (1 + 1e-12));
        bool looks = best_s > 1.005 * bound_s;
        if (!looks)
            assert_nearly(plan->iteration_s, best_s);
        else if (pairs++ < 12) /* as long as it takes */
            assert_nearly(plan->iteration_s, best_of_all(&p, true));
        else
            assert_true(plan->iteration_s <= best_s * (1 + 1e-10));
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
    assert_true(pairs > 40 && pairs < 360);
}

/* A step where a protocol changes, on the line that a and b make. */
static void add_step(overlap_problem *p)
{
    for (int kind = 0; kind <= MGW_ALL_GATHER; kind++) {
        const uint64_t sizes[] = {4, 200, 201, 4000};
        for (size_t i = 0; i < 4; i++) {
            double on_line_s = mgw_cost_seconds(&p->cost, (mgw_collective)kind, sizes[i]);
            p->samples[kind][i] = (mgw_sample){sizes[i], i < 2 ? on_line_s / 2 : on_line_s};
        }
    }
    for (int kind = 0; kind <= MGW_ALL_GATHER; kind++) {
        p->cost.of[kind].samples = p->samples[kind];
        p->cost.of[kind].sample_count = 4;
    }
}

static void many_tensors_on_curves_equal_the_chains(void **unused)
{
    (void)unused;
    static overlap_problem p;
    uint64_t state = 8;
    for (int i = 0; i < 12; i++) {
        make_many(&p, 49 + random_below(&state, 20), &state);
        add_step(&p);
        mgw_trace *trace = overlap_trace(&p);
        mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
        assert_nearly(plan->iteration_s, best_of_all(&p, false));
        assert_true(plan->lower_bound_s <= plan->iteration_s * (1 + 1e-12));
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/* So many that not every k is looked at: still no worse than all-reduces, nor than halves alone. */
static void very_many_tensors_on_curves(void **unused)
{
    (void)unused;
    enum { MANY = 600 };
    static overlap_problem p;
    uint64_t state = 9;
    make_many(&p, SEARCH_MAX, &state);
    add_step(&p);
    mgw_tensor *tensors = calloc(MANY, sizeof *tensors);
    for (size_t i = 0; i < MANY; i++) {
        tensors[i] = p.tensors[i % SEARCH_MAX];
        tensors[i].forward_start_s = p.forward_s * (1 - (double)i / MANY);
    }
    mgw_trace *trace = make_trace(p.forward_s, MANY, tensors);
    mgw_plan *plan = make_plan(trace, &p.cost, "overlap");
    static const char *const others[] = {"optimal", "zero:400B", "zero:4000", "fsdp", "wfbp"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        mgw_plan *other = make_plan(trace, &p.cost, others[i]);
        assert_true(plan->iteration_s <= other->iteration_s * (1 + 1e-12));
        mgw_plan_destroy(other);
    }
    assert_true(plan->lower_bound_s <= plan->iteration_s * (1 + 1e-12));
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
    free(tensors);
}

/*
 * A huge first tensor, which must not be all-reduced, and some that should be: k alone gives 3.57.
 * Between them are so many that hold nothing that not every s is looked at.
 */
static void pairs_of_very_many_tensors(void **unused)
{
    (void)unused;
    enum { MANY = 3000, REAL = 6 };
    static const double work_s[REAL] = {1.953, 0.159, 0.38, 0.026, 0.41, 0.072};
    static const double ready_s[REAL] = {1.034, 1.118, 1.121, 1.682, 1.836, 3};
    static const double needed_s[REAL] = {0.983, 0.941, 0.94, 0.659, 0.582, 0};
    static mgw_tensor tensors[MANY];
    for (size_t i = 0; i < MANY; i++) {
        size_t real = i * REAL / MANY;
        bool last = (i + 1) * REAL / MANY > real;
        tensors[i] = (mgw_tensor){0, 0, needed_s[real]};
        if (i == 0 || i * REAL / MANY > (i - 1) * REAL / MANY)
            tensors[i].backward_s = ready_s[real] - (real ? ready_s[real - 1] : 1);
        if (last)
            tensors[i].count = (uint64_t)(work_s[real] * 1e6);
    }
    mgw_cost cost = {.of = {[MGW_ALL_REDUCE] = {.a_s = 0.01, .b_s_per_byte = 2.5e-7},
                            [MGW_REDUCE_SCATTER] = {.a_s = 0.005, .b_s_per_byte = 1.25e-7},
                            [MGW_ALL_GATHER] = {.a_s = 0.005, .b_s_per_byte = 1.25e-7}},
                     .workers = 2};
    mgw_trace *trace = make_trace(1, MANY, tensors);
    mgw_plan *plan = make_plan(trace, &cost, "overlap");
    assert_int_equal(plan->operations[0].kind, MGW_REDUCE_SCATTER);
    assert_true(plan->iteration_s < 3.15);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* Only lines are planned without limit. */
static void too_many_tensors_on_curves_are_refused(void **unused)
{
    (void)unused;
    enum { MANY = 20001 };
    static overlap_problem p;
    uint64_t state = 10;
    make_many(&p, SEARCH_MAX, &state);
    mgw_tensor *tensors = calloc(MANY, sizeof *tensors);
    for (size_t i = 0; i < MANY; i++)
        tensors[i] = (mgw_tensor){1, 1e-3, MGW_TIME_UNKNOWN};
    mgw_trace *trace = make_trace(1, MANY, tensors);
    mgw_plan_destroy(make_plan(trace, &p.cost, "overlap"));
    add_step(&p);
    mgw_policy policy = {.kind = MGW_OVERLAP};
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_plan_make(trace, &p.cost, &policy, &plan, &error), MGW_ERR_UNSUPPORTED);
    assert_contains(error.message, "too many to plan 'overlap'");
    mgw_trace_destroy(trace);
    free(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_is_the_best_of_its_class),
        cmocka_unit_test(many_tensors_equal_the_chains),
        cmocka_unit_test(many_tensors_on_curves_equal_the_chains),
        cmocka_unit_test(very_many_tensors_on_curves),
        cmocka_unit_test(pairs_of_very_many_tensors),
        cmocka_unit_test(too_many_tensors_on_curves_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
