/* What the last steps have shown, of all workers together: when each gradient was there, how long
 * messages took, and what they took from computation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/status.h"
#include "engine/engine.h"

/*
 * A row has a column for how late the step was begun, one for each tensor, and two for each
 * message: how long it took, and how long it kept a core busy. On a device tensors take turns, so
 * that a row is not one step; the rest is 0 there.
 */
enum { LATE = 0, TENSORS = 1 };

static size_t column_count(const mgw_engine *engine)
{
    return TENSORS + engine->tensor_count + 2 * engine->message_count;
}

static size_t took_column(const mgw_engine *engine, size_t m)
{
    return TENSORS + engine->tensor_count + m;
}

static size_t busy_column(const mgw_engine *engine, size_t m)
{
    return TENSORS + engine->tensor_count + engine->message_count + m;
}

/* However many messages there are. */
static size_t columns_max(const mgw_engine *engine)
{
    return TENSORS + 3 * engine->tensor_count;
}

static void note(mgw_engine *engine, size_t column, double seconds)
{
    size_t row = engine->recent_count[column]++ % ENGINE_RECENT;
    engine->recent_s[row * column_count(engine) + column] = seconds;
}

mgw_status engine_recent_allocate(mgw_engine *engine, mgw_error *error)
{
    size_t most = columns_max(engine);
    engine->recent_s = calloc(ENGINE_RECENT * most, sizeof *engine->recent_s);
    engine->recent_count = calloc(most, sizeof *engine->recent_count);
    engine->known_ready_s = calloc(engine->tensor_count, sizeof *engine->known_ready_s);
    engine->step_ready_s =
        calloc(ENGINE_RECENT * engine->tensor_count, sizeof *engine->step_ready_s);
    engine->slowdown = 1;
    bool all =
        engine->recent_s && engine->recent_count && engine->known_ready_s && engine->step_ready_s;
    return all ? MGW_OK : mgw_fail_memory(error, "engine");
}

void engine_recent_free(mgw_engine *engine)
{
    free(engine->recent_s);
    free(engine->recent_count);
    free(engine->known_ready_s);
    free(engine->step_ready_s);
}

void engine_recent_forget(mgw_engine *engine)
{
    size_t most = columns_max(engine);
    memset(engine->recent_s, 0, ENGINE_RECENT * most * sizeof *engine->recent_s);
    memset(engine->recent_count, 0, most * sizeof *engine->recent_count);
}

void engine_note_ready(mgw_engine *engine, size_t tensor, double seconds)
{
    note(engine, TENSORS + tensor, seconds);
}

void engine_note_step(mgw_engine *engine)
{
    note(engine, LATE, engine->late_s);
    for (size_t i = 0; i < engine->tensor_count; i++)
        engine_note_ready(engine, i, engine->ready_s[i]);
    for (size_t m = 0; m < engine->message_count; m++) {
        const engine_message *message = &engine->messages[m];
        note(engine, took_column(engine, m), message->end_s - message->start_s);
        note(engine, busy_column(engine, m), message->busy_s);
    }
}

/* ---- All workers' rows ---- */

typedef struct view {
    const mgw_engine *engine;
    const double *rows; /* by rank, row, column */
} view;

static double at(const view *v, unsigned rank, size_t row, size_t column)
{
    return v->rows[(rank * (size_t)ENGINE_RECENT + row) * column_count(v->engine) + column];
}

/*
 * When a message with this tensor could have begun: when the last worker had it. Workers are not
 * equally late in every step, and do not begin it at the same time; the end of the step before is
 * common to all. So that is the origin, and what an average worker was late is left out. 0: the
 * row has no such time.
 */
static double latest_ready(const view *v, size_t row, size_t tensor)
{
    double latest_s = 0;
    double late_sum_s = 0;
    bool known = false;
    for (unsigned r = 0; r < v->engine->size; r++) {
        double late_s = at(v, r, row, LATE);
        double ready_s = at(v, r, row, TENSORS + tensor);
        late_sum_s += late_s;
        latest_s = fmax(latest_s, late_s + ready_s);
        known = known || ready_s > 0;
    }
    return known ? fmax(latest_s - late_sum_s / v->engine->size, 0) : 0;
}

/* The median over steps: one in which a worker was held up counts no more than any other. */
static void learn_ready(mgw_engine *engine, const view *v)
{
    double latest_s = 0; /* never falling: a message waits for all before it */
    for (size_t i = 0; i < engine->tensor_count; i++) {
        double times[ENGINE_RECENT];
        size_t count = 0;
        for (size_t k = 0; k < ENGINE_RECENT; k++) {
            times[count] = latest_ready(v, k, i);
            count += times[count] > 0;
        }
        if (count) /* who was not measured since then is as before */
            engine->known_ready_s[i] = mgw_median(times, count);
        latest_s = fmax(latest_s, engine->known_ready_s[i]);
        engine->known_ready_s[i] = latest_s;
    }
}

static bool is_known(const view *v, size_t row)
{
    bool known = true;
    for (size_t i = 0; known && i < v->engine->tensor_count; i++)
        known = latest_ready(v, row, i) > 0;
    return known;
}

/* The steps one by one. If there was none since the last look, they are as before. */
static void learn_steps(mgw_engine *engine, const view *v)
{
    size_t n = engine->tensor_count;
    size_t count = 0;
    for (size_t k = 0; k < ENGINE_RECENT && !engine->device; k++) {
        double *ready_s = engine->step_ready_s + count * n;
        double latest_s = 0;
        if (!is_known(v, k))
            continue;
        for (size_t i = 0; i < n; i++)
            ready_s[i] = latest_s = fmax(latest_s, latest_ready(v, k, i));
        count++;
    }
    if (count)
        engine->known_steps = count;
}

/*
 * How many times T(M) the messages of a step took that were sent beside computation: all but the
 * last one. What a worker waited for another is left out: who came last has not waited.
 */
static double slowdown_of(const view *v, const mgw_cost *cost, size_t row)
{
    const mgw_engine *engine = v->engine;
    double took_s = 0;
    double alone_s = 0;
    for (size_t m = 0; m + 1 < engine->message_count; m++) {
        double least_s = HUGE_VAL;
        for (unsigned r = 0; r < engine->size; r++)
            least_s = fmin(least_s, at(v, r, row, took_column(engine, m)));
        took_s += least_s;
        alone_s += mgw_cost_seconds(cost, MGW_ALL_REDUCE,
                                    engine_message_bytes(engine, &engine->messages[m]));
    }
    return alone_s > 0 ? took_s / alone_s : 0;
}

/* As computation and messages that share cores and memory may: never faster than alone. */
static const double slowest = 8;

static void learn_slowdown(mgw_engine *engine, const view *v)
{
    if (engine->after_backward) /* nothing was beside them */
        return;
    mgw_cost cost;
    mgw_cluster_cost(engine->cluster, &cost);
    double factors[ENGINE_RECENT];
    size_t count = 0;
    for (size_t k = 0; k < ENGINE_RECENT; k++) {
        factors[count] = slowdown_of(v, &cost, k);
        count += factors[count] > 0;
    }
    if (!count)
        return;
    double seen = fmin(fmax(mgw_median(factors, count), 1), slowest);
    engine->slowdown = sqrt(engine->slowdown * seen); /* half of the way: plans shall not swing */
}

/* How long message m kept a core busy, on average over workers. 0: it was not measured. */
static double busy_of(const view *v, size_t m)
{
    double times[ENGINE_RECENT];
    size_t count = 0;
    for (size_t k = 0; k < ENGINE_RECENT; k++) {
        double sum_s = 0;
        for (unsigned r = 0; r < v->engine->size; r++)
            sum_s += at(v, r, k, busy_column(v->engine, m));
        times[count] = sum_s / v->engine->size;
        count += sum_s > 0;
    }
    return count ? mgw_median(times, count) : 0;
}

/*
 * Where computation keeps all cores busy, each message holds it up, by what it takes of a core
 * whatever its size; and so do those of the other workers on that core.
 */
static mgw_status learn_worth(mgw_engine *engine, const view *v, mgw_error *error)
{
    mgw_sample *samples = malloc(engine->message_count * sizeof *samples);
    if (!samples)
        return mgw_fail_memory(error, "engine");
    size_t count = 0;
    for (size_t m = 0; m < engine->message_count; m++) {
        samples[count] =
            (mgw_sample){engine_message_bytes(engine, &engine->messages[m]), busy_of(v, m)};
        count += samples[count].seconds > 0;
    }
    mgw_fit fit;
    mgw_error not_two_sizes;
    if (count > 1 && !mgw_fit_line(samples, count, &fit, &not_two_sizes)) {
        double seen_s = fit.line.a_s * engine->crowd;
        engine->worth_s = engine->worth_s > 0 ? (engine->worth_s + seen_s) / 2 : seen_s;
    }
    free(samples);
    return MGW_OK;
}

mgw_status engine_recent_gather(mgw_engine *engine, mgw_error *error)
{
    double *rows = NULL;
    mgw_status status = engine_exchange(engine, engine->recent_s,
                                        ENGINE_RECENT * column_count(engine), &rows, error);
    if (status)
        return status;
    view v = {engine, rows};
    learn_ready(engine, &v);
    learn_steps(engine, &v);
    learn_slowdown(engine, &v);
    status = learn_worth(engine, &v, error);
    free(rows);
    return status;
}
