/*
 * Concurrent computation and messages, compared with a simulation in small time steps in which both
 * slow down by known factors, with noise: the fitted factors, and predictions for new plans.
 *
 *     test_tune_beside            what must hold
 *     test_tune_beside --table    how far predictions were off, beside those without it
 */
#include <math.h>
#include <stdbool.h>

#include "base/median.h"
#include "support.h"
#include "tune/tuner.h"

enum { TENSORS = 40, TICKS = 20000 };

/* A machine, and a network of samples. */
typedef struct world {
    uint64_t random;
    double message; /* slowdown factor while the other runs */
    double compute;
    double noise;
    double alone_s[TENSORS]; /* when gradients are ready without messages */
    uint64_t bytes[TENSORS];
    mgw_sample samples[6];
} world;

static double gauss(uint64_t *random)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += random_unit(random);
    return sum - 6;
}

static const char *names[TENSORS];

static world any_world(uint64_t seed, double noise)
{
    static char text[TENSORS][8];
    world w = {.random = seed * 7919, .noise = noise};
    uint64_t *random = &w.random;
    double total_s = 0.02 + 0.05 * random_unit(random);
    double now_s = 0.3 * total_s;
    double bytes = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        now_s += 0.7 * total_s / TENSORS * 2 * random_unit(random);
        w.alone_s[i] = now_s;
        w.bytes[i] = 4 * (1 + (uint64_t)(2e6 * pow(random_unit(random), 3)));
        bytes += (double)w.bytes[i];
        snprintf(text[i], sizeof text[i], "t%zu", i);
        names[i] = text[i];
    }
    /* Concave: all messages together take half to twice as long as computation. */
    double rate = bytes / (now_s * (0.5 + 1.5 * random_unit(random)));
    for (size_t i = 0; i < 6; i++) {
        double size = 1024 * pow(8, (double)i);
        double share = 0.7 + 0.1 * (double)(5 - i);
        w.samples[i] = (mgw_sample){(uint64_t)size, 5e-5 + size / rate * share};
    }
    w.message = 1 + 0.6 * random_unit(random);
    w.compute = 1 + 0.3 * random_unit(random);
    return w;
}

static double alone_of(const world *w, uint64_t bytes)
{
    const mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.samples = w->samples, .sample_count = 6}};
    return mgw_cost_seconds(&cost, MGW_ALL_REDUCE, bytes);
}

/* A step by ticks: nothing but what the two factors mean. */
static mgw_step_times tick(const world *w, const mgw_operation *operations, size_t count,
                           double *ready_s)
{
    double dt = w->alone_s[TENSORS - 1] / TICKS;
    double now_s = 0;
    double work_s = 0;
    double left_s = 0;
    double compute_s = 0;
    size_t ready = 0;
    size_t next = 0;
    while (ready < TENSORS || next < count || left_s > 0) {
        bool computes = ready < TENSORS;
        if (left_s <= 0 && next < count &&
            operations[next].first + operations[next].count <= ready &&
            (operations[next].release == MGW_WHEN_READY || !computes))
            left_s = alone_of(w, operations[next++].bytes);
        bool sends = left_s > 0;
        now_s += dt;
        left_s -= sends ? dt / (computes ? w->message : 1) : 0;
        work_s += computes ? dt / (sends ? w->compute : 1) : 0;
        for (; ready < TENSORS && w->alone_s[ready] <= work_s; ready++)
            ready_s[ready] = compute_s = now_s;
    }
    return (mgw_step_times){compute_s, now_s};
}

/* ---- The step by itself ---- */

static size_t any_cuts(world *w, mgw_operation *operations, double chance)
{
    size_t count = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        if (i == 0 || random_unit(&w->random) < chance)
            operations[count++] = (mgw_operation){.first = i, .release = MGW_WHEN_READY};
        operations[count - 1].count++;
        operations[count - 1].bytes += w->bytes[i];
    }
    if (random_below(&w->random, 10) == 0)
        for (size_t m = 0; m < count; m++)
            operations[m].release = MGW_AFTER_BACKWARD;
    return count;
}

/* Against ticks, for any plan; and back again. */
static void test_steps(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        world w = any_world(seed, 0);
        mgw_operation operations[TENSORS];
        double alone_s[TENSORS];
        double ready_s[TENSORS];
        double ticked_s[TENSORS];
        double again_s[TENSORS];
        size_t count = any_cuts(&w, operations, pow(random_unit(&w.random), 2));
        for (size_t m = 0; m < count; m++)
            alone_s[m] = alone_of(&w, operations[m].bytes);
        const mgw_messages messages = {count, operations, alone_s};
        const mgw_beside beside = {w.message, w.compute};
        mgw_step_times t = mgw_beside_run(TENSORS, w.alone_s, &messages, beside, ready_s);
        mgw_step_times truth = tick(&w, operations, count, ticked_s);
        double close_s = (3 + 3 * (double)count) * w.alone_s[TENSORS - 1] / TICKS;
        assert_true(fabs(t.compute_s - truth.compute_s) < close_s);
        assert_true(fabs(t.iteration_s - truth.iteration_s) < close_s);
        for (size_t i = 0; i < TENSORS; i++)
            assert_true(fabs(ready_s[i] - ticked_s[i]) < close_s);
        for (size_t m = 0; m < count; m++)
            assert_true(operations[m].end_s - operations[m].start_s >= alone_s[m] * (1 - 1e-9));
        assert_true(fabs(operations[count - 1].end_s - t.iteration_s) < 1e-12);
        mgw_beside_undo(TENSORS, ready_s, &messages, beside, again_s);
        for (size_t i = 0; i < TENSORS; i++)
            assert_true(fabs(again_s[i] - w.alone_s[i]) < 1e-9);
    }
}

/* By hand: gradients at 2 and 4 s, messages of 3 and 1 s; beside each other messages take twice as
 * long, and computation 1.25 times. From 2 s on both go on: the 2 s that are left of computation
 * take 2.5, until 4.5 s, and half of that, 1.25 s, is done of the message. The other 1.75 s and the
 * second message are alone: until 7.25 s. */
static void test_by_hand(void **state)
{
    (void)state;
    static const double alone_s[] = {2, 4};
    mgw_operation operations[] = {{.first = 0, .count = 1}, {.first = 1, .count = 1}};
    double took_s[] = {3, 1};
    double ready_s[2];
    const mgw_messages messages = {2, operations, took_s};
    mgw_step_times t = mgw_beside_run(2, alone_s, &messages, (mgw_beside){2, 1.25}, ready_s);
    assert_close(t.compute_s, 4.5);
    assert_close(t.iteration_s, 7.25);
    assert_close(ready_s[0], 2);
    assert_close(operations[0].start_s, 2);
    assert_close(operations[0].end_s, 6.25);
    assert_close(operations[1].start_s, 6.25);
}

/* ---- A tuner that learns it ---- */

static mgw_tuner *make_tuner(const world *w)
{
    const mgw_tuner_options options = {.policy = "ddp",
                                       .profile_steps = 8,
                                       .replan_steps = 8,
                                       .whole_steps = true,
                                       .crowd = 1,
                                       .size = 2};
    mgw_cluster *cluster = NULL;
    mgw_tuner *tuner = NULL;
    mgw_error error = {0};
    if (mgw_cluster_from_samples("known", 2, w->samples, 6, &cluster, &error) ||
        mgw_tuner_create(&options, TENSORS, names, w->bytes, cluster, &tuner, &error))
        fail_msg("%s", error.message);
    return tuner;
}

/* Eight steps under the plan in force, and a look. */
static void live(world *w, mgw_tuner *tuner, const char *next_policy)
{
    double ready_s[TENSORS];
    double seen_s[TENSORS];
    size_t count = 0;
    mgw_error error = {0};
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    mgw_step_times t = tick(w, operations, count, ready_s);
    for (int k = 0; k < 8; k++) {
        double factor = exp(w->noise * gauss(&w->random));
        for (size_t i = 0; i < TENSORS; i++)
            seen_s[i] = ready_s[i] * factor;
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &(mgw_step_record){.compute_s = t.compute_s * factor,
                                                    .iteration_s = t.iteration_s * factor,
                                                    .ready_s = seen_s});
    }
    size_t sums = 0;
    size_t maxima = 0;
    mgw_tuner_row_size(tuner, &sums, &maxima);
    double *row = calloc(sums + maxima, sizeof *row);
    uint64_t *word = calloc(mgw_tuner_word_size(tuner), sizeof *word);
    bool changed = false;
    assert_true(row && word);
    if (mgw_tuner_set_policy(tuner, next_policy, &error))
        fail_msg("%s", error.message);
    mgw_tuner_row(tuner, row);
    for (size_t i = 0; i < sums; i++)
        row[i] *= 2; /* two equal workers */
    if (mgw_tuner_propose(tuner, row, false, word, &error) ||
        mgw_tuner_follow(tuner, word, &changed, &error))
        fail_msg("%s", error.message);
    free(row);
    free(word);
}

/* What comes of it: how far the two numbers are off, and predictions of plans not seen. */
typedef struct outcome {
    double compute, message;
    double with, without; /* of a step, as a share: by both, and by one factor for all messages */
    double told;          /* by the trace and the cluster that anybody may plan with */
} outcome;

/* Three policies are lived with; then any plans are predicted. */
static outcome learn_world(uint64_t seed, double noise)
{
    static const char *const lived[] = {"single", "threshold:4194304", "wfbp"};
    world w = any_world(seed, noise);
    mgw_tuner *tuner = make_tuner(&w);
    mgw_error error = {0};
    for (size_t i = 0; i < 3; i++)
        live(&w, tuner, lived[i]);
    live(&w, tuner, "optimal");
    outcome out = {.compute = tuner->model.beside.compute / w.compute - 1,
                   .message = tuner->model.beside.message / w.message - 1};
    for (int k = 0; k < 5; k++) {
        mgw_operation operations[TENSORS] = {{0}};
        double ready_s[TENSORS];
        size_t count = any_cuts(&w, operations, 0.02 + 0.2 * random_unit(&w.random));
        mgw_plan *plan = NULL;
        mgw_cost cost;
        mgw_sample *samples = NULL;
        if (tune_cost(tuner, tuner->learned.slowdown, &cost, &samples, &error) ||
            mgw_plan_from_operations(tuner->trace, &cost, "any", operations, count, &plan, &error))
            fail_msg("%s", error.message);
        free(samples);
        assert_non_null(plan);
        if (!plan) /* for who does not know that it has failed */
            continue;
        double without_s = plan->iteration_s;
        if (tune_correct(tuner, plan, &error))
            fail_msg("%s", error.message);
        double truth_s = tick(&w, plan->operations, count, ready_s).iteration_s;
        out.with = fmax(out.with, fabs(plan->iteration_s / truth_s - 1));
        out.without = fmax(out.without, fabs(without_s / truth_s - 1));
        mgw_cluster_cost(mgw_tuner_cluster(tuner), &cost);
        if (mgw_plan_time(plan, mgw_tuner_trace(tuner), &cost, &error))
            fail_msg("%s", error.message);
        out.told = fmax(out.told, fabs(plan->iteration_s / truth_s - 1));
        mgw_plan_destroy(plan);
    }
    mgw_tuner_destroy(tuner);
    return out;
}

enum { WORLDS = 60 };

/* By noise: the 90th percentile over worlds of how far each is off. */
static outcome percentiles(double noise)
{
    double values[5][WORLDS];
    for (unsigned seed = 1; seed <= WORLDS; seed++) {
        outcome o = learn_world(seed, noise);
        values[0][seed - 1] = fabs(o.compute);
        values[1][seed - 1] = fabs(o.message);
        values[2][seed - 1] = o.with;
        values[3][seed - 1] = o.without;
        values[4][seed - 1] = o.told;
    }
    for (size_t k = 0; k < 5; k++)
        qsort(values[k], WORLDS, sizeof(double), mgw_compare_doubles);
    const size_t at = WORLDS * 9 / 10;
    return (outcome){values[0][at], values[1][at], values[2][at], values[3][at], values[4][at]};
}

static void test_predictions(void **state)
{
    (void)state;
    outcome calm = percentiles(0);
    assert_true(calm.compute < 0.02);
    assert_true(calm.message < 0.05);
    assert_true(calm.with < 0.01 && calm.without > 0.05 && calm.told < 0.01);
    outcome rough = percentiles(0.03);
    assert_true(rough.compute < 0.06);
    assert_true(rough.message < 0.15);
    assert_true(rough.with < 0.05 && rough.told < 0.05);
}

/* Nothing stretches: nothing is learned. */
static void test_nothing(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        world w = any_world(seed, 0);
        w.message = w.compute = 1;
        mgw_tuner *tuner = make_tuner(&w);
        for (int i = 0; i < 3; i++)
            live(&w, tuner, i == 1 ? "single" : "optimal");
        mgw_tuner_statistics s;
        mgw_tuner_measure(tuner, &s);
        assert_true(s.stretch < 1.005 && s.beside < 1.02);
        mgw_tuner_destroy(tuner);
    }
}

/* What steps took in another world is forgotten: computation takes half as long as before. */
static void test_drift(void **state)
{
    (void)state;
    static const char cuts[] = "threshold:4194304"; /* whatever the times */
    world w = any_world(5, 0);
    mgw_tuner *tuner = make_tuner(&w);
    double ready_s[TENSORS];
    live(&w, tuner, "single");
    live(&w, tuner, cuts);
    live(&w, tuner, cuts);
    assert_int_equal(tuner->model.note_count, 3); /* of DDP's cut, one message, and these */
    for (size_t i = 0; i < TENSORS; i++)
        w.alone_s[i] /= 2;
    live(&w, tuner, cuts);
    assert_int_equal(tuner->model.note_count, 1);
    for (int i = 0; i < 2; i++)
        live(&w, tuner, cuts);
    const mgw_plan *plan = mgw_tuner_plan(tuner);
    double truth_s = tick(&w, plan->operations, plan->operation_count, ready_s).iteration_s;
    assert_true(fabs(plan->iteration_s / truth_s - 1) < 0.02);
    mgw_tuner_destroy(tuner);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),       cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_predictions), cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_drift),
    };
    if (argc > 1 && !strcmp(argv[1], "--table")) {
        printf("noise | stretch off by | messages' off by | predictions off by | with one factor "
               "for all messages\n");
        for (int noise = 0; noise <= 10; noise += 2) {
            outcome o = percentiles(noise / 100.);
            printf("%d%% | %.1f%% | %.1f%% | %.1f%% | %.1f%%\n", noise, 100 * o.compute,
                   100 * o.message, 100 * o.with, 100 * o.without);
        }
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
