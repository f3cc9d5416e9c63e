/* Training: options, the loop over steps and epochs, progress and summary. */
#include "cli/train.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/job.h"
#include "job/steps.h"
#include "train/loop.h"

/* ---- Ctrl-C: the first ends training in good order, a later one at once ---- */

/*
 * A thread of its own waits for it. A handler would run on the stack of whoever computes, and
 * kernels of oneDNN use the stack pointer for other things: what a signal puts there overwrites
 * memory of ours.
 */
static atomic_bool interrupted;
static atomic_bool ended; /* there is nothing left to interrupt */

/* A terminal and a launcher may both tell a worker of one Ctrl-C. */
static const double same_s = 1;

static sigset_t end_set(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

static void *await_end(void *unused)
{
    (void)unused;
    sigset_t set = end_set();
    int told = 0;
    double first_s = 0;
    while (!sigwait(&set, &told) && !atomic_load(&ended)) {
        if (!atomic_exchange(&interrupted, true)) {
            first_s = mgw_now_s();
        } else if (mgw_now_s() - first_s > same_s) {
            signal(told, SIG_DFL);
            pthread_sigmask(SIG_UNBLOCK, &set, NULL);
            raise(told);
        }
    }
    return NULL;
}

/* Before any other thread is there: they all leave it to this one. */
static mgw_status watch_for_end(pthread_t *watch, mgw_error *error)
{
    sigset_t set = end_set();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return pthread_create(watch, NULL, await_end, NULL) ? cli_fail(error, "cannot start a thread")
                                                        : MGW_OK;
}

static void stop_watching(pthread_t watch)
{
    atomic_store(&ended, true);
    pthread_kill(watch, SIGINT);
    pthread_join(watch, NULL);
}

bool cli_train_interrupted(void)
{
    return interrupted;
}

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

static mgw_status read_numbers(const cli_args *args, training *t, mgw_error *error)
{
    nn_worker_options *o = &t->options;
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
        status = cli_count(args, "steps", 0, 1 << 30, &t->steps, error);
    if (!status)
        status = cli_count(args, "checkpoint-steps", 0, 1 << 30, &t->checkpoint_steps, error);
    if (!status)
        status = cli_count(args, "servers", 0, 64, &servers, error);
    if (!status)
        status = cli_number(args, "rate", 0.05, &o->rate, error);
    if (!status)
        status = read_share(args, "momentum", 0.9, 1, &o->momentum, error);
    if (!status)
        status = read_share(args, "decay", 5e-4, 1, &o->decay, error);
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

static mgw_status read_comparison(training *t, mgw_error *error)
{
    const char *list = cli_value(t->args, "policy");
    if (cli_value(t->args, "checkpoint"))
        return cli_fail(error, "--compare trains the same steps again and again: it saves no "
                               "--checkpoint");
    mgw_status status = cli_count(t->args, "rounds", 3, CLI_ROUNDS_MAX, &t->rounds, error);
    return status ? status
                  : cli_policy_list(list ? list : "all", &t->policies, &t->policy_count, error);
}

static mgw_status read_policy(training *t, mgw_error *error)
{
    mgw_policy policy; /* the engine reads it again, in every worker */
    t->options.engine.policy = cli_value(t->args, "policy");
    if (cli_value(t->args, "rounds"))
        return cli_fail(error, "--rounds is for --compare");
    const char *name = t->options.engine.policy;
    return name ? mgw_policy_parse(name, &policy, error) : MGW_OK;
}

static mgw_status read_options(const cli_args *args, training *t, mgw_error *error)
{
    nn_worker_options *o = &t->options;
    bool curve = false; /* or not: the engine measures what is emulated */
    t->args = args;
    t->json = cli_value(args, "json");
    o->engine.device = "host"; /* whatever the environment says: this computes on the host */
    o->model = find_model(args->positional[0], error);
    if (!o->model)
        return MGW_ERR_ARGUMENT;
    mgw_status status = read_numbers(args, t, error);
    if (!status)
        status = read_precision(args, &o->engine.wire, error);
    if (!status)
        status = cli_network(args, &t->network, &curve, error);
    if (status)
        return status;
    o->augment = cli_value(args, "augment");
    o->data = cli_value(args, "data");
    if (!o->data)
        o->data = is_small(o->model) ? NN_DATA_FOLDER : "synthetic";
    bool made_up = !strcmp(o->data, "synthetic");
    if (cli_value(args, "size") && !made_up)
        return cli_fail(error, "--size is for --data synthetic");
    if (o->augment && made_up)
        return cli_fail(error, "--augment is for images that are read; these are made up");
    if (cli_value(args, "checkpoint-steps") && !cli_value(args, "checkpoint"))
        return cli_fail(error, "--checkpoint-steps: --checkpoint FILE says where to");
    if (cli_value(args, "seed") && cli_value(args, "resume"))
        return cli_fail(error, "--seed: with --resume it is the checkpoint's");
    status = cli_value(args, "compare") ? read_comparison(t, error) : read_policy(t, error);
    if (status)
        return status;
    if (t->network) {
        snprintf(t->transport, sizeof t->transport, "emulated:%.17g,%.17g", t->network->cost.a_s,
                 t->network->cost.b_s_per_byte);
        o->engine.transport.name = t->transport;
    }
    return MGW_OK;
}

/* ---- What people see ---- */

void cli_describe_training(const training *t, mgw_text *text)
{
    const nn_worker *w = t->worker;
    char bytes[MGW_UNITS_MAX];
    char memory[MGW_UNITS_MAX];
    mgw_text_printf(text, "model    %s, %d gradient tensors, %s; activations %s per worker\n",
                    w->net->name, w->net->parameter_count,
                    mgw_format_bytes(w->state.parameter_total * sizeof(float), bytes),
                    mgw_format_bytes(nn_program_bytes(w->program), memory));
    mgw_text_printf(text, "data     ");
    mgw_text_plain(text, w->train->name);
    mgw_text_printf(text, ", %d images of %dx%d; %d per worker and step\n", w->train->count,
                    w->train->size, w->train->size, t->options.batch);
    if (t->network || w->size > 1)
        cli_describe_cluster(t->network ? t->network : mgw_engine_cluster(w->engine), text);
    mgw_text_printf(text, "workers  %u%s\n\n", w->size,
                    t->network ? "; the network is emulated" : "");
}

/* Only rank 0 speaks. */
static mgw_status say(const training *t, mgw_text *text, mgw_error *error)
{
    mgw_status status = t->worker->rank == 0 ? cli_print(text, error) : MGW_OK;
    mgw_text_fini(text);
    return status;
}

typedef struct window {
    double loss;  /* sum over steps and workers */
    double steps; /* sum over workers */
    double step_s;
    double stop;
} window;

static mgw_status print_progress(const training *t, const window *sum, mgw_error *error)
{
    const nn_worker *w = t->worker;
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    mgw_text text;
    mgw_text_init(&text);
    double images_per_s = t->options.batch * (double)w->size * sum->steps / sum->step_s;
    double exposed = s.iteration_s > 0 ? s.exposed_s / s.iteration_s : 0;
    const nn_progress *p = &w->state.progress;
    if (t->json)
        mgw_text_printf(&text,
                        "{\"event\": \"progress\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                        ", \"loss\": %.9g, \"rate\": %.6g, \"images_per_s\": %.6g, "
                        "\"exposed_share\": %.6g}\n",
                        p->epoch, p->steps, sum->loss / sum->steps, nn_worker_rate(w), images_per_s,
                        exposed);
    else
        mgw_text_printf(&text,
                        "epoch %" PRIu64 ", step %" PRIu64
                        ": loss %.4f, %.0f images/s, exposed communication %.1f%%\n",
                        p->epoch + (p->samples > 0), p->steps, sum->loss / sum->steps, images_per_s,
                        100 * exposed);
    return say(t, &text, error);
}

static mgw_status print_epoch(const training *t, double loss, double accuracy, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    const nn_progress *p = &t->worker->state.progress;
    if (t->json)
        mgw_text_printf(&text,
                        "{\"event\": \"epoch\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
                        ", \"test_loss\": %.9g, \"test_accuracy\": %.6g}\n",
                        p->epoch, p->steps, loss, accuracy);
    else
        mgw_text_printf(&text, "epoch %" PRIu64 " is done: test loss %.4f, accuracy %.2f%%\n",
                        p->epoch, loss, 100 * accuracy);
    return say(t, &text, error);
}

static mgw_status print_summary(const training *t, double wall_s, uint64_t steps, mgw_error *error)
{
    const nn_worker *w = t->worker;
    mgw_engine_statistics s;
    mgw_engine_measure(w->engine, &s);
    double slowest[] = {s.iteration_s, s.compute_s};
    mgw_status status = nn_worker_most(t->worker, slowest, 2, error);
    if (status)
        return status;
    s.iteration_s = slowest[0];
    s.compute_s = slowest[1];
    s.exposed_s = s.iteration_s - s.compute_s;
    const mgw_plan *plan = mgw_engine_plan(w->engine);
    mgw_text text;
    mgw_text_init(&text);
    double images_per_s =
        wall_s > 0 ? (double)steps * t->options.batch * (double)w->size / wall_s : 0;
    const char *policy = plan ? plan->policy : "none yet";
    if (t->json) {
        mgw_text_printf(
            &text,
            "{\"event\": \"summary\", \"model\": \"%s\", \"workers\": %u, \"batch\": %d, "
            "\"steps\": "
            "%" PRIu64 ", \"policy\": \"%s\", \"plans\": %" PRIu64 ", \"messages\": %zu, "
            "\"iteration_s\": %.9g, \"compute_s\": %.9g, \"exposed_s\": %.9g, \"predicted_s\": "
            "%.9g, \"images_per_s\": %.6g, \"weights\": \"%08" PRIx32 "\"}\n",
            w->net->name, w->size, t->options.batch, w->state.progress.steps, policy, s.plans,
            s.messages, s.iteration_s, s.compute_s, s.exposed_s, s.predicted_s, images_per_s,
            nn_state_checksum(&w->state));
        return say(t, &text, error);
    }
    char units[MGW_UNITS_MAX];
    mgw_table *table =
        mgw_table_create("<policy|messages|iteration|compute|exposed|predicted|images/s|weights");
    mgw_table_cell(table, "%s", policy);
    mgw_table_cell(table, "%zu", s.messages);
    mgw_table_cell(table, "%s", mgw_format_seconds(s.iteration_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(s.compute_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(s.exposed_s, units));
    mgw_table_cell(table, "%s", plan ? mgw_format_seconds(s.predicted_s, units) : "-");
    mgw_table_cell(table, "%.0f", images_per_s);
    mgw_table_cell(table, "%08" PRIx32, nn_state_checksum(&w->state));
    mgw_text_printf(&text, "\n");
    mgw_table_write(table, &text);
    mgw_table_destroy(table);
    return say(t, &text, error);
}

/* ---- The loop ---- */

/* All workers look at the sums of all, so that they stop together and look again together. */
static mgw_status look(const training *t, window *own, uint64_t *next, bool *stop, mgw_error *error)
{
    own->stop = interrupted;
    window sum = *own;
    mgw_status status = nn_worker_sum(t->worker, &sum.loss, sizeof sum / sizeof(double), error);
    if (status)
        return status;
    double mean_s = sum.step_s / sum.steps;
    *next = t->worker->state.progress.steps + (uint64_t)fmin(fmax(ceil(2 / mean_s), 1), 1000);
    *stop = sum.stop > 0;
    sum.step_s /= t->worker->size;
    sum.steps /= t->worker->size;
    sum.loss /= t->worker->size;
    *own = (window){0};
    return print_progress(t, &sum, error);
}

static mgw_status save(const training *t, mgw_error *error)
{
    const char *path = cli_value(t->args, "checkpoint");
    return path ? nn_worker_save(t->worker, path, error) : MGW_OK;
}

static mgw_status end_epoch(const training *t, mgw_error *error)
{
    double loss = 0;
    double accuracy = 0;
    mgw_status status = nn_worker_evaluate(t->worker, &loss, &accuracy, error);
    if (!status && !isfinite(loss))
        status = cli_fail(
            error, "the test loss is not finite: try a smaller --rate, or a longer --warmup");
    if (!status)
        status = print_epoch(t, loss, accuracy, error);
    return status ? status : save(t, error);
}

static mgw_status run_steps(training *t, mgw_error *error)
{
    nn_worker *w = t->worker;
    const nn_progress *p = &w->state.progress;
    uint64_t first = p->steps;
    uint64_t next = first + 1; /* when to look: after the first, then about every two seconds */
    double begun_s = mgw_now_s();
    bool stop = false;
    window own = {0};
    mgw_status status = MGW_OK;
    while (!status && !stop && (double)p->epoch < t->options.epochs &&
           (!t->steps || p->steps - first < t->steps)) {
        uint64_t epoch = p->epoch;
        double loss = 0;
        status = nn_worker_step(w, &loss, error);
        own.loss += loss;
        own.steps++;
        own.step_s += w->step_s;
        bool ends = p->epoch > epoch;
        if (!status && (p->steps >= next || ends))
            status = look(t, &own, &next, &stop, error);
        if (!status && ends)
            status = end_epoch(t, error);
        else if (!status && t->checkpoint_steps && p->steps % t->checkpoint_steps == 0)
            status = save(t, error);
    }
    if (!status && p->samples)
        status = save(t, error);
    return status ? status : print_summary(t, mgw_now_s() - begun_s, p->steps - first, error);
}

/* The last step as all workers saw it, beside what was predicted. */
static mgw_status save_timeline(const training *t, mgw_error *error)
{
    mgw_engine *engine = t->worker->engine;
    if (!cli_value(t->args, "chrome-trace"))
        return MGW_OK;
    if (!mgw_engine_plan(engine))
        return cli_fail(error, "--chrome-trace: there is no plan to compare with before step 6");
    job_step step = {.predicted = mgw_engine_plan(engine), .begin_s = t->worker->begin_s};
    mgw_status status = mgw_engine_timeline(engine, &step.measured, error);
    mgw_text text;
    mgw_text_init(&text);
    if (!status)
        status = job_gather_steps(mgw_engine_trace(engine), &step, 1, &text, error);
    if (!status && t->worker->rank == 0)
        status = cli_save(t->args, "chrome-trace", &text, error);
    mgw_text_fini(&text);
    mgw_timeline_destroy(step.measured);
    return status;
}

static mgw_status be_worker(training *t, mgw_error *error)
{
    pthread_t watch;
    const char *resume = cli_value(t->args, "resume");
    mgw_status status = watch_for_end(&watch, error);
    if (status)
        return status;
    status = nn_worker_open(&t->options, &t->worker, error);
    if (!status && resume)
        status = nn_worker_load(t->worker, resume, error);
    if (!status && !t->json) {
        mgw_text text;
        mgw_text_init(&text);
        cli_describe_training(t, &text);
        status = say(t, &text, error);
    }
    if (!status)
        status = cli_value(t->args, "compare") ? cli_train_compare(t, error) : run_steps(t, error);
    if (!status)
        status = save_timeline(t, error);
    nn_worker_close(t->worker);
    stop_watching(watch);
    return status;
}

mgw_status cli_train_run(const cli_args *args, mgw_error *error)
{
    training t = {0};
    unsigned workers = 0;
    mgw_status status = cli_count(args, "workers", 4, 64, &workers, error);
    if (!status)
        status = read_options(args, &t, error);
    if (!status)
        status = job_is_joined() || workers == 1 ? be_worker(&t, error)
                                                 : cli_run_workers(args, workers, error);
    mgw_cluster_destroy(t.network);
    free(t.policies);
    return status;
}
