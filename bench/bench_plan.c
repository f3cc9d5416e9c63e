/* How fast plans are made as the number of tensors grows: `optimal` and the published rule in
 * linear time, beside the published rule as printed and the quadratic dynamic program. */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "published.h"

enum { ROUNDS = 7 };

/* The quadratic forms take minutes beyond this. */
enum { QUADRATIC_MAX = 30000 };

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
    mgw_text text;
    mgw_text_init(&text);
    mgw_table_write(table, &text);
    fputs(text.data, stdout);
    mgw_text_fini(&text);
    mgw_table_destroy(table);
    return 0;
}
