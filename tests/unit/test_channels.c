/* Levels that work at the same time: times against a clock that ticks, cuts against all cuts. */
#include "support.h"

#include <math.h>
#include <time.h>

enum { LEVELS = 3, TENSORS = 10, OPERATIONS = 2 * TENSORS };

/* Rings of two: a half of a level takes alpha + beta / 2 * M, in whole seconds. */
static mgw_cluster *random_cluster(uint64_t *seed, size_t levels, unsigned spread)
{
    mgw_level level[LEVELS];
    for (size_t i = 0; i < levels; i++)
        level[i] =
            (mgw_level){.name = "level",
                        .workers = 2,
                        .ports = 1,
                        .link = {.alpha_s = 1 + (double)random_below(seed, 3),
                                 .beta_s_per_byte = 0.5 * (double)random_below(seed, spread)},
                        .algorithm = MGW_RING};
    mgw_cluster *cluster = NULL;
    mgw_error error = {0};
    if (mgw_cluster_from_levels("levels", level, levels, &cluster, &error))
        fail_msg("%s", error.message);
    return cluster;
}

static mgw_trace *random_trace(uint64_t *seed, size_t *count)
{
    mgw_tensor tensors[TENSORS] = {0};
    *count = 1 + random_below(seed, TENSORS);
    double forward_s = (double)random_below(seed, 10);
    for (size_t i = 0; i < *count; i++)
        tensors[i] = (mgw_tensor){.count = 1 + random_below(seed, 8),
                                  .backward_s = (double)random_below(seed, 12),
                                  .forward_start_s =
                                      forward_s * (double)(*count - i) / (double)(*count + 1)};
    return make_trace(forward_s, *count, tensors);
}

static mgw_plan *plan_of(const mgw_trace *trace, const mgw_cluster *cluster,
                         const mgw_operation *operations, size_t count)
{
    mgw_cost cost;
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    mgw_cluster_cost(cluster, &cost);
    if (mgw_plan_from_operations(trace, &cost, "by hand", operations, count, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* ---- A clock that ticks ---- */

typedef struct errand {
    size_t stages;
    size_t channel[2 * LEVELS];
    unsigned left[2 * LEVELS]; /* ticks */
    size_t place[2 * LEVELS];  /* on the way out 0, 1 …, on the way back top + 1 … */
    size_t at;
    bool busy;
    long available; /* -1: nobody knows yet */
} errand;

static void add_stage(errand *e, const mgw_cluster *cluster, size_t level, size_t place,
                      mgw_collective kind, uint64_t bytes)
{
    mgw_cost cost;
    mgw_cluster_level_cost(cluster, level, &cost);
    double seconds = mgw_cost_seconds(&cost, kind, bytes);
    assert_true(seconds == floor(seconds) && seconds >= 1);
    e->channel[e->stages] = level;
    e->place[e->stages] = place;
    e->left[e->stages++] = (unsigned)seconds;
}

static errand way_of(const mgw_cluster *cluster, const mgw_operation *o)
{
    errand e = {0};
    size_t top = cluster->level_count - 1;
    bool out = o->kind != MGW_ALL_GATHER;
    bool back = o->kind != MGW_REDUCE_SCATTER;
    for (size_t i = 0; out && i < top; i++)
        add_stage(&e, cluster, i, i, MGW_REDUCE_SCATTER, o->bytes);
    add_stage(&e, cluster, top, top, o->kind, o->bytes);
    for (size_t i = top; back && i-- > 0;)
        add_stage(&e, cluster, i, 2 * top - i, MGW_ALL_GATHER, o->bytes);
    return e;
}

/* Whether an operation before it has still to start the same stage. */
static bool is_behind(const errand *errands, size_t m)
{
    size_t place = errands[m].place[errands[m].at];
    for (size_t k = 0; k < m; k++)
        for (size_t s = errands[k].at + errands[k].busy; s < errands[k].stages; s++)
            if (errands[k].place[s] == place)
                return true;
    return false;
}

/* ---- One tick ---- */

typedef struct ticking {
    const mgw_trace *trace;
    const mgw_cluster *cluster;
    const mgw_plan *plan;
    errand errands[OPERATIONS];
    double *ends; /* -1: not yet */
    size_t left;
    long now;
} ticking;

static void set_out(ticking *t)
{
    long compute = (long)mgw_trace_compute_s(t->trace);
    t->left = t->plan->operation_count;
    for (size_t m = 0; m < t->plan->operation_count; m++) {
        const mgw_operation *o = &t->plan->operations[m];
        double ready = t->trace->forward_s;
        for (size_t i = 0; i < o->first + o->count; i++)
            ready += t->trace->tensors[i].backward_s;
        t->errands[m] = way_of(t->cluster, o);
        t->errands[m].available = o->kind == MGW_ALL_GATHER          ? -1
                                  : o->release == MGW_AFTER_BACKWARD ? compute
                                                                     : (long)ready;
        t->ends[m] = -1;
    }
}

static void end_stages(ticking *t)
{
    for (size_t m = 0; m < t->plan->operation_count; m++) {
        errand *e = &t->errands[m];
        if (!e->busy || --e->left[e->at] > 0)
            continue;
        e->busy = false;
        e->available = t->now;
        if (++e->at == e->stages) {
            t->ends[m] = (double)t->now;
            t->left--;
        }
    }
}

/* A gather is released when its tensors are averaged and the backward pass is over. */
static void release_gather(ticking *t, size_t m)
{
    const mgw_operation *gather = &t->plan->operations[m];
    bool known = gather->kind == MGW_ALL_GATHER && t->errands[m].available < 0;
    long last = (long)mgw_trace_compute_s(t->trace);
    for (size_t k = 0; k < m; k++) {
        const mgw_operation *o = &t->plan->operations[k];
        bool overlaps =
            o->first < gather->first + gather->count && gather->first < o->first + o->count;
        known &= !overlaps || t->ends[k] >= 0;
        if (overlaps && (long)t->ends[k] > last)
            last = (long)t->ends[k];
    }
    if (known)
        t->errands[m].available = last;
}

static void start_stage(ticking *t, size_t channel)
{
    for (size_t m = 0; m < t->plan->operation_count; m++)
        if (t->errands[m].busy && t->errands[m].channel[t->errands[m].at] == channel)
            return;
    for (size_t m = 0; m < t->plan->operation_count; m++) {
        errand *e = &t->errands[m];
        if (e->at < e->stages && e->channel[e->at] == channel && e->available >= 0 &&
            e->available <= t->now && !is_behind(t->errands, m)) {
            e->busy = true;
            return;
        }
    }
}

/* Ends of all operations, tick by tick. */
static void tick(const mgw_trace *trace, const mgw_cluster *cluster, const mgw_plan *plan,
                 double *ends)
{
    ticking t = {.trace = trace, .cluster = cluster, .plan = plan, .ends = ends};
    for (set_out(&t); t.left; t.now++) {
        assert_true(t.now < 100000);
        end_stages(&t);
        for (size_t m = 0; m < plan->operation_count; m++)
            release_gather(&t, m);
        for (size_t c = 0; c < cluster->level_count; c++)
            start_stage(&t, c);
    }
}

/* All-reduces up to some tensor, halves from there on; now and then one that waits for the rest. */
static size_t random_operations(uint64_t *seed, size_t n, mgw_operation *out)
{
    size_t count = 0;
    size_t scattered = random_below(seed, 2) ? n : random_below(seed, n + 1);
    for (size_t first = 0; first < n;) {
        mgw_operation *o = &out[count++];
        size_t end = first < scattered ? scattered : n;
        *o = (mgw_operation){.kind = first < scattered ? MGW_ALL_REDUCE : MGW_REDUCE_SCATTER,
                             .release = random_below(seed, 8) ? MGW_WHEN_READY : MGW_AFTER_BACKWARD,
                             .first = first,
                             .count = 1 + random_below(seed, end - first)};
        first += o->count;
    }
    for (size_t end = n; end > scattered;) {
        size_t gathered = 1 + random_below(seed, end - scattered);
        out[count++] = (mgw_operation){.kind = MGW_ALL_GATHER,
                                       .release = MGW_AFTER_UPDATE,
                                       .first = end - gathered,
                                       .count = gathered};
        end -= gathered;
    }
    return count;
}

static void times_are_those_of_a_clock_that_ticks(void **unused)
{
    (void)unused;
    uint64_t seed = 11;
    for (int run = 0; run < 3000; run++) {
        size_t n = 0;
        mgw_operation operations[OPERATIONS];
        double ends[OPERATIONS] = {0};
        mgw_error error = {0};
        mgw_trace *trace = random_trace(&seed, &n);
        mgw_cluster *cluster = random_cluster(&seed, 1 + random_below(&seed, LEVELS), 5);
        mgw_plan *plan =
            plan_of(trace, cluster, operations, random_operations(&seed, n, operations));
        double bound_s = 0;
        tick(trace, cluster, plan, ends);
        assert_int_equal(mgw_plan_time_levels(plan, trace, cluster, &error), MGW_OK);
        for (size_t m = 0; m < plan->operation_count; m++) {
            if (plan->operations[m].end_s != ends[m])
                fail_msg("run %d, operation %zu: %g, but %g", run, m, plan->operations[m].end_s,
                         ends[m]);
            bound_s = fmax(bound_s, ends[m]);
        }
        if (!plan->overlaps_forward)
            assert_true(plan->iteration_s == fmax(bound_s, plan->compute_s));
        assert_true(plan->lower_bound_s <= plan->iteration_s * (1 + 1e-12));
        mgw_plan_destroy(plan);
        mgw_cluster_destroy(cluster);
        mgw_trace_destroy(trace);
    }
}

/* ---- All cuts ---- */

static double best_of_all(const mgw_trace *trace, const mgw_cluster *cluster, size_t n)
{
    double best_s = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) {
        mgw_operation operations[TENSORS] = {{.count = 1}};
        size_t count = 1;
        mgw_error error = {0};
        for (size_t i = 1; i < n; i++)
            if (cuts >> (i - 1) & 1)
                operations[count++] = (mgw_operation){.first = i, .count = 1};
            else
                operations[count - 1].count++;
        mgw_plan *plan = plan_of(trace, cluster, operations, count);
        assert_int_equal(mgw_plan_time_levels(plan, trace, cluster, &error), MGW_OK);
        best_s = fmin(best_s, plan->iteration_s);
        mgw_plan_destroy(plan);
    }
    return best_s;
}

static mgw_plan *best_found(const mgw_trace *trace, const mgw_cluster *cluster,
                            mgw_policy_kind kind)
{
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    if (mgw_plan_make_levels(trace, cluster, &(mgw_policy){.kind = kind}, &plan, &error))
        fail_msg("%s", error.message);
    return plan;
}

static void cuts_are_close_to_the_best_of_all(void **unused)
{
    (void)unused;
    uint64_t seed = 12;
    double sum = 0;
    double worst = 1;
    int exact = 0;
    enum { RUNS = 600 };
    for (int run = 0; run < RUNS; run++) {
        size_t n = 0;
        mgw_cost cost;
        mgw_trace *trace = random_trace(&seed, &n);
        mgw_cluster *cluster = random_cluster(&seed, 2 + random_below(&seed, 2), 5);
        mgw_plan *found = best_found(trace, cluster, MGW_OPTIMAL);
        double best_s = best_of_all(trace, cluster, n);
        assert_true(found->iteration_s >= best_s * (1 - 1e-12));
        assert_true(found->lower_bound_s <= best_s * (1 + 1e-12));
        exact += found->iteration_s <= best_s * (1 + 1e-12);
        sum += found->iteration_s / best_s;
        worst = fmax(worst, found->iteration_s / best_s);
        mgw_cluster_cost(cluster, &cost);
        mgw_plan *one_at_a_time = make_plan(trace, &cost, "optimal");
        assert_true(found->iteration_s <= one_at_a_time->iteration_s * (1 + 1e-12));
        mgw_plan_destroy(one_at_a_time);
        mgw_plan_destroy(found);
        mgw_cluster_destroy(cluster);
        mgw_trace_destroy(trace);
    }
    print_message("of %d cases %d are exact; mean %.5f, worst %.4f of the best cuts\n", RUNS, exact,
                  sum / RUNS, worst);
    assert_true(exact >= RUNS * 95 / 100 && worst < 1.05);
}

/* ---- Where there is nothing to gain ---- */

static void one_level_is_one_channel(void **unused)
{
    (void)unused;
    const mgw_link link = {.alpha_s = 3e-5, .beta_s_per_byte = 8e-10};
    static const unsigned shapes[][2] = {{8, 1}, {1, 8}};
    mgw_trace *trace = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_trace_load("resnet50-b32-fp32-h200", &trace, &error), MGW_OK);
    for (size_t i = 0; i < 2; i++) {
        const mgw_level levels[] = {{.name = "in",
                                     .workers = shapes[i][0],
                                     .ports = 1,
                                     .link = link,
                                     .algorithm = MGW_RING},
                                    {.name = "out",
                                     .workers = shapes[i][1],
                                     .ports = 1,
                                     .link = link,
                                     .algorithm = MGW_RING}};
        mgw_cluster *cluster = NULL;
        mgw_cost cost;
        assert_int_equal(mgw_cluster_from_levels("c", levels, 2, &cluster, &error), MGW_OK);
        mgw_cluster_cost(cluster, &cost);
        static const char *const names[] = {"optimal", "overlap", "ddp"};
        static const mgw_policy policies[] = {{.kind = MGW_OPTIMAL},
                                              {.kind = MGW_OVERLAP},
                                              {MGW_DDP, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES}};
        for (size_t p = 0; p < 3; p++) {
            mgw_plan *channels = NULL;
            mgw_plan *plan = make_plan(trace, &cost, names[p]);
            assert_int_equal(mgw_plan_make_levels(trace, cluster, &policies[p], &channels, &error),
                             MGW_OK);
            assert_true(channels->iteration_s <= plan->iteration_s * (1 + 1e-12));
            assert_true(channels->iteration_s >= plan->iteration_s * (1 - 1e-9));
            assert_true(channels->lower_bound_s == plan->lower_bound_s);
            mgw_plan_destroy(channels);
            mgw_plan_destroy(plan);
        }
        mgw_cluster_destroy(cluster);
    }
    mgw_trace_destroy(trace);
}

/* The shares of levels are the whole, of every kind and with casts. */
static void levels_add_up(void **unused)
{
    (void)unused;
    uint64_t seed = 13;
    for (int run = 0; run < 100; run++) {
        mgw_cluster *cluster = random_cluster(&seed, LEVELS, 5);
        mgw_cost whole;
        mgw_cluster_cost(cluster, &whole);
        for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
            double sum_s = 0;
            double cast_s = 0;
            for (size_t i = 0; i < cluster->level_count; i++) {
                mgw_cost share;
                mgw_cluster_level_cost(cluster, i, &share);
                sum_s += mgw_cost_seconds(&share, (mgw_collective)kind, 4096);
                cast_s += mgw_wire_seconds(&share, (mgw_collective)kind, MGW_BF16, 4096);
            }
            assert_close(sum_s, mgw_cost_seconds(&whole, (mgw_collective)kind, 4096));
            assert_close(cast_s, mgw_wire_seconds(&whole, (mgw_collective)kind, MGW_BF16, 4096));
        }
        mgw_cluster_destroy(cluster);
    }
}

/* The search ends when it has been long enough, however many cuts there are to change. */
static void many_tensors_take_seconds(void **unused)
{
    (void)unused;
    enum { MANY = 20000 };
    uint64_t seed = 1;
    mgw_tensor *tensors = calloc(MANY, sizeof *tensors);
    assert_non_null(tensors);
    for (size_t i = 0; i < MANY; i++)
        tensors[i] = (mgw_tensor){.count = 1 + random_below(&seed, 8), .backward_s = 1};
    mgw_trace *trace = make_trace(1, MANY, tensors);
    mgw_cluster *cluster = random_cluster(&seed, 2, 4);
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    clock_t before = clock();
    if (mgw_plan_make_levels(trace, cluster, &(mgw_policy){.kind = MGW_OPTIMAL}, &plan, &error))
        fail_msg("%s", error.message);
    double cpu_s = (double)(clock() - before) / CLOCKS_PER_SEC;
    if (cpu_s > 15) /* some tenths of one; if each cut is copied in vain, over thirty */
        fail_msg("%.1f s", cpu_s);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    free(tensors);
}

static void a_cluster_without_levels_is_refused(void **unused)
{
    (void)unused;
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_plan *plan = NULL;
    mgw_error error = {0};
    assert_int_equal(mgw_trace_load("resnet50-b32-fp32-h200", &trace, &error), MGW_OK);
    assert_int_equal(mgw_cluster_load("paper-2-10gbe", &cluster, &error), MGW_OK);
    assert_int_equal(
        mgw_plan_make_levels(trace, cluster, &(mgw_policy){.kind = MGW_OPTIMAL}, &plan, &error),
        MGW_ERR_ARGUMENT);
    assert_string_equal(error.message, "paper-2-10gbe: it has no levels");
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_those_of_a_clock_that_ticks),
        cmocka_unit_test(cuts_are_close_to_the_best_of_all),
        cmocka_unit_test(one_level_is_one_channel),
        cmocka_unit_test(levels_add_up),
        cmocka_unit_test(many_tensors_take_seconds),
        cmocka_unit_test(a_cluster_without_levels_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
