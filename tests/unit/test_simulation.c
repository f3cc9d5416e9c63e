/*
 * Thousands of whole jobs, each decided by a seed: see simulation/simulation.h for what is checked
 * at every event.
 *
 *     test_simulation                        the usual runs, and those with faults, which must be
 * caught test_simulation --runs 100000          more of them test_simulation --seed 17 --verbose
 * one of them again, event by event
 *
 * MGWFBP_SIMULATIONS: how many are usual.
 */
#include <math.h>
#include <time.h>

#include "simulation/job.h"
#include "support.h"

/* ---- A tuner's prediction is the simulated time, where nothing is left to chance ---- */

typedef struct expectation {
    const scenario *s;
    const mgw_plan *plan; /* or what the tuner has */
    double tolerance;
    unsigned predicted;
    char what[160];
} expectation;

static bool is_near(const expectation *e, double actual, double expected)
{
    return fabs(actual - expected) <= e->tolerance * (1e-3 + fabs(expected));
}

static void expect_prediction(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                              const mgw_tuner *tuner, double end_s)
{
    expectation *e = context;
    const mgw_plan *plan = tuner ? mgw_tuner_plan(tuner) : NULL;
    double took_s = end_s - mgw_flow_begun_s(flow);
    e->predicted += plan && plan->overlaps_forward;
    if (plan && !is_near(e, took_s, plan->iteration_s))
        snprintf(e->what, sizeof e->what, "worker %u, step %llu: %.12g s, but %.12g s predicted",
                 worker, (unsigned long long)step, took_s, plan->iteration_s);
}

static bool is_calm(const scenario *s)
{
    return s->jitter == 0 && s->stall_count == 0 && s->joiner == SIM_NOBODY && s->drift_step == 0;
}

static bool run_seed(uint64_t seed, sim_fault fault, bool verbose, sim_result *result)
{
    job j;
    make_job(seed, &j);
    if (fault) {
        j.s.fault = fault;
        j.s.fault_worker = (unsigned)random_below(&j.random, j.s.workers);
        j.s.fault_step = 1 + (unsigned)random_below(&j.random, j.s.steps);
    }
    expectation e = {.s = &j.s, .tolerance = j.s.options.whole_steps ? 1e-4 : 1e-9};
    bool all_timed = !j.s.options.sampled || !j.s.policy_step; /* before the first plan */
    bool calm =
        !j.s.plan_count && is_calm(&j.s) && j.s.believed.a_s == 0 && j.s.update_s == 0 && all_timed;
    simulation_run(&j.s, verbose, calm ? expect_prediction : NULL, &e, result);
    result->predicted = e.predicted;
    if (!result->failed && e.what[0]) {
        result->failed = true;
        snprintf(result->what, sizeof result->what, "%s", e.what);
    }
    return !result->failed;
}

static unsigned long usual_runs(void)
{
    const char *text = getenv("MGWFBP_SIMULATIONS");
    return text ? strtoul(text, NULL, 10) : 4000;
}

typedef struct total {
    uint64_t events;
    uint64_t plans;
    uint64_t turns;
    uint64_t gathers;
    uint64_t failures;
    uint64_t predicted;
} total;

/* Prints the first seed that fails. */
static bool run_seeds(uint64_t first, unsigned long runs, total *t)
{
    for (uint64_t seed = first; seed < first + runs; seed++) {
        sim_result result;
        if (!run_seed(seed, SIM_RIGHT, false, &result)) {
            printf("seed %llu: %s\n  again: test_simulation --seed %llu --verbose\n",
                   (unsigned long long)seed, result.what, (unsigned long long)seed);
            return false;
        }
        t->events += result.events;
        t->plans += result.plans;
        t->turns += result.turns;
        t->gathers += result.gathers;
        t->failures += result.failures;
        t->predicted += result.predicted;
    }
    return true;
}

/* ---- Tests ---- */

static void test_seeds(void **state)
{
    (void)state;
    total t = {0};
    unsigned long runs = usual_runs();
    assert_true(run_seeds(1, runs, &t));
    /* There was something to see. */
    assert_true(t.events > 100 * runs);
    assert_true(t.plans > runs);
    assert_true(t.turns > runs / 4);
    assert_true(t.gathers > runs);
    assert_true(t.failures > runs / 100);
    assert_true(t.predicted > runs / 20);
}

/* A seed is a run: all events, and their order. */
static void test_replays(void **state)
{
    (void)state;
    uint64_t before = 0;
    for (uint64_t seed = 1; seed < 50; seed++) {
        sim_result first;
        sim_result second;
        assert_true(run_seed(seed, SIM_RIGHT, false, &first));
        assert_true(run_seed(seed, SIM_RIGHT, false, &second));
        assert_true(first.digest == second.digest && first.events == second.events);
        assert_true(first.digest != before);
        before = first.digest;
    }
}

/* Whatever goes wrong on one worker is seen. */
static void test_faults_are_caught(void **state)
{
    (void)state;
    static const sim_fault faults[] = {SIM_DROP_WAKE, SIM_SWAP, SIM_ADOPT_EARLY, SIM_TWICE};
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        unsigned made = 0;
        for (uint64_t seed = 1; seed <= 300; seed++) {
            sim_result result;
            bool passed = run_seed(seed, faults[f], false, &result);
            made += result.faulted;
            if (passed && result.faulted && result.failures == 0)
                fail_msg("fault %d is not caught: seed %llu", (int)faults[f],
                         (unsigned long long)seed);
        }
        assert_true(made > 20);
    }
}

/* ---- The model's timeline ---- */

static void expect_timeline(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                            const mgw_tuner *tuner, double end_s)
{
    (void)tuner;
    (void)end_s;
    expectation *e = context;
    size_t count = 0;
    const mgw_operation *operations = mgw_flow_operations(flow, &count);
    double begun_s = mgw_flow_begun_s(flow);
    for (size_t m = 0; m < count; m++) {
        const mgw_operation *model = &e->plan->operations[m];
        if (!is_near(e, operations[m].start_s - begun_s, model->start_s) ||
            !is_near(e, operations[m].end_s - begun_s, model->end_s))
            snprintf(e->what, sizeof e->what,
                     "worker %u, step %llu, operation %zu: %.12g to %.12g s, not %.12g to %.12g s",
                     worker, (unsigned long long)step, m, operations[m].start_s - begun_s,
                     operations[m].end_s - begun_s, model->start_s, model->end_s);
    }
}

/* The flow's times are the model's, operation by operation, on every worker. */
static void expect_model(const mgw_trace *trace, const mgw_cost *cost, const mgw_plan *plan,
                         uint64_t seed)
{
    size_t n = trace->tensor_count;
    scenario s = {.seed = seed,
                  .workers = 2 + seed % 3,
                  .steps = 2,
                  .tensors = n,
                  .bytes = calloc(n, sizeof *s.bytes),
                  .forward_s = calloc(n, sizeof *s.forward_s),
                  .backward_s = calloc(n, sizeof *s.backward_s),
                  .updates = calloc(n, sizeof *s.updates),
                  .cost = *cost,
                  .overlaps = seed & 1,
                  .drains = true,
                  .plan_count = 1,
                  .plans = {{1, plan->operation_count, plan->operations}},
                  .timeout_s = 1e6,
                  .look_s = 1e6,
                  .victim = SIM_NOBODY,
                  .joiner = SIM_NOBODY};
    assert_true(s.bytes && s.forward_s && s.backward_s && s.updates);
    s.forward_s[0] = trace->forward_s;
    for (size_t i = 0; i < n; i++) {
        s.bytes[i] = trace->tensors[i].count * mgw_dtype_bytes(trace->gradient_dtype);
        s.backward_s[i] = trace->tensors[i].backward_s;
    }
    expectation e = {.s = &s, .plan = plan, .tolerance = 1e-10};
    sim_result result;
    simulation_run(&s, false, expect_timeline, &e, &result);
    if (result.failed || e.what[0])
        fail_msg("%s, %s: %s%s", trace->model, plan->policy, result.what, e.what);
    free(s.bytes);
    free(s.forward_s);
    free(s.backward_s);
    free(s.updates);
}

static void expect_policies(const mgw_trace *trace, const mgw_cluster *cluster, uint64_t seed)
{
    size_t count = 0;
    const mgw_policy *list = mgw_policy_list(&count);
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    for (size_t p = 0; p < count; p++) {
        mgw_plan *plan = NULL;
        mgw_error error = {0};
        assert_int_equal(mgw_plan_make(trace, &cost, &list[p], &plan, &error), MGW_OK);
        expect_model(trace, &cost, plan, seed + p);
        mgw_plan_destroy(plan);
    }
}

/* Every policy on every trace, on a slow network and on a fast one. */
static void test_model_on_traces(void **state)
{
    (void)state;
    static const char *const clusters[] = {"paper-1-10gbe", "paper-3-56gbib"};
    size_t count = 0;
    const mgw_builtin *list = mgw_builtin_list(&count);
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < 2 && list[i].kind == MGW_DATA_TRACE; c++) {
            mgw_trace *trace = NULL;
            mgw_cluster *cluster = NULL;
            mgw_error error = {0};
            if (mgw_trace_load(list[i].name, &trace, &error) ||
                mgw_cluster_load(clusters[c], &cluster, &error))
                fail_msg("%s", error.message);
            expect_policies(trace, cluster, i);
            mgw_cluster_destroy(cluster);
            mgw_trace_destroy(trace);
        }
}

/* Any operations, with any release rules, on anything. */
static void test_model_on_anything(void **state)
{
    (void)state;
    unsigned long runs = usual_runs() / 8 + 50;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        job j;
        make_job(seed, &j);
        if (!j.s.tensors)
            continue;
        mgw_tensor tensors[MOST_TENSORS];
        mgw_operation operations[2 * MOST_TENSORS];
        bool scattered[MOST_TENSORS];
        for (size_t i = 0; i < j.s.tensors; i++)
            tensors[i] = (mgw_tensor){j.bytes[i] / 2 * 2, j.backward_s[i], MGW_TIME_UNKNOWN};
        mgw_trace *trace = make_trace(j.forward_s[0], j.s.tensors, tensors);
        size_t count = make_operations(&j.random, j.s.tensors, random_below(&j.random, 2),
                                       scattered, operations);
        mgw_plan *plan = NULL;
        mgw_error error = {0};
        if (mgw_plan_from_operations(trace, &j.s.cost, "any", operations, count, &plan, &error))
            fail_msg("%s", error.message);
        expect_model(trace, &j.s.cost, plan, seed);
        mgw_plan_destroy(plan);
        mgw_trace_destroy(trace);
    }
}

/* ---- By hand ---- */

static int run_by_hand(uint64_t seed, unsigned long runs, bool verbose)
{
    sim_result result;
    if (verbose) {
        bool passed = run_seed(seed, SIM_RIGHT, true, &result);
        printf("seed %llu: %llu events, digest %016llx, %u gave up: %s\n", (unsigned long long)seed,
               (unsigned long long)result.events, (unsigned long long)result.digest,
               result.failures, passed ? "all is well" : result.what);
        return !passed;
    }
    total t = {0};
    struct timespec begun;
    struct timespec ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    bool passed = run_seeds(seed, runs, &t);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double took_s =
        (double)(ended.tv_sec - begun.tv_sec) + 1e-9 * (double)(ended.tv_nsec - begun.tv_nsec);
    printf(
        "%lu jobs from seed %llu on: %llu events in %.1f s (%.2g a second), %llu plans followed, "
        "%llu turns, %llu gathers, %llu gave up\n",
        runs, (unsigned long long)seed, (unsigned long long)t.events, took_s,
        (double)t.events / took_s, (unsigned long long)t.plans, (unsigned long long)t.turns,
        (unsigned long long)t.gathers, (unsigned long long)t.failures);
    return !passed;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_faults_are_caught),
        cmocka_unit_test(test_model_on_traces),
        cmocka_unit_test(test_model_on_anything),
    };
    uint64_t seed = 1;
    unsigned long runs = 1;
    bool verbose = false;
    if (argc == 1)
        return cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (more && !strcmp(argv[i], "--seed")) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (more && !strcmp(argv[i], "--runs")) {
            runs = strtoul(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--verbose")) {
            verbose = true;
        } else {
            fprintf(stderr, "usage: test_simulation [--runs N] [--seed S] [--verbose]\n");
            return 2;
        }
    }
    return run_by_hand(seed, runs, verbose);
}
