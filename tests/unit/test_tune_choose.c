/* The plan chosen for observed steps, compared with an independent timeline. */
#include <math.h>

#include "base/median.h"
#include "support.h"
#include "tune/tuner.h"

enum { MOST = 7 };

/* A tuner that has seen steps which the test makes up. */
typedef struct seen {
    mgw_tuner *tuner;
    mgw_line line;
    uint64_t bytes[MOST];
} seen;

static seen *set_up(size_t tensors, mgw_line line, const uint64_t *bytes, const char *policy)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"};
    const mgw_tuner_options options = {.policy = policy,
                                       .profile_steps = 1,
                                       .replan_steps = 1,
                                       .replan_percent = 3,
                                       .crowd = 1,
                                       .size = 4};
    mgw_error error = {0};
    mgw_cluster *cluster = NULL;
    seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->line = line;
    memcpy(s->bytes, bytes, tensors * sizeof *bytes);
    assert_int_equal(mgw_cluster_from_line("test", 4, &line, &cluster, &error), MGW_OK);
    if (mgw_tuner_create(&options, tensors, names, bytes, cluster, &s->tuner, &error))
        fail_msg("%s", error.message);
    return s;
}

static seen *set_up_three(void) /* of four bytes each */
{
    return set_up(3, (mgw_line){1, 0.25}, (uint64_t[]){4, 4, 4}, "optimal");
}

static void tear_down(seen *s)
{
    mgw_tuner_destroy(s->tuner);
    free(s);
}

static void see_step(seen *s, const double *ready_s)
{
    size_t n = s->tuner->tensor_count;
    tune_learned *learned = &s->tuner->learned;
    memcpy(learned->step_ready_s + learned->steps++ * n, ready_s, n * sizeof *ready_s);
    for (size_t i = 0; i < n; i++) {
        double times[TUNE_RECENT];
        for (size_t k = 0; k < learned->steps; k++)
            times[k] = learned->step_ready_s[k * n + i];
        learned->ready_s[i] = mgw_median(times, learned->steps);
    }
}

/* The plan that is proposed, or null: it stays. */
static mgw_plan *choose(seen *s, bool may_stay)
{
    mgw_error error = {0};
    if (tune_choose(s->tuner, may_stay, &error))
        fail_msg("%s", error.message);
    assert_non_null(s->tuner->proposal);
    mgw_plan *plan = s->tuner->proposed;
    mgw_trace_destroy(s->tuner->proposal);
    s->tuner->proposal = NULL;
    s->tuner->proposed = NULL;
    return plan;
}

/* ---- The timeline ---- */

/* Bit i of `cuts`: a message ends with tensor i. When the last message has ended. */
static double end_of(const seen *s, const double *ready_s, unsigned cuts)
{
    double free_s = 0;
    double bytes = 0;
    for (size_t i = 0; i < s->tuner->tensor_count; i++) {
        bytes += (double)s->bytes[i];
        if (!(cuts >> i & 1))
            continue;
        double start_s = ready_s[i] > free_s ? ready_s[i] : free_s;
        free_s = start_s + s->line.a_s + s->line.b_s_per_byte * bytes;
        bytes = 0;
    }
    return free_s;
}

static double mean_end(const seen *s, unsigned cuts)
{
    const tune_learned *learned = &s->tuner->learned;
    double sum_s = 0;
    for (size_t k = 0; k < learned->steps; k++)
        sum_s += end_of(s, learned->step_ready_s + k * s->tuner->tensor_count, cuts);
    int messages = __builtin_popcount(cuts);
    return sum_s / (double)learned->steps + learned->worth_s * messages;
}

static unsigned cuts_of(const mgw_plan *plan)
{
    unsigned cuts = 0;
    for (size_t m = 0; m < plan->operation_count; m++)
        cuts |= 1u << (plan->operations[m].first + plan->operations[m].count) >> 1;
    return cuts;
}

/* What is best for one step, of all plans; of equally good ones, with the fewest messages. */
static unsigned best_for(const seen *s, const double *ready_s)
{
    unsigned last = 1u << s->tuner->tensor_count >> 1;
    unsigned best = 0;
    double best_s = 0;
    for (unsigned cuts = last; cuts < 2 * last; cuts++) {
        double worth_s =
            end_of(s, ready_s, cuts) + s->tuner->learned.worth_s * __builtin_popcount(cuts);
        if (!best || worth_s < best_s - 1e-9) {
            best = cuts;
            best_s = worth_s;
        }
    }
    return best;
}

/* ---- Tests ---- */

/* By hand: messages of 1, 2 and 3 tensors take 2, 3 and 4 s. In three steps of five b is there at
 * 2 s, and a and b are over when c comes: 8 s, after 9 s with a alone. In the others b comes with
 * c, and makes that 10.9 s, with 9 s for a alone as before. On average that is 9.16 s and 9 s. */
static void test_late_in_some_steps(void **state)
{
    (void)state;
    static const double often[] = {1, 2, 6};
    static const double now_and_then[] = {1, 5.9, 6};
    seen *s = set_up_three();
    for (int k = 0; k < 3; k++)
        see_step(s, often);
    mgw_plan *plan = choose(s, false);
    assert_int_equal(cuts_of(plan), 6);
    assert_close(plan->iteration_s, 8);
    s->tuner->plan = plan;
    s->tuner->looks = 1;
    for (int k = 0; k < 2; k++)
        see_step(s, now_and_then);
    plan = choose(s, false);
    assert_int_equal(cuts_of(plan), 5);
    assert_close(plan->iteration_s, 9); /* of the median step, as predictions are */
    mgw_plan_destroy(plan);
    assert_null(choose(s, true)); /* 1.7% less: the plan in force stays, if it may */
    assert_close(s->tuner->plan->iteration_s, 8);
    s->tuner->options.replan_percent = 1;
    plan = choose(s, true);
    assert_int_equal(cuts_of(plan), 5);
    mgw_plan_destroy(plan);
    tear_down(s);
}

/* The looks that follow the first plan take any gain: the 1.7% of above. */
static void test_early_looks(void **state)
{
    (void)state;
    seen *s = set_up_three();
    s->tuner->options.early_looks = 2;
    for (int k = 0; k < 3; k++)
        see_step(s, (double[]){1, 2, 6});
    s->tuner->plan = choose(s, false);
    for (int k = 0; k < 2; k++)
        see_step(s, (double[]){1, 5.9, 6});
    for (size_t looks = 1; looks <= 4; looks++) {
        s->tuner->looks = looks;
        mgw_plan *plan = choose(s, true);
        assert_true((plan != NULL) == (looks <= 2));
        mgw_plan_destroy(plan);
    }
    tear_down(s);
}

/* A plan that is as good is none that is better. */
static void test_no_gain(void **state)
{
    (void)state;
    seen *s = set_up_three();
    see_step(s, (double[]){1, 2, 6});
    s->tuner->options.replan_percent = 0;
    s->tuner->plan = choose(s, false);
    assert_null(choose(s, true));
    tear_down(s);
}

/* How much a new plan must promise is a part of the usual step, not of one that took a thousand
 * times as long: a is alone in the plan in force, which takes 9 s, and 8 s can be had. */
static void test_one_endless_step(void **state)
{
    (void)state;
    seen *s = set_up_three();
    see_step(s, (double[]){1, 5.9, 6});
    mgw_plan *plan = choose(s, false);
    assert_int_equal(cuts_of(plan), 5);
    s->tuner->plan = plan;
    s->tuner->looks = 1;
    s->tuner->learned.steps = 0;
    for (int k = 0; k < 7; k++)
        see_step(s, (double[]){1, 2, 6});
    see_step(s, (double[]){1000, 2000, 6000});
    plan = choose(s, true);
    assert_non_null(plan);
    assert_int_equal(cuts_of(plan), 6);
    mgw_plan_destroy(plan);
    tear_down(s);
}

/* Nothing but the median step is known where tensors take turns. */
static void test_only_the_median(void **state)
{
    (void)state;
    seen *s = set_up_three();
    memcpy(s->tuner->learned.ready_s, (double[]){1, 2, 6}, 3 * sizeof(double));
    mgw_plan *plan = choose(s, false);
    assert_int_equal(cuts_of(plan), 6);
    mgw_plan_destroy(plan);
    tear_down(s);
}

/* Slower messages: a and b together, 6 s long, would hold up c; a alone, 4 s, does not. */
static void test_slowdown_counts(void **state)
{
    (void)state;
    seen *s = set_up_three();
    see_step(s, (double[]){1, 2, 6});
    s->tuner->learned.slowdown = 2;
    mgw_plan *plan = choose(s, false);
    assert_int_equal(cuts_of(plan), 5);
    assert_close(plan->iteration_s, 12);
    mgw_plan_destroy(plan);
    tear_down(s);
}

/* A proposal that was not followed leaves nothing behind. */
static void test_asked_again(void **state)
{
    (void)state;
    mgw_error error = {0};
    seen *s = set_up_three();
    see_step(s, (double[]){1, 2, 6});
    assert_int_equal(tune_choose(s->tuner, false, &error), MGW_OK);
    assert_non_null(s->tuner->proposed);
    s->tuner->plan = s->tuner->proposed; /* as if it were followed */
    s->tuner->proposed = NULL;
    assert_int_equal(tune_choose(s->tuner, false, &error), MGW_OK);
    assert_non_null(s->tuner->proposed);
    assert_int_equal(tune_choose(s->tuner, true, &error), MGW_OK);
    assert_null(s->tuner->proposed); /* the plan in force stays, whatever was proposed before */
    tear_down(s);
}

static seen *see_anything(uint64_t *random, const char *policy)
{
    uint64_t bytes[MOST];
    size_t tensors = 1 + random_below(random, MOST);
    mgw_line line = {0.01 + random_unit(random), random_unit(random)};
    double worth_s = random_below(random, 2) ? random_unit(random) / 8 : 0;
    for (size_t i = 0; i < tensors; i++)
        bytes[i] = 4 * random_below(random, 4);
    seen *s = set_up(tensors, line, bytes, policy);
    s->tuner->learned.worth_s = worth_s;
    for (size_t steps = 1 + random_below(random, TUNE_RECENT); steps > 0; steps--) {
        double ready_s[MOST];
        double now_s = 0;
        for (size_t i = 0; i < tensors; i++)
            ready_s[i] = now_s += random_unit(random) * random_unit(random) * 3;
        see_step(s, ready_s);
    }
    return s;
}

/* Any plan that is best for a step, or for the median one, is no better on all of them. */
static void test_best_of_all_steps(void **state)
{
    (void)state;
    uint64_t random = 1;
    int gained = 0;
    for (int i = 0; i < 3000; i++) {
        seen *s = see_anything(&random, "optimal");
        const tune_learned *learned = &s->tuner->learned;
        mgw_plan *plan = choose(s, false);
        double chosen_s = mean_end(s, cuts_of(plan));
        double median_s = mean_end(s, best_for(s, learned->ready_s));
        gained += chosen_s < median_s - 1e-9;
        assert_true(chosen_s <= median_s + 1e-9);
        for (size_t k = 0; k < learned->steps; k++) {
            const double *ready_s = learned->step_ready_s + k * s->tuner->tensor_count;
            assert_true(chosen_s <= mean_end(s, best_for(s, ready_s)) + 1e-9);
        }
        mgw_plan_destroy(plan);
        tear_down(s);
    }
    assert_true(gained > 300);
}

/* The published rule has what it asks for: the median. */
static void test_other_policies(void **state)
{
    (void)state;
    uint64_t random = 2;
    for (int i = 0; i < 300; i++) {
        seen *s = see_anything(&random, "mgwfbp");
        mgw_plan *plan = choose(s, false);
        s->tuner->learned.steps = 0;
        mgw_plan *of_median = choose(s, false);
        assert_int_equal(cuts_of(plan), cuts_of(of_median));
        mgw_plan_destroy(plan);
        mgw_plan_destroy(of_median);
        tear_down(s);
    }
}

/* What collectives cost in steps: every kind, its line and its samples, each in its order. */
static void test_cost(void **state)
{
    (void)state;
    static const mgw_sample whole[] = {{1000, 3}, {2000, 4}, {4000, 8}};
    static const mgw_sample half[] = {{1000, 1}, {8000, 2}};
    static const mgw_sample other[] = {{500, 0.5}, {900, 7}};
    mgw_error error = {0};
    mgw_cost alone;
    mgw_cost slow;
    mgw_sample *samples = NULL;
    seen *s = set_up_three();
    mgw_cluster_destroy(s->tuner->cluster);
    assert_int_equal(mgw_cluster_from_samples("test", 4, whole, 3, &s->tuner->cluster, &error), 0);
    assert_int_equal(
        mgw_cluster_set_samples(s->tuner->cluster, MGW_REDUCE_SCATTER, half, 2, &error), MGW_OK);
    assert_int_equal(mgw_cluster_set_samples(s->tuner->cluster, MGW_ALL_GATHER, other, 2, &error),
                     MGW_OK);
    s->tuner->learned.worth_s = 0.5;
    mgw_cluster_cost(s->tuner->cluster, &alone);
    assert_int_equal(tune_cost(s->tuner, 3, &slow, &samples, &error), MGW_OK);
    for (int kind = MGW_ALL_REDUCE; kind <= MGW_ALL_GATHER; kind++) {
        assert_close(slow.of[kind].a_s, 3 * alone.of[kind].a_s);
        assert_close(slow.of[kind].b_s_per_byte, 3 * alone.of[kind].b_s_per_byte);
        for (uint64_t bytes = 0; bytes < 20000; bytes += 250)
            assert_close(mgw_cost_seconds(&slow, (mgw_collective)kind, bytes),
                         3 * mgw_cost_seconds(&alone, (mgw_collective)kind, bytes));
    }
    assert_close(slow.worth_s, 0.5);
    free(samples);
    tear_down(s);
}

/* More tensors than `optimal` takes on a curve: it is planned on the line that fits, and timed on
 * the curve. What cannot be is passed on, and nothing is proposed. */
static void test_many_tensors(void **state)
{
    (void)state;
    enum { MANY = 20001 };
    static char text[MANY][8];
    static const char *names[MANY];
    static uint64_t bytes[MANY];
    static const mgw_sample samples[] = {{1, 1}, {1000, 5}, {2000, 6}};
    const mgw_tuner_options options = {.policy = "optimal", .crowd = 1, .size = 4};
    mgw_error error = {0};
    mgw_cluster *cluster = NULL;
    mgw_tuner *tuner = NULL;
    for (size_t i = 0; i < MANY; i++) {
        snprintf(text[i], sizeof text[i], "%zu", i);
        names[i] = text[i];
        bytes[i] = 2;
    }
    assert_int_equal(mgw_cluster_from_samples("test", 4, samples, 3, &cluster, &error), MGW_OK);
    assert_int_equal(mgw_tuner_create(&options, MANY, names, bytes, cluster, &tuner, &error),
                     MGW_OK);
    for (size_t i = 0; i < MANY; i++)
        tuner->learned.ready_s[i] = (double)(i + 1);
    assert_int_equal(tune_choose(tuner, false, &error), MGW_OK);
    assert_non_null(tuner->proposed);
    mgw_cost cost;
    mgw_cluster_cost(tuner->cluster, &cost);
    const mgw_operation *last = &tuner->proposed->operations[tuner->proposed->operation_count - 1];
    assert_close(last->end_s - last->start_s, mgw_cost_seconds(&cost, MGW_ALL_REDUCE, last->bytes));
    tuner->learned.ready_s[MANY - 1] = INFINITY;
    assert_int_not_equal(tune_choose(tuner, false, &error), MGW_OK);
    assert_null(tuner->proposed);
    assert_null(tuner->proposal);
    mgw_tuner_destroy(tuner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_in_some_steps),
        cmocka_unit_test(test_early_looks),
        cmocka_unit_test(test_no_gain),
        cmocka_unit_test(test_one_endless_step),
        cmocka_unit_test(test_only_the_median),
        cmocka_unit_test(test_slowdown_counts),
        cmocka_unit_test(test_asked_again),
        cmocka_unit_test(test_best_of_all_steps),
        cmocka_unit_test(test_other_policies),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_many_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
