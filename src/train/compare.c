/* Comparing policies: the same steps under each in turn, from the same weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/median.h"
#include "nn/random.h"
#include "train/loop.h"

typedef struct outcome {
    mgw_policy policy;
    size_t messages[CLI_ROUNDS_MAX];
    double iteration_s[CLI_ROUNDS_MAX];
    double compute_s[CLI_ROUNDS_MAX];
    double predicted_s[CLI_ROUNDS_MAX];
    uint32_t checksum[CLI_ROUNDS_MAX]; /* of the weights after the round */
} outcome;

typedef struct comparison {
    training *t;
    outcome *outcomes;
    size_t count;
    unsigned rounds; /* that are done */
    unsigned steps;
    bool stops;           /* somebody was interrupted */
    nn_progress progress; /* where the round begins */
    float *numbers;
    uint32_t *order; /* of the policies, another one in every round */
    double *times_s; /* of the steps of a policy in a round: iterations, then computation */
} comparison;

static mgw_status run_step(comparison *c, unsigned step, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    double loss = 0;
    mgw_timeline *timeline = NULL;
    mgw_status status = nn_worker_step(w, &loss, error);
    if (!status)
        status = mgw_engine_timeline(w->engine, &timeline, error);
    if (status)
        return status;
    c->times_s[step] = timeline->spans[timeline->span_count - 1].end_s;
    c->times_s[c->steps + step] = timeline->spans[0].end_s;
    mgw_timeline_destroy(timeline);
    return MGW_OK;
}

/* All workers hear of it, so that they stop together. */
static mgw_status ask_whether_to_stop(comparison *c, mgw_error *error)
{
    double stops = cli_train_interrupted();
    mgw_status status = nn_worker_most(c->t->worker, &stops, 1, error);
    c->stops = stops > 0;
    return status;
}

/* Steps under the policy, from the weights that the round begins with. */
static mgw_status run_steps(comparison *c, const mgw_policy *policy, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    char name[MGW_POLICY_NAME_MAX];
    nn_worker_restore(w, &c->progress, c->numbers);
    mgw_status status = mgw_engine_set_policy(w->engine, mgw_policy_name(policy, name), error);
    for (unsigned i = 0; !status && i < c->steps; i++)
        status = run_step(c, i, error);
    return status ? status : ask_whether_to_stop(c, error);
}

/*
 * Twice: messages share the cores with computation, so that gradients come later under some
 * policies than under others. The first steps show when they come under this one, and the second
 * are planned from that, as in a training of its own. Of each step the slowest worker counts, and
 * of a round the median of its steps: one that something else has held up counts no more than any
 * other.
 */
static mgw_status run_policy(comparison *c, outcome *o, unsigned round, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    mgw_status status = run_steps(c, &o->policy, error);
    if (!status && !c->stops)
        status = run_steps(c, &o->policy, error);
    if (status || c->stops)
        return status;
    status = nn_worker_most(w, c->times_s, 2 * (size_t)c->steps, error);
    if (status)
        return status;
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    o->iteration_s[round] = mgw_median(c->times_s, c->steps);
    o->compute_s[round] = mgw_median(c->times_s + c->steps, c->steps);
    o->predicted_s[round] = s.predicted_s;
    o->messages[round] = s.messages;
    o->checksum[round] = nn_state_checksum(&w->state);
    return MGW_OK;
}

static mgw_status run_round(comparison *c, unsigned round, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    mgw_status status = MGW_OK;
    c->progress = w->state.progress;
    nn_state_copy_out(&w->state, c->numbers);
    /* Who comes first, and who after whom, shall favour nobody. All workers draw the same. */
    nn_random random = nn_random_of(c->t->options.seed, round);
    nn_random_order(&random, c->order, (uint32_t)c->count);
    for (size_t i = 0; !status && !c->stops && i < c->count; i++)
        status = run_policy(c, &c->outcomes[c->order[i]], round, error);
    return status;
}

/* Rounds that are done count, though there may be fewer of them than were wanted. */
static mgw_status run_rounds(comparison *c, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    unsigned wanted = c->t->rounds;
    mgw_status status = MGW_OK;
    for (int i = 0; !status && !c->stops && i < 6; i++) { /* which the engine measures to plan */
        double loss = 0;
        status = nn_worker_step(w, &loss, error);
        if (!status)
            status = ask_whether_to_stop(c, error);
    }
    while (!status && !c->stops && c->rounds < wanted) {
        status = run_round(c, c->rounds, error);
        if (status || c->stops)
            break;
        c->rounds++;
        if (w->rank == 0 && !c->t->json)
            fprintf(stderr, "round %u of %u is done\n", c->rounds, wanted);
    }
    if (!status && c->rounds == 0)
        status = cli_fail(error, "interrupted before the first round was done");
    return status;
}

/* What is told of a policy: medians over the rounds. */
typedef struct summary {
    char policy[MGW_POLICY_NAME_MAX];
    double iteration_s;
    double spread;
    double compute_s;
    double predicted_s;
    double ratio; /* of the iteration to the reference's in the same round */
    double ratio_low, ratio_high;
} summary;

/* All policies are held against the optimal plan, or against the first of them. */
static const outcome *reference_of(const comparison *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->outcomes[i].policy.kind == MGW_OPTIMAL)
            return &c->outcomes[i];
    return &c->outcomes[0];
}

static summary summarise(const comparison *c, const outcome *o)
{
    const outcome *reference = reference_of(c);
    outcome sorted = *o;
    double ratio[CLI_ROUNDS_MAX];
    for (unsigned r = 0; r < c->rounds; r++)
        ratio[r] = o->iteration_s[r] / reference->iteration_s[r];
    summary s;
    mgw_policy_name(&o->policy, s.policy);
    s.iteration_s = cli_median(sorted.iteration_s, c->rounds, &s.spread);
    s.compute_s = mgw_median(sorted.compute_s, c->rounds);
    s.predicted_s = mgw_median(sorted.predicted_s, c->rounds);
    s.ratio = mgw_median(ratio, c->rounds);
    mgw_median_interval(ratio, c->rounds, &s.ratio_low, &s.ratio_high);
    return s;
}

static void write_json(const comparison *c, mgw_text *text)
{
    for (size_t i = 0; i < c->count; i++) {
        const outcome *o = &c->outcomes[i];
        summary s = summarise(c, o);
        mgw_text_printf(
            text,
            "{\"event\": \"compare\", \"policy\": \"%s\", \"workers\": %u, \"messages\": %zu, "
            "\"iteration_s\": %.9g, \"spread\": %.6g, \"ratio\": %.6g, \"ratio_low\": %.6g, "
            "\"ratio_high\": %.6g, \"compute_s\": %.9g, \"exposed_s\": %.9g, "
            "\"predicted_s\": %.9g, \"weights\": \"%08" PRIx32 "\"}\n",
            s.policy, c->t->worker->size, o->messages[c->rounds - 1], s.iteration_s, s.spread,
            s.ratio, s.ratio_low, s.ratio_high, s.compute_s, s.iteration_s - s.compute_s,
            s.predicted_s, o->checksum[c->rounds - 1]);
    }
}

static void write_table(const comparison *c, mgw_text *text)
{
    mgw_table *table = mgw_table_create(
        "<policy|messages|iteration|ratio|compute|exposed|predicted|difference|weights");
    for (size_t i = 0; i < c->count; i++) {
        const outcome *o = &c->outcomes[i];
        summary s = summarise(c, o);
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", s.policy);
        mgw_table_cell(table, "%zu", o->messages[c->rounds - 1]);
        mgw_table_cell(table, "%s", mgw_format_seconds(s.iteration_s, units));
        mgw_table_cell(table, "%.3f (%.3f to %.3f)", s.ratio, s.ratio_low, s.ratio_high);
        mgw_table_cell(table, "%s", mgw_format_seconds(s.compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(s.iteration_s - s.compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(s.predicted_s, units));
        mgw_table_cell(table, "%+.1f%%", 100 * (s.iteration_s / s.predicted_s - 1));
        mgw_table_cell(table, "%08" PRIx32, o->checksum[c->rounds - 1]);
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

static mgw_status print(const comparison *c, mgw_error *error)
{
    if (c->t->worker->rank != 0)
        return MGW_OK;
    mgw_text text;
    mgw_text_init(&text);
    if (c->t->json)
        write_json(c, &text);
    else
        write_table(c, &text);
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status allocate(comparison *c, mgw_error *error)
{
    c->outcomes = calloc(c->count, sizeof *c->outcomes);
    c->numbers = nn_allocate(nn_state_count(&c->t->worker->state));
    c->order = calloc(c->count, sizeof *c->order);
    c->times_s = calloc(c->steps, 2 * sizeof *c->times_s);
    if (!c->outcomes || !c->numbers || !c->order || !c->times_s)
        return cli_fail(error, "out of memory");
    for (size_t i = 0; i < c->count; i++)
        c->outcomes[i].policy = c->t->policies[i];
    return MGW_OK;
}

mgw_status cli_train_compare(training *t, mgw_error *error)
{
    comparison c = {.t = t, .count = t->policy_count, .steps = t->steps ? t->steps : 5};
    mgw_status status = allocate(&c, error);
    if (!status)
        status = run_rounds(&c, error);
    if (!status)
        status = print(&c, error);
    free(c.outcomes);
    free(c.numbers);
    free(c.order);
    free(c.times_s);
    return status;
}
