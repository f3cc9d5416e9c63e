/* mgwfbp report: writes everything to one HTML page that works offline. */
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "job/interrupt.h"

static const cli_option options[] = {
    {"output", 'o', "FILE", "the page (default report.html; with --json: none)"},
    CLI_PARAMETERS,
    {"workers", 'n', "N",
     "number of workers for networks given by name, one in each node (default 2)"},
    CLI_SHAPE,
    {"json", 0, NULL, "print JSON: what the page shows"},
};

/* Saves the page, with a note if it has no planner. */
static mgw_status save(const cli_args *args, const mgw_page *page, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_page_write(page, false, &text);
    mgw_status status = cli_save_to(cli_value(args, "output"), "report.html", &text, error);
    if (!status && !mgw_page_plans())
        fprintf(stderr,
                "mgwfbp report: note: this page has no planner, so its sliders are missing\n");
    mgw_text_fini(&text);
    return status;
}

static mgw_status print(const mgw_page *page, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_page_write_data(page, &text);
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

/*
 * Whether an input is a network name that becomes a cluster of the given shape.
 */
static bool is_shaped(const cli_args *args, const char *input)
{
    mgw_link link;
    bool given = cli_value(args, "workers") || cli_value(args, "nodes") || cli_value(args, "gpus");
    return given && access(input, F_OK) != 0 && !mgw_network_parse(input, &link, NULL);
}

/* Fails if a shape is given but no input is a network, since it would have no effect. */
static mgw_status check_shape(const cli_args *args, mgw_error *error)
{
    static const char *const shapes[] = {"workers", "nodes", "gpus"};
    for (int i = 0; i < args->count; i++)
        if (is_shaped(args, args->positional[i]))
            return MGW_OK;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (cli_value(args, shapes[i]))
            return cli_fail(error,
                            "--%s: no input is a network, given by name (100gbe) or by latency "
                            "and bandwidth; clusters have a fixed number of workers",
                            shapes[i]);
    return MGW_OK;
}

static mgw_status add_shaped(const cli_args *args, mgw_page *page, const char *input,
                             mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    unsigned workers = 0;
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = cli_workers(args, 0, &workers, error);
    if (!status && workers && (cli_value(args, "nodes") || cli_value(args, "gpus")))
        status = cli_fail(error,
                          "--workers: leave it out with --nodes or --gpus, which give the number");
    if (!status)
        status = cli_cluster(args, input, &cluster, error);
    if (!status && workers)
        status = mgw_cluster_rescale(cluster, workers, NULL, error);
    if (!status)
        mgw_cluster_write(cluster, &text);
    if (!status)
        status = mgw_text_status(&text, error);
    if (!status)
        status = mgw_page_add(page, input, text.data, text.size, error);
    mgw_text_fini(&text);
    mgw_cluster_destroy(cluster);
    return status;
}

static mgw_status report(const cli_args *args, mgw_error *error)
{
    mgw_page *page = NULL;
    bool given = false;
    mgw_dtype parameters = MGW_F32;
    mgw_status status = check_shape(args, error);
    if (!status)
        status = cli_parameters(args, &given, &parameters, error);
    if (!status)
        status = mgw_page_create(&page, error);
    if (!status && given)
        mgw_page_set_parameters(page, parameters);
    int read = 0;
    for (; !status && read < args->count && !job_interrupted(); read++) {
        status = is_shaped(args, args->positional[read])
                     ? add_shaped(args, page, args->positional[read], error)
                     : mgw_page_add_file(page, args->positional[read], error);
        job_end_in_order(); /* there are results to show */
    }
    if (!status && read < args->count)
        fprintf(stderr, "mgwfbp report: interrupted: %d of %d inputs are shown\n", read,
                args->count);
    bool json = cli_value(args, "json");
    if (!status && (!json || cli_value(args, "output")))
        status = save(args, page, error);
    if (!status && json)
        status = print(page, error);
    mgw_page_destroy(page);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    pthread_t watch;
    mgw_status watched = job_watch(&watch, error);
    mgw_status status = watched ? watched : report(args, error);
    if (!watched)
        job_unwatch(watch);
    return status;
}

const cli_command cli_report = {
    .name = "report",
    .arguments = "INPUT...",
    .least = 1,
    .most = 64,
    .summary = "show traces, clusters, plans and runs in one page for the browser",
    .details =
        "Writes one HTML file that opens offline and shows where a step's time goes: timelines, "
        "policies, scaling, T(M), tensor sizes, the plan. Sliders change the number of workers, "
        "the network, the speed of computation and the precision, and the page updates at once, "
        "with the same planner as the command line.\n"
        "An input is a file or the name of built-in data: traces and clusters (every trace is "
        "planned on every cluster), plans, timelines ('replay --chrome-trace'), what 'replay', "
        "'train', 'simulate', 'plan' or 'fit' print with --json, nccl-tests or OSU output, "
        "networks by name (100gbe) or by latency and bandwidth (30us,100Gbit/s). With a trace and "
        "a cluster, it also shows the output of 'advise'.",
    .examples = "mgwfbp report resnet152-b128-fp32-h200 paper-2-10gbe -o report.html\n"
                "mgwfbp report bert_base-b32-fp32-h200 100gbe --nodes 8 --gpus 8\n"
                "mgwfbp report model.json nccl-tests.txt replay.json replay.trace.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
