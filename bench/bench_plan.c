/* How fast plans are made as the number of tensors grows: `optimal` and the published rule in
 * linear time, beside the published rule as printed and the quadratic dynamic program; and
 * `overlap`, on a line and on a measured curve. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "published.h"

enum { ROUNDS = 7 };

/* The quadratic forms take minutes beyond this. */
enum { QUADRATIC_MAX = 30000 };

/* On curves, planning takes seconds beyond this. */
enum { CURVE_MAX = 3000 };

typedef struct arrays {
    double *ready_s;
    uint64_t *prefix;
    double *earliest;
    size_t *ends;
    published_work work;
} arrays;

static arrays make_arrays(const mgw_trace *trace)
{
    size_t n = trace->tensor_count;
    arrays a = {calloc(n + 1, sizeof(double)), calloc(n + 1, sizeof(uint64_t)),
                calloc(n + 1, sizeof(double)), calloc(n + 1, sizeof(size_t)),
                published_work_create(n)};
    double now = trace->forward_s;
    for (size_t j = 1; j <= n; j++) {
        now += trace->tensors[j - 1].backward_s;
        a.ready_s[j] = now;
        a.prefix[j] = a.prefix[j - 1] + 4 * trace->tensors[j - 1].count;
    }
    return a;
}

static void free_arrays(arrays *a)
{
    free(a->ready_s);
    free(a->prefix);
    free(a->earliest);
    free(a->ends);
    published_work_destroy(&a->work);
}

/* F(j) = min over i of max(R_j, F(i)) + a + b (P_j - P_i). */
static double quadratic(const arrays *x, size_t n, double a, double b)
{
    for (size_t j = 1; j <= n; j++) {
        double best = INFINITY;
        for (size_t i = 0; i < j; i++) {
            double start = x->earliest[i] > x->ready_s[j] ? x->earliest[i] : x->ready_s[j];
            double end = start + a + b * (double)(x->prefix[j] - x->prefix[i]);
            best = end < best ? end : best;
        }
        x->earliest[j] = best;
    }
    return x->earliest[n];
}

enum { OPTIMAL, GREEDY, PUBLISHED, QUADRATIC, COPY, WAYS };

static void time_plan(const mgw_trace *trace, const mgw_cost *cost, mgw_policy_kind kind,
                      bench_times *times, double *end_s)
{
    mgw_policy policy = {.kind = kind};
    mgw_plan *plan = NULL;
    mgw_error error;
    double start = bench_now_s();
    bench_must(mgw_plan_make(trace, cost, &policy, &plan, &error), &error);
    times->values[times->count++] = bench_now_s() - start;
    *end_s = plan->iteration_s;
    mgw_plan_destroy(plan);
}

/* The limit: reading every tensor once and writing its ready time and prefix. */
static void time_copy(const mgw_trace *trace, arrays *x, bench_times *times)
{
    double start = bench_now_s();
    double now = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < trace->tensor_count; i++) {
        now += trace->tensors[i].backward_s;
        bytes += trace->tensors[i].count * 4;
        ((volatile double *)x->earliest)[i] = now;
        ((volatile size_t *)x->ends)[i] = bytes;
    }
    times->values[times->count++] = bench_now_s() - start;
}

static void measure(size_t n, const mgw_cost *cost, bench_times *times)
{
    mgw_trace *trace = bench_trace(n);
    arrays x = make_arrays(trace);
    double optimal_s = 0;
    double greedy_s = 0;
    size_t rounds = n > 100000 ? 5 : ROUNDS;
    for (size_t round = 0; round < rounds; round++) { /* in turn, so that all see the same noise */
        time_plan(trace, cost, MGW_OPTIMAL, &times[OPTIMAL], &optimal_s);
        time_plan(trace, cost, MGW_GREEDY, &times[GREEDY], &greedy_s);
        time_copy(trace, &x, &times[COPY]);
        if (n > QUADRATIC_MAX || (n > 5000 && round > 2))
            continue;
        double start = bench_now_s();
        published_plan(&x.work, n, x.ready_s, x.prefix, cost->of[MGW_ALL_REDUCE].a_s,
                       cost->of[MGW_ALL_REDUCE].b_s_per_byte, x.ends);
        times[PUBLISHED].values[times[PUBLISHED].count++] = bench_now_s() - start;
        start = bench_now_s();
        double end_s =
            quadratic(&x, n, cost->of[MGW_ALL_REDUCE].a_s, cost->of[MGW_ALL_REDUCE].b_s_per_byte);
        times[QUADRATIC].values[times[QUADRATIC].count++] = bench_now_s() - start;
        if (fabs(end_s - optimal_s) > 1e-9 * end_s) {
            fprintf(stderr, "bench: optimal ends at %.17g, the quadratic program at %.17g\n",
                    optimal_s, end_s);
            exit(1);
        }
    }
    free_arrays(&x);
    mgw_trace_destroy(trace);
}

static void print_table(mgw_table *table)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_table_write(table, &text);
    fputs(text.data, stdout);
    mgw_text_fini(&text);
    mgw_table_destroy(table);
}

/* ---- Policy overlap ---- */

/* The forward pass takes half as long as the backward pass, and needs the last ready first. */
static mgw_trace *make_forward(size_t n)
{
    mgw_trace *trace = bench_trace(n);
    double backward_s = mgw_trace_backward_s(trace);
    double at = trace->forward_s = backward_s / 2;
    for (size_t i = 0; i < n; i++) {
        at -= trace->tensors[i].backward_s / 2;
        trace->tensors[i].forward_start_s = at > 0 ? at : 0;
    }
    return trace;
}

/* Of the processor, since it takes long enough for others to come in between. */
static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static mgw_plan *time_overlap(const mgw_trace *trace, const mgw_cost *cost, bench_times *times)
{
    mgw_policy policy = {.kind = MGW_OVERLAP};
    mgw_plan *plan = NULL;
    mgw_error error;
    size_t rounds = trace->tensor_count > 100000 ? 3 : ROUNDS;
    for (size_t round = 0; round < rounds; round++) {
        mgw_plan_destroy(plan);
        double start = cpu_s();
        bench_must(mgw_plan_make(trace, cost, &policy, &plan, &error), &error);
        times->values[times->count++] = cpu_s() - start;
        if (times->values[times->count - 1] > 10)
            break;
    }
    return plan;
}

static void add_overlap_row(mgw_table *table, size_t n, const mgw_cost *line, const mgw_cost *curve)
{
    char units[MGW_UNITS_MAX];
    mgw_trace *trace = make_forward(n);
    bench_times times = {0};
    mgw_plan *plan = time_overlap(trace, line, &times);
    double took_s = bench_median(&times);
    mgw_table_cell(table, "%zu", n);
    mgw_table_cell(table, "%s", mgw_format_seconds(took_s, units));
    mgw_table_cell(table, "%.0f", took_s / (double)n * 1e9);
    mgw_table_cell(table, "%.0f%%", 100 * bench_spread(&times));
    mgw_table_cell(table, "%zu", plan->operation_count);
    mgw_table_cell(table, "%.4f", plan->iteration_s / plan->lower_bound_s);
    mgw_plan_destroy(plan);
    if (n <= CURVE_MAX) {
        times = (bench_times){0};
        plan = time_overlap(trace, curve, &times);
        mgw_table_cell(table, "%s", mgw_format_seconds(bench_median(&times), units));
        mgw_table_cell(table, "%zu", plan->operation_count);
        mgw_table_cell(table, "%.4f", plan->iteration_s / plan->lower_bound_s);
        mgw_plan_destroy(plan);
    } else {
        for (int i = 0; i < 3; i++)
            mgw_table_cell(table, "-");
    }
    mgw_trace_destroy(trace);
}

/* Samples at powers of 4 that lie on the line, with a step of a tenth, as protocols make them. */
static void measure_overlap(void)
{
    static const size_t sizes[] = {48, 100, 300, 1000, 3000, 10000, 100000, 1000000};
    static mgw_sample samples[MGW_ALL_GATHER + 1][16];
    mgw_cost line = {.workers = 16, .cluster = "bench"};
    mgw_cost curve = line;
    for (int kind = 0; kind <= MGW_ALL_GATHER; kind++) {
        double share = kind == MGW_ALL_REDUCE ? 1 : 0.5;
        curve.of[kind] = line.of[kind] =
            (mgw_curve){.a_s = share * 1e-4, .b_s_per_byte = share * 8e-11};
        for (size_t i = 0; i < 16; i++) {
            uint64_t bytes = (uint64_t)1 << 2 * i;
            double on_line = mgw_cost_seconds(&line, (mgw_collective)kind, bytes);
            samples[kind][i] = (mgw_sample){bytes, on_line * (i < 8 ? 0.9 : 1)};
        }
        curve.of[kind].samples = samples[kind];
        curve.of[kind].sample_count = 16;
    }
    mgw_table *table =
        mgw_table_create("tensors|overlap, a + b*M, CPU time|ns/tensor|spread|operations|"
                         "period / bound|on a curve|operations|period / bound");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        add_overlap_row(table, sizes[s], &line, &curve);
    print_table(table);
}

int main(void)
{
    static const size_t sizes[] = {100, 1000, 3000, 10000, 30000, 100000, 300000, 1000000};
    /* Gradients come a little faster than they can be sent: much is merged, and nothing trivially.
     */
    mgw_cost cost = {.of[MGW_ALL_REDUCE] = {.a_s = 1e-4, .b_s_per_byte = 8e-11},
                     .workers = 16,
                     .cluster = "bench"};
    mgw_table *table = mgw_table_create(
        "tensors|optimal|ns/tensor|spread|/ limit|mgwfbp|ns/tensor|as published|/ mgwfbp|"
        "O(L^2) program|/ optimal");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        bench_times times[WAYS] = {0};
        measure(sizes[s], &cost, times);
        char units[MGW_UNITS_MAX];
        double n = (double)sizes[s];
        double optimal = bench_median(&times[OPTIMAL]);
        double greedy = bench_median(&times[GREEDY]);
        mgw_table_cell(table, "%zu", sizes[s]);
        mgw_table_cell(table, "%s", mgw_format_seconds(optimal, units));
        mgw_table_cell(table, "%.1f", optimal / n * 1e9);
        mgw_table_cell(table, "%.0f%%", 100 * bench_spread(&times[OPTIMAL]));
        mgw_table_cell(table, "%.1f", optimal / bench_median(&times[COPY]));
        mgw_table_cell(table, "%s", mgw_format_seconds(greedy, units));
        mgw_table_cell(table, "%.1f", greedy / n * 1e9);
        bool done = times[PUBLISHED].count > 0;
        double published = done ? bench_median(&times[PUBLISHED]) : 0;
        double program = done ? bench_median(&times[QUADRATIC]) : 0;
        mgw_table_cell(table, "%s", done ? mgw_format_seconds(published, units) : "-");
        mgw_table_cell(table, done ? "%.0fx" : "-", published / greedy);
        mgw_table_cell(table, "%s", done ? mgw_format_seconds(program, units) : "-");
        mgw_table_cell(table, done ? "%.0fx" : "-", program / optimal);
    }
    print_table(table);
    printf("\n");
    measure_overlap();
    return 0;
}
