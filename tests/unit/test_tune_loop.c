/*
 * The closed loop: whole jobs under a virtual clock, in which the cost of messages differs from the
 * tuner's model. The model proposes plans; steps decide.
 */
#include "tune_job.h"

/* What a worker had in force when nothing was tried, and what steps took. */
typedef struct seen {
    mgw_tuner_statistics last[WORKERS];
    mgw_tried tried[WORKERS][MGW_TRIED_MAX];
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
    other->s.options.trials = 0;
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
        assert_true(s.last[0].trial_steps >= 2 * 5 * s.tried_count[0]);
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
    j->s.options.trials = 0;
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

/* With a limit, a trial is over after the round in which it has had so many steps. */
static void test_limit(void **state)
{
    (void)state;
    enum { ROUND = 5 * MGW_TRIED_MAX };
    static const unsigned limits[] = {1, 2, 30, 60}; /* the first: as many as usual */
    unsigned first[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        job *j = make_job(11, (mgw_line){2e-3, 4e-9}, (mgw_line){0}, 0.5);
        seen s = {0};
        j->s.options.trials = limits[i];
        run(j, &s);
        assert_true(s.last[0].trials >= 1);
        assert_true(limits[i] == 1 ||
                    s.last[0].trial_steps < s.last[0].trials * (limits[i] + ROUND));
        find_kept(&s);
        first[i] = s.first_settled;
        free(j);
    }
    assert_true(first[1] < first[2] && first[2] < first[3] && first[3] < first[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_that_lies),
        cmocka_unit_test(test_a_model_that_is_right),
        cmocka_unit_test(test_now_and_then),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_policy_during_a_trial),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
