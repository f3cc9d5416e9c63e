/* Which plans are tried, with many tensors and with lanes; and what steps with fewer lanes, or of a
 * trial that was stopped, must not teach. The driver is a single channel under a virtual clock. */
#include "support.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/tune.h>

enum { TENSORS = 40, MANY = 20001, LATE = 8 };

static const mgw_line line = {300e-6, 1e-9};
static mgw_error error;

static mgw_status combine(void *context, double *values, size_t sums, size_t maxima, mgw_error *e)
{
    (void)context, (void)maxima, (void)e;
    for (size_t i = 0; i < sums; i++)
        values[i] *= 2;
    return MGW_OK;
}

static mgw_status tell(void *context, void *data, size_t bytes, mgw_error *e)
{
    (void)context, (void)data, (void)bytes, (void)e;
    return MGW_OK;
}

static const mgw_exchange both = {NULL, 0, 2, combine, tell};

static mgw_tuner_options options_of(const char *policy, unsigned lanes, unsigned trials)
{
    return (mgw_tuner_options){.policy = policy,
                               .profile_steps = 5,
                               .replan_steps = 20,
                               .replan_percent = 3,
                               .size = 2,
                               .parameter_ratio = strcmp(policy, "optimal") != 0,
                               .trials = trials,
                               .lanes = lanes,
                               .one_dtype = true,
                               .dtype = MGW_F32};
}

/* Tensors of 0.4 to 2 MB, or a share of that. */
static mgw_tuner *make(const mgw_tuner_options *options, size_t tensors, size_t share,
                       mgw_cluster *cluster)
{
    char(*text)[16] = malloc(tensors * sizeof *text);
    const char **names = malloc(tensors * sizeof *names);
    uint64_t *bytes = malloc(tensors * sizeof *bytes);
    mgw_tuner *tuner = NULL;
    assert_true(text && names && bytes);
    for (size_t i = 0; i < tensors; i++) {
        snprintf(text[i], sizeof text[i], "t%zu", i);
        names[i] = text[i];
        bytes[i] = 4 * (100000 + i * 7919 % 400000) / share;
    }
    if (!cluster && mgw_cluster_from_line("line", 2, &line, &cluster, &error))
        fail_msg("%s", error.message);
    if (mgw_tuner_create(options, tensors, names, bytes, cluster, &tuner, &error))
        fail_msg("%s", error.message);
    free(text);
    free((void *)names);
    free(bytes);
    return tuner;
}

static mgw_tuner_statistics statistics_of(const mgw_tuner *tuner)
{
    mgw_tuner_statistics s;
    mgw_tuner_measure(tuner, &s);
    return s;
}

static void look(mgw_tuner *tuner, bool may_stay)
{
    bool changed = false;
    if (mgw_tuner_look(tuner, &both, may_stay, &changed, &error))
        fail_msg("%s", error.message);
}

static bool has(const mgw_tuner *tuner, const char *name)
{
    size_t count = 0;
    bool found = false;
    const mgw_tried *tried = mgw_tuner_tried(tuner, &count);
    for (size_t i = 0; i < count; i++)
        found = found || strcmp(tried[i].name, name) == 0;
    return found;
}

/* ---- The driver ---- */

typedef struct driver {
    mgw_tuner *tuner;
    double slowdown; /* of messages */
    double ready_s[TENSORS];
    double need_s[TENSORS];
    double took_s[2 * TENSORS];
    double busy_s[2 * TENSORS];
    uint64_t steps;
    double last_s; /* what the last step took */
    size_t late;   /* steps whose times are reported that much later, on a GPU */
    mgw_step_record waiting[LATE];
    size_t waiting_count;
} driver;

static void report(driver *d, size_t keep)
{
    while (d->waiting_count > keep) {
        mgw_tuner_observe(d->tuner, &d->waiting[0]);
        memmove(d->waiting, d->waiting + 1, --d->waiting_count * sizeof *d->waiting);
    }
}

static void step(driver *d, double factor)
{
    static const double unknown_s[TENSORS];
    size_t count = 0;
    if (mgw_tuner_due(d->tuner)) {
        report(d, 0);
        look(d->tuner, true);
    } else {
        mgw_tuner_turn(d->tuner);
    }
    const mgw_operation *operations = mgw_tuner_operations(d->tuner, &count);
    for (size_t i = 0; i < TENSORS; i++)
        d->ready_s[i] = 0.02 + 0.06 * (double)(i + 1) / TENSORS;
    double end_s = 0;
    for (size_t k = 0; k < count; k++) {
        const mgw_operation *o = &operations[k];
        double half = o->kind == MGW_ALL_REDUCE ? 1 : 0.5;
        double begun_s =
            d->ready_s[o->kind == MGW_ALL_GATHER ? TENSORS - 1 : o->first + o->count - 1];
        d->took_s[k] = half * d->slowdown * (line.a_s + line.b_s_per_byte * (double)o->bytes);
        end_s = fmax(end_s, begun_s) + d->took_s[k];
    }
    double iteration_s = factor * fmax(end_s, d->ready_s[TENSORS - 1]);
    bool trying = statistics_of(d->tuner).trying > 0;
    d->last_s = iteration_s;
    mgw_tuner_count(d->tuner);
    report(d, d->late ? d->late - 1 : 0);
    d->waiting[d->waiting_count++] = (mgw_step_record){.compute_s = d->ready_s[TENSORS - 1],
                                                       .iteration_s = iteration_s,
                                                       .ready_s = trying ? unknown_s : d->ready_s,
                                                       .took_s = d->took_s,
                                                       .busy_s = d->busy_s,
                                                       .need_s = d->need_s,
                                                       .period_s = iteration_s,
                                                       .forward_s = 0.02,
                                                       .step = ++d->steps};
    report(d, d->late);
}

static void steps(driver *d, size_t count)
{
    for (size_t i = 0; i < count; i++)
        step(d, 1);
}

/* ---- Candidates ---- */

/* With more tensors than can be planned on a curve, plans are made with lines, also those beside
 * the policy's own. */
static void test_many_tensors(void **unused)
{
    (void)unused;
    mgw_sample samples[12];
    mgw_cluster *cluster = NULL;
    double *ready_s = malloc(MANY * sizeof *ready_s);
    assert_non_null(ready_s);
    for (size_t i = 0; i < 12; i++)
        samples[i] = (mgw_sample){(uint64_t)1000 << 2 * i, 1e-4 + 1e-9 * 1000 * (1 << i)};
    for (size_t i = 0; i < MANY; i++)
        ready_s[i] = 0.05 + 0.1 * (double)(i + 1) / MANY;
    if (mgw_cluster_from_samples("curve", 2, samples, 12, &cluster, &error))
        fail_msg("%s", error.message);
    mgw_tuner_options options = options_of("overlap", 1, 1);
    mgw_tuner *tuner = make(&options, MANY, 1, cluster);
    for (int k = 0; k < 60 && !statistics_of(tuner).trying; k++) {
        mgw_tuner_count(tuner);
        mgw_tuner_observe(tuner, &(mgw_step_record){.compute_s = 0.15,
                                                    .iteration_s = 0.3,
                                                    .ready_s = ready_s,
                                                    .need_s = ready_s,
                                                    .period_s = 0.3,
                                                    .forward_s = 0.05});
        if (mgw_tuner_due(tuner))
            look(tuner, true);
    }
    assert_true(statistics_of(tuner).trying > 2 && has(tuner, "optimal"));
    mgw_tuner_destroy(tuner);
    free(ready_s);
}

static size_t count_of(const mgw_tuner *tuner, const char *name)
{
    size_t count = 0;
    size_t found = 0;
    const mgw_tried *tried = mgw_tuner_tried(tuner, &count);
    for (size_t i = 0; i < count; i++)
        found += strcmp(tried[i].name, name) == 0;
    return found;
}

/* DDP's buckets, the current plan, and the others by their number of messages: the first ones win
 * ties. */
static void expect_order(const mgw_tuner *tuner)
{
    size_t count = 0;
    const mgw_tried *tried = mgw_tuner_tried(tuner, &count);
    assert_string_equal(tried[0].name, "ddp");
    for (size_t i = 3; i < count; i++)
        assert_true(tried[i].messages >= tried[i - 1].messages);
}

/* In a round every candidate has its turn. None are alike; long messages of DDP's buckets and of
 * "one lane" have one lane, all others what there is. */
static void expect_turns(driver *d, unsigned lanes)
{
    uint64_t hashes[MGW_TRIED_MAX] = {0};
    size_t turns = 0;
    size_t count = statistics_of(d->tuner).trying;
    for (size_t k = 0; k < 10 * count && turns < count; k++) {
        size_t operations = 0;
        step(d, 1);
        const mgw_plan *plan = mgw_tuner_plan(d->tuner);
        const mgw_operation *o = mgw_tuner_operations(d->tuner, &operations);
        bool limited = !strcmp(plan->policy, "one lane") || !strcmp(plan->policy, "ddp");
        for (size_t m = 0; m < operations; m++) {
            bool one = limited && lanes > 1 && o[m].bytes >= 2 * (uint64_t)MGW_LANE_BYTES;
            assert_int_equal(o[m].lanes, one);
        }
        uint64_t hash = mgw_plan_hash(o, operations);
        bool known = false;
        for (size_t i = 0; i < turns; i++)
            known = known || hashes[i] == hash;
        if (!known)
            hashes[turns++] = hash;
    }
    assert_int_equal(turns, count);
}

/* With lanes there are more candidates, and none is left out for it. */
static void test_room_for_all(void **unused)
{
    (void)unused;
    for (unsigned lanes = 1; lanes <= 4; lanes += 3)
        for (int overlap = 0; overlap < 2; overlap++) {
            mgw_tuner_options options = options_of(overlap ? "overlap" : "optimal", lanes, 1);
            options.early_looks = 3;
            driver d = {.tuner = make(&options, TENSORS, 1, NULL), .slowdown = 1};
            for (int k = 0; k < 200 && !statistics_of(d.tuner).trying; k++) {
                d.slowdown = 1 + 0.2 * (k / 6 < 3 ? k / 6 : 3); /* other plans before the trial */
                steps(&d, 1);
            }
            assert_true(has(d.tuner, "fewer") && has(d.tuner, "more"));
            assert_int_equal(count_of(d.tuner, "earlier"), 2);
            assert_int_equal(has(d.tuner, "one lane"), lanes > 1);
            assert_true(has(d.tuner, overlap ? "optimal" : "fewest"));
            expect_order(d.tuner);
            expect_turns(&d, lanes);
            mgw_tuner_destroy(d.tuner);
        }
}

static bool is_sharded(const mgw_tuner *tuner)
{
    size_t count = 0;
    bool sharded = true;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    for (size_t m = 0; m < count; m++)
        sharded = sharded && operations[m].kind != MGW_ALL_REDUCE;
    return sharded;
}

/* From the first step on, in all turns of a trial and after it, also with another policy before. */
static void test_nothing_is_whole(void **unused)
{
    (void)unused;
    static const char *const before[] = {NULL, "overlap", "optimal", "zero:1MiB"};
    for (unsigned lanes = 1; lanes <= 4; lanes += 3)
        for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
            mgw_tuner_options options = options_of(before[i] ? before[i] : "sharded", lanes, 1);
            options.parameter_ratio = 1;
            driver d = {.tuner = make(&options, TENSORS, 1, NULL), .slowdown = 1};
            if (before[i]) {
                steps(&d, 90);
                assert_int_equal(mgw_tuner_set_policy(d.tuner, "sharded", &error), MGW_OK);
                look(d.tuner, false);
            }
            uint64_t trials = statistics_of(d.tuner).trials;
            bool tried = false;
            assert_true(is_sharded(d.tuner));
            for (int k = 0; k < 3000 && statistics_of(d.tuner).trials == trials; k++) {
                steps(&d, 1);
                assert_true(is_sharded(d.tuner));
                tried = tried || statistics_of(d.tuner).trying > 0;
            }
            assert_true(tried && statistics_of(d.tuner).trials > trials);
            assert_true(has(d.tuner, "zero") && has(d.tuner, "sharded"));
            assert_true(has(d.tuner, "fewer") || has(d.tuner, "more"));
            assert_false(has(d.tuner, "ddp") || has(d.tuner, "optimal"));
            mgw_tuner_destroy(d.tuner);
        }
}

/* ---- When, and at which cost ---- */

/* Steps until the next trial begins. */
static size_t steps_to_trial(driver *d)
{
    size_t count = 0;
    for (; count < 2000 && !statistics_of(d->tuner).trying; count++)
        step(d, 1);
    return count;
}

/* What its steps take, from the one before on, and how many there are. The step after it is done.
 */
static double run_trial(driver *d, size_t *count)
{
    double sum_s = 0;
    for (*count = 0; *count < 5000 && statistics_of(d->tuner).trying; ++*count) {
        sum_s += d->last_s;
        step(d, 1);
    }
    return sum_s;
}

/* Without noise, a trial's cost is what its steps took more than those of the winner. While the
 * plan stays, the next trials come after 10, 20 and 40 looks, one every 20 steps. */
static void test_cost_and_pauses(void **unused)
{
    (void)unused;
    mgw_tuner_options options = options_of("optimal", 1, 1);
    driver d = {.tuner = make(&options, TENSORS, 1, NULL), .slowdown = 1};
    double cost_s = 0;
    size_t pause = 0;
    for (size_t trial = 0; trial < 4; trial++) {
        size_t waited = steps_to_trial(&d);
        if (trial)
            assert_int_equal(waited, pause);
        uint64_t before = statistics_of(d.tuner).trial_steps;
        size_t count = 0;
        double sum_s = run_trial(&d, &count);
        mgw_tuner_statistics s = statistics_of(d.tuner);
        assert_int_equal(s.trials, trial + 1);
        size_t counted = (size_t)(s.trial_steps - before);
        assert_int_equal(counted, count);
        cost_s += sum_s - (double)count * d.last_s;
        assert_true(fabs(s.trial_cost_s - cost_s) < 1e-9);
        pause = trial ? 2 * pause : 200;
    }
    mgw_tuner_destroy(d.tuner);
}

/* ---- What steps teach ---- */

/* Messages take twice as long as alone. Learned from a given plan, unless it uses fewer lanes than
 * those whose cost is known. */
static void expect_learned(unsigned first, unsigned others, unsigned lanes, double slowdown)
{
    mgw_tuner_options options = options_of("optimal", lanes, 0);
    driver d = {.tuner = make(&options, TENSORS, 1, NULL), .slowdown = 1};
    mgw_operation operations[4];
    for (size_t k = 0; k < 4; k++)
        operations[k] = (mgw_operation){.first = 10 * k, .count = 10, .lanes = k ? others : first};
    steps(&d, 1);
    if (mgw_tuner_set_operations(d.tuner, operations, 4, &error))
        fail_msg("%s", error.message);
    d.slowdown = 2;
    steps(&d, 200);
    mgw_tuner_statistics s = statistics_of(d.tuner);
    if (fabs(s.slowdown - slowdown) > 0.01)
        fail_msg("%u, %u of %u lanes: %g", first, others, lanes, s.slowdown);
    if (slowdown == 1)
        assert_true(s.predicted_s == 0);
    else
        assert_true(fabs(s.predicted_s / s.iteration_s - 1) < 0.01);
    mgw_tuner_destroy(d.tuner);
}

static void test_fewer_lanes(void **unused)
{
    (void)unused;
    expect_learned(0, 0, 1, 2);
    expect_learned(1, 1, 1, 2); /* there are no more */
    expect_learned(8, 8, 4, 2);
    expect_learned(4, 4, 4, 2);
    expect_learned(1, 1, 4, 1);
    expect_learned(0, 3, 4, 1);
}

/* Short messages have one lane in any case: there is nothing to try, and nothing unknown. */
static void test_short_messages(void **unused)
{
    (void)unused;
    mgw_tuner_options options = options_of("optimal", 4, 1);
    driver d = {.tuner = make(&options, TENSORS, 100, NULL), .slowdown = 1};
    for (int k = 0; k < 200 && !statistics_of(d.tuner).trying; k++)
        steps(&d, 1);
    size_t count = 0;
    const mgw_tried *tried = mgw_tuner_tried(d.tuner, &count);
    assert_true(count > 2 && !has(d.tuner, "one lane"));
    for (size_t i = 0; i < count; i++)
        assert_true(tried[i].predicted_s > 0);
    mgw_tuner_destroy(d.tuner);
}

/* On a GPU the last steps of a trial are reported after it was stopped: they are those of other
 * plans. */
static void test_steps_of_a_stopped_trial(void **unused)
{
    (void)unused;
    mgw_tuner_options options = options_of("optimal", 1, 1);
    options.whole_steps = true;
    options.profile_steps = 10;
    driver d = {.tuner = make(&options, TENSORS, 1, NULL), .slowdown = 1, .late = LATE - 1};
    for (int k = 0; k < 300 && !statistics_of(d.tuner).trying; k++)
        steps(&d, 1);
    assert_true(statistics_of(d.tuner).trying > 1);
    for (int k = 0; k < 10; k++)
        step(&d, 1.5);
    assert_true(d.waiting_count == LATE - 1 && statistics_of(d.tuner).slowdown < 1.01);
    if (mgw_tuner_set_policy(d.tuner, "optimal", &error))
        fail_msg("%s", error.message);
    report(&d, 0);
    look(d.tuner, false);
    assert_true(statistics_of(d.tuner).slowdown < 1.01);
    mgw_tuner_destroy(d.tuner);
}

/* A driver without parameters cannot gather. */
static void test_more_than_it_can_do(void **unused)
{
    (void)unused;
    mgw_tuner_options options = options_of("optimal", 1, 1);
    mgw_tuner *tuner = make(&options, TENSORS, 1, NULL);
    mgw_operation halves[2 * TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        halves[i] = (mgw_operation){.kind = MGW_REDUCE_SCATTER, .first = i, .count = 1};
        halves[TENSORS + i] = (mgw_operation){
            .kind = MGW_ALL_GATHER, .release = MGW_AFTER_UPDATE, .first = i, .count = 1};
    }
    assert_int_equal(mgw_tuner_set_operations(tuner, halves, 2 * TENSORS, &error),
                     MGW_ERR_ARGUMENT);
    assert_contains(error.message, "80 operations for 40 tensors, without parameters");
    mgw_tuner_destroy(tuner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_room_for_all),
        cmocka_unit_test(test_nothing_is_whole),
        cmocka_unit_test(test_cost_and_pauses),
        cmocka_unit_test(test_fewer_lanes),
        cmocka_unit_test(test_short_messages),
        cmocka_unit_test(test_steps_of_a_stopped_trial),
        cmocka_unit_test(test_more_than_it_can_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
