/* What train does: its options read, then a worker that trains or compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job.h"
#include "cli/print_train.h"
#include "cli/run.h"
#include "train/checkpoint.h"
#include "train/interrupt.h"

/* The options, read. */
typedef struct setup {
    const cli_args *args;
    train_worker_options worker;
    train_loop_options loop;
    train_compare_options comparison;
    mgw_policy *policies; /* to compare */
    mgw_cluster *network; /* what is emulated, or null */
    mgw_text transport;   /* that emulates it */
    bool json;
} setup;

/* ---- Options ---- */

static const nn_model *find_model(const char *name, mgw_error *error)
{
    const nn_model *model = nn_model_find(name);
    if (model)
        return model;
    char known[256] = "";
    for (size_t i = 0; i < nn_model_count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 nn_models[i].name);
    (void)cli_fail(error, "'%s' is no model; there are %s", name, known);
    return NULL;
}

static bool is_small(const nn_model *model)
{
    return model->size <= 32;
}

static mgw_status read_precision(const cli_args *args, const char **wire, mgw_error *error)
{
    const char *precision = cli_value(args, "precision");
    if (!precision)
        return MGW_OK;
    bool narrow = !strcmp(precision, "bf16-comm");
    if (!narrow && strcmp(precision, "f32") != 0)
        return cli_fail(error, "--precision: '%s': f32 or bf16-comm", precision);
    *wire = narrow ? "bf16" : "f32";
    return MGW_OK;
}

/* Like cli_number, but 0 is a value, too. */
static mgw_status read_share(const cli_args *args, const char *name, double fallback, double most,
                             double *out, mgw_error *error)
{
    const char *value = cli_value(args, name);
    char *end = NULL;
    *out = value ? strtod(value, &end) : fallback;
    if (value && (end == value || *end || !(*out >= 0 && *out <= most)))
        return cli_fail(error, "--%s: '%s': a number from 0 to %g", name, value, most);
    return MGW_OK;
}

static mgw_status read_numbers(const cli_args *args, setup *t, mgw_error *error)
{
    train_worker_options *o = &t->worker;
    unsigned batch = 0;
    unsigned size = 0;
    unsigned threads = 0;
    unsigned epochs = 0;
    unsigned seed = 0;
    unsigned servers = 0;
    mgw_status status =
        cli_count(args, "batch", is_small(o->model) ? 64 : 8, 1 << 16, &batch, error);
    if (!status)
        status = cli_count(args, "size", (unsigned)o->model->size, 4096, &size, error);
    if (!status)
        status = cli_count(args, "threads", 1, 256, &threads, error);
    if (!status)
        status = cli_count(args, "epochs", 5, 100000, &epochs, error);
    if (!status)
        status = cli_count(args, "seed", 1, UINT32_MAX, &seed, error);
    if (!status)
        status = cli_count(args, "steps", 0, 1 << 30, &t->loop.steps, error);
    if (!status)
        status = cli_count(args, "checkpoint-steps", 0, 1 << 30, &t->loop.checkpoint_steps, error);
    if (!status)
        status = cli_count(args, "servers", 0, 64, &servers, error);
    if (!status)
        status = read_share(args, "warmup", 0.5, 1e6, &o->warmup, error);
    o->batch = (int)batch;
    o->size = (int)size;
    o->threads = (int)threads;
    o->epochs = epochs;
    o->seed = seed;
    o->engine.servers = (int)servers;
    return status;
}

static mgw_status find_optimizer(const cli_args *args, const nn_optimizer **out, mgw_error *error)
{
    const char *name = cli_value(args, "optimizer");
    *out = nn_optimizer_find(name ? name : "sgd");
    if (*out)
        return MGW_OK;
    char known[64] = "";
    for (size_t i = 0; i < nn_optimizer_count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? " or " : "",
                 nn_optimizers[i].name);
    return cli_fail(error, "--optimizer: '%s': %s", name, known);
}

/* Two numbers below 1. */
static mgw_status read_betas(const cli_args *args, nn_rule *rule, mgw_error *error)
{
    const char *value = cli_value(args, "betas");
    if (!value)
        return MGW_OK;
    char *end = NULL;
    rule->beta1 = strtod(value, &end);
    bool two = end != value && *end == ',';
    const char *second = end + two;
    rule->beta2 = two ? strtod(second, &end) : -1;
    if (!two || end == second || *end || !(rule->beta1 >= 0 && rule->beta1 < 1) ||
        !(rule->beta2 >= 0 && rule->beta2 < 1))
        return cli_fail(error, "--betas: '%s': two numbers from 0 to below 1, as in 0.9,0.999",
                        value);
    return MGW_OK;
}

static mgw_status read_optimizer(const cli_args *args, train_worker_options *o, mgw_error *error)
{
    mgw_status status = find_optimizer(args, &o->optimizer, error);
    if (status)
        return status;
    nn_rule *rule = &o->rule;
    *rule = o->optimizer->usual;
    static const struct {
        const char *option;
        const char *optimizer;
    } whose[] = {{"momentum", "sgd"}, {"betas", "adamw"}, {"epsilon", "adamw"}};
    for (size_t i = 0; i < sizeof whose / sizeof *whose; i++)
        if (cli_value(args, whose[i].option) && strcmp(o->optimizer->name, whose[i].optimizer) != 0)
            return cli_fail(error, "--%s is for --optimizer %s", whose[i].option,
                            whose[i].optimizer);
    status = cli_number(args, "rate", rule->rate, &rule->rate, error);
    if (!status)
        status = read_share(args, "momentum", rule->momentum, 1, &rule->momentum, error);
    if (!status)
        status = read_share(args, "decay", rule->decay, 1, &rule->decay, error);
    if (!status)
        status = read_betas(args, rule, error);
    return status ? status : read_share(args, "epsilon", rule->epsilon, 1, &rule->epsilon, error);
}

static void warn(const char *what, double share)
{
    cli_warn_reference("train", what, share);
}

static mgw_status read_comparison(setup *t, mgw_error *error)
{
    train_compare_options *c = &t->comparison;
    if (cli_value(t->args, "checkpoint"))
        return cli_fail(error, "--compare trains the same steps again and again: it saves no "
                               "--checkpoint");
    mgw_status status = cli_count(t->args, "rounds", 3, TRAIN_ROUNDS_MAX, &c->rounds, error);
    if (!status)
        status = cli_run_policies(cli_value(t->args, "policy"),
                                  t->worker.engine.servers ? "--servers" : NULL, &t->policies,
                                  &c->policy_count, error);
    t->worker.engine.trials = -1; /* each policy by itself */
    c->policies = t->policies;
    c->steps = t->loop.steps ? t->loop.steps : 5;
    c->warn = warn;
    c->round = t->json ? NULL : cli_print_round;
    return status;
}

static mgw_status read_policy(setup *t, mgw_error *error)
{
    size_t count = 0;
    const char *name = cli_value(t->args, "policy");
    t->worker.engine.policy = name; /* which the engine reads again, in every worker */
    if (cli_value(t->args, "rounds"))
        return cli_fail(error, "--rounds is for --compare");
    mgw_status status = name ? cli_run_policies(name, t->worker.engine.servers ? "--servers" : NULL,
                                                &t->policies, &count, error)
                             : MGW_OK;
    if (!status && count > 1)
        status = cli_fail(error, "--policy: one, without --compare");
    return status;
}

static mgw_status read_data(setup *t, mgw_error *error)
{
    const cli_args *args = t->args;
    train_worker_options *o = &t->worker;
    o->augment = cli_value(args, "augment");
    o->data = cli_value(args, "data");
    if (!o->data)
        o->data = is_small(o->model) ? NN_DATA_FOLDER : "synthetic";
    bool made_up = !strcmp(o->data, "synthetic");
    if (cli_value(args, "size") && !made_up)
        return cli_fail(error, "--size is for --data synthetic");
    if (o->augment && made_up)
        return cli_fail(error, "--augment is for images that are read; these are made up");
    t->loop.checkpoint = cli_value(args, "checkpoint");
    if (cli_value(args, "checkpoint-steps") && !t->loop.checkpoint)
        return cli_fail(error, "--checkpoint-steps: --checkpoint FILE says where to");
    if (cli_value(args, "seed") && cli_value(args, "resume"))
        return cli_fail(error, "--seed: with --resume it is the checkpoint's");
    return MGW_OK;
}

static mgw_status read_options(const cli_args *args, setup *t, mgw_error *error)
{
    train_worker_options *o = &t->worker;
    t->args = args;
    t->json = cli_value(args, "json");
    t->loop.listener = cli_train_listener(t->json);
    t->loop.listener.warn = warn;
    o->engine.device = "host"; /* whatever the environment says: this computes on the host */
    o->model = find_model(args->positional[0], error);
    if (!o->model)
        return MGW_ERR_ARGUMENT;
    mgw_status status = read_numbers(args, t, error);
    if (!status)
        status = read_optimizer(args, o, error);
    if (!status)
        status = read_precision(args, &o->engine.wire, error);
    if (!status)
        status = cli_network(args, &t->network, &t->transport, error);
    if (!status)
        status = read_data(t, error);
    if (!status)
        status = cli_value(args, "compare") ? read_comparison(t, error) : read_policy(t, error);
    if (!status && t->network)
        o->engine.transport.name = t->transport.data;
    return status;
}

/* ---- The worker ---- */

static mgw_status train(const setup *t, train_worker *w, mgw_error *error)
{
    train_summary summary;
    mgw_status status = train_run(w, &t->loop, &summary, error);
    return status ? status : cli_print_summary(w, &summary, t->json, error);
}

static mgw_status compare(const setup *t, train_worker *w, mgw_error *error)
{
    train_row *rows = NULL;
    mgw_status status = train_compare(w, &t->comparison, &rows, error);
    if (!status)
        status = cli_print_comparison(w, rows, t->comparison.policy_count, t->json, error);
    free(rows);
    return status;
}

static mgw_status save_step(const setup *t, train_worker *w, mgw_error *error)
{
    if (!cli_value(t->args, "chrome-trace"))
        return MGW_OK;
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = train_write_step(w, &text, error);
    if (!status && w->rank == 0)
        status = cli_save(t->args, "chrome-trace", &text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status be_worker(const setup *t, mgw_error *error)
{
    pthread_t watch;
    train_worker *w = NULL;
    const char *resume = cli_value(t->args, "resume");
    mgw_status status = train_watch(&watch, error);
    if (status)
        return status;
    status = train_worker_open(&t->worker, &w, error);
    if (!status && resume)
        status = train_checkpoint_load(w, resume, error);
    if (!status && !t->json)
        status = cli_print_training(w, t->network, error);
    if (!status)
        status = cli_value(t->args, "compare") ? compare(t, w, error) : train(t, w, error);
    if (!status)
        status = save_step(t, w, error);
    train_worker_close(w);
    train_stop_watching(watch);
    return status;
}

void cli_warn_reference(const char *command, const char *what, double share)
{
    fprintf(stderr,
            "mgwfbp %s: warning: on this processor oneDNN has only slow reference code for %s, "
            "which takes %.0f%% of a step's computation\n",
            command, what, 100 * share);
}

mgw_status cli_train_run(const cli_args *args, mgw_error *error)
{
    setup t = {0};
    unsigned workers = 0;
    mgw_text_init(&t.transport);
    mgw_status status = cli_count(args, "workers", 4, 64, &workers, error);
    if (!status)
        status = read_options(args, &t, error);
    if (!status)
        status = job_is_joined() || workers == 1 ? be_worker(&t, error)
                                                 : cli_run_workers(args, workers, error);
    mgw_cluster_destroy(t.network);
    mgw_text_fini(&t.transport);
    free(t.policies);
    return status;
}
