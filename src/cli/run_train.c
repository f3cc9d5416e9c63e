/* Runs train: reads options, then trains or compares as one worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/job.h"
#include "cli/print_train.h"
#include "cli/run.h"
#include "job/interrupt.h"
#include "train/checkpoint.h"

/* The parsed options. */
typedef struct setup {
    const cli_args *args;
    train_worker_options worker;
    train_loop_options loop;
    train_compare_options comparison;
    mgw_policy *policies; /* to compare */
    char policy[MGW_POLICY_NAME_MAX];
    mgw_cluster *network; /* the emulated network, or null */
    mgw_text transport;   /* the transport that emulates it */
    bool json;
    unsigned least; /* minimum number of workers to continue with when some are lost; 0: all */
    bool goes_on;   /* continue from its own checkpoint, if there is one */
    int stopped_by; /* the signal that interrupted it, or 0 */
    cli_training training;
} setup;

/* ---- Options ---- */

const nn_model *cli_find_model(const char *name, mgw_error *error)
{
    const nn_model *model = nn_model_find(name);
    if (model)
        return model;
    char known[256] = "";
    for (size_t i = 0; i < nn_model_count; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 nn_models[i].name);
    (void)cli_fail(error, "unknown model '%.60s'; choose one of %s", name, known);
    return NULL;
}

const char *cli_model_name(size_t index)
{
    return index < nn_model_count ? nn_models[index].name : NULL;
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
        return cli_fail(error, "--precision: '%s' is not f32 or bf16-comm", precision);
    *wire = narrow ? "bf16" : "f32";
    return MGW_OK;
}

/* Like cli_number, but 0 is allowed. */
static mgw_status read_share(const cli_args *args, const char *name, double fallback, double most,
                             double *out, mgw_error *error)
{
    const char *value = cli_value(args, name);
    char *end = NULL;
    *out = value ? strtod(value, &end) : fallback;
    if (value && (end == value || *end || !(*out >= 0 && *out <= most)))
        return cli_fail(error, "--%s: '%s' is not a number from 0 to %g", name, value, most);
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
        status = cli_count(args, "log-steps", 0, 1 << 30, &t->loop.log_steps, error);
    if (!status)
        status = cli_count(args, "keep", 2, TRAIN_KEEP_MAX, &t->loop.keep, error);
    if (!status)
        status = cli_number(args, "checkpoint-seconds", 0, &t->loop.checkpoint_s, error);
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

/* Reads two numbers below 1. */
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
        return cli_fail(
            error, "--betas: '%s' is not two numbers from 0 to below 1; write 0.9,0.999", value);
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
            return cli_fail(error, "--%s: only with --optimizer %s", whose[i].option,
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
        return cli_fail(error, "--compare repeats the same steps and saves no --checkpoint");
    mgw_status status = cli_count(t->args, "rounds", 3, TRAIN_ROUNDS_MAX, &c->rounds, error);
    if (!status)
        status = cli_run_policies(cli_value(t->args, "policy"),
                                  t->worker.engine.servers ? "--servers" : NULL, &t->policies,
                                  &c->policy_count, error);
    t->worker.engine.trials = -1; /* run each policy by itself */
    c->policies = t->policies;
    c->steps = t->loop.steps ? t->loop.steps : 5;
    c->warn = warn;
    c->round = t->json ? NULL : cli_print_round;
    c->progress = cli_show_compared;
    c->context = &t->training;
    return status;
}

static mgw_status read_policy(setup *t, mgw_error *error)
{
    size_t count = 0;
    const char *name = cli_value(t->args, "policy");
    t->worker.engine.policy = name; /* the engine parses it again, in every worker */
    if (cli_value(t->args, "rounds"))
        return cli_fail(error, "--rounds: only with --compare");
    mgw_status status = name ? cli_run_policies(name, t->worker.engine.servers ? "--servers" : NULL,
                                                &t->policies, &count, error)
                             : MGW_OK;
    if (!status && count > 1)
        status = cli_fail(error, "--policy: give only one policy, or --compare");
    if (!status && count == 1) /* with sizes in the engine's notation */
        t->worker.engine.policy = mgw_policy_name(&t->policies[0], t->policy);
    return status;
}

static mgw_status read_checkpoints(setup *t, mgw_error *error)
{
    const cli_args *args = t->args;
    static const char *const about[] = {"checkpoint-steps", "checkpoint-seconds", "keep",
                                        "restarts", "elastic"};
    t->loop.checkpoint = cli_value(args, "checkpoint");
    for (size_t i = 0; !t->loop.checkpoint && i < sizeof about / sizeof *about; i++)
        if (cli_value(args, about[i]))
            return cli_fail(error, "--%s: also give --checkpoint FILE", about[i]);
    if (cli_value(args, "seed") && cli_value(args, "resume"))
        return cli_fail(
            error, "--seed: leave it out with --resume, which uses the seed of the checkpoint");
    t->goes_on = cli_value(args, "restarts") || cli_value(args, "elastic");
    t->loop.in_all = t->goes_on;
    return t->loop.checkpoint ? train_saver_check(t->loop.checkpoint, error) : MGW_OK;
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
        return cli_fail(error, "--size: only with --data synthetic");
    if (o->augment && made_up)
        return cli_fail(error, "--augment: only with real images, not with --data synthetic");
    return read_checkpoints(t, error);
}

static mgw_status read_options(const cli_args *args, setup *t, mgw_error *error)
{
    train_worker_options *o = &t->worker;
    t->args = args;
    t->json = cli_value(args, "json");
    t->loop.listener = cli_train_listener(t->json, &t->training);
    t->loop.listener.warn = warn;
    o->engine.device = "host"; /* ignore the environment: this computes on the host */
    o->model = cli_find_model(args->positional[0], error);
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

static void tell(const char *message)
{
    fprintf(stderr, "mgwfbp train: warning: %s; using an older one\n", message);
}

/* Loads its own checkpoint, if it continues by itself, or the one of --resume. */
static mgw_status load(const setup *t, train_worker *w, bool own, bool *found, mgw_error *error)
{
    const char *from = cli_value(t->args, "resume");
    mgw_status status = MGW_OK;
    *found = false;
    if (own)
        status = train_checkpoint_load(w, t->loop.checkpoint, tell, found, error);
    if (!status && !*found && from)
        status = train_checkpoint_load(w, from, tell, NULL, error);
    return status;
}

/* Whether the surviving workers continue from the last checkpoint. Otherwise `error` also says why
 * not. */
static bool go_on(const setup *t, train_worker *w, mgw_status status, mgw_error *error)
{
    if (!t->least || (status != MGW_ERR_PEER && status != MGW_ERR_TIMEOUT))
        return false;
    mgw_error why;
    bool found = false;
    mgw_error first = *error;
    mgw_status again = train_worker_reform(w, t->least, &why); /* fails over MPI */
    if (!again)
        again = load(t, w, true, &found, &why);
    if (!again && !found && !cli_value(t->args, "resume")) /* all restart from the same state */
        train_worker_go_to(w, &w->state.progress);
    if (!again)
        again = cli_print_resumed(w, t->loop.checkpoint, t->json, &why);
    if (again)
        (void)mgw_fail(error, status, "%.200s; continuing failed: %.200s", first.message,
                       why.message);
    return !again;
}

static mgw_status train(setup *t, train_worker *w, mgw_error *error)
{
    train_summary summary;
    mgw_status status = MGW_OK;
    do
        status = train_run(w, &t->loop, &summary, error);
    while (status && go_on(t, w, status, error));
    if (!status)
        status = cli_print_summary(w, &summary, t->json, error);
    t->stopped_by = status ? 0 : summary.stopped_by;
    if (t->stopped_by && w->rank == 0)
        cli_tell_interrupted(w, t->stopped_by, t->loop.checkpoint);
    return status;
}

static mgw_status compare(setup *t, train_worker *w, mgw_error *error)
{
    train_row *rows = NULL;
    mgw_status status = train_compare(w, &t->comparison, &rows, &t->stopped_by, error);
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

static mgw_status resume(const setup *t, train_worker *w, mgw_error *error)
{
    bool found = false;
    mgw_status status = load(t, w, t->goes_on, &found, error);
    if (!status && found && cli_value(t->args, "seed") && w->state.progress.seed != w->options.seed)
        status = cli_fail(error, "--seed: %s was made with seed %llu", t->loop.checkpoint,
                          (unsigned long long)w->state.progress.seed);
    return !status && found ? cli_print_resumed(w, t->loop.checkpoint, t->json, error) : status;
}

static mgw_status be_worker(setup *t, mgw_error *error)
{
    pthread_t watch;
    train_worker *w = NULL;
    mgw_status status = job_watch(&watch, error);
    if (status)
        return status;
    status = train_worker_open(&t->worker, &w, error);
    if (!status && !t->json)
        status = cli_print_training(w, t->network, error);
    if (!status)
        status = resume(t, w, error);
    if (!status)
        job_end_in_order();
    if (!status && t->least)
        job_say_joined();
    if (!status) {
        t->training.steps = t->loop.steps;
        t->training.first = t->loop.in_all ? 0 : w->state.progress.steps;
        cli_progress_begin(t->args, &t->training.progress);
        status = cli_value(t->args, "compare") ? compare(t, w, error) : train(t, w, error);
        cli_progress_end(&t->training.progress);
    }
    if (!status)
        status = save_step(t, w, error);
    train_worker_close(w);
    job_unwatch(watch);
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
    job_options job = {.command = "train"};
    mgw_text_init(&t.transport);
    mgw_status status = cli_count(args, "workers", 4, 64, &job.workers, error);
    if (!status)
        status = cli_job_options(args, &job, error);
    t.least = job.least;
    job.reforms = true;
    if (!status)
        status = read_options(args, &t, error);
    if (!status)
        status = job_is_joined() || (job.workers == 1 && !job.restarts)
                     ? be_worker(&t, error)
                     : cli_run_again(args, &job, error);
    mgw_cluster_destroy(t.network);
    mgw_text_fini(&t.transport);
    free(t.policies);
    if (!status && t.stopped_by)
        exit(128 + t.stopped_by);
    return status;
}
