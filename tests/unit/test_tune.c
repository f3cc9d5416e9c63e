/* The tuner: when it looks, and what it learns from steps. */
#include "tuners.h"

/* ---- Steps are counted ---- */

/* The steps before which a look is due, as bits: bit k is set if one is due after the k-th step. */
static uint64_t looks_of(const mgw_tuner_options *options, unsigned steps)
{
    uint64_t looks = 0;
    mgw_tuner *tuner = make(options, TENSORS, megabytes, usual_line);
    for (unsigned k = 0; k < steps; k++) {
        if (mgw_tuner_due(tuner)) {
            looks |= (uint64_t)1 << k;
            look(tuner, true);
            assert_false(mgw_tuner_due(tuner));
        }
        step(tuner, usual_ready_s, 0.1);
    }
    mgw_tuner_destroy(tuner);
    return looks;
}

#define AT(k) ((uint64_t)1 << (k))

static void test_due(void **state)
{
    (void)state;
    static const struct row {
        int profile_steps;
        int replan_steps;
        int early_looks;
        int sampled;
        uint64_t looks;
    } table[] = {
        {5, 20, 0, 0, AT(5) | AT(25) | AT(45)},
        {5, 20, 1, 0, AT(5) | AT(10) | AT(30) | AT(50)},
        {5, 20, 3, 0, AT(5) | AT(10) | AT(15) | AT(20) | AT(40)},
        {20, 5, 2, 0, AT(20) | AT(25) | AT(30) | AT(35) | AT(40) | AT(45) | AT(50) | AT(55)},
        {5, 20, 1, 8, AT(9) | AT(18) | AT(38) | AT(58)},
        {5, 5, 0, 5, AT(6) | AT(12) | AT(18) | AT(24) | AT(30) | AT(36) | AT(42) | AT(48) | AT(54)},
        {30, 20, 0, 30, AT(31)},
        {0, 30, 0, 0, AT(1) | AT(31)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mgw_tuner_options options = usual(1);
        options.profile_steps = table[i].profile_steps;
        options.replan_steps = table[i].replan_steps;
        options.early_looks = table[i].early_looks;
        options.sampled = table[i].sampled;
        uint64_t looks = looks_of(&options, 60);
        if (looks != table[i].looks)
            fail_msg("row %zu: %llx, not %llx", i, (unsigned long long)looks,
                     (unsigned long long)table[i].looks);
    }
}

/* Bit k: the times of the step after the k-th count; of the steps from one look to the next. */
static uint64_t watched(int replan_steps, int sampled, bool planned)
{
    mgw_tuner_options options = usual(1);
    options.profile_steps = planned ? 1 : replan_steps;
    options.replan_steps = replan_steps;
    options.early_looks = 0;
    options.sampled = sampled;
    mgw_tuner *tuner = make(&options, TENSORS, megabytes, usual_line);
    if (planned) {
        step(tuner, usual_ready_s, 0.1);
        look(tuner, true);
    }
    uint64_t seen = 0;
    for (unsigned k = 0; !mgw_tuner_due(tuner); k++) {
        seen |= mgw_tuner_watches(tuner) ? AT(k) : 0;
        step(tuner, usual_ready_s, 0.1);
    }
    mgw_tuner_destroy(tuner);
    return seen;
}

/* All before the first plan; then as many as there are turns, or rows. */
static void test_watches(void **state)
{
    (void)state;
    assert_int_equal(watched(5, 0, false), 0x1f);
    assert_int_equal(watched(12, 4, false), 0xfff);
    assert_int_equal(watched(12, 4, true), 0xf00);
    assert_int_equal(watched(12, 1, true), 0x800);
    assert_int_equal(watched(4, 8, true), 0x1fe); /* nine steps: the first has no turn */
    assert_int_equal(watched(12, 0, true), 0xff0);
    assert_int_equal(watched(5, 0, true), 0x1f);
}

/* Means since the last look; those before it, until there is a step. */
static void test_statistics(void **state)
{
    (void)state;
    mgw_tuner *tuner = make_usual(1);
    mgw_tuner_statistics s = statistics_of(tuner);
    assert_true(s.steps == 0 && s.plans == 0 && s.iteration_s == 0 && s.slowdown == 1);
    step(tuner, usual_ready_s, 0.2);
    step(tuner, usual_ready_s, 0.4);
    s = statistics_of(tuner);
    assert_int_equal(s.steps, 2);
    assert_close(s.iteration_s, 0.3);
    assert_close(s.compute_s, 0.08);
    assert_true(look(tuner, true));
    s = statistics_of(tuner);
    assert_int_equal(s.plans, 1);
    assert_close(s.iteration_s, 0.3);
    for (size_t i = 0; i < TENSORS; i++)
        assert_string_equal(mgw_plan_tensor_name(mgw_tuner_plan(tuner), i), names[i]);
    look(tuner, true); /* without a step */
    assert_close(statistics_of(tuner).iteration_s, 0.3);
    step(tuner, usual_ready_s, 0.5);
    s = statistics_of(tuner);
    assert_int_equal(s.steps, 3);
    assert_close(s.iteration_s, 0.5);
    assert_close(s.compute_s, 0.08);
    mgw_tuner_destroy(tuner);
}

/* ---- Life ---- */

static void test_refused(void **state)
{
    (void)state;
    mgw_tuner *tuner = NULL;
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    mgw_tuner_options options = usual(2);
    assert_int_equal(mgw_cluster_from_line("idle", 2, &usual_line, &cluster, &error), MGW_OK);
    assert_int_equal(mgw_tuner_create(&options, 0, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    assert_int_equal(
        mgw_tuner_create(&options, (size_t)1 << 28, names, megabytes, cluster, &tuner, &error),
        MGW_ERR_ARGUMENT);
    options.size = 0;
    assert_int_equal(mgw_tuner_create(&options, 8, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    options = usual(2);
    options.policy = "best";
    assert_int_equal(mgw_tuner_create(&options, 8, names, megabytes, cluster, &tuner, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "best");
    assert_null(tuner);
    mgw_cluster_destroy(cluster); /* still the caller's */
    tuner = make_usual(2);
    assert_int_equal(mgw_tuner_set_policy(tuner, "best", &error), MGW_ERR_ARGUMENT);
    mgw_tuner_destroy(tuner);
    mgw_tuner_destroy(NULL);
}

/* Until there is a plan: 1 MiB first, 25 MiB then; after the backward pass if whole steps are
 * timed, so that they show computation alone. */
static void first_operations(bool whole_steps)
{
    static const uint64_t bytes[] = {1 << 19, 1 << 19, 1 << 24, 1 << 23, 1 << 21, 5};
    mgw_tuner_options options = usual(2);
    options.whole_steps = whole_steps;
    mgw_tuner *tuner = make(&options, 6, bytes, usual_line);
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    assert_int_equal(count, 3);
    static const size_t counts[] = {2, 3, 1};
    for (size_t m = 0; m < 3; m++)
        assert_int_equal(operations[m].count, counts[m]);
    for (size_t m = 0; m < 3; m++)
        assert_int_equal(operations[m].release, whole_steps ? MGW_AFTER_BACKWARD : MGW_WHEN_READY);
    assert_int_equal(operations[2].bytes, 6); /* in halves */
    assert_null(mgw_tuner_plan(tuner));
    assert_null(mgw_tuner_trace(tuner));
    assert_string_equal(mgw_tuner_cluster(tuner)->name, "idle");
    mgw_tuner_destroy(tuner);
}

static void test_first_operations(void **state)
{
    (void)state;
    first_operations(false);
    first_operations(true);
}

/* Policies that scatter by size do so from the first step on; `overlap` has nothing to choose by.
 */
static void test_first_halves(void **state)
{
    (void)state;
    static const uint64_t bytes[] = {1 << 19, 1 << 19, 1 << 24, 1 << 23, 1 << 21, 5};
    static const char *const policies[] = {"zero:8MiB", "dear:8MiB", "fsdp:8MiB", "overlap"};
    for (size_t p = 0; p < 4; p++) {
        mgw_tuner_options options = usual(2);
        options.policy = policies[p];
        options.parameter_ratio = 1;
        mgw_tuner *tuner = make(&options, 6, bytes, usual_line);
        size_t count = 0;
        const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
        size_t whole = 0;
        for (size_t k = 0; k < count; k++)
            whole += operations[k].kind == MGW_ALL_REDUCE;
        assert_int_equal(whole, p == 3 ? 3 : 0);
        assert_true(count >= 2);
        mgw_tuner_destroy(tuner);
    }
}

/* ---- Drift ---- */

/* As long as a step takes, so much slower messages are: at once after the first plan. */
static void test_slowdown_is_found(void **state)
{
    (void)state;
    uint64_t random = 3;
    const mgw_line line = {1e-4, 1e-8};
    for (int round = 0; round < 50; round++) {
        uint64_t bytes[20];
        double ready_s[20];
        double now_s = 0.01;
        mgw_tuner_options options = usual(1);
        for (size_t i = 0; i < 20; i++) {
            bytes[i] = 4 * (1 + random_below(&random, 100000));
            ready_s[i] = now_s += random_unit(&random) * 0.009;
        }
        mgw_tuner *tuner = make(&options, 20, bytes, line);
        mgw_step_record record = {.compute_s = now_s, .iteration_s = 1, .ready_s = ready_s};
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        assert_true(look(tuner, true));
        assert_close(statistics_of(tuner).slowdown, 1); /* no plan, nothing to compare with */
        double factor = 1 + 3 * random_unit(&random);
        record.iteration_s = slowed_s(tuner, line, factor);
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        look(tuner, true);
        assert_true(fabs(statistics_of(tuner).slowdown - factor) < 1e-3);
        record.iteration_s = 1e-6; /* faster than alone is 1; half of the way there */
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &record);
        look(tuner, true);
        assert_true(fabs(statistics_of(tuner).slowdown - sqrt(factor)) < 1e-3);
        mgw_tuner_destroy(tuner);
    }
}

/* Steps as predicted change nothing; ten times as fast computation does, at the next look. */
static void test_drift(void **state)
{
    (void)state;
    double quick_s[TENSORS];
    mgw_tuner *tuner = make_usual(1);
    mgw_tuner *fresh = make_usual(1);
    unsigned changes = 0;
    for (size_t i = 0; i < TENSORS; i++)
        quick_s[i] = usual_ready_s[i] / 10;
    for (int k = 0; k < 2 + 6 + 30; k++) {
        const mgw_plan *plan = mgw_tuner_plan(tuner);
        step(tuner, usual_ready_s, plan ? plan->iteration_s : 0.1);
        if (mgw_tuner_due(tuner))
            changes += look(tuner, true);
        assert_int_equal(changes, k >= 1);
    }
    assert_true(statistics_of(tuner).slowdown < 1 + 1e-5);
    assert_int_equal(statistics_of(tuner).plans, 1);
    step(fresh, quick_s, 0.05);
    look(fresh, true);
    for (int k = 0; k < 10; k++) {
        step(tuner, quick_s, mgw_tuner_plan(fresh)->iteration_s);
        if (mgw_tuner_due(tuner))
            changes += look(tuner, true);
    }
    assert_int_equal(changes, 2);
    expect_same_operations(tuner, fresh);
    assert_int_equal(statistics_of(tuner).plans, 2);
    mgw_tuner_destroy(tuner);
    mgw_tuner_destroy(fresh);
}

/* Where neither operations nor whole steps are timed, messages cost what the cluster says. */
static void test_a_cluster_that_was_given_stays(void **state)
{
    (void)state;
    mgw_tuner_options options = usual(1);
    options.whole_steps = false;
    mgw_tuner *tuner = make(&options, TENSORS, megabytes, usual_line);
    for (int k = 0; k < 8; k++) {
        step(tuner, usual_ready_s, 1);
        if (mgw_tuner_due(tuner))
            look(tuner, true);
    }
    assert_true(statistics_of(tuner).slowdown == 1);
    mgw_tuner_destroy(tuner);
}

/* Another policy, from the next look on. */
static void test_set_policy(void **state)
{
    (void)state;
    mgw_error error = {0};
    size_t count = 0;
    mgw_tuner *tuner = make_usual(1);
    step(tuner, usual_ready_s, 0.1);
    look(tuner, true);
    assert_int_equal(mgw_tuner_set_policy(tuner, "naive", &error), MGW_OK);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "optimal");
    assert_false(look(tuner, true)); /* it promises nothing */
    assert_true(look(tuner, false));
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    assert_int_equal(count, TENSORS);
    for (size_t m = 0; m < count; m++)
        assert_int_equal(operations[m].release, MGW_AFTER_BACKWARD);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "naive");
    mgw_tuner_destroy(tuner);
}

/* ---- Parameters ---- */

static void step_with_needs(mgw_tuner *tuner, const double *need_s)
{
    mgw_tuner_count(tuner);
    mgw_tuner_observe(tuner, &(mgw_step_record){.compute_s = 0.08,
                                                .iteration_s = 0.1,
                                                .ready_s = usual_ready_s,
                                                .need_s = need_s,
                                                .stall_s = 0.004});
}

/* Two workers' rows, combined as an exchange does. */
static void look_together(mgw_tuner *tuners[2])
{
    size_t sums = 0;
    size_t maxima = 0;
    mgw_tuner_row_size(tuners[0], &sums, &maxima);
    double *rows[2];
    for (int r = 0; r < 2; r++) {
        rows[r] = calloc(sums + maxima, sizeof **rows);
        mgw_tuner_row(tuners[r], rows[r]);
    }
    for (size_t i = 0; i < sums + maxima; i++)
        rows[0][i] = i < sums ? rows[0][i] + rows[1][i] : fmax(rows[0][i], rows[1][i]);
    uint64_t *word = calloc(mgw_tuner_word_size(tuners[0]), sizeof *word);
    mgw_error error = {0};
    bool changed = false;
    for (int r = 1; r >= 0; r--) /* rank 0's word is the last */
        if (mgw_tuner_propose(tuners[r], rows[0], false, word, &error))
            fail_msg("%s", error.message);
    for (int r = 0; r < 2; r++)
        if (mgw_tuner_follow(tuners[r], word, &changed, &error))
            fail_msg("%s", error.message);
    free(word);
    free(rows[0]);
    free(rows[1]);
}

/* The time of need is the mean over the workers that need it, and the median over steps; tensors
 * that no worker needs are never needed. */
static void test_needs(void **state)
{
    (void)state;
    static const double never = MGW_NEVER_NEEDED;
    double first[TENSORS] = {0.005, 0.007, 0.006, never, 0.004, 0.003, 0.002, 0.001};
    double second[TENSORS] = {never, 0.009, 0.006, never, 0.004, 0.003, 0.002, 0.003};
    const double expected_s[TENSORS] = {0.005, 0.008, 0.006, never, 0.004, 0.003, 0.002, 0.002};
    mgw_tuner_options options = usual(2);
    options.policy = "overlap";
    options.parameter_ratio = 0.5;
    mgw_tuner *tuners[2];
    for (int r = 0; r < 2; r++) {
        tuners[r] = make(&options, TENSORS, megabytes, usual_line);
        for (int k = 0; k < 3; k++)
            step_with_needs(tuners[r], r ? second : first);
    }
    double held_up[TENSORS] = {0.009, 0.009, 0.009, never, 0.009, 0.009, 0.009, 0.009};
    step_with_needs(tuners[0], held_up);
    step_with_needs(tuners[1], held_up);
    assert_close(statistics_of(tuners[0]).stall_s, 0.004);
    look_together(tuners);
    assert_close(statistics_of(tuners[0]).stall_s, 0.004); /* what it was before the look */
    for (int r = 0; r < 2; r++) {
        const mgw_trace *trace = mgw_tuner_trace(tuners[r]);
        assert_true(mgw_tuner_plan(tuners[r])->overlaps_forward);
        assert_close(trace->forward_s, 0.008);
        assert_close(mgw_trace_compute_s(trace), 0.08);
        assert_int_equal(mgw_dtype_bytes(trace->gradient_dtype), 4);
        assert_int_equal(mgw_dtype_bytes(trace->parameter_dtype), 2);
        for (size_t i = 0; i < TENSORS; i++)
            assert_close(trace->tensors[i].forward_start_s, expected_s[i]);
        for (size_t i = 0; i < TENSORS; i++)
            assert_int_equal(trace->tensors[i].count * 4, megabytes[i]);
    }
    expect_same_operations(tuners[0], tuners[1]);
    look_together(tuners); /* without a step, all is as before */
    for (size_t i = 0; i < TENSORS; i++)
        assert_close(mgw_tuner_trace(tuners[1])->tensors[i].forward_start_s, expected_s[i]);
    mgw_tuner_destroy(tuners[0]);
    mgw_tuner_destroy(tuners[1]);
}

static void test_who_does_not_gather(void **state)
{
    (void)state;
    mgw_error error = {0};
    mgw_tuner *tuner = make_usual(1);
    static const char *const policies[] = {"overlap", "zero:1MiB", "dear:1MiB", "fsdp"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(mgw_tuner_set_policy(tuner, policies[i], &error), MGW_ERR_UNSUPPORTED);
        assert_contains(error.message, "gather parameters");
    }
    step(tuner, usual_ready_s, 0.1);
    look(tuner, true);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "optimal");
    assert_close(mgw_tuner_trace(tuner)->forward_s, 0);
    mgw_tuner_destroy(tuner);
}

/* Somebody else's operations stay, whatever looks find, until a policy is set. */
static void test_given_operations(void **state)
{
    (void)state;
    mgw_error error = {0};
    size_t count = 0;
    mgw_tuner *tuner = make_usual(1);
    const mgw_operation given[] = {{.first = 0, .count = 1}, {.first = 1, .count = TENSORS - 1}};
    assert_int_equal(mgw_tuner_set_operations(tuner, given, 2, &error), MGW_OK);
    assert_string_equal(mgw_tuner_plan(tuner)->policy, "given");
    for (int k = 0; k < 3; k++) {
        step(tuner, usual_ready_s, 0.1);
        assert_false(look(tuner, k == 0));
        assert_int_equal(mgw_tuner_operations(tuner, &count)[1].count, TENSORS - 1);
        assert_int_equal(count, 2);
    }
    assert_close(mgw_trace_compute_s(mgw_tuner_trace(tuner)), 0.08);
    assert_int_equal(statistics_of(tuner).plans, 1);
    assert_int_equal(mgw_tuner_set_policy(tuner, "wfbp", &error), MGW_OK);
    assert_true(look(tuner, false));
    mgw_tuner_operations(tuner, &count);
    assert_int_equal(count, TENSORS);
    mgw_tuner_destroy(tuner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_due),
        cmocka_unit_test(test_watches),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_first_operations),
        cmocka_unit_test(test_first_halves),
        cmocka_unit_test(test_slowdown_is_found),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_a_cluster_that_was_given_stays),
        cmocka_unit_test(test_set_policy),
        cmocka_unit_test(test_needs),
        cmocka_unit_test(test_who_does_not_gather),
        cmocka_unit_test(test_given_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
