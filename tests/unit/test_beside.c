/*
 * Computation and messages that slow each other down: plans timed against a clock that ticks, with
 * and without overlap of the next forward pass; the search for good plans; bounds; files.
 *
 *     test_beside              what must hold
 *     test_beside --search     how far `optimal` is from the best of all cuts
 */
#include <math.h>
#include <stdbool.h>

#include "plans.h"
#include "support.h"

enum { MOST = 10, TICKS = 40000 };

/* A model and a network. */
typedef struct world {
    uint64_t random;
    size_t n;
    mgw_tensor tensors[MOST];
    double forward_s;
    mgw_trace *trace;
    mgw_cost cost;
    mgw_sample samples[2];
} world;

static void any_world(world *w, uint64_t seed)
{
    *w = (world){.random = seed * 7919 + 1};
    uint64_t *random = &w->random;
    double elements = 0;
    w->n = 1 + random_below(random, MOST);
    w->forward_s = random_unit(random);
    double backward_s = 0;
    for (size_t i = 0; i < w->n; i++) {
        uint64_t kind = random_below(random, 10);
        w->tensors[i] = (mgw_tensor){
            .count = 1 + random_below(random, 1000),
            .backward_s = random_below(random, 8) ? random_unit(random) / (double)w->n : 0,
            .forward_start_s = kind == 0   ? MGW_TIME_UNKNOWN
                               : kind == 1 ? MGW_NEVER_NEEDED
                                           : w->forward_s * random_unit(random)};
        elements += (double)w->tensors[i].count;
        backward_s += w->tensors[i].backward_s;
    }
    w->tensors[w->n - 1].backward_s += 0.01;
    w->trace = make_trace(w->forward_s, w->n, w->tensors);
    /* All messages together take a fifth to twice as long as computation. */
    double all_s = (w->forward_s + backward_s) * (0.2 + 1.8 * random_unit(random));
    double start_s = all_s * 0.2 * random_unit(random) / (double)w->n;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        double half = kind == MGW_ALL_REDUCE ? 1 : 0.5;
        w->cost.of[kind] = (mgw_curve){start_s * half, all_s * half / (4 * elements), 0, NULL};
    }
    w->cost.workers = 2;
    w->cost.beside = (mgw_beside){1 + random_unit(random), 1 + 0.5 * random_unit(random)};
    if (random_below(random, 6) == 0)
        w->cost.beside.message = 1;
    if (random_below(random, 6) == 0)
        w->cost.beside.compute = 0; /* counts as 1 */
}

static mgw_plan *plan_of(const world *w, const mgw_operation *operations, size_t count)
{
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_from_operations(w->trace, &w->cost, "any", operations, count, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* ---- A clock that ticks ---- */

typedef struct ticked {
    double compute_s; /* how long a step computed, */
    double period_s;  /*   and how long it was until the next one had, too */
    double forward_s; /* how long the forward pass computed */
} ticked;

static double needed_at(const world *w, size_t tensor)
{
    double needed_s = w->tensors[tensor].forward_start_s;
    return needed_s == MGW_TIME_UNKNOWN   ? 0
           : needed_s == MGW_NEVER_NEEDED ? w->forward_s
                                          : needed_s;
}

/* Where a run is. */
typedef struct clock {
    const world *w;
    const mgw_plan *plan;
    double dt;
    double now_s;
    size_t step;       /* that computes */
    size_t ready;      /* gradients of it */
    double work_s;     /* done of it */
    double computed_s; /* how long that took */
    size_t sending;    /* the step of the next operation, */
    size_t next;       /*   and its number */
    double left_s;     /* of the current one; below 0: none */
    double ended_s;    /* the step before */
} clock;

/* Starts the next operation if it may start. */
static void start(clock *c)
{
    const mgw_operation *o = &c->plan->operations[c->next];
    size_t awaits = o->release == MGW_WHEN_READY ? o->first + o->count : c->w->n;
    bool due = c->sending < c->step || (c->sending == c->step && c->ready >= awaits);
    if (c->left_s < 0 && due)
        c->left_s = mgw_operation_seconds(&c->w->cost, o);
}

/* Whether the forward pass is where a tensor is needed that is not back. */
static bool stalls(const clock *c)
{
    bool waits = false;
    for (size_t m = c->next; c->sending < c->step && m < c->plan->operation_count; m++) {
        const mgw_operation *o = &c->plan->operations[m];
        for (size_t i = o->first; i < o->first + o->count; i++)
            waits |= (c->plan->overlaps_forward ? needed_at(c->w, i) : 0) <= c->work_s;
    }
    return waits;
}

static void send(clock *c, bool alone)
{
    c->left_s -= c->dt / (alone ? 1 : fmax(c->w->cost.beside.message, 1));
    if (c->left_s > 0)
        return;
    c->left_s = -1;
    if (++c->next == c->plan->operation_count) {
        c->next = 0;
        c->sending++;
    }
}

static void compute(clock *c, bool alone, ticked *t)
{
    c->work_s += c->dt / (alone ? 1 : fmax(c->w->cost.beside.compute, 1));
    c->computed_s += c->dt;
    if (c->work_s <= c->w->forward_s)
        t->forward_s = c->computed_s;
    double due_s = c->w->forward_s;
    for (c->ready = 0; c->ready < c->w->n; c->ready++) {
        due_s += c->w->tensors[c->ready].backward_s;
        if (due_s > c->work_s)
            return;
    }
    t->compute_s = c->computed_s;
    t->period_s = c->now_s - c->ended_s;
    c->ended_s = c->now_s;
    c->computed_s = c->work_s = 0;
    c->ready = 0;
    c->step++;
}

/* Runs four steps, tick by tick: nothing but what the two factors mean. */
static ticked tick(const world *w, const mgw_plan *plan, double dt)
{
    clock c = {.w = w, .plan = plan, .dt = dt, .left_s = -1};
    ticked t = {0};
    while (c.step < 4) {
        start(&c);
        bool waits = stalls(&c);
        bool sends = c.left_s >= 0;
        if (sends)
            send(&c, waits);
        if (!waits)
            compute(&c, !sends, &t);
        c.now_s += dt;
    }
    return t;
}

/* Any plan of all-reduces and halves, in steady state. */
static void plans_are_timed_as_by_a_clock(void **unused)
{
    (void)unused;
    size_t overlapping = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        world w;
        mgw_operation operations[2 * MOST];
        any_world(&w, seed);
        size_t count = random_operations(w.n, operations, &w.random);
        bool late = random_below(&w.random, 5) == 0;
        for (size_t m = 0; late && m < count; m++)
            if (mgw_collective_averages(operations[m].kind))
                operations[m].release = MGW_AFTER_BACKWARD;
        mgw_plan *plan = plan_of(&w, operations, count);
        double dt = (w.forward_s + 1) / TICKS;
        double close_s = (10 + 6 * (double)count) * dt;
        ticked t = tick(&w, plan, dt);
        if (fabs(plan->iteration_s - t.period_s) > close_s ||
            fabs(plan->compute_s - t.compute_s) > close_s ||
            fabs(plan->forward_s - t.forward_s) > close_s)
            fail_msg("seed %zu: %g of %g, a clock says %g of %g", (size_t)seed, plan->compute_s,
                     plan->iteration_s, t.compute_s, t.period_s);
        double stalled_s = 0;
        for (size_t i = 0; i < plan->stall_count; i++)
            stalled_s += plan->stalls[i].end_s - plan->stalls[i].start_s;
        if (plan->overlaps_forward)
            assert_true(fabs(stalled_s - (plan->iteration_s - plan->compute_s)) < 1e-9);
        assert_true(plan->alone_s <= plan->compute_s * (1 + 1e-12));
        assert_true(plan->lower_bound_s <= plan->iteration_s * (1 + 1e-9));
        overlapping += plan->overlaps_forward;
        mgw_plan_destroy(plan);
        mgw_trace_destroy(w.trace);
    }
    assert_true(overlapping > 100);
}

/* With factors that are all but 1, everything is as without them. */
static void factors_of_1_change_nothing(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        world w;
        mgw_operation operations[2 * MOST];
        any_world(&w, seed);
        size_t count = random_operations(w.n, operations, &w.random);
        w.cost.beside = (mgw_beside){0};
        mgw_plan *plain = plan_of(&w, operations, count);
        w.cost.beside = (mgw_beside){1 + 1e-15, 1 + 1e-15};
        mgw_plan *plan = plan_of(&w, operations, count);
        double close_s = 1e-10 * plain->iteration_s;
        assert_true(fabs(plan->iteration_s - plain->iteration_s) < close_s);
        assert_true(fabs(plan->compute_s - plain->compute_s) < close_s);
        assert_true(fabs(plan->forward_s - plain->forward_s) < close_s);
        assert_true(fabs(plan->exposed_s - plain->exposed_s) < close_s);
        for (size_t m = 0; m < count; m++) {
            const mgw_operation *a = &plan->operations[m];
            const mgw_operation *b = &plain->operations[m];
            if (fabs(a->ready_s - b->ready_s) > close_s ||
                fabs(a->start_s - b->start_s) > close_s || fabs(a->end_s - b->end_s) > close_s ||
                a->bytes != b->bytes)
                fail_msg("seed %zu: operation %zu: %g %g %g, not %g %g %g", (size_t)seed, m,
                         a->ready_s, a->start_s, a->end_s, b->ready_s, b->start_s, b->end_s);
        }
        size_t real = 0; /* stalls longer than rounding */
        for (size_t i = 0; i < plan->stall_count; i++)
            real += plan->stalls[i].end_s - plan->stalls[i].start_s > close_s;
        if (real <= plain->stall_count)
            for (size_t i = 0, k = 0; i < plan->stall_count; i++)
                if (plan->stalls[i].end_s - plan->stalls[i].start_s > close_s) {
                    assert_true(fabs(plan->stalls[i].start_s - plain->stalls[k].start_s) < close_s);
                    assert_true(fabs(plan->stalls[i].end_s - plain->stalls[k].end_s) < close_s);
                    k++;
                }
        mgw_plan_destroy(plan);
        mgw_plan_destroy(plain);
        mgw_trace_destroy(w.trace);
    }
}

/*
 * Two tensors, ready after 1 and 2 s of computation; a message of each takes 1 s. While both run,
 * messages take twice and computation 1.5 times as long. The first message starts at 1, the second
 * gradient is ready at 2.5 instead of 2, when three quarters of the first message are done (1.5 /
 * 2); its rest takes 0.25 s alone. So the second starts at 2.75 and ends at 3.75.
 */
static void a_step_by_hand(void **unused)
{
    (void)unused;
    const mgw_tensor tensors[] = {{.count = 250, .backward_s = 0.5},
                                  {.count = 250, .backward_s = 1}};
    mgw_trace *trace = make_trace(0.5, 2, tensors);
    const mgw_cost cost = {.of[MGW_ALL_REDUCE] = {0, 1e-3, 0, NULL},
                           .workers = 2,
                           .beside = {.message = 2, .compute = 1.5}};
    mgw_plan *plan = make_plan(trace, &cost, "wfbp");
    assert_close(plan->alone_s, 2);
    assert_close(plan->compute_s, 2.5);
    assert_close(plan->operations[0].start_s, 1);
    assert_close(plan->operations[0].end_s, 2.75);
    assert_close(plan->operations[1].ready_s, 2.5);
    assert_close(plan->operations[1].end_s, 3.75);
    assert_close(plan->iteration_s, 3.75);
    assert_close(plan->exposed_s, 1.25);
    /* Both in one message: 2 s after 2 s, and nothing slows down. But `optimal` is 3.75. */
    mgw_plan *single = make_plan(trace, &cost, "single");
    assert_close(single->iteration_s, 4);
    mgw_plan *best = make_plan(trace, &cost, "optimal");
    assert_close(best->iteration_s, 3.75);
    mgw_plan_destroy(best);
    mgw_plan_destroy(single);
    mgw_plan_destroy(plan);
    mgw_trace_destroy(trace);
}

/* ---- The search ---- */

static double best_of_all_cuts(const world *w)
{
    double best_s = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << w->n; cuts += 2) { /* bit i: before tensor i */
        mgw_operation operations[MOST] = {0};
        size_t count = 0;
        for (size_t i = 0; i < w->n; i++) {
            if (i == 0 || cuts >> i & 1)
                operations[count++].first = i;
            operations[count - 1].count++;
        }
        mgw_plan *plan = plan_of(w, operations, count);
        best_s = fmin(best_s, plan->iteration_s);
        mgw_plan_destroy(plan);
    }
    return best_s;
}

typedef struct search_result {
    size_t exact;
    double mean;
    double worst;
} search_result;

/* `optimal` against all cuts; `overlap` is never above it; bounds hold. */
static search_result search_all(uint64_t first, uint64_t count)
{
    search_result r = {0};
    for (uint64_t seed = first; seed < first + count; seed++) {
        world w;
        any_world(&w, seed);
        double best_s = best_of_all_cuts(&w);
        mgw_plan *plan = make_plan(w.trace, &w.cost, "optimal");
        mgw_plan *overlap = make_plan(w.trace, &w.cost, "overlap");
        double above = plan->iteration_s / best_s - 1;
        assert_true(above > -1e-12);
        assert_true(plan->lower_bound_s <= best_s * (1 + 1e-9));
        assert_true(overlap->overlaps_forward && !plan->overlaps_forward);
        assert_true(overlap->iteration_s <= plan->iteration_s * (1 + 1e-9));
        assert_true(overlap->lower_bound_s <= overlap->iteration_s * (1 + 1e-9));
        r.exact += above < 1e-9;
        r.mean += above / (double)count;
        r.worst = fmax(r.worst, above);
        mgw_plan_destroy(plan);
        mgw_plan_destroy(overlap);
        mgw_trace_destroy(w.trace);
    }
    return r;
}

static void good_plans_are_found(void **unused)
{
    (void)unused;
    search_result r = search_all(1, 400);
    assert_true(r.exact > 370);
    assert_true(r.mean < 0.001);
    assert_true(r.worst < 0.03);
}

/* ---- Files ---- */

static void factors_are_written_and_read(void **unused)
{
    (void)unused;
    const char *text =
        "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 4, \"cost\": "
        "{\"a_s\": 1e-3, \"b_s_per_byte\": 1e-9}, \"beside\": {\"message\": 1.25, "
        "\"compute\": 1.5}}";
    mgw_cluster *cluster = NULL;
    mgw_cluster *again = NULL;
    mgw_cost cost;
    mgw_text written;
    mgw_error error = {0};
    assert_int_equal(mgw_cluster_parse("c.json", text, strlen(text), &cluster, &error), MGW_OK);
    mgw_text_init(&written);
    mgw_cluster_write(cluster, &written);
    assert_int_equal(mgw_cluster_parse("c.json", written.data, written.size, &again, &error),
                     MGW_OK);
    mgw_cluster_cost(again, &cost);
    assert_true(cost.beside.message == 1.25 && cost.beside.compute == 1.5);
    mgw_text_fini(&written);
    mgw_cluster_destroy(again);
    mgw_cluster_destroy(cluster);
}

static void bad_factors_are_named(void **unused)
{
    (void)unused;
    static const char *const cases[][2] = {
        {"1", "c.json:1: beside: must be an object"},
        {"{}", "c.json:1: beside.message: missing"},
        {"{\"message\": 1}", "c.json:1: beside.compute: missing"},
        {"{\"message\": 0.5, \"compute\": 1}",
         "c.json:1: beside.message: must be at least 1, not 0.5"},
        {"{\"message\": 1, \"compute\": 0}", "c.json:1: beside.compute: must be at least 1, not 0"},
        {"{\"message\": \"2\", \"compute\": 1}", "c.json:1: beside.message: must be a number"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        mgw_cluster *cluster = NULL;
        mgw_error error = {0};
        snprintf(text, sizeof text,
                 "{\"format\": \"mgwfbp-cluster-1\", \"name\": \"c\", \"workers\": 4, \"cost\": "
                 "{\"a_s\": 1e-3, \"b_s_per_byte\": 1e-9}, \"beside\": %s}",
                 cases[i][0]);
        assert_int_equal(mgw_cluster_parse("c.json", text, strlen(text), &cluster, &error),
                         MGW_ERR_INPUT);
        assert_contains(error.message, cases[i][1]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_by_hand),
        cmocka_unit_test(plans_are_timed_as_by_a_clock),
        cmocka_unit_test(factors_of_1_change_nothing),
        cmocka_unit_test(good_plans_are_found),
        cmocka_unit_test(factors_are_written_and_read),
        cmocka_unit_test(bad_factors_are_named),
    };
    if (argc > 1 && !strcmp(argv[1], "--search")) {
        search_result r = search_all(100000, 10000);
        printf("10000 worlds of up to %d tensors: %zu exact, mean %.3f%%, worst %.1f%% above\n",
               MOST, r.exact, 100 * r.mean, 100 * r.worst);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
