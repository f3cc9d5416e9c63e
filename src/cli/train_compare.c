/* Comparing policies: the same steps under each in turn, from the same weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/training.h"

enum { ROUNDS_MAX = 1000 };

typedef struct outcome {
    mgw_policy policy;
    size_t messages;
    double iteration_s[ROUNDS_MAX];
    double compute_s[ROUNDS_MAX];
    double predicted_s[ROUNDS_MAX];
    uint32_t checksum; /* of the weights after the last round */
} outcome;

typedef struct comparison {
    training *t;
    outcome *outcomes;
    size_t count;
    unsigned rounds;
    unsigned steps;
    nn_progress progress; /* where the round begins */
    float *numbers;
} comparison;

static mgw_status run_policy(comparison *c, outcome *o, unsigned round, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    char name[MGW_POLICY_NAME_MAX];
    nn_worker_restore(w, &c->progress, c->numbers);
    mgw_status status = mgw_engine_set_policy(w->engine, mgw_policy_name(&o->policy, name), error);
    for (unsigned i = 0; !status && i < c->steps; i++) {
        double loss = 0;
        status = nn_worker_step(w, &loss, error);
    }
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    double slowest[] = {s.iteration_s, s.compute_s};
    if (!status)
        status = nn_worker_most(w, slowest, 2, error);
    o->iteration_s[round] = slowest[0];
    o->compute_s[round] = slowest[1];
    o->predicted_s[round] = s.predicted_s;
    o->messages = s.messages;
    o->checksum = nn_state_checksum(&w->state);
    return status;
}

static mgw_status run_rounds(comparison *c, mgw_error *error)
{
    nn_worker *w = c->t->worker;
    mgw_status status = MGW_OK;
    for (int i = 0; !status && i < 6; i++) { /* what the engine measures before it plans */
        double loss = 0;
        status = nn_worker_step(w, &loss, error);
    }
    for (unsigned round = 0; !status && round < c->rounds; round++) {
        c->progress = w->state.progress;
        nn_state_copy_out(&w->state, c->numbers);
        for (size_t i = 0; !status && i < c->count; i++)
            status = run_policy(c, &c->outcomes[i], round, error);
        if (!status && w->rank == 0 && !c->t->json)
            fprintf(stderr, "round %u of %u is done\n", round + 1, c->rounds);
    }
    return status;
}

static void write_json(comparison *c, mgw_text *text)
{
    for (size_t i = 0; i < c->count; i++) {
        outcome *o = &c->outcomes[i];
        char name[MGW_POLICY_NAME_MAX];
        double spread = 0;
        double iteration_s = cli_median(o->iteration_s, c->rounds, &spread);
        double compute_s = cli_median(o->compute_s, c->rounds, NULL);
        mgw_text_printf(
            text,
            "{\"event\": \"compare\", \"policy\": \"%s\", \"workers\": %u, \"messages\": %zu, "
            "\"iteration_s\": %.9g, \"spread\": %.6g, \"compute_s\": %.9g, \"exposed_s\": %.9g, "
            "\"predicted_s\": %.9g, \"weights\": \"%08" PRIx32 "\"}\n",
            mgw_policy_name(&o->policy, name), c->t->worker->size, o->messages, iteration_s, spread,
            compute_s, iteration_s - compute_s, cli_median(o->predicted_s, c->rounds, NULL),
            o->checksum);
    }
}

static void write_table(comparison *c, mgw_text *text)
{
    mgw_table *table = mgw_table_create(
        "<policy|messages|iteration|spread|compute|exposed|predicted|difference|weights");
    for (size_t i = 0; i < c->count; i++) {
        outcome *o = &c->outcomes[i];
        char units[MGW_UNITS_MAX];
        char name[MGW_POLICY_NAME_MAX];
        double spread = 0;
        double iteration_s = cli_median(o->iteration_s, c->rounds, &spread);
        double compute_s = cli_median(o->compute_s, c->rounds, NULL);
        double predicted_s = cli_median(o->predicted_s, c->rounds, NULL);
        mgw_table_cell(table, "%s", mgw_policy_name(&o->policy, name));
        mgw_table_cell(table, "%zu", o->messages);
        mgw_table_cell(table, "%s", mgw_format_seconds(iteration_s, units));
        mgw_table_cell(table, "%.1f%%", 100 * spread);
        mgw_table_cell(table, "%s", mgw_format_seconds(compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(iteration_s - compute_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(predicted_s, units));
        mgw_table_cell(table, "%+.1f%%", 100 * (iteration_s / predicted_s - 1));
        mgw_table_cell(table, "%08" PRIx32, o->checksum);
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

static mgw_status print(comparison *c, mgw_error *error)
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

mgw_status cli_train_compare(training *t, mgw_error *error)
{
    comparison c = {.t = t, .steps = t->steps ? t->steps : 5};
    mgw_policy *policies = NULL;
    const char *list = cli_value(t->args, "policy");
    mgw_status status = cli_count(t->args, "rounds", 3, ROUNDS_MAX, &c.rounds, error);
    if (!status)
        status = cli_policy_list(list ? list : "all", &policies, &c.count, error);
    if (!status) {
        c.outcomes = calloc(c.count, sizeof *c.outcomes);
        c.numbers = nn_allocate(nn_state_count(&t->worker->state));
        if (!c.outcomes || !c.numbers)
            status = cli_fail(error, "out of memory");
    }
    for (size_t i = 0; !status && i < c.count; i++)
        c.outcomes[i].policy = policies[i];
    if (!status)
        status = run_rounds(&c, error);
    if (!status)
        status = print(&c, error);
    free(c.outcomes);
    free(c.numbers);
    free(policies);
    return status;
}
