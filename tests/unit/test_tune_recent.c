/* Learning from the recent steps of all workers, compared with numbers solved by hand. Workers are
 * tuners that get reports of steps; the test combines their rows. */
#include <math.h>

#include "support.h"
#include "tune/tuner.h"

enum { RANKS = 3, TENSORS = 4, OPERATIONS = 2 };

/* What a worker sees in a step. */
typedef struct seen {
    double late_s;
    double iteration_s;
    double ready_s[TENSORS];
    double took_s[OPERATIONS];
    double busy_s[OPERATIONS];
} seen;

static seen told[RANKS][2 * TUNE_RECENT];
static mgw_tuner *ranks[RANKS];

/* Operations of 2 and 6 bytes, which take 3 and 7 s alone. */
static const mgw_operation operations[] = {
    {.kind = MGW_ALL_REDUCE, .release = MGW_WHEN_READY, .first = 0, .count = 2},
    {.kind = MGW_ALL_REDUCE, .release = MGW_WHEN_READY, .first = 2, .count = 2},
};

static const mgw_operation halves[] = {
    {.kind = MGW_REDUCE_SCATTER, .release = MGW_WHEN_READY, .first = 0, .count = TENSORS},
    {.kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = 0, .count = TENSORS},
};
static double parameter_ratio; /* of tuners that are set up */

/* So many operations, of which one is behind the backward pass; or none, if there is no such one.
 */
static void give_plan(mgw_tuner *tuner, size_t count, size_t behind)
{
    mgw_operation given[OPERATIONS];
    mgw_trace *trace = NULL;
    mgw_cost cost;
    mgw_error error = {0};
    memcpy(given, parameter_ratio > 0 ? halves : operations, sizeof given);
    given[count - 1].count = TENSORS - given[count - 1].first;
    if (behind < count)
        given[behind].release = MGW_AFTER_BACKWARD;
    mgw_cluster_cost(tuner->cluster, &cost);
    mgw_plan_destroy(tuner->plan);
    tuner->plan = NULL;
    if (tune_make_trace(tuner, tuner->learned.ready_s, &trace, &error) ||
        mgw_plan_from_operations(trace, &cost, "test", given, count, &tuner->plan, &error))
        fail_msg("%s", error.message);
    mgw_trace_destroy(trace);
}

static mgw_tuner *set_up(unsigned steps)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    static const uint64_t bytes[] = {0, 2, 2, 4};
    static const mgw_line line = {1, 1};
    const mgw_tuner_options options = {.policy = "optimal",
                                       .profile_steps = 3,
                                       .replan_steps = 10,
                                       .replan_percent = 3,
                                       .crowd = 2,
                                       .size = RANKS,
                                       .parameter_ratio = parameter_ratio};
    mgw_error error = {0};
    for (unsigned r = 0; r < RANKS; r++) {
        mgw_cluster *cluster = NULL;
        assert_int_equal(mgw_cluster_from_line("test", RANKS, &line, &cluster, &error), MGW_OK);
        if (mgw_tuner_create(&options, TENSORS, names, bytes, cluster, &ranks[r], &error))
            fail_msg("%s", error.message);
        give_plan(ranks[r], OPERATIONS, OPERATIONS);
    }
    memset(told, 0, sizeof told);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < steps; k++)
            told[r][k] = (seen){0, 11, {1, 2, 3, 4}, {3, 7}, {0.5, 1}};
    return ranks[0];
}

/* All workers report the first `steps` steps; then rank 0 learns. */
static void learn(unsigned steps)
{
    size_t sums = 0;
    size_t maxima = 0;
    mgw_error error = {0};
    mgw_tuner_row_size(ranks[0], &sums, &maxima);
    double *combined = calloc(sums + maxima, sizeof *combined);
    double *row = calloc(sums + maxima, sizeof *row);
    assert_true(combined && row);
    for (unsigned r = 0; r < RANKS; r++) {
        tune_recent_forget(ranks[r]);
        for (unsigned k = 0; k < steps; k++) {
            const seen *s = &told[r][k];
            mgw_tuner_observe(ranks[r], &(mgw_step_record){.late_s = s->late_s,
                                                           .iteration_s = s->iteration_s,
                                                           .ready_s = s->ready_s,
                                                           .took_s = s->took_s,
                                                           .busy_s = s->busy_s});
        }
        mgw_tuner_row(ranks[r], row);
        for (size_t i = 0; i < sums + maxima; i++)
            combined[i] =
                i < sums ? combined[i] + row[i] : (r ? fmax(combined[i], row[i]) : row[i]);
    }
    if (tune_learn(ranks[0], combined, &error))
        fail_msg("%s", error.message);
    free(combined);
    free(row);
}

static void tear_down(void)
{
    for (unsigned r = 0; r < RANKS; r++)
        mgw_tuner_destroy(ranks[r]);
}

static void expect_ready(const double *ready_s, double a, double b, double c, double d)
{
    assert_close(ready_s[0], a);
    assert_close(ready_s[1], b);
    assert_close(ready_s[2], c);
    assert_close(ready_s[3], d);
}

/* ---- When gradients are there ---- */

/* The last worker counts, step by step: another one each time, 0.5 s after the others. Each worker
 * by itself has the second tensor after 2 s in most steps. */
static void test_the_last_worker_counts(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(6);
    for (unsigned k = 0; k < 6; k++)
        told[k % RANKS][k].ready_s[1] = 2.5;
    learn(6);
    expect_ready(t->learned.ready_s, 1, 2.5, 3, 4);
    assert_int_equal(t->learned.steps, 6);
    for (size_t k = 0; k < 6; k++)
        expect_ready(t->learned.step_ready_s + k * TENSORS, 1, 2.5, 3, 4);
    tear_down();
}

/* The end of the step before is common to all. Who begins 0.9 s after it is 0.6 s after the average
 * worker, and so are its gradients. */
static void test_late_begin(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(3);
    for (unsigned k = 0; k < 3; k++)
        told[1][k].late_s = 0.9;
    learn(3);
    expect_ready(t->learned.ready_s, 1.6, 2.6, 3.6, 4.6);
    expect_ready(t->learned.step_ready_s, 1.6, 2.6, 3.6, 4.6);
    tear_down();
}

/* One step in which a worker was held up does not count in the median; it is still a step. */
static void test_one_held_up(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(5);
    told[0][3].ready_s[2] = 30;
    told[0][3].ready_s[3] = 40;
    learn(5);
    expect_ready(t->learned.ready_s, 1, 2, 3, 4);
    assert_int_equal(t->learned.steps, 5);
    expect_ready(t->learned.step_ready_s + 2 * TENSORS, 1, 2, 3, 4);
    expect_ready(t->learned.step_ready_s + 3 * TENSORS, 1, 2, 30, 40);
    tear_down();
}

/* A message waits for all before it, in whatever order they come. */
static void test_never_falling(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(1);
    for (unsigned r = 0; r < RANKS; r++)
        told[r][0].ready_s[0] = 2.25;
    learn(1);
    expect_ready(t->learned.ready_s, 2.25, 2.25, 3, 4);
    expect_ready(t->learned.step_ready_s, 2.25, 2.25, 3, 4);
    tear_down();
}

/* What no row has is as it was; and a row that lacks something is no step. */
static void test_not_measured(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(2);
    t->learned.ready_s[2] = 3.5;
    for (unsigned r = 0; r < RANKS; r++)
        told[r][0].ready_s[2] = told[r][1].ready_s[2] = 0;
    learn(2);
    expect_ready(t->learned.ready_s, 1, 2, 3.5, 4);
    assert_int_equal(t->learned.steps, 0);
    for (unsigned k = 0; k < 2; k++)
        told[1][k].late_s = 0.9; /* which is when it began, and no gradient's time */
    learn(2);
    expect_ready(t->learned.ready_s, 1.6, 2.6, 3.5, 4.6);
    tear_down();
    t = set_up(1);
    for (unsigned r = 0; r < RANKS; r++)
        told[r][0].ready_s[0] = 0;
    learn(1);
    assert_int_equal(t->learned.steps, 0);
    tear_down();
    t = set_up(2);
    learn(2);
    learn(0); /* as if asked again at once */
    expect_ready(t->learned.ready_s, 1, 2, 3, 4);
    assert_int_equal(t->learned.steps, 2);
    expect_ready(t->learned.step_ready_s, 1, 2, 3, 4);
    tear_down();
}

/* Where tensors take turns rows are not steps, whatever they have; and those that were not timed in
 * a step do not take a row's place. */
static void test_sampled(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(16);
    for (unsigned r = 0; r < RANKS; r++)
        ranks[r]->options.sampled = 2;
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned i = 0; i < TENSORS; i++)
                told[r][k].ready_s[i] = (i + k) % 2 ? 0 : 1 + i + 0.125 * (r == 1 && k < 8);
    learn(16);
    expect_ready(t->learned.ready_s, 1.125, 2.125, 3.125, 4.125); /* of eight that were timed */
    assert_int_equal(t->learned.steps, 0);
    tear_down();
}

/* The last eight steps count, however many there were. */
static void test_the_last_eight(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(TUNE_RECENT + 5);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < TUNE_RECENT + 5; k++)
            told[r][k].ready_s[3] = k < 5 ? 100 : 4 + k;
    learn(TUNE_RECENT + 5);
    assert_int_equal(t->learned.steps, TUNE_RECENT);
    expect_ready(t->learned.ready_s, 1, 2, 3, 13); /* of 9 to 16 */
    double sum_s = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++)
        sum_s += t->learned.step_ready_s[k * TENSORS + 3];
    assert_close(sum_s, 9 + 10 + 11 + 12 + 13 + 14 + 15 + 16);
    tear_down();
}

/* ---- What operations take, and what they take from computation ---- */

static void tell_took(unsigned steps, unsigned rank, size_t operation, double seconds)
{
    for (unsigned k = 0; k < steps; k++)
        told[rank][k].took_s[operation] = seconds;
}

/* The message beside computation took 12 s where it was shortest, and takes 3 s alone: 4 times as
 * long. Half of the way there, in factors, is 2; and then half of the way from 2 to 4. The last
 * message has computation behind it, and does not count; nor what the others waited. */
static void test_slowdown(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(4);
    tell_took(4, 0, 0, 40);
    tell_took(4, 1, 0, 12);
    tell_took(4, 2, 0, 50);
    tell_took(4, 1, 1, 7000);
    learn(4);
    assert_close(t->learned.slowdown, 2);
    learn(4);
    assert_close(t->learned.slowdown, sqrt(8));
    tear_down();
}

/* The last that averages has computation behind it, wherever gathers stand: they are beside the
 * next step's. */
static void test_slowdown_beside_gathers(void **state)
{
    (void)state;
    mgw_cost cost;
    parameter_ratio = 1;
    mgw_tuner *t = set_up(4);
    mgw_cluster_cost(t->cluster, &cost);
    double alone_s = mgw_cost_seconds(&cost, MGW_ALL_GATHER, t->plan->operations[1].bytes);
    for (unsigned r = 0; r < RANKS; r++) {
        tell_took(4, r, 0, 7000);
        tell_took(4, r, 1, 4 * alone_s);
    }
    learn(4);
    assert_close(t->learned.slowdown, 2);
    tear_down();
    parameter_ratio = 0;
}

/* Of the steps the median: one that took long does not count. */
static void test_slowdown_in_most_steps(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(3);
    for (unsigned r = 0; r < RANKS; r++) {
        told[r][0].took_s[0] = 24;
        told[r][1].took_s[0] = 12;
        told[r][2].took_s[0] = 12;
    }
    learn(3);
    assert_close(t->learned.slowdown, 2);
    tear_down();
    t = set_up(TUNE_RECENT); /* half of them: the first counts as all others do */
    for (unsigned r = 0; r < RANKS; r++)
        tell_took(TUNE_RECENT / 2, r, 0, 12);
    learn(TUNE_RECENT);
    assert_close(t->learned.slowdown, 2);
    tear_down();
}

/* Behind the backward pass there is no computation to be slowed down by, for any of them. */
static void test_slowdown_of_naive(void **state)
{
    (void)state;
    for (size_t behind = 0; behind < OPERATIONS; behind++) {
        mgw_tuner *t = set_up(4);
        for (unsigned r = 0; r < RANKS; r++)
            give_plan(ranks[r], OPERATIONS, behind);
        t->learned.slowdown = 4;
        learn(4);
        assert_close(t->learned.slowdown, 4);
        tear_down();
    }
}

/* Nor is there any behind the last gradient, which is all that one message has. */
static void test_slowdown_of_one_message(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(4);
    for (unsigned r = 0; r < RANKS; r++)
        give_plan(ranks[r], 1, 1);
    t->learned.slowdown = 4;
    learn(4);
    assert_close(t->learned.slowdown, 4);
    tear_down();
}

/* Never faster than alone, nor any slower than 8 times; and as it was, where nobody has timed it.
 */
static void test_slowdown_has_bounds(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(4);
    tell_took(4, 0, 0, 0.1);
    learn(4);
    assert_close(t->learned.slowdown, 1);
    for (unsigned r = 0; r < RANKS; r++)
        tell_took(4, r, 0, 3000);
    learn(4);
    assert_close(t->learned.slowdown, sqrt(8));
    for (unsigned r = 0; r < RANKS; r++)
        tell_took(4, r, 0, 0);
    learn(4);
    assert_close(t->learned.slowdown, sqrt(8));
    tear_down();
}

/* Busy for 0.5 s with 2 bytes and 1 s with 6: 0.25 s whatever the size, which two workers on a core
 * make 0.5 s. The next look says 1 s; half of the way there is 0.75 s. */
static void test_worth(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(3);
    learn(3);
    assert_close(t->learned.worth_s, 0.5);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < 3; k++) {
            told[r][k].busy_s[0] = 0.5 + (r == 0) * 0.75; /* 0.75 s on average */
            told[r][k].busy_s[1] = 1.25;
        }
    learn(3);
    assert_close(t->learned.worth_s, 0.75);
    tear_down();
}

/* Of one message alone there is no telling what of it depends on its size. */
static void test_worth_of_one_message(void **state)
{
    (void)state;
    mgw_tuner *t = set_up(3);
    t->learned.worth_s = 0.125;
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned k = 0; k < 3; k++)
            told[r][k].busy_s[0] = 0;
    learn(3);
    assert_close(t->learned.worth_s, 0.125);
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_worker_counts),
        cmocka_unit_test(test_late_begin),
        cmocka_unit_test(test_one_held_up),
        cmocka_unit_test(test_never_falling),
        cmocka_unit_test(test_not_measured),
        cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_the_last_eight),
        cmocka_unit_test(test_slowdown),
        cmocka_unit_test(test_slowdown_beside_gathers),
        cmocka_unit_test(test_slowdown_in_most_steps),
        cmocka_unit_test(test_slowdown_of_naive),
        cmocka_unit_test(test_slowdown_of_one_message),
        cmocka_unit_test(test_slowdown_has_bounds),
        cmocka_unit_test(test_worth),
        cmocka_unit_test(test_worth_of_one_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
