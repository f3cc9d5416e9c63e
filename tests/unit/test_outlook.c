/* Large jobs: the computed effect of stragglers and failures, compared with jobs simulated by step
 * and worker, and with tables. */
#include "support.h"

#include <math.h>
#include <time.h>

#include <mgwfbp/outlook.h>

static double normal(uint64_t *seed)
{
    double radius = sqrt(-2 * log(1 - random_unit(seed)));
    return radius * cos(6.283185307179586 * random_unit(seed));
}

static double draw(const mgw_conditions *c, const mgw_trace *trace, uint64_t *seed)
{
    double s = sqrt(log1p(c->deviation * c->deviation));
    switch (c->jitter) {
    case MGW_JITTER_NORMAL:
        return fmax(0, 1 + c->deviation * normal(seed));
    case MGW_JITTER_LOGNORMAL:
        return exp(s * normal(seed) - s * s / 2);
    case MGW_JITTER_MEASURED:
        return trace->steps_s[random_below(seed, trace->step_count)] / mgw_trace_compute_s(trace);
    default:
        return 1;
    }
}

static void assert_within(double actual, double expected, double share)
{
    if (!(fabs(actual - expected) <= share * fabs(expected)))
        fail_msg("%.9g is not within %g of %.9g", actual, share, expected);
}

static mgw_outlook look(const mgw_trace *trace, const mgw_cost *cost, const char *name,
                        const mgw_conditions *conditions)
{
    mgw_policy policy;
    mgw_outlook outlook = {0};
    mgw_error error = {0};
    if (mgw_policy_parse(name, &policy, &error) ||
        mgw_outlook_make(trace, cost, &policy, conditions, &outlook, &error))
        fail_msg("%s", error.message);
    return outlook;
}

/* ---- The largest of N ---- */

/* E[max] of N standard normal numbers, from tables of order statistics. */
static void the_slowest_of_n_is_that_of_the_tables(void **unused)
{
    (void)unused;
    static const struct {
        unsigned n;
        double mean;
    } table[] = {{2, 0.5641895835},
                 {3, 0.8462843753},
                 {10, 1.5387527308},
                 {100, 2.5075936},
                 {1000, 3.2414358}};
    mgw_trace *trace = make_trace(1, 1, &(mgw_tensor){1, 1, MGW_TIME_UNKNOWN});
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mgw_cost cost = {.workers = table[i].n, .cluster = "free"};
        mgw_outlook outlook =
            look(trace, &cost, "single",
                 &(mgw_conditions){.jitter = MGW_JITTER_NORMAL, .deviation = 0.1});
        assert_within(outlook.slowest - 1, 0.1 * table[i].mean, 2e-6);
        assert_within(outlook.iteration_s, 2 * outlook.slowest, 1e-9); /* nothing but computation */
    }
    mgw_trace_destroy(trace);
}

static void no_jitter_is_the_plan(void **unused)
{
    (void)unused;
    mgw_tensor tensors[] = {{100, 1, 2}, {50, 2, 1}, {70, 3, 0}};
    mgw_trace *trace = make_trace(3, 3, tensors);
    mgw_cost cost = {.of = {[MGW_ALL_REDUCE] = {.a_s = 0.5, .b_s_per_byte = 0.01},
                            [MGW_REDUCE_SCATTER] = {.a_s = 0.25, .b_s_per_byte = 0.005},
                            [MGW_ALL_GATHER] = {.a_s = 0.25, .b_s_per_byte = 0.005}},
                     .workers = 32,
                     .cluster = "c"};
    static const char *const policies[] = {"ddp", "optimal", "overlap", "wfbp"};
    for (size_t i = 0; i < 4; i++) {
        mgw_plan *plan = make_plan(trace, &cost, policies[i]);
        mgw_outlook outlook = look(trace, &cost, policies[i], &(mgw_conditions){0});
        assert_close(outlook.iteration_s, plan->iteration_s);
        assert_close(outlook.speedup, mgw_speedup(plan));
        assert_close(outlook.efficiency, mgw_efficiency(plan));
        assert_close(outlook.trains, 1);
        mgw_plan_destroy(plan);
    }
    mgw_trace_destroy(trace);
}

/* ---- A job, played worker by worker ---- */

enum { TENSORS = 6, WORKERS_MOST = 256 };

/* Where every worker is, and when each tensor is back from the step before. */
typedef struct world {
    const mgw_trace *trace;
    const mgw_cost *cost;
    const mgw_plan *plan;
    double begin_s[WORKERS_MOST]; /* when its forward pass may begin */
    double back_s[TENSORS];       /* of the step before: what the pass waits for */
    double channel_s;             /* when the network is free */
} world;

/* A worker's forward pass, which waits for tensors where it needs them; then its backward pass:
 * when its gradients are ready. Returns its end. */
static double compute(const world *w, double begin_s, double factor, double *ready_s)
{
    double late_s = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        double needed_s = w->trace->tensors[i].forward_start_s;
        if (needed_s == MGW_NEVER_NEEDED)
            needed_s = w->trace->forward_s;
        if (needed_s == MGW_TIME_UNKNOWN)
            needed_s = 0;
        late_s = fmax(late_s, w->back_s[i] - (begin_s + factor * needed_s));
    }
    double at_s = begin_s + late_s + factor * w->trace->forward_s;
    for (size_t i = 0; i < TENSORS; i++)
        ready_s[i] = at_s += factor * w->trace->tensors[i].backward_s;
    return at_s;
}

static void communicate(world *w, const double *ready_s, double backward_s)
{
    double averaged_s[TENSORS] = {0};
    for (size_t m = 0; m < w->plan->operation_count; m++) {
        const mgw_operation *o = &w->plan->operations[m];
        double start_s = w->channel_s;
        for (size_t i = o->first; i < o->first + o->count; i++)
            start_s = fmax(start_s, mgw_collective_averages(o->kind) ? ready_s[i] : averaged_s[i]);
        if (o->release != MGW_WHEN_READY)
            start_s = fmax(start_s, backward_s);
        w->channel_s = start_s + mgw_cost_seconds(w->cost, o->kind, o->bytes);
        for (size_t i = o->first; i < o->first + o->count; i++) {
            averaged_s[i] = w->channel_s;
            w->back_s[i] = w->channel_s;
        }
    }
}

static void play_step(world *w, const mgw_conditions *c, uint64_t *seed)
{
    double slowest_s[TENSORS] = {0};
    double end_s = 0;
    for (unsigned k = 0; k < w->cost->workers; k++) {
        double ready_s[TENSORS];
        w->begin_s[k] = compute(w, w->begin_s[k], draw(c, w->trace, seed), ready_s);
        end_s = fmax(end_s, w->begin_s[k]);
        for (size_t i = 0; i < TENSORS; i++)
            slowest_s[i] = fmax(slowest_s[i], ready_s[i]);
    }
    communicate(w, slowest_s, end_s);
    for (unsigned k = 0; k < w->cost->workers; k++) /* all wait for all, or where they need it */
        w->begin_s[k] = w->plan->overlaps_forward ? w->begin_s[k] : fmax(end_s, w->channel_s);
}

/* What a step takes on average. */
static double play(const mgw_trace *trace, const mgw_cost *cost, const mgw_plan *plan,
                   const mgw_conditions *c, int steps, uint64_t *seed)
{
    static world w;
    w = (world){.trace = trace, .cost = cost, .plan = plan};
    for (int i = 0; i < 20; i++)
        play_step(&w, c, seed);
    double begun_s = w.channel_s;
    for (int i = 0; i < steps; i++)
        play_step(&w, c, seed);
    return (w.channel_s - begun_s) / steps;
}

static mgw_trace *random_trace(uint64_t *seed)
{
    mgw_tensor tensors[TENSORS];
    double forward_s = 0.5 + random_unit(seed);
    for (size_t i = 0; i < TENSORS; i++)
        tensors[i] = (mgw_tensor){1 + random_below(seed, 1000), 0.1 + 0.5 * random_unit(seed),
                                  i + 1 == TENSORS ? 0 : forward_s * random_unit(seed)};
    mgw_trace *trace = make_trace(forward_s, TENSORS, tensors);
    double steps_s[9];
    for (size_t i = 0; i < 9; i++)
        steps_s[i] = mgw_trace_compute_s(trace) * (0.8 + 0.6 * random_unit(seed));
    mgw_error error = {0};
    if (mgw_trace_set_steps(trace, steps_s, 9, &error))
        fail_msg("%s", error.message);
    return trace;
}

static void a_job_that_is_played_takes_as_long(void **unused)
{
    (void)unused;
    static const mgw_conditions conditions[] = {
        {.jitter = MGW_JITTER_NORMAL, .deviation = 0.1},
        {.jitter = MGW_JITTER_LOGNORMAL, .deviation = 0.05},
        {.jitter = MGW_JITTER_LOGNORMAL, .deviation = 0.3},
        {.jitter = MGW_JITTER_MEASURED},
    };
    static const unsigned workers[] = {2, 16, WORKERS_MOST};
    static const char *const policies[] = {"wfbp", "ddp", "optimal", "overlap", "zero:1000B"};
    uint64_t seed = 7;
    for (size_t c = 0; c < sizeof conditions / sizeof *conditions; c++)
        for (size_t n = 0; n < sizeof workers / sizeof *workers; n++)
            for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
                mgw_trace *trace = random_trace(&seed);
                double b = 2e-4 * random_unit(&seed);
                mgw_cost cost = {.of = {[MGW_ALL_REDUCE] = {.a_s = 0.1, .b_s_per_byte = b},
                                        [MGW_REDUCE_SCATTER] = {.a_s = 0.05, .b_s_per_byte = b / 2},
                                        [MGW_ALL_GATHER] = {.a_s = 0.05, .b_s_per_byte = b / 2}},
                                 .workers = workers[n],
                                 .cluster = "c"};
                mgw_outlook outlook = look(trace, &cost, policies[p], &conditions[c]);
                mgw_trace *slow = make_trace(trace->forward_s, TENSORS, trace->tensors);
                assert_int_equal(mgw_trace_scale_compute(slow, outlook.slowest, NULL), MGW_OK);
                mgw_plan *plan = make_plan(slow, &cost, policies[p]);
                int steps = workers[n] > 100 ? 1500 : 20000;
                assert_within(outlook.iteration_s,
                              play(trace, &cost, plan, &conditions[c], steps, &seed), 0.01);
                mgw_plan_destroy(plan);
                mgw_trace_destroy(slow);
                mgw_trace_destroy(trace);
            }
}

static void the_slowest_of_a_hundred_thousand(void **unused)
{
    (void)unused;
    mgw_conditions conditions = {.jitter = MGW_JITTER_LOGNORMAL, .deviation = 0.08};
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_scaling_row *rows = NULL;
    size_t count = 0;
    mgw_error error = {0};
    unsigned workers = 100000;
    mgw_scaling what = {.workers = &workers, .worker_count = 1, .conditions = &conditions};
    what.policies = mgw_policy_all(&what.policy_count);
    struct timespec begin;
    struct timespec end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    if (mgw_trace_load("resnet152-b128-fp32-h200", &trace, &error) ||
        mgw_cluster_load("ndr", &cluster, &error) ||
        mgw_scaling_run(trace, cluster, &what, &rows, &count, &error))
        fail_msg("%s", error.message);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    assert_true((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec) <
                1);
    uint64_t seed = 3;
    double sum = 0;
    for (int step = 0; step < 40; step++) {
        double slowest = 0;
        for (unsigned k = 0; k < workers; k++)
            slowest = fmax(slowest, draw(&conditions, trace, &seed));
        sum += slowest;
    }
    for (size_t i = 0; i < count; i++)
        assert_within(rows[i].outlook.slowest, sum / 40, 0.01);
    free(rows);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

/* ---- Failures ---- */

static double exponential(double mean, uint64_t *seed)
{
    return -mean * log(1 - random_unit(seed));
}

/* A stretch of work until it is done, with what is lost to failures: how long it takes. */
static double play_stretch(double failure_s, double restart_s, double length_s, uint64_t *seed)
{
    double spent_s = 0;
    double needed_s = length_s;
    for (;;) {
        double fails_s = exponential(failure_s, seed);
        if (fails_s >= needed_s)
            return spent_s + needed_s;
        spent_s += fails_s;
        needed_s = restart_s + length_s; /* a restart may fail, too */
    }
}

static void shares_are_those_of_jobs_that_are_played(void **unused)
{
    (void)unused;
    static const double cases[][4] = {/* failures, checkpoint, restart, interval */
                                      {1000, 10, 30, 140},
                                      {1000, 10, 30, 2000},
                                      {50, 20, 40, 30},
                                      {1e5, 60, 600, 3000}};
    uint64_t seed = 11;
    for (size_t i = 0; i < 4; i++) {
        const double *c = cases[i];
        double spent_s = 0;
        const int stretches = 400000;
        for (int k = 0; k < stretches; k++)
            spent_s += play_stretch(c[0], c[2], c[3] + c[1], &seed);
        assert_within(mgw_training_share(c[0], c[1], c[2], c[3]), stretches * c[3] / spent_s, 0.01);
    }
}

static void no_interval_is_better_than_the_best(void **unused)
{
    (void)unused;
    uint64_t seed = 5;
    for (int i = 0; i < 300; i++) {
        double failure_s = exp(20 * random_unit(&seed));
        double checkpoint_s = failure_s * exp(-20 + 22 * random_unit(&seed));
        double restart_s = failure_s * random_unit(&seed);
        double best_s = mgw_best_interval(failure_s, checkpoint_s);
        double share = mgw_training_share(failure_s, checkpoint_s, restart_s, best_s);
        for (int k = -460; k <= 460; k++)
            assert_true(mgw_training_share(failure_s, checkpoint_s, restart_s,
                                           best_s * exp(0.01 * k)) <= share * (1 + 1e-12));
        if (checkpoint_s < 0.01 * failure_s) /* where Daly's estimate is meant to hold */
            assert_within(mgw_daly_interval(failure_s, checkpoint_s), best_s, 1e-3);
    }
}

/* Stragglers, failures and checkpoints at once: samples per second, and what an epoch takes. */
static void a_whole_job(void **unused)
{
    (void)unused;
    uint64_t seed = 17;
    mgw_trace *trace = random_trace(&seed);
    trace->batch = 32;
    mgw_cost cost = {
        .of[MGW_ALL_REDUCE] = {.a_s = 0.1, .b_s_per_byte = 1e-4}, .workers = 64, .cluster = "c"};
    mgw_conditions c = {.jitter = MGW_JITTER_LOGNORMAL,
                        .deviation = 0.1,
                        .mtbf_s = 64 * 2000,
                        .checkpoint_s = 20,
                        .restart_s = 100,
                        .price = 3.6,
                        .samples = 1000000};
    mgw_outlook outlook = look(trace, &cost, "optimal", &c);
    mgw_trace *slow = make_trace(trace->forward_s, TENSORS, trace->tensors);
    assert_int_equal(mgw_trace_scale_compute(slow, outlook.slowest, NULL), MGW_OK);
    mgw_plan *plan = make_plan(slow, &cost, "optimal");
    assert_true(outlook.interval_steps == floor(outlook.interval_steps));
    double now_s = 0;
    double fails_s = exponential(2000, &seed);
    int done = 0;
    const int stretches = 6000;
    while (done < stretches) { /* a stretch of steps, each with its slowest worker */
        double end_s = now_s + c.checkpoint_s;
        for (int k = 0; k < outlook.interval_steps; k++) {
            double slowest = 0;
            for (unsigned i = 0; i < cost.workers; i++)
                slowest = fmax(slowest, draw(&c, trace, &seed));
            double at_s = 0;
            double channel_s = 0;
            for (size_t m = 0; m < plan->operation_count; m++) {
                const mgw_operation *o = &plan->operations[m];
                at_s = slowest * trace->forward_s;
                for (size_t i = 0; i < o->first + o->count; i++)
                    at_s += slowest * trace->tensors[i].backward_s;
                channel_s =
                    fmax(channel_s, at_s) + mgw_cost_seconds(&cost, MGW_ALL_REDUCE, o->bytes);
            }
            end_s += channel_s;
        }
        done += end_s <= fails_s;
        now_s = end_s;
        while (now_s > fails_s) {
            now_s = fails_s + c.restart_s;
            fails_s += exponential(2000, &seed);
        }
    }
    double samples_per_s = stretches * outlook.interval_steps * 64 * 32 / now_s;
    assert_within(outlook.samples_per_s, samples_per_s, 0.01);
    double steps = ceil(1000000 / (64.0 * 32)); /* the last one is padded */
    assert_within(outlook.epoch_s, steps * 64 * 32 / samples_per_s, 0.01);
    assert_close(outlook.epoch_cost, outlook.epoch_s * 64 * 0.001);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(slow);
    mgw_trace_destroy(trace);
}

static void what_it_refuses(void **unused)
{
    (void)unused;
    static const mgw_conditions bad[] = {
        {.jitter = MGW_JITTER_MEASURED},
        {.jitter = MGW_JITTER_NORMAL, .deviation = NAN},
        {.jitter = MGW_JITTER_NORMAL, .deviation = -1},
        {.mtbf_s = -1},
        {.checkpoint_s = INFINITY},
        {.price = NAN},
    };
    mgw_trace *trace = make_trace(1, 1, &(mgw_tensor){1, 1, MGW_TIME_UNKNOWN});
    mgw_cost cost = {.workers = 8, .cluster = "free"};
    mgw_policy policy = {.kind = MGW_SINGLE};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mgw_outlook outlook;
        mgw_error error = {0};
        assert_int_equal(mgw_outlook_make(trace, &cost, &policy, &bad[i], &outlook, &error),
                         MGW_ERR_ARGUMENT);
        assert_true(strlen(error.message) > 0);
    }
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slowest_of_n_is_that_of_the_tables),
        cmocka_unit_test(no_jitter_is_the_plan),
        cmocka_unit_test(a_job_that_is_played_takes_as_long),
        cmocka_unit_test(the_slowest_of_a_hundred_thousand),
        cmocka_unit_test(shares_are_those_of_jobs_that_are_played),
        cmocka_unit_test(no_interval_is_better_than_the_best),
        cmocka_unit_test(a_whole_job),
        cmocka_unit_test(what_it_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
