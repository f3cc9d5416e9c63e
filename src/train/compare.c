/* Compares policies: rounds over all of them, and their results. */
#include "train/compare.h"

#include <stdlib.h>

#include "base/median.h"
#include "base/status.h"
#include "job/interrupt.h"
#include "nn/random.h"
#include "train/update.h"

enum { AROUND = 2 }; /* steps before and after those that count */

typedef struct outcome {
    mgw_policy policy;
    size_t messages[TRAIN_ROUNDS_MAX];
    double iteration_s[TRAIN_ROUNDS_MAX];
    double compute_s[TRAIN_ROUNDS_MAX];
    double predicted_s[TRAIN_ROUNDS_MAX];
    uint32_t checksum[TRAIN_ROUNDS_MAX]; /* of the weights after the round */
} outcome;

typedef struct comparison {
    train_worker *worker;
    const train_compare_options *options;
    outcome *outcomes;
    size_t count;
    unsigned rounds; /* completed rounds */
    unsigned steps;
    int stops;            /* the signal that interrupted a worker, or 0 */
    nn_progress progress; /* progress at the start of the round */
    float *row;           /* and the state */
    uint32_t *order;      /* order of the policies, different in every round */
    double *begins_s;     /* start times of the steps of a policy in a round */
    double *times_s;      /* times of those that count, and of their computation */
} comparison;

/* All workers agree, so that they stop together. */
static mgw_status ask_whether_to_stop(comparison *c, mgw_error *error)
{
    double stops = job_interrupted();
    mgw_status status = train_worker_most(c->worker, &stops, 1, error);
    c->stops = (int)stops;
    return status;
}

/* Runs steps with the policy, from the state at the start of the round. Shards move first. */
static mgw_status run_steps(comparison *c, const mgw_policy *policy, unsigned steps,
                            mgw_error *error)
{
    train_worker *w = c->worker;
    char name[MGW_POLICY_NAME_MAX];
    mgw_status status = train_row_in(w, c->row, error);
    train_worker_go_to(w, &c->progress);
    if (!status)
        status = mgw_engine_set_policy(w->engine, mgw_policy_name(policy, name), error);
    for (unsigned i = 0; !status && i < steps; i++) {
        double loss = 0;
        status = train_worker_step(w, &loss, error);
        c->begins_s[i] = w->begin_s;
    }
    return status ? status : ask_whether_to_stop(c, error);
}

/*
 * Runs the steps twice. Messages share the cores with computation, so gradients are ready later
 * with some policies than with others. The first run measures when they are ready with this policy,
 * and the second is planned from that, as in a separate training run. A step counts from its start
 * to the start of the next, since its messages may last until then; so there is one step before,
 * whose messages the first one has to wait for, and one after. The time of a step is that of the
 * slowest worker, and the time of a round is the median of its steps, so that a delay in one step
 * does not matter.
 */
static mgw_status run_policy(comparison *c, outcome *o, unsigned round, mgw_error *error)
{
    train_worker *w = c->worker;
    mgw_status status = run_steps(c, &o->policy, c->steps, error);
    if (!status && !c->stops)
        status = run_steps(c, &o->policy, c->steps + AROUND, error);
    if (status || c->stops)
        return status;
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    for (unsigned i = 0; i < c->steps; i++)
        c->times_s[i] = c->begins_s[i + 2] - c->begins_s[i + 1];
    c->times_s[c->steps] = s.compute_s;
    status = train_worker_most(w, c->times_s, c->steps + 1, error);
    if (!status)
        status = train_update_drain(w, error);
    if (status)
        return status;
    o->iteration_s[round] = mgw_median(c->times_s, c->steps);
    o->compute_s[round] = c->times_s[c->steps];
    o->predicted_s[round] = s.predicted_s;
    o->messages[round] = s.messages;
    o->checksum[round] = nn_state_checksum(&w->state);
    return MGW_OK;
}

static mgw_status run_round(comparison *c, unsigned round, mgw_error *error)
{
    train_worker *w = c->worker;
    c->progress = w->state.progress;
    mgw_status status = train_row_out(w, c->row, error);
    /* The order must not favour any policy. All workers draw the same order. */
    nn_random random = nn_random_of(w->options.seed, round);
    nn_random_order(&random, c->order, (uint32_t)c->count);
    for (size_t i = 0; !status && !c->stops && i < c->count; i++) {
        status = run_policy(c, &c->outcomes[c->order[i]], round, error);
        if (c->options->progress && w->rank == 0)
            c->options->progress(c->options->context,
                                 ((double)round + (double)(i + 1) / (double)c->count) /
                                     c->options->rounds);
    }
    return status;
}

/* Completed rounds count, even if there are fewer than requested. */
static mgw_status run_rounds(comparison *c, mgw_error *error)
{
    train_worker *w = c->worker;
    unsigned wanted = c->options->rounds;
    mgw_status status = MGW_OK;
    for (int i = 0; !status && !c->stops && i < 6; i++) { /* which the engine measures to plan */
        double loss = 0;
        status = train_worker_step(w, &loss, error);
        if (!status)
            status = ask_whether_to_stop(c, error);
    }
    (void)train_judge_reference(w->program, 1, w->rank == 0 ? c->options->warn : NULL);
    while (!status && !c->stops && c->rounds < wanted) {
        status = run_round(c, c->rounds, error);
        if (status || c->stops)
            break;
        c->rounds++;
        if (c->options->round)
            c->options->round(w, c->rounds, wanted);
    }
    if (!status && c->rounds == 0)
        status =
            mgw_fail(error, MGW_ERR_UNSUPPORTED, "interrupted before the first round was done");
    return status;
}

/* Policies are compared with the optimal plan, or with the first policy. */
static const outcome *reference_of(const comparison *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->outcomes[i].policy.kind == MGW_OPTIMAL)
            return &c->outcomes[i];
    return &c->outcomes[0];
}

static train_row summarise(const comparison *c, const outcome *o)
{
    const outcome *reference = reference_of(c);
    outcome sorted = *o;
    double ratio[TRAIN_ROUNDS_MAX];
    for (unsigned r = 0; r < c->rounds; r++)
        ratio[r] = o->iteration_s[r] / reference->iteration_s[r];
    train_row row = {.messages = o->messages[c->rounds - 1],
                     .checksum = o->checksum[c->rounds - 1]};
    mgw_policy_name(&o->policy, row.policy);
    row.iteration_s = mgw_median(sorted.iteration_s, c->rounds);
    row.spread = (sorted.iteration_s[c->rounds - 1] - sorted.iteration_s[0]) / row.iteration_s;
    row.compute_s = mgw_median(sorted.compute_s, c->rounds);
    row.predicted_s = mgw_median(sorted.predicted_s, c->rounds);
    row.ratio = mgw_median(ratio, c->rounds);
    mgw_median_interval(ratio, c->rounds, &row.ratio_low, &row.ratio_high);
    return row;
}

static mgw_status allocate(comparison *c, mgw_error *error)
{
    c->outcomes = calloc(c->count, sizeof *c->outcomes);
    c->row = nn_allocate(nn_state_count(&c->worker->state));
    c->order = calloc(c->count, sizeof *c->order);
    c->begins_s = calloc(c->steps + AROUND, sizeof *c->begins_s);
    c->times_s = calloc(c->steps + 1, sizeof *c->times_s);
    if (!c->outcomes || !c->row || !c->order || !c->begins_s || !c->times_s)
        return mgw_fail_memory(error, "comparison");
    for (size_t i = 0; i < c->count; i++)
        c->outcomes[i].policy = c->options->policies[i];
    return MGW_OK;
}

mgw_status train_compare(train_worker *w, const train_compare_options *options, train_row **rows,
                         int *stopped_by, mgw_error *error)
{
    comparison c = {
        .worker = w, .options = options, .count = options->policy_count, .steps = options->steps};
    train_row *made = calloc(c.count, sizeof *made);
    mgw_status status = made ? allocate(&c, error) : mgw_fail_memory(error, "comparison");
    if (!status)
        status = run_rounds(&c, error);
    *stopped_by = c.stops;
    for (size_t i = 0; !status && i < c.count; i++)
        made[i] = summarise(&c, &c.outcomes[i]);
    if (status)
        free(made);
    else
        *rows = made;
    free(c.outcomes);
    free(c.row);
    free(c.order);
    free(c.begins_s);
    free(c.times_s);
    return status;
}
