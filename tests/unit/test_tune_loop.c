/*
 * The closed loop: whole jobs under a virtual clock, in which what messages cost is not what the
 * tuner believes. The model proposes what is best by its own measure; steps decide.
 *
 *     test_tune_loop --runs 1000             more worlds, and how it ends in them
 */
#include <math.h>
#include <unistd.h>

#include "simulation/simulation.h"
#include "support.h"

enum { WORKERS = 3, TENSORS = 20 };

static const uint64_t half_megabyte = 500000;

/* What a worker had in force when nothing was tried, and what steps took. */
typedef struct seen {
    mgw_tuner_statistics last[WORKERS];
    mgw_tried tried[WORKERS][8];
    size_t tried_count[WORKERS];
    size_t messages[WORKERS];
    char policy[MGW_POLICY_NAME_MAX];
    double ended_s;
    double took_s;          /* the last step, of rank 0 */
    unsigned first_settled; /* step, and how many trials there were after it */
    unsigned challenge;     /* step at which another began */
    uint64_t trials_before; /* that step to count from */
    unsigned watch_from;
} seen;

static void take_down(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                      const mgw_tuner *tuner, double end_s)
{
    seen *s = context;
    (void)flow;
    mgw_tuner_measure(tuner, &s->last[worker]);
    if (!s->last[worker].trying) {
        const mgw_tried *tried = mgw_tuner_tried(tuner, &s->tried_count[worker]);
        memcpy(s->tried[worker], tried, s->tried_count[worker] * sizeof *tried);
        mgw_tuner_operations(tuner, &s->messages[worker]);
    }
    if (worker)
        return;
    const mgw_plan *plan = mgw_tuner_plan(tuner);
    snprintf(s->policy, sizeof s->policy, "%s", plan ? plan->policy : "first");
    s->took_s = end_s - s->ended_s;
    s->ended_s = end_s;
    if (s->last[0].trials && !s->last[0].trying && !s->first_settled)
        s->first_settled = (unsigned)step;
    if (s->first_settled && s->last[0].trying && !s->challenge && step > s->watch_from)
        s->challenge = (unsigned)step;
}

typedef struct job {
    scenario s;
    uint64_t bytes[TENSORS];
    double forward_s[TENSORS];
    double backward_s[TENSORS];
    sim_update updates[TENSORS];
} job;

/* 20 tensors of half a megabyte, a gradient every 5 ms: DDP cuts them into four. */
static job *make_job(uint64_t seed, mgw_line cost, mgw_line believed, double jitter)
{
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    for (size_t i = 0; i < TENSORS; i++) {
        j->bytes[i] = i ? half_megabyte : 4 * half_megabyte;
        j->forward_s[i] = 2e-3;
        j->backward_s[i] = 5e-3;
        j->updates[i] = SIM_AT_END;
    }
    j->s = (scenario){.seed = seed,
                      .workers = WORKERS,
                      .steps = 400,
                      .tensors = TENSORS,
                      .bytes = j->bytes,
                      .forward_s = j->forward_s,
                      .backward_s = j->backward_s,
                      .updates = j->updates,
                      .update_s = 1e-3,
                      .cost = {.workers = WORKERS, .cluster = "sim"},
                      .believed = believed,
                      .jitter = jitter,
                      .victim = SIM_NOBODY,
                      .joiner = SIM_NOBODY,
                      .compute_drift = 1,
                      .network_drift = 1,
                      .timeout_s = 1e6,
                      .look_s = 1e6,
                      .options = {.policy = "optimal",
                                  .profile_steps = 5,
                                  .replan_steps = 20,
                                  .replan_percent = 3,
                                  .whole_steps = true,
                                  .crowd = 1,
                                  .size = WORKERS,
                                  .trials = true}};
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        j->s.cost.of[kind] = (mgw_curve){.a_s = cost.a_s, .b_s_per_byte = cost.b_s_per_byte};
    return j;
}

static void run(job *j, seen *s)
{
    sim_result result;
    simulation_run(&j->s, false, take_down, s, &result);
    if (result.failed)
        fail_msg("%s", result.what);
    for (unsigned r = 1; r < WORKERS; r++) { /* all tell the same, to the last bit */
        assert_int_equal(s->tried_count[r], s->tried_count[0]);
        assert_memory_equal(s->tried[r], s->tried[0], s->tried_count[0] * sizeof *s->tried[0]);
        assert_int_equal(s->messages[r], s->messages[0]);
        assert_true(s->last[r].trials == s->last[0].trials &&
                    s->last[r].trial_steps == s->last[0].trial_steps &&
                    s->last[r].trial_cost_s == s->last[0].trial_cost_s);
    }
}

/* What a step takes when these cuts are in force from the first step on: the oracle. */
static double alone_s(const job *j, const char *policy)
{
    job *other = make_job(j->s.seed, (mgw_line){0}, (mgw_line){0}, j->s.jitter);
    other->s.cost = j->s.cost;
    other->s.steps = 60;
    other->s.options.policy = policy;
    other->s.options.trials = false;
    other->s.believed = j->s.believed;
    seen s = {0};
    run(other, &s);
    double mean_s = s.ended_s / other->s.steps;
    free(other);
    return mean_s;
}

static const mgw_tried *find_tried(const seen *s, const char *name)
{
    for (size_t i = 0; i < s->tried_count[0]; i++)
        if (!strcmp(s->tried[0][i].name, name))
            return &s->tried[0][i];
    fail_msg("%s was not tried", name);
    return NULL;
}

static const mgw_tried *find_kept(const seen *s)
{
    const mgw_tried *kept = NULL;
    for (size_t i = 0; i < s->tried_count[0]; i++)
        if (s->tried[0][i].kept) {
            assert_null(kept);
            kept = &s->tried[0][i];
        }
    assert_non_null(kept);
    return kept;
}

/* ---- The model is wrong ---- */

/* It believes that messages cost nothing but their bytes, and cuts at every tensor; they cost
 * 12 ms each. */
static void test_a_model_that_lies(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        job *j = make_job(seed, (mgw_line){12e-3, 1e-9}, (mgw_line){1e-6, 1e-9}, 0.2);
        seen s = {0};
        run(j, &s);
        double ddp_s = alone_s(j, "ddp");
        double model_s = alone_s(j, "wfbp");
        assert_true(model_s > 1.1 * ddp_s); /* that is the lie */
        assert_true(s.last[0].trials >= 1);
        assert_string_equal(s.tried[0][0].name, "ddp");
        const mgw_tried *kept = find_kept(&s);
        assert_true(kept->measured_s <= find_tried(&s, "ddp")->measured_s * 1.01);
        assert_int_equal(kept->messages, s.messages[0]);
        assert_in_range(s.messages[0], 1, 6);
        assert_true(s.last[0].iteration_s < 1.02 * ddp_s);
        /* What is measured is the truth; what it took is told. */
        assert_true(fabs(find_tried(&s, "ddp")->measured_s / ddp_s - 1) < 0.03);
        assert_true(s.last[0].trial_steps >= 3 * 5 * s.tried_count[0]);
        assert_true(s.last[0].trial_cost_s > 0);
        free(j);
    }
}

/* Where it is right, its plan wins, or one that is as good. */
static void test_a_model_that_is_right(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        job *j = make_job(seed, (mgw_line){2e-3, 4e-9}, (mgw_line){0}, 0.1);
        seen s = {0};
        run(j, &s);
        double optimal_s = alone_s(j, "optimal");
        double ddp_s = alone_s(j, "ddp");
        assert_true(ddp_s > 1.02 * optimal_s);
        const mgw_tried *kept = find_kept(&s);
        assert_true(kept->measured_s < 1.01 * optimal_s);
        assert_true(find_tried(&s, "ddp")->measured_s > kept->measured_s);
        assert_false(find_tried(&s, "ddp")->kept);
        free(j);
    }
}

/* ---- Worlds that a seed decides on ---- */

enum { PLANS = 24, CURVE = 12 };

/* All plans that were in force, and the last one. */
typedef struct history {
    mgw_operation operations[PLANS][TENSORS];
    size_t counts[PLANS];
    size_t plans;
    size_t last;
    mgw_tuner_statistics statistics;
} history;

static bool is_same(const mgw_operation *a, size_t a_count, const mgw_operation *b, size_t b_count)
{
    bool same = a_count == b_count;
    for (size_t m = 0; same && m < a_count; m++)
        same = a[m].first == b[m].first && a[m].count == b[m].count;
    return same;
}

static void remember(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                     const mgw_tuner *tuner, double end_s)
{
    history *h = context;
    (void)step, (void)flow, (void)end_s;
    if (worker)
        return;
    size_t count = 0;
    size_t k = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    while (k < h->plans && !is_same(h->operations[k], h->counts[k], operations, count))
        k++;
    assert_true(k < PLANS);
    if (k == h->plans) {
        memcpy(h->operations[k], operations, count * sizeof *operations);
        h->counts[h->plans++] = count;
    }
    mgw_tuner_measure(tuner, &h->statistics);
    if (h->statistics.trials && !h->statistics.trying)
        h->last = k + 1;
}

static void keep_end(void *context, unsigned worker, uint64_t step, const mgw_flow *flow,
                     const mgw_tuner *tuner, double end_s)
{
    (void)worker, (void)step, (void)flow, (void)tuner;
    *(double *)context = end_s;
}

/* The oracle: the same world with one plan, without hiccups, for long. */
static double plan_s(const job *j, history *h, size_t k)
{
    scenario s = j->s;
    sim_result result;
    double end_s = 0;
    s.steps = 400;
    s.hiccup = 0;
    s.plan_count = 1;
    s.plans[0] = (sim_plan){1, h->counts[k], h->operations[k]};
    simulation_run(&s, false, keep_end, &end_s, &result);
    if (result.failed)
        fail_msg("%s", result.what);
    return end_s / s.steps;
}

/* T(M) bends, and jumps somewhere; the tuner has a line that is off by a factor, either way. */
static job *make_world(uint64_t seed, mgw_sample samples[CURVE])
{
    uint64_t random = seed * 7919;
    double a_s = 1e-4 * exp(4 * random_unit(&random));
    double b_s = 5e-10 * exp(3 * random_unit(&random));
    double bend = 0.75 + 0.25 * random_unit(&random);
    uint64_t jump = random_below(&random, CURVE);
    for (size_t i = 0; i < CURVE; i++) {
        double bytes = 1000 * pow(3, (double)i);
        samples[i] = (mgw_sample){(uint64_t)bytes, a_s + 1e7 * b_s * pow(bytes / 1e7, bend) +
                                                       (i >= jump ? 4 * a_s : 0)};
    }
    const mgw_line believed = {a_s * exp(4 * random_unit(&random) - 2),
                               b_s * exp(2 * random_unit(&random) - 1)};
    job *j = make_job(seed, believed, believed, 0.1);
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
        j->s.cost.of[kind] =
            (mgw_curve){.a_s = a_s, .b_s_per_byte = b_s, .sample_count = CURVE, .samples = samples};
    for (size_t i = 0; i < TENSORS; i++) {
        j->bytes[i] = 4 * (1 + random_below(&random, 400000));
        j->backward_s[i] = 8e-3 * random_unit(&random);
    }
    j->s.noise = 0.02 + 0.13 * random_unit(&random);
    j->s.hiccup = 60;
    j->s.steps = 2500;
    j->s.options.replan_steps = 100;
    j->s.options.early_looks = seed % 2 ? 3 : 0;
    j->s.options.whole_steps = seed % 2;
    return j;
}

typedef struct balance {
    unsigned long runs;
    unsigned long near; /* within 1% of the best that was tried */
    unsigned long unsettled;
    double worst; /* above DDP's cut */
    double steps;
    double cost; /* of all steps */
    double gain; /* over DDP's cut */
} balance;

static void run_world(uint64_t seed, balance *b)
{
    mgw_sample samples[CURVE];
    job *j = make_world(seed, samples);
    history *h = calloc(1, sizeof *h);
    sim_result result;
    assert_non_null(h);
    simulation_run(&j->s, false, remember, h, &result);
    if (result.failed)
        fail_msg("seed %llu: %s", (unsigned long long)seed, result.what);
    double ddp_s = plan_s(j, h, 0); /* in force until there is a plan */
    double best_s = ddp_s;
    for (size_t k = 0; k < h->plans; k++)
        best_s = fmin(best_s, plan_s(j, h, k));
    b->runs++;
    b->unsettled += h->last == 0;
    double last_s = plan_s(j, h, h->last ? h->last - 1 : 0);
    b->near += last_s <= 1.01 * best_s;
    b->worst = fmax(b->worst, last_s / ddp_s - 1);
    b->gain += (1 - last_s / ddp_s);
    b->steps += (double)h->statistics.trial_steps;
    b->cost += h->statistics.trial_cost_s / (best_s * j->s.steps);
    free(h);
    free(j);
}

static balance run_worlds(uint64_t first, unsigned long runs)
{
    balance b = {0};
    for (uint64_t seed = first; seed < first + runs; seed++)
        run_world(seed, &b);
    return b;
}

static void print_balance(const balance *b)
{
    double runs = (double)b->runs;
    printf(
        "%lu jobs: %.1f%% within 1%% of the best tried, worst %+.2f%% of DDP's cut, gain over it "
        "%.1f%%; %.0f steps of trials, which cost %.2f%% of all; %lu not settled\n",
        b->runs, 100 * (double)b->near / runs, 100 * b->worst, 100 * b->gain / runs,
        b->steps / runs, 100 * b->cost / runs, b->unsettled);
}

/* Whatever messages cost and the model believes: never much worse than DDP's cut. */
static void test_worlds(void **state)
{
    (void)state;
    balance b = run_worlds(1, 12);
    assert_true(b.worst < 0.03);
    assert_true(b.near >= 11);
    assert_int_equal(b.unsettled, 0);
}

/* ---- When ---- */

/* Nothing drifts: no other trial until it is time, and then a short one. */
static void test_now_and_then(void **state)
{
    (void)state;
    job *j = make_job(3, (mgw_line){2e-3, 4e-9}, (mgw_line){0}, 0.02);
    seen s = {0};
    run(j, &s);
    assert_true(s.first_settled > 0 && s.first_settled < 200);
    assert_true(s.challenge == 0 || s.challenge >= s.first_settled + 10 * 20);
    uint64_t trials = s.last[0].trials;
    j->s.steps = 1500;
    s = (seen){0};
    run(j, &s);
    assert_true(s.challenge >= s.first_settled + 10 * 20);
    assert_in_range(s.last[0].trials, trials + 1, 5);
    assert_in_range(s.tried_count[0], 2, 3);
    free(j);
}

/* The network becomes four times as slow: soon all is tried again. */
static void test_drift(void **state)
{
    (void)state;
    job *j = make_job(4, (mgw_line){2e-3, 1e-9}, (mgw_line){0}, 0.02);
    seen s = {0};
    j->s.drift_step = 300;
    j->s.network_drift = 8;
    s.watch_from = 300;
    j->s.steps = 600;
    run(j, &s);
    assert_in_range(s.challenge, 300, 345);
    assert_true(s.last[0].trials >= 2);
    free(j);
}

/* ---- Without ---- */

static void expect_no_trial(job *j)
{
    seen s = {0};
    j->s.steps = 60;
    run(j, &s);
    assert_int_equal(s.last[0].trials, 0);
    assert_int_equal(s.last[0].trial_steps, 0);
    assert_int_equal(s.tried_count[0], 0);
    assert_true(s.last[0].plans > 0);
    free(j);
}

/* Turned off, or with a policy that says how: that is done. */
static void test_without(void **state)
{
    (void)state;
    static const char *const policies[] = {"wfbp", "single", "mgwfbp", "ddp", "threshold:1MiB"};
    const mgw_line line = {2e-3, 4e-9};
    job *j = make_job(5, line, (mgw_line){0}, 0.1);
    j->s.options.trials = false;
    expect_no_trial(j);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        j = make_job(6, line, (mgw_line){0}, 0.1);
        j->s.options.policy = policies[i];
        expect_no_trial(j);
    }
}

/* Another policy in the middle of a trial ends it, on all workers; and back, there is another. */
static void test_policy_during_a_trial(void **state)
{
    (void)state;
    for (unsigned step = 6; step < 40; step += 3) {
        job *j = make_job(step, (mgw_line){2e-3, 4e-9}, (mgw_line){0}, 0.1);
        seen s = {0};
        j->s.steps = step + 30;
        j->s.policy_step = step;
        j->s.new_policy = "wfbp";
        run(j, &s);
        assert_int_equal(s.messages[0], TENSORS);
        assert_int_equal(s.last[0].trials, 0);
        assert_int_equal(s.last[0].trying, 0);
        s = (seen){0};
        j->s.new_policy = "optimal";
        run(j, &s);
        assert_true(s.last[0].trying > 0 || s.last[0].trials > 0);
        free(j);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--runs")) {
        balance b = run_worlds(1, strtoul(argv[2], NULL, 10));
        print_balance(&b);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_that_lies),
        cmocka_unit_test(test_a_model_that_is_right),
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_now_and_then),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_policy_during_a_trial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
