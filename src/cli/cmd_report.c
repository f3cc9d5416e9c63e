/* mgwfbp report: everything in one page that opens offline. */
#include <stdio.h>

#include "cli/command.h"

static const cli_option options[] = {
    {"output", 'o', "FILE", "the page (default report.html; with --json: none)"},
    CLI_PARAMETERS,
    {"json", 0, NULL, "print JSON: what the page shows"},
};

static mgw_status save(const cli_args *args, const mgw_page *page, mgw_error *error)
{
    const char *path = cli_value(args, "output");
    mgw_text text;
    mgw_text_init(&text);
    mgw_page_write(page, false, &text);
    mgw_status status = mgw_text_save(&text, path ? path : "report.html", error);
    if (!status)
        fprintf(stderr, "wrote %s%s\n", path ? path : "report.html",
                mgw_page_plans() ? "" : " (without a planner: its numbers cannot be changed)");
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

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_page *page = NULL;
    bool given = false;
    mgw_dtype parameters = MGW_F32;
    mgw_status status = cli_parameters(args, &given, &parameters, error);
    if (!status)
        status = mgw_page_create(&page, error);
    if (!status && given)
        mgw_page_set_parameters(page, parameters);
    for (int i = 0; !status && i < args->count; i++)
        status = mgw_page_add_file(page, args->positional[i], error);
    bool json = cli_value(args, "json");
    if (!status && (!json || cli_value(args, "output")))
        status = save(args, page, error);
    if (!status && json)
        status = print(page, error);
    mgw_page_destroy(page);
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
        "policies, scaling, T(M), tensor sizes, the plan. In it, sliders change the number of "
        "workers, the network, the speed of computation and the precision, and the step is planned "
        "anew at once, by this same planner.\n"
        "An input is a file or the name of built-in data: traces and clusters (every trace is "
        "planned on every cluster), plans, timelines ('replay --chrome-trace'), what 'replay', "
        "'train', 'simulate', 'plan' or 'fit' print with --json, nccl-tests or OSU output.",
    .examples = "mgwfbp report resnet152-b128-fp32-h200 paper-2-10gbe -o report.html\n"
                "mgwfbp report model.json nccl-tests.txt replay.json replay.trace.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
