/* mgwfbp advise: what DDP loses on this network, and what to change first. */
#include <mgwfbp/advise.h>

#include "cli/command.h"

static const cli_option options[] = {
    CLI_SHAPE,
    {"workers", 'n', "N", "number of workers, one in each node (default: the cluster's own)"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    CLI_PARAMETERS,
    CLI_WIRE,
    {"json", 0, NULL, "print JSON: steps, levers and what limits the rest"},
};

static void print_lines(const mgw_advice *advice, mgw_text *text)
{
    mgw_advice_line lines[MGW_ADVICE_LINES_MAX];
    size_t count = mgw_advice_lines(advice, lines);
    mgw_table *table = mgw_table_create("<the line to change|step|saved");
    for (size_t i = 0; i < count; i++) {
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", lines[i].line);
        mgw_table_cell(table, "%s", mgw_format_seconds(lines[i].iteration_s, units));
        mgw_table_cell(table, "%.1f%%", mgw_advice_saved(advice, lines[i].iteration_s));
    }
    mgw_text_printf(text, "\n");
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

static void print_levers(const mgw_advice *advice, mgw_text *text)
{
    mgw_table *table = mgw_table_create("<lever, alone|step|samples per step|samples per second");
    for (size_t i = 0; i < advice->lever_count; i++) {
        const mgw_lever *lever = &advice->levers[i];
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", lever->change);
        mgw_table_cell(table, "%s", mgw_format_seconds(lever->iteration_s, units));
        mgw_table_cell(table, "%gx", lever->samples);
        mgw_table_cell(table, "%.3fx", lever->gain);
    }
    mgw_text_printf(text, "\n");
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_advice advice;
    unsigned workers = 0;
    unsigned wires = 0;
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = cli_workers(args, 0, &workers, error);
    if (!status && workers && (cli_value(args, "nodes") || cli_value(args, "gpus")))
        status = cli_fail(error,
                          "--workers: leave it out with --nodes or --gpus, which give the number");
    if (!status)
        status = cli_load(args, &trace, &cluster, error);
    if (!status && workers)
        status = mgw_cluster_rescale(cluster, workers, NULL, error);
    if (!status)
        status = cli_wires(args, trace, &wires, error);
    if (!status)
        status = mgw_advise(trace, cluster, wires, &advice, error);
    if (!status && cli_value(args, "json")) {
        mgw_advice_write_json(trace, cluster, &advice, &text);
        mgw_text_printf(&text, "\n");
    } else if (!status) {
        mgw_advice_write_answer(&advice, &text);
        mgw_text_printf(&text, "\n");
        cli_describe_trace(trace, &text);
        cli_describe_cluster(cluster, &text);
        print_lines(&advice, &text);
        print_levers(&advice, &text);
        mgw_text_printf(&text, "\n");
        mgw_advice_write_limit(&advice, &text);
    }
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return status;
}

const cli_command cli_advise = {
    .name = "advise",
    .arguments = "TRACE NETWORK",
    .least = 2,
    .most = 2,
    .summary = "show what PyTorch's DDP loses on a network, and what to change first",
    .details = "Predicts a step of PyTorch's DDP with its default buckets, and what each change "
               "would gain: the best bucket_cap_mb, a merged plan, forward overlap, 16-bit "
               "gradients, a larger batch, the next faster network, other nodes. Each row changes "
               "one thing only; rows that do not change the messages keep DDP's default buckets.\n"
               "NETWORK is a name ('mgwfbp list networks'), the latency and bandwidth of a link "
               "(30us,100Gbit/s), a cluster, or a file with the output of nccl-tests or of the OSU "
               "benchmarks. With --nodes and --gpus it links nodes, and gradients are first "
               "reduced inside each node. bucket_cap_mb is that of PyTorch 2.4 and later.",
    .examples = "mgwfbp advise resnet50-b32-fp32-h200 100gbe --nodes 8 --gpus 8\n"
                "mgwfbp advise bert_base-b32-fp32-h200 25gbe --workers 16\n"
                "mgwfbp advise gpt2-b8-fp32-h200 30us,10Gbit/s --workers 8 --json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
