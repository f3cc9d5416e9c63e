/*
 * The sequential test in worlds that seeds decide: how near to the best it ends, how long it takes,
 * and what trying costs.
 *
 *     test_trial_simulation                  as many as are quick
 *     test_trial_simulation --runs 1000      the tables of docs/evidence/never_slower.md
 *     test_trial_simulation --held-out 1000  the first table, with seeds that nothing was chosen by
 *     test_trial_simulation --seed 17        one of them, round by round
 *
 * MGWFBP_TRIALS: how many are quick.
 */
#include "trial_world.h"

/* ---- The built-in traces ---- */

enum { TRACES_MOST = 64 };

static const mgw_trace *traces[TRACES_MOST];
static size_t trace_count;

static void load_traces(void)
{
    size_t count = 0;
    mgw_error error = {0};
    const mgw_builtin *all = mgw_builtin_list(&count);
    for (size_t i = 0; i < count && trace_count < TRACES_MOST; i++) {
        mgw_trace *trace = NULL;
        if (all[i].kind != MGW_DATA_TRACE)
            continue;
        if (mgw_trace_load(all[i].name, &trace, &error))
            fail_msg("%s", error.message);
        traces[trace_count++] = trace;
    }
    assert_true(trace_count > 0);
}

static void free_traces(void)
{
    while (trace_count)
        mgw_trace_destroy((mgw_trace *)traces[--trace_count]);
}

/* ---- One trial ---- */

typedef struct ending {
    double above_best;     /* share: what the winner's steps take more than the best's */
    double above_baseline; /* than those of DDP's cut */
    double cost_steps;     /* what all steps of the trial took more than the best's, in steps */
    double noise;
    uint64_t steps;
    bool spent;   /* all rounds */
    bool dropped; /* the best, and all within 1% of it */
} ending;

static void play_round(mgw_trial *trial, world *w, unsigned turn_steps, size_t *runs)
{
    double turn[64];
    size_t order[WORLD_MOST];
    double seconds[WORLD_MOST];
    size_t count = mgw_trial_left(trial, order);
    assert_true(turn_steps <= 64);
    for (size_t i = 0; i < count; i++) {
        for (unsigned k = 0; k < turn_steps; k++)
            turn[k] = run_step(w, order[i], k == 0);
        runs[order[i]] += turn_steps;
        seconds[i] = mgw_trial_turn(turn + 1, turn_steps - 1);
    }
    mgw_trial_round(trial, seconds);
}

static void show(const mgw_trial *trial, const world *w, uint64_t round)
{
    printf("round %llu:", (unsigned long long)round);
    for (size_t c = 0; c < w->candidates; c++) {
        mgw_trial_outcome out;
        mgw_trial_result(trial, c, &out);
        printf("  %s%.4f±%.4f", out.left ? "" : "-", out.ratio, out.width);
    }
    printf("\n");
}

static ending run_trial(uint64_t seed, const mgw_trial_options *options, bool verbose)
{
    world w;
    mgw_trial *trial = NULL;
    mgw_error error = {0};
    mgw_trial_options o;
    make_world(seed, traces, trace_count, &w);
    if (mgw_trial_create(options, w.candidates, &trial, &error))
        fail_msg("%s", error.message);
    mgw_trial_options_of(trial, &o);
    size_t winner = 0;
    size_t best = 0;
    size_t runs[WORLD_MOST] = {0};
    ending e = {.noise = w.noise};
    for (uint64_t round = 1; !mgw_trial_over(trial, &winner); round++) {
        assert_true(round <= o.most_rounds);
        play_round(trial, &w, o.turn_steps, runs);
        e.spent = round == o.most_rounds;
        if (verbose)
            show(trial, &w, round);
    }
    assert_int_equal(mgw_trial_steps(trial), w.steps);
    for (size_t c = 1; c < w.candidates; c++)
        best = w.mean_s[c] < w.mean_s[best] ? c : best;
    for (size_t c = 0; c < w.candidates; c++)
        e.cost_steps += (double)runs[c] * (w.mean_s[c] / w.mean_s[best] - 1);
    e.dropped = true;
    for (size_t c = 0; c < w.candidates; c++) {
        mgw_trial_outcome out;
        mgw_trial_result(trial, c, &out);
        e.dropped = e.dropped && !(out.left && w.mean_s[c] <= 1.01 * w.mean_s[best]);
    }
    e.above_best = w.mean_s[winner] / w.mean_s[best] - 1;
    e.above_baseline = w.mean_s[winner] / w.mean_s[0] - 1;
    e.steps = w.steps;
    if (verbose)
        printf("%s, %u workers, noise %.3f: %zu wins, %zu is best, %.2f%% above it\n",
               w.trace->model, w.workers, w.noise, winner, best, 100 * e.above_best);
    mgw_trial_destroy(trial);
    return e;
}

/* ---- Many ---- */

typedef struct summary {
    size_t runs;
    size_t off;     /* more than 1% above the best */
    size_t slower;  /* more than 3% above DDP's cut */
    size_t spent;   /* all rounds */
    size_t dropped; /* the best, and all within 1% of it */
    double worst;   /* above the best */
    double cost_steps;
    double *steps; /* of each */
} summary;

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static void count_ending(summary *s, const ending *e)
{
    s->off += e->above_best > 0.01;
    s->slower += e->above_baseline > 0.03;
    s->spent += e->spent;
    s->dropped += e->dropped;
    s->worst = fmax(s->worst, e->above_best);
    s->cost_steps += e->cost_steps;
    s->steps[s->runs++] = (double)e->steps;
}

static void print_row(const char *name, summary *s)
{
    double sum = 0;
    qsort(s->steps, s->runs, sizeof *s->steps, by_value);
    for (size_t i = 0; i < s->runs; i++)
        sum += s->steps[i];
    double runs = (double)s->runs;
    printf("| %s | %zu | %.1f%% | %.1f%% | %zu | %.0f | %.0f | %.0f | %zu | %.0f | %.2f%% |\n",
           name, s->runs, 100 - 100 * (double)s->off / runs, 100 * s->worst, s->slower, sum / runs,
           s->steps[s->runs * 95 / 100], s->steps[s->runs - 1], s->spent, s->cost_steps / runs,
           100 * s->cost_steps / sum);
}

enum { BANDS = 4, ALL = BANDS };

/* Of the seeds from `first` on: all together, and by noise if they are shown. */
static summary run_from(size_t first, size_t runs, const mgw_trial_options *options, bool shown)
{
    static const char *const names[] = {"5–9%", "9–12%", "12–16%", "16–20%", "all"};
    summary s[BANDS + 1] = {{0}};
    for (size_t band = 0; band <= BANDS; band++) {
        s[band].steps = malloc((runs + 1) * sizeof *s[band].steps);
        assert_non_null(s[band].steps);
    }
    for (size_t seed = first; seed < first + runs; seed++) {
        ending e = run_trial(seed, options, false);
        size_t band = (size_t)((e.noise - 0.05) / 0.15 * BANDS);
        count_ending(&s[band < BANDS ? band : BANDS - 1], &e);
        count_ending(&s[ALL], &e);
    }
    for (size_t band = 0; band <= BANDS; band++) {
        if (shown && s[band].runs)
            print_row(names[band], &s[band]);
        free(s[band].steps);
    }
    return s[ALL];
}

static summary run_all(size_t runs, const mgw_trial_options *options, bool shown)
{
    return run_from(0, runs, options, shown);
}

static void print_head(void)
{
    printf(
        "| noise | seeds | within 1%% | worst above best | > 3%% above DDP | steps, mean | p95 | "
        "most | rounds spent | cost in steps | of the trial |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n");
}

/* ---- As a test ---- */

static size_t quick = 250;

static void test_ends_near_the_best(void **unused)
{
    (void)unused;
    print_head();
    summary s = run_all(quick, &(mgw_trial_options){0}, true);
    assert_int_equal(s.slower, 0);
    assert_true((double)s.off <= 0.01 * (double)quick);
    assert_true((double)s.dropped <= 0.01 * (double)quick);
    assert_true(s.cost_steps / (double)quick < 60);
}

/* With far too few rounds to tell, the baseline has the benefit of the doubt. */
static void test_too_few_rounds(void **unused)
{
    (void)unused;
    summary s = run_all(quick, &(mgw_trial_options){.most_rounds = 8}, false);
    assert_int_equal(s.slower, 0);
    assert_true(s.off > 0);
    assert_true(s.spent > quick / 2);
}

static void print_tables(size_t runs)
{
    static const mgw_trial_options table[] = {{.most_rounds = 500}, {.most_rounds = 200},
                                              {.most_rounds = 100}, {.most_rounds = 50},
                                              {.most_rounds = 10},  {.turn_steps = 9}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        printf("\nturns of %u steps, at most %u rounds:\n\n",
               table[i].turn_steps ? table[i].turn_steps : MGW_TRIAL_DEFAULTS.turn_steps,
               table[i].most_rounds ? table[i].most_rounds : MGW_TRIAL_DEFAULTS.most_rounds);
        print_head();
        run_all(runs, &table[i], true);
    }
}

static void print_held_out(size_t runs)
{
    enum { HELD_OUT = 1000000 };
    print_head();
    run_from(HELD_OUT, runs, &(mgw_trial_options){0}, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends_near_the_best),
                                       cmocka_unit_test(test_too_few_rounds)};
    const char *given = getenv("MGWFBP_TRIALS");
    int result = 0;
    quick = given ? strtoul(given, NULL, 10) : quick;
    load_traces();
    if (argc == 3 && !strcmp(argv[1], "--runs"))
        print_tables(strtoul(argv[2], NULL, 10));
    else if (argc == 3 && !strcmp(argv[1], "--held-out"))
        print_held_out(strtoul(argv[2], NULL, 10));
    else if (argc == 3 && !strcmp(argv[1], "--seed"))
        run_trial(strtoull(argv[2], NULL, 10), &(mgw_trial_options){0}, true);
    else if (argc == 1)
        result = cmocka_run_group_tests(tests, NULL, NULL);
    else
        result = !!fprintf(stderr,
                           "usage: test_trial_simulation [--runs N | --held-out N | --seed S]\n");
    free_traces();
    return result;
}
