/* Learns from the last steps of all workers: when each gradient was ready, how long messages took,
 * and how much they slowed down computation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"
#include "tune/tuner.h"

/*
 * The row that workers combine. For each step it has numbers that are summed over workers: how late
 * the step began, how long each operation kept a core busy and, if parameters are gathered, when
 * each was needed and by how many workers. Then numbers whose maximum counts: how long the step
 * took, when each gradient was ready after the previous step, and the negated time of each
 * operation, so that the shortest counts. The sums of all steps come first, then the maxima. If
 * tensors are sampled, a row is not a single step; if operations are not timed, their numbers are
 * 0.
 */
static size_t operation_count(const mgw_tuner *tuner)
{
    size_t count = 0;
    mgw_tuner_operations(tuner, &count);
    return count;
}

static size_t sums_of(const mgw_tuner *tuner)
{
    return 1 + operation_count(tuner) + (tune_gathers(tuner) ? 2 * tuner->tensor_count : 0);
}

static size_t maxima_of(const mgw_tuner *tuner)
{
    return 1 + tuner->tensor_count + operation_count(tuner);
}

/* Positions in a row. Column 0 is for the step itself. */
static size_t sum_at(const mgw_tuner *tuner, size_t step, size_t column)
{
    return step * sums_of(tuner) + column;
}

static size_t maximum_at(const mgw_tuner *tuner, size_t step, size_t column)
{
    return TUNE_RECENT * sums_of(tuner) + step * maxima_of(tuner) + column;
}

void tune_recent_size(const mgw_tuner *tuner, size_t *sums, size_t *maxima)
{
    *sums = TUNE_RECENT * sums_of(tuner);
    *maxima = TUNE_RECENT * maxima_of(tuner);
}

/* Enough for any plan, which has at most two operations per tensor. */
static size_t row_max(const mgw_tuner *tuner)
{
    return TUNE_RECENT * (2 + 7 * tuner->tensor_count);
}

mgw_status tune_recent_init(mgw_tuner *tuner, mgw_error *error)
{
    size_t n = tuner->tensor_count;
    tune_learned *learned = &tuner->learned;
    tuner->recent.row = calloc(row_max(tuner), sizeof *tuner->recent.row);
    tuner->recent.counts = calloc(n, sizeof *tuner->recent.counts);
    learned->ready_s = calloc(n, sizeof *learned->ready_s);
    learned->need_s = calloc(n, sizeof *learned->need_s);
    learned->step_ready_s = calloc(TUNE_RECENT * n, sizeof *learned->step_ready_s);
    learned->slowdown = 1;
    bool all = tuner->recent.row && tuner->recent.counts && learned->ready_s && learned->need_s &&
               learned->step_ready_s;
    for (size_t i = 0; all && i < n; i++)
        learned->need_s[i] = MGW_TIME_UNKNOWN;
    return all ? tune_model_init(tuner, error) : mgw_fail_memory(error, "tuner");
}

void tune_recent_fini(mgw_tuner *tuner)
{
    free(tuner->recent.row);
    free(tuner->recent.counts);
    free(tuner->learned.ready_s);
    free(tuner->learned.need_s);
    free(tuner->learned.step_ready_s);
    tune_model_fini(tuner);
}

void tune_recent_forget(mgw_tuner *tuner)
{
    tuner->recent.steps = 0;
    memset(tuner->recent.row, 0, row_max(tuner) * sizeof *tuner->recent.row);
    memset(tuner->recent.counts, 0, tuner->tensor_count * sizeof *tuner->recent.counts);
}

/* The column with the time at which a tensor was needed; the next column says whether it was. */
static size_t need_column(const mgw_tuner *tuner, size_t tensor)
{
    return 1 + operation_count(tuner) + 2 * tensor;
}

static void note_need(mgw_tuner *tuner, size_t step, size_t tensor, double need_s)
{
    double *to = &tuner->recent.row[sum_at(tuner, step, need_column(tuner, tensor))];
    to[0] = fmax(need_s, 0);
    to[1] = need_s >= 0;
}

void tune_recent_observe(mgw_tuner *tuner, const mgw_step_record *record)
{
    double *row = tuner->recent.row;
    size_t n = tuner->tensor_count;
    size_t step = tuner->recent.steps++ % TUNE_RECENT;
    row[sum_at(tuner, step, 0)] = record->late_s;
    row[maximum_at(tuner, step, 0)] = record->iteration_s;
    for (size_t i = 0; i < n; i++)
        if (!tuner->options.sampled || record->ready_s[i] > 0) {
            size_t turn = tuner->recent.counts[i]++ % TUNE_RECENT;
            row[maximum_at(tuner, turn, 1 + i)] = record->ready_s[i];
            if (tune_gathers(tuner))
                note_need(tuner, turn, i, record->need_s ? record->need_s[i] : MGW_NEVER_NEEDED);
        }
    for (size_t m = 0; record->took_s && m < operation_count(tuner); m++) {
        row[sum_at(tuner, step, 1 + m)] = record->busy_s[m];
        row[maximum_at(tuner, step, 1 + n + m)] = -record->took_s[m];
    }
}

void tune_recent_row(const mgw_tuner *tuner, double *row)
{
    memcpy(row, tuner->recent.row, maximum_at(tuner, TUNE_RECENT, 0) * sizeof *row);
    for (size_t k = 0; k < TUNE_RECENT; k++)
        for (size_t i = 0; i < tuner->tensor_count; i++) {
            double *ready_s = &row[maximum_at(tuner, k, 1 + i)];
            *ready_s += *ready_s > 0 ? row[sum_at(tuner, k, 0)] : 0;
        }
}

/* The combined row of all workers. */
typedef struct view {
    const mgw_tuner *tuner;
    const double *row;
    mgw_cost cost; /* of messages without computation */
} view;

static double mean_late_s(const view *v, size_t step)
{
    return v->row[sum_at(v->tuner, step, 0)] / v->tuner->options.size;
}

/* How long operation m kept a core busy, on average over workers. */
static double mean_busy_s(const view *v, size_t step, size_t m)
{
    return v->row[sum_at(v->tuner, step, 1 + m)] / v->tuner->options.size;
}

static double longest_s(const view *v, size_t step, size_t unused)
{
    (void)unused;
    return v->row[maximum_at(v->tuner, step, 0)];
}

static double shortest_took_s(const view *v, size_t step, size_t m)
{
    return -v->row[maximum_at(v->tuner, step, 1 + v->tuner->tensor_count + m)];
}

/*
 * When a message with this tensor could have begun: when it was ready on the last worker. Workers
 * do not begin a step at the same time, but the end of the previous step is common to all. So times
 * count from there, minus the mean lateness of workers. 0: the row has no such time.
 */
static double latest_ready_s(const view *v, size_t step, size_t tensor)
{
    double latest_s = v->row[maximum_at(v->tuner, step, 1 + tensor)];
    return latest_s > 0 ? fmax(latest_s - mean_late_s(v, step), 0) : 0;
}

/* Whether any worker needed the tensor, and when, on average over the workers that did. */
static bool was_needed(const view *v, size_t step, size_t tensor, double *when_s)
{
    const double *sums = &v->row[sum_at(v->tuner, step, need_column(v->tuner, tensor))];
    *when_s = sums[0] / fmax(sums[1], 1);
    return sums[1] > 0;
}

/* The median over the steps that have a value, so that a delay in one step does not matter. 0: no
 * step has one. */
static double median_of(const view *v, double (*of)(const view *v, size_t step, size_t index),
                        size_t index)
{
    double values[TUNE_RECENT];
    size_t count = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        values[count] = of(v, k, index);
        count += values[count] > 0;
    }
    return count ? mgw_median(values, count) : 0;
}

/* The median step time of the slowest worker, and its relative uncertainty. 0: there were no steps.
 */
static double usual_step_s(const view *v, double *within)
{
    double values[TUNE_RECENT];
    double low = 0;
    double high = 0;
    size_t count = 0;
    for (size_t k = 0; k < TUNE_RECENT; k++) {
        values[count] = longest_s(v, k, 0);
        count += values[count] > 0;
    }
    if (!count)
        return 0;
    double median_s = mgw_median(values, count);
    mgw_median_interval(values, count, &low, &high);
    *within = (high - low) / 2 / median_s;
    return median_s;
}

/* ---- Learning ---- */

static void learn_ready(tune_learned *learned, const view *v)
{
    double latest_s = 0; /* never decreasing: a message waits for all earlier gradients */
    for (size_t i = 0; i < v->tuner->tensor_count; i++) {
        double ready_s = median_of(v, latest_ready_s, i);
        if (ready_s > 0) /* otherwise keep the previous value */
            learned->ready_s[i] = ready_s;
        latest_s = fmax(latest_s, learned->ready_s[i]);
        learned->ready_s[i] = latest_s;
    }
}

/* A tensor that was ready since the last look but never needed is marked as such. */
static void learn_needs(tune_learned *learned, const view *v)
{
    for (size_t i = 0; tune_gathers(v->tuner) && i < v->tuner->tensor_count; i++) {
        double times[TUNE_RECENT];
        size_t count = 0;
        for (size_t k = 0; k < TUNE_RECENT; k++)
            count += was_needed(v, k, i, &times[count]);
        if (count)
            learned->need_s[i] = mgw_median(times, count);
        else if (median_of(v, latest_ready_s, i) > 0)
            learned->need_s[i] = MGW_NEVER_NEEDED;
    }
}

static bool is_known(const view *v, size_t row)
{
    bool known = true;
    for (size_t i = 0; known && i < v->tuner->tensor_count; i++)
        known = latest_ready_s(v, row, i) > 0;
    return known;
}

/* Records the steps one by one. Without steps since the last look, keeps the previous ones. */
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
 * The slowdown, relative to T(M), of the operations that ran during computation: all but the last
 * one that averages. Uses the shortest time over workers, since the worker that comes last does not
 * wait for others.
 */
static double slowdown_in_step(const view *v, size_t step, size_t unused)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(v->tuner, &count);
    double took_s = 0;
    double alone_s = 0;
    (void)unused;
    size_t last = count - 1;
    while (last > 0 && !mgw_collective_averages(operations[last].kind))
        last--;
    for (size_t m = 0; m < count; m++) {
        if (m == last || shortest_took_s(v, step, m) <= 0) /* gathers of the next step's start */
            continue;
        took_s += shortest_took_s(v, step, m);
        alone_s += mgw_operation_seconds(&v->cost, &operations[m]);
    }
    return alone_s > 0 ? took_s / alone_s : 0;
}

/* The largest plausible slowdown; messages are never faster than alone. */
static const double slowest = 8;

/* 0: not measured, or no operation ran during computation. */
static double slowdown_by_operations(const view *v)
{
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(v->tuner, &count);
    for (size_t m = 0; m < count; m++)
        if (operations[m].release == MGW_AFTER_BACKWARD)
            return 0;
    double factor = median_of(v, slowdown_in_step, 0);
    return factor > 0 ? fmin(fmax(factor, 1), slowest) : 0;
}

/* The predicted step time of the current plan with slowed-down messages. */
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

/* The slowdown of messages that explains the measured step time. */
static mgw_status slowdown_by_steps(const view *v, double *out, mgw_error *error)
{
    double measured_s = median_of(v, longest_s, 0);
    *out = 0;
    if (measured_s <= 0 || !v->tuner->plan)
        return MGW_OK;
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
    size_t count = 0;
    const mgw_operation *operations = mgw_tuner_operations(tuner, &count);
    mgw_status status = MGW_OK;
    if (tune_is_limited(tuner, operations, count)) /* the cost that is known is that of all lanes */
        return MGW_OK;
    if (tuner->options.whole_steps)
        status = slowdown_by_steps(v, &seen, error);
    else
        seen = slowdown_by_operations(v);
    if (status || seen <= 0)
        return status;
    /* Move halfway, so that plans do not oscillate; but all the way at the first plan. */
    bool first = tuner->options.whole_steps && tuner->looks <= 1;
    tuner->learned.slowdown = first ? seen : sqrt(tuner->learned.slowdown * seen);
    return MGW_OK;
}

/*
 * If computation keeps all cores busy, each message delays it by the core time that it needs
 * regardless of its size, and so do the messages of other workers on that core.
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
        bool half = operations[m].kind != MGW_ALL_REDUCE; /* half the work for the same bytes */
        samples[count] =
            (mgw_sample){operations[m].bytes / (half ? 2 : 1), median_of(v, mean_busy_s, m)};
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
    view v = {.tuner = tuner, .row = combined};
    tune_alone(tuner, &v.cost);
    learn_ready(&tuner->learned, &v);
    learn_needs(&tuner->learned, &v);
    learn_steps(&tuner->learned, &v);
    double within = 0;
    double step_s = usual_step_s(&v, &within);
    mgw_status status = learn_slowdown(tuner, &v, error);
    if (!status)
        status = tune_model_learn(tuner, step_s, within, error);
    return status ? status : learn_worth(tuner, &v, error);
}
