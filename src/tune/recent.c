/* What the last steps have shown, of all workers together: when each gradient was there, how long
 * messages took, and what they took from computation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"
#include "tune/tuner.h"

/*
 * A row of this worker's has a column for how late the step was begun, one for how long it took,
 * one for each tensor, and two for each operation: how long it took, and how long it kept a core
 * busy. Where tensors take turns a row is not one step, and operations are 0.
 */
enum { LATE, ITERATION, TENSORS };

static size_t operation_count(const mgw_tuner *tuner)
{
    size_t count = 0;
    mgw_tuner_operations(tuner, &count);
    return count;
}

static size_t took_column(const mgw_tuner *tuner, size_t m)
{
    return TENSORS + tuner->tensor_count + m;
}

static size_t busy_column(const mgw_tuner *tuner, size_t m)
{
    return TENSORS + tuner->tensor_count + operation_count(tuner) + m;
}

/* However many operations there are: at most two for each tensor. */
static size_t columns_max(const mgw_tuner *tuner)
{
    return TENSORS + 5 * tuner->tensor_count;
}

mgw_status tune_recent_init(mgw_tuner *tuner, mgw_error *error)
{
    size_t n = tuner->tensor_count;
    size_t most = columns_max(tuner);
    tune_learned *learned = &tuner->learned;
    tuner->recent.rows = calloc(TUNE_RECENT * most, sizeof *tuner->recent.rows);
    tuner->recent.counts = calloc(most, sizeof *tuner->recent.counts);
    learned->ready_s = calloc(n, sizeof *learned->ready_s);
    learned->step_ready_s = calloc(TUNE_RECENT * n, sizeof *learned->step_ready_s);
    learned->slowdown = 1;
    bool all =
        tuner->recent.rows && tuner->recent.counts && learned->ready_s && learned->step_ready_s;
    return all ? MGW_OK : mgw_fail_memory(error, "tuner");
}

void tune_recent_fini(mgw_tuner *tuner)
{
    free(tuner->recent.rows);
    free(tuner->recent.counts);
    free(tuner->learned.ready_s);
    free(tuner->learned.step_ready_s);
}

void tune_recent_forget(mgw_tuner *tuner)
{
    size_t most = columns_max(tuner);
    memset(tuner->recent.rows, 0, TUNE_RECENT * most * sizeof *tuner->recent.rows);
    memset(tuner->recent.counts, 0, most * sizeof *tuner->recent.counts);
}

static double *at(const mgw_tuner *tuner, size_t row, size_t column)
{
    return &tuner->recent.rows[row * columns_max(tuner) + column];
}

static void note(mgw_tuner *tuner, size_t column, double seconds)
{
    *at(tuner, tuner->recent.counts[column]++ % TUNE_RECENT, column) = seconds;
}

void mgw_tuner_observe(mgw_tuner *tuner, const mgw_step_record *record)
{
    tuner->window.steps++;
    tuner->window.iteration_sum_s += record->iteration_s;
    tuner->window.compute_sum_s += record->compute_s;
    note(tuner, LATE, record->late_s);
    note(tuner, ITERATION, record->iteration_s);
    for (size_t i = 0; i < tuner->tensor_count; i++)
        if (!tuner->options.sampled || record->ready_s[i] > 0)
            note(tuner, TENSORS + i, record->ready_s[i]);
    for (size_t m = 0; record->took_s && m < operation_count(tuner); m++) {
        note(tuner, took_column(tuner, m), record->took_s[m]);
        note(tuner, busy_column(tuner, m), record->busy_s[m]);
    }
}

/* ---- What workers tell each other ---- */

/*
 * For each step, summed up over workers: how late it was begun, and how long each operation kept
 * a core busy. And the largest: how long the step took, when each gradient was there, and how
 * short each operation was, negated.
 */
static size_t sums_of(const mgw_tuner *tuner)
{
    return 1 + operation_count(tuner);
}

static size_t maxima_of(const mgw_tuner *tuner)
{
    return 1 + tuner->tensor_count + operation_count(tuner);
}

void mgw_tuner_row_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima)
{
    *sums = TUNE_RECENT * sums_of(tuner);
    *maxima = TUNE_RECENT * maxima_of(tuner);
}

void mgw_tuner_row(const mgw_tuner *tuner, double *row)
{
    size_t count = operation_count(tuner);
    double *next = row;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        *next++ = *at(tuner, k, LATE);
        for (size_t m = 0; m < count; m++)
            *next++ = *at(tuner, k, busy_column(tuner, m));
    }
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        *next++ = *at(tuner, k, ITERATION);
        for (size_t i = 0; i < tuner->tensor_count; i++) {
            double ready_s = *at(tuner, k, TENSORS + i);
            *next++ = ready_s > 0 ? *at(tuner, k, LATE) + ready_s : 0;
        }
        for (size_t m = 0; m < count; m++)
            *next++ = -*at(tuner, k, took_column(tuner, m));
    }
}

/* Everybody's, combined. */
typedef struct view {
    const mgw_tuner *tuner;
    const double *sums;
    const double *maxima;
} view;

static double mean_late_s(const view *v, size_t row)
{
    return v->sums[row * sums_of(v->tuner)] / v->tuner->options.size;
}

static double mean_busy_s(const view *v, size_t row, size_t m)
{
    return v->sums[row * sums_of(v->tuner) + 1 + m] / v->tuner->options.size;
}

static double longest_s(const view *v, size_t row)
{
    return v->maxima[row * maxima_of(v->tuner)];
}

static double shortest_took_s(const view *v, size_t row, size_t m)
{
    return -v->maxima[row * maxima_of(v->tuner) + 1 + v->tuner->tensor_count + m];
}

/*
 * When a message with this tensor could have begun: when the last worker had it. Workers are not
 * equally late in every step, and do not begin it at the same time; the end of the step before is
 * common to all. So that is the origin, and what an average worker was late is left out. 0: the
 * row has no such time.
 */
static double latest_ready_s(const view *v, size_t row, size_t tensor)
{
    double latest_s = v->maxima[row * maxima_of(v->tuner) + 1 + tensor];
    return latest_s > 0 ? fmax(latest_s - mean_late_s(v, row), 0) : 0;
}

/* ---- Learning ---- */

/* The median over steps: one in which a worker was held up counts no more than any other. */
static void learn_ready(tune_learned *learned, const view *v)
{
    double latest_s = 0; /* never falling: a message waits for all before it */
    for (size_t i = 0; i < v->tuner->tensor_count; i++) {
        double times[TUNE_RECENT];
        size_t count = 0;
        for (size_t k = 0; k < TUNE_RECENT; k++) {
            times[count] = latest_ready_s(v, k, i);
            count += times[count] > 0;
        }
        if (count) /* what was not measured since then is as before */
            learned->ready_s[i] = mgw_median(times, count);
        latest_s = fmax(latest_s, learned->ready_s[i]);
        learned->ready_s[i] = latest_s;
    }
}

static bool is_known(const view *v, size_t row)
{
    bool known = true;
    for (size_t i = 0; known && i < v->tuner->tensor_count; i++)
        known = latest_ready_s(v, row, i) > 0;
    return known;
}

/* The steps one by one. If there was none since the last look, they are as before. */
static void learn_steps(tune_learned *learned, const view *v)
{
    size_t n = v->tuner->tensor_count;
    size_t count = 0;
    for (size_t k = 0; k < TUNE_RECENT && !v->tuner->options.sampled; k++) {
        double *ready_s = learned->step_ready_s + count * n;
        double latest_s = 0;
        if (!is_known(v, k))
            continue;
        for (size_t i = 0; i < n; i++)
            ready_s[i] = latest_s = fmax(latest_s, latest_ready_s(v, k, i));
        count++;
    }
    if (count)
        learned->steps = count;
}

/*
 * How many times T(M) the operations of a step took that were beside computation: all but the
 * last one. What a worker waited for another is left out: the one that came last has not waited.
 */
static double slowdown_in_step(const view *v, const mgw_cost *cost, size_t row)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(v->tuner, &count);
    double took_s = 0;
    double alone_s = 0;
    for (size_t m = 0; m + 1 < count; m++) {
        took_s += shortest_took_s(v, row, m);
        alone_s += mgw_cost_seconds(cost, operations[m].kind, operations[m].bytes);
    }
    return alone_s > 0 ? took_s / alone_s : 0;
}

/* As computation and messages that share cores and memory may: never faster than alone. */
static const double slowest = 8;

/* 0: it was not measured, or nothing was beside the operations. */
static double slowdown_by_operations(const view *v)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(v->tuner, &count);
    for (size_t m = 0; m < count; m++)
        if (operations[m].release == MGW_AFTER_BACKWARD)
            return 0;
    mgw_cost cost;
    mgw_cluster_cost(v->tuner->cluster, &cost);
    double factors[TUNE_RECENT];
    count = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        factors[count] = slowdown_in_step(v, &cost, k);
        count += factors[count] > 0;
    }
    return count ? fmin(fmax(mgw_median(factors, count), 1), slowest) : 0;
}

/* How long the plan in force takes with messages slowed down by that much. */
static mgw_status iteration_with(const mgw_tuner *tuner, const mgw_trace *trace, double slowdown,
                                 double *out_s, mgw_error *error)
{
    mgw_cost cost;
    mgw_sample *samples = NULL;
    mgw_status status = tune_cost(tuner, slowdown, &cost, &samples, error);
    if (!status)
        status = mgw_plan_time(tuner->plan, trace, &cost, error);
    *out_s = tuner->plan->iteration_s;
    free(samples);
    return status;
}

/* How much slower messages must have been for a step to take as long as it did. */
static mgw_status slowdown_by_steps(const view *v, double *out, mgw_error *error)
{
    double times[TUNE_RECENT];
    size_t count = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        times[count] = longest_s(v, k);
        count += times[count] > 0;
    }
    *out = 0;
    if (!count || !v->tuner->plan)
        return MGW_OK;
    double measured_s = mgw_median(times, count);
    mgw_trace *trace = NULL;
    double seconds = 0;
    mgw_status status = tune_make_trace(v->tuner, v->tuner->learned.ready_s, &trace, error);
    if (!status)
        status = iteration_with(v->tuner, trace, 1, &seconds, error);
    double low = 1;
    double high = seconds >= measured_s ? 1 : slowest;
    for (int i = 0; !status && high > 1 && i < 20; i++) {
        double middle = (low + high) / 2;
        status = iteration_with(v->tuner, trace, middle, &seconds, error);
        if (seconds < measured_s)
            low = middle;
        else
            high = middle;
    }
    *out = high;
    mgw_trace_destroy(trace);
    return status;
}

static mgw_status learn_slowdown(mgw_tuner *tuner, const view *v, mgw_error *error)
{
    double seen = 0;
    mgw_status status = MGW_OK;
    if (tuner->options.whole_steps)
        status = slowdown_by_steps(v, &seen, error);
    else
        seen = slowdown_by_operations(v);
    if (status || seen <= 0)
        return status;
    /* Half of the way, so that plans do not swing; at once where the first plan shows it first. */
    bool first = tuner->options.whole_steps && tuner->looks <= 1;
    tuner->learned.slowdown = first ? seen : sqrt(tuner->learned.slowdown * seen);
    return MGW_OK;
}

/* How long operation m kept a core busy, on average over workers. 0: it was not measured. */
static double busy_of(const view *v, size_t m)
{
    double times[TUNE_RECENT];
    size_t count = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        times[count] = mean_busy_s(v, k, m);
        count += times[count] > 0;
    }
    return count ? mgw_median(times, count) : 0;
}

/*
 * Where computation keeps all cores busy, each message holds it up, by what it takes of a core
 * whatever its size; and so do those of the other workers on that core.
 */
static mgw_status learn_worth(mgw_tuner *tuner, const view *v, mgw_error *error)
{
    size_t operation_total = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &operation_total);
    mgw_sample *samples = malloc(operation_total * sizeof *samples);
    if (!samples)
        return mgw_fail_memory(error, "tuner");
    size_t count = 0;
    for (size_t m = 0; m < operation_total; m++) {
        samples[count] = (mgw_sample){operations[m].bytes, busy_of(v, m)};
        count += samples[count].seconds > 0;
    }
    mgw_fit fit;
    mgw_error not_two_sizes;
    if (count > 1 && !mgw_fit_line(samples, count, &fit, &not_two_sizes)) {
        double seen_s = fit.line.a_s * tuner->options.crowd;
        double before_s = tuner->learned.worth_s;
        tuner->learned.worth_s = before_s > 0 ? (before_s + seen_s) / 2 : seen_s;
    }
    free(samples);
    return MGW_OK;
}

mgw_status tune_learn(mgw_tuner *tuner, const double *combined, mgw_error *error)
{
    view v = {tuner, combined, combined + TUNE_RECENT * sums_of(tuner)};
    learn_ready(&tuner->learned, &v);
    learn_steps(&tuner->learned, &v);
    mgw_status status = learn_slowdown(tuner, &v, error);
    return status ? status : learn_worth(tuner, &v, error);
}
