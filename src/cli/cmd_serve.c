/* mgwfbp serve: serves the page of `report` on this machine, and accepts dropped files. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/command.h"
#include "cli/serve.h"

static const cli_option options[] = {
    {"port", 0, "P", "the port to listen on (default 8457); 0 picks a free one"},
};

static mgw_status read_port(const cli_args *args, unsigned *out, mgw_error *error)
{
    const char *value = cli_value(args, "port");
    *out = 8457;
    if (!value)
        return MGW_OK;
    char *end = NULL;
    unsigned long port = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || port > 65535)
        return cli_fail(error, "--port: '%s' is not a number from 0 to 65535", value);
    *out = (unsigned)port;
    return MGW_OK;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_page *page = NULL;
    unsigned port = 0;
    mgw_status status = read_port(args, &port, error);
    if (!status)
        status = mgw_page_create(&page, error);
    for (int i = 0; !status && i < args->count; i++)
        status = mgw_page_add_file(page, args->positional[i], error);
    if (!status)
        status = cli_serve_page(&page, port, error);
    mgw_page_destroy(page);
    return status;
}

const cli_command cli_serve = {
    .name = "serve",
    .arguments = "[INPUT...]",
    .least = 0,
    .most = 64,
    .summary = "serve the same page on this machine only, and read files dropped on it",
    .details = "Serves the page of 'mgwfbp report' at the address that it prints, until it is "
               "interrupted. It reads files that you drop on the page: a trace, a cluster, "
               "nccl-tests or OSU output, a plan, timelines, JSON of 'replay' and 'simulate'. "
               "Nothing leaves the machine: it listens on 127.0.0.1 and serves no files. The "
               "address ends in a token, new at every start; requests without it get nothing, and "
               "connections from other users of the machine are refused.",
    .examples = "mgwfbp serve\n"
                "mgwfbp serve resnet50-b32-fp32-h200 paper-1-10gbe-link --port 9000\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
