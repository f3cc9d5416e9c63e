/* mgwfbp replay: runs the steps of a trace with the real engine on this host. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/job.h"
#include "cli/terminal.h"
#include "job/interrupt.h"
#include "job/replay.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers on this host (default 4); not under another launcher"},
    {"cluster", 'c', "C", "emulate this cluster's network (a file or built-in name)"},
    {"network", 0, "A,B", "emulate a network on which M bytes take A + B*M seconds"},
    {"device", 'd', "D", "host, or cuda: gradients in GPU memory (MGWFBP_TRANSPORT: nccl)"},
    {"servers", 0, "K", "parameter-server aggregation: one of K workers sums each message"},
    {"policy", 'p', "LIST",
     "policies, separated by commas; all means those with whole all-reduces (default: "
     "all,overlap)"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    {"steps", 's', "N", "steps per policy and round (default 5)"},
    {"rounds", 0, "N", "rounds over all policies, in turn (default 3)"},
    {"chrome-trace", 0, "FILE",
     "write the last step of each policy to FILE, predicted and measured by every worker, on one "
     "clock, for Perfetto, chrome://tracing and 'mgwfbp report'"},
    CLI_PROGRESS,
    {"json", 0, NULL, "print JSON: the rows of the table"},
};

/* The printed row of a policy: medians over the rounds. */
typedef struct row {
    char policy[MGW_POLICY_NAME_MAX];
    size_t messages;
    const mgw_plan *predicted;
    double iteration_s;
    double spread;
    double compute_s;
} row;

static row make_row(const job_replay *r, size_t index)
{
    job_outcome *o = &r->outcomes[index];
    row made = {.messages = o->messages, .predicted = o->predicted};
    mgw_policy_name(&o->policy, made.policy);
    made.iteration_s = cli_median(o->iteration_s, r->rounds, &made.spread);
    made.compute_s = cli_median(o->compute_s, r->rounds, NULL);
    return made;
}

static void write_table(const job_replay *r, mgw_text *text)
{
    mgw_table *table = mgw_table_create("<policy|messages|predicted|measured|difference|spread|"
                                        "predicted exposed|measured exposed");
    for (size_t i = 0; i < r->options.policy_count; i++) {
        row made = make_row(r, i);
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", made.policy);
        mgw_table_cell(table, "%zu", made.messages);
        mgw_table_cell(table, "%s", mgw_format_seconds(made.predicted->iteration_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(made.iteration_s, units));
        mgw_table_cell(table, "%+.1f%%",
                       100 * (made.iteration_s / made.predicted->iteration_s - 1));
        mgw_table_cell(table, "%.1f%%", 100 * made.spread);
        mgw_table_cell(table, "%s", mgw_format_seconds(made.predicted->exposed_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(made.iteration_s - made.compute_s, units));
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

static void write_json(const job_replay *r, mgw_text *text)
{
    mgw_text_printf(text, "[\n");
    for (size_t i = 0; i < r->options.policy_count; i++) {
        row made = make_row(r, i);
        mgw_text_printf(text,
                        "  {\"policy\": \"%s\", \"workers\": %u, \"messages\": %zu, "
                        "\"predicted_iteration_s\": %.12g, \"measured_iteration_s\": %.12g, "
                        "\"spread\": %.6g, \"predicted_exposed_s\": %.12g, "
                        "\"measured_exposed_s\": %.12g, \"measured_compute_s\": %.12g, "
                        "\"lower_bound_s\": %.12g}%s\n",
                        made.policy, mgw_engine_size(r->engine), made.messages,
                        made.predicted->iteration_s, made.iteration_s, made.spread,
                        made.predicted->exposed_s, made.iteration_s - made.compute_s,
                        made.compute_s, made.predicted->lower_bound_s,
                        i + 1 < r->options.policy_count ? "," : "");
    }
    mgw_text_printf(text, "]\n");
}

/* Prints the results, on rank 0. */
static mgw_status print(const cli_args *args, const job_replay *r, mgw_error *error)
{
    if (mgw_engine_rank(r->engine) != 0)
        return MGW_OK;
    if (r->options.timelines) {
        mgw_status status = cli_save(args, "chrome-trace", &r->timelines, error);
        if (status)
            return status;
    }
    mgw_text text;
    mgw_text_init(&text);
    if (cli_value(args, "json")) {
        write_json(r, &text);
    } else {
        cli_describe_trace(r->options.trace, &text);
        cli_describe_cluster(job_replay_network(r), &text);
        mgw_text_printf(&text,
                        "workers  %u on this host; %u steps of each policy in %u rounds; all "
                        "averages were correct\n"
                        "\n",
                        mgw_engine_size(r->engine), r->options.steps * r->rounds, r->rounds);
        write_table(r, &text);
    }
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static void show_progress(void *context, unsigned round, double share)
{
    char what[40];
    snprintf(what, sizeof what, "round %u", round + 1);
    cli_progress_show(context, share, what);
}

static mgw_status be_worker(const cli_args *args, job_replay_options *o, mgw_error *error)
{
    job_replay replay;
    cli_progress progress;
    pthread_t watch;
    mgw_status status = job_watch(&watch, error);
    if (status)
        return status;
    cli_progress_begin(args, &progress);
    o->progress = cli_is_first() ? show_progress : NULL;
    o->context = &progress;
    status = job_replay_run(o, &replay, error);
    cli_progress_end(&progress);
    if (!status)
        status = print(args, &replay, error);
    if (!status && replay.rounds < o->rounds && mgw_engine_rank(replay.engine) == 0)
        fprintf(stderr, "mgwfbp replay: interrupted: %u of %u rounds are done\n", replay.rounds,
                o->rounds);
    job_replay_fini(&replay);
    job_unwatch(watch);
    return status;
}

/* ---- Options ---- */

static mgw_status read_counts(const cli_args *args, unsigned *workers, job_replay_options *o,
                              mgw_error *error)
{
    mgw_status status = cli_count(args, "workers", 4, 64, workers, error);
    if (!status)
        status = cli_count(args, "steps", 5, 10000, &o->steps, error);
    if (!status)
        status = cli_count(args, "rounds", 3, JOB_ROUNDS_MAX, &o->rounds, error);
    if (!status && cli_value(args, "servers"))
        status = cli_count(args, "servers", 1, 64, &o->servers, error);
    return status;
}

static mgw_status read_network(const cli_args *args, job_replay_options *o, mgw_cluster **network,
                               mgw_text *transport, mgw_error *error)
{
    mgw_status status = cli_network(args, network, transport, error);
    o->network = *network;
    o->transport = transport->data;
    if (!o->servers) /* the cost of pushes and pulls is measured */
        o->cluster = cli_value(args, "cluster");
    if (!status)
        status = cli_device(args, &o->cuda, error);
    o->timelines = cli_value(args, "chrome-trace");
    if (!status && o->cuda && o->network)
        status = cli_fail(error, "--device cuda: the network of GPUs cannot be emulated; leave out "
                                 "--cluster and --network");
    if (!status && o->cuda && o->timelines)
        status = cli_fail(
            error,
            "--device cuda: messages on a GPU are not timed one by one; leave out --chrome-trace");
    return status;
}

static mgw_status read_trace(const cli_args *args, mgw_trace **out, mgw_error *error)
{
    double factor = 1;
    mgw_status status = cli_number(args, "scale-compute", 1, &factor, error);
    if (!status)
        status = mgw_trace_load(args->positional[0], out, error);
    if (!status)
        (*out)->gradient_dtype = (*out)->parameter_dtype = MGW_F32; /* the only type here */
    return status ? status : mgw_trace_scale_compute(*out, factor, error);
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    job_replay_options o = {0};
    mgw_policy *policies = NULL;
    mgw_cluster *network = NULL;
    mgw_trace *trace = NULL;
    mgw_text transport;
    unsigned workers = 0;
    mgw_text_init(&transport);
    mgw_status status = read_counts(args, &workers, &o, error);
    if (!status)
        status = read_network(args, &o, &network, &transport, error);
    const char *because = o.cuda ? "--device cuda" : o.servers ? "--servers" : NULL;
    if (!status)
        status =
            cli_run_policies(cli_value(args, "policy"), because, &policies, &o.policy_count, error);
    if (!status)
        status = read_trace(args, &trace, error);
    o.policies = policies;
    o.trace = trace;
    if (!status)
        status =
            job_is_joined() ? be_worker(args, &o, error) : cli_run_workers(args, workers, error);
    free(policies);
    mgw_cluster_destroy(network);
    mgw_text_fini(&transport);
    mgw_trace_destroy(trace);
    return status;
}

const cli_command cli_replay = {
    .name = "replay",
    .arguments = "TRACE",
    .least = 1,
    .most = 1,
    .summary = "run a trace's steps for real on this host, and compare with the prediction",
    .details =
        "Starts workers on this host that run the trace's step with the real engine: arena, "
        "communication thread and transport. Workers wait for the computation times of the trace, "
        "as if a GPU computed meanwhile; gradients are real f32 numbers. Steps run back to back: "
        "every average is added to a parameter, and the next forward pass waits for it where the "
        "trace says it is needed. All averages and parameters are checked before a policy is "
        "timed, and some of every tensor in each timed step. An iteration lasts from the start of "
        "a step to the start of the next. With --cluster or --network, each message lasts as long "
        "as it would there; without them, messages go through shared memory at its own speed, "
        "which is calibrated first. With --device cuda, a kernel on the GPU waits for the times, "
        "and messages go over NCCL, or over shm or mpi if MGWFBP_TRANSPORT says so. With --device "
        "cuda or --servers, steps run one by one, without parameters, so policies that overlap the "
        "forward pass cannot be used.\n"
        "Policies run in turn, round after round. The time of a round is that of its median step "
        "(on GPUs and with --servers, the mean). The table shows the median of the rounds and "
        "their spread, (max - min) / median.",
    .examples = "mgwfbp replay resnet50-b32-fp32-h200 --cluster paper-2-10gbe\n"
                "mgwfbp replay googlenet-b64-fp32-h200 -n 2 --network 1e-3,1e-9 --policy "
                "wfbp,optimal --chrome-trace run.trace.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
