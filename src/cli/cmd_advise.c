/* mgwfbp advise: what DDP loses on this network, and what to change first. */
#include <math.h>
#include <stdio.h>

#include <mgwfbp/advise.h>

#include "cli/command.h"

static const cli_option options[] = {
    CLI_SHAPE,
    {"workers", 'n', "N", "number of workers, one in each node (default: the cluster's own)"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    CLI_PARAMETERS,
    {"json", 0, NULL, "print JSON: steps, levers and what limits the rest"},
};

/* Of DDP's step, what another one saves. */
static double saved(const mgw_advice *advice, double iteration_s)
{
    double share = advice->ddp_s > 0 ? 1 - iteration_s / advice->ddp_s : 0;
    return 100 * (fabs(share) < 5e-4 ? 0 : share);
}

static void print_answer(const mgw_advice *advice, mgw_text *text)
{
    double wasted = saved(advice, advice->compute_s);
    if (wasted < 0.5) {
        mgw_text_printf(text,
                        "DDP's default already hides the network: it wastes %.1f%% of each "
                        "step, and no plan can get more than that back.\n",
                        wasted);
        return;
    }
    mgw_text_printf(text, "DDP's default wastes %.1f%% of each step; ", wasted);
    if (advice->bucket_cap_mb > 0)
        mgw_text_printf(text, "bucket_cap_mb=%g gets %.1f%% back, ", advice->bucket_cap_mb,
                        saved(advice, advice->buckets_s));
    else
        mgw_text_printf(text, "no other bucket_cap_mb gets any of it back, ");
    mgw_text_printf(text, "mgwfbp %.1f%%, with forward overlap %.1f%%.\n",
                    saved(advice, advice->plan_s), saved(advice, advice->overlap_s));
}

static void print_line(mgw_table *table, const mgw_advice *advice, double iteration_s,
                       const char *line)
{
    char units[MGW_UNITS_MAX];
    mgw_table_cell(table, "%s", line);
    mgw_table_cell(table, "%s", mgw_format_seconds(iteration_s, units));
    mgw_table_cell(table, "%.1f%%", saved(advice, iteration_s));
}

static void print_lines(const mgw_advice *advice, mgw_text *text)
{
    char buckets[96];
    snprintf(buckets, sizeof buckets,
             "model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=%g)",
             advice->bucket_cap_mb);
    mgw_table *table = mgw_table_create("<the line to change|step|saved");
    print_line(table, advice, advice->ddp_s,
               "model = torch.nn.parallel.DistributedDataParallel(model)");
    if (advice->bucket_cap_mb > 0)
        print_line(table, advice, advice->buckets_s, buckets);
    print_line(table, advice, advice->plan_s,
               "model = mgwfbp.torch.DistributedDataParallel(model)");
    print_line(table, advice, advice->overlap_s,
               "  and optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model, ...)");
    mgw_text_printf(text, "\n");
    mgw_table_write(table, text);
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
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

static void print_limit(const mgw_trace *trace, const mgw_cluster *cluster,
                        const mgw_advice *advice, mgw_text *text)
{
    char best[MGW_UNITS_MAX];
    char bound[MGW_UNITS_MAX];
    char bytes[MGW_UNITS_MAX];
    char network[MGW_UNITS_MAX];
    char compute[MGW_UNITS_MAX];
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    uint64_t total = mgw_trace_bytes(trace);
    mgw_format_seconds(mgw_cost_seconds(&cost, MGW_ALL_REDUCE, total), network);
    mgw_format_seconds(advice->compute_s, compute);
    mgw_text_printf(text, "\nThe best plan takes %s; no schedule takes less than %s. ",
                    mgw_format_seconds(advice->overlap_s, best),
                    mgw_format_seconds(advice->bound_s, bound));
    switch (advice->limit) {
    case MGW_LIMIT_COMPUTE:
        mgw_text_printf(text, "Computation is the limit: %s.\n", compute);
        break;
    case MGW_LIMIT_BANDWIDTH:
        mgw_text_printf(text, "The network's bandwidth is the limit: %s take %s, computation %s.\n",
                        mgw_format_bytes(total, bytes), network, compute);
        break;
    case MGW_LIMIT_LAST:
        mgw_text_printf(
            text,
            "What is ready last and needed first is the limit: of %s that all "
            "gradients take, the last ones have no computation (%s) left beside them.\n",
            network, compute);
        break;
    }
}

static void print_json(const mgw_trace *trace, const mgw_cluster *cluster, const mgw_advice *advice,
                       mgw_text *text)
{
    static const char *const limits[] = {[MGW_LIMIT_COMPUTE] = "compute",
                                         [MGW_LIMIT_BANDWIDTH] = "bandwidth",
                                         [MGW_LIMIT_LAST] = "last-gradients"};
    mgw_text_printf(text, "{\"model\": ");
    mgw_text_json_string(text, trace->model);
    mgw_text_printf(text, ", \"cluster\": ");
    mgw_text_json_string(text, cluster->name);
    mgw_text_printf(text,
                    ", \"workers\": %u, \"compute_s\": %.12g, \"ddp_s\": %.12g, "
                    "\"bucket_cap_mb\": %.12g, \"buckets_s\": %.12g, \"plan_s\": %.12g, "
                    "\"overlap_s\": %.12g, \"lower_bound_s\": %.12g, \"limit\": \"%s\",\n"
                    "\"levers\": [",
                    cluster->workers, advice->compute_s, advice->ddp_s, advice->bucket_cap_mb,
                    advice->buckets_s, advice->plan_s, advice->overlap_s, advice->bound_s,
                    limits[advice->limit]);
    for (size_t i = 0; i < advice->lever_count; i++) {
        const mgw_lever *lever = &advice->levers[i];
        mgw_text_printf(text, "%s\n  {\"lever\": \"%s\", \"change\": ", i ? "," : "",
                        mgw_lever_name(lever->kind));
        mgw_text_json_string(text, lever->change);
        mgw_text_printf(text, ", \"iteration_s\": %.12g, \"samples\": %g, \"gain\": %.12g}",
                        lever->iteration_s, lever->samples, lever->gain);
    }
    mgw_text_printf(text, "]}\n");
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_advice advice;
    unsigned workers = 0;
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = cli_workers(args, 0, &workers, error);
    if (!status && workers && (cli_value(args, "nodes") || cli_value(args, "gpus")))
        status = cli_fail(error, "--workers: not with --nodes or --gpus, which say how many");
    if (!status)
        status = cli_load(args, &trace, &cluster, error);
    if (!status && workers)
        status = mgw_cluster_rescale(cluster, workers, NULL, error);
    if (!status)
        status = mgw_advise(trace, cluster, &advice, error);
    if (!status && cli_value(args, "json")) {
        print_json(trace, cluster, &advice, &text);
    } else if (!status) {
        print_answer(&advice, &text);
        mgw_text_printf(&text, "\n");
        cli_describe_trace(trace, &text);
        cli_describe_cluster(cluster, &text);
        print_lines(&advice, &text);
        print_levers(&advice, &text);
        print_limit(trace, cluster, &advice, &text);
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
    .summary = "what PyTorch's DDP loses on a network, and what to change first",
    .details =
        "Predicts a step of PyTorch's DDP with its default buckets, and what each change would "
        "give: the best bucket_cap_mb, a merged plan, forward overlap, 16-bit gradients, a larger "
        "batch, the next faster network, other nodes. Every lever is pulled alone; those that are "
        "not about messages keep DDP's default buckets.\n"
        "NETWORK is a name ('mgwfbp list networks'), latency and bandwidth of a link "
        "(30us,100Gbit/s), a cluster, or a file with the output of nccl-tests or of the OSU "
        "benchmarks. With --nodes and --gpus it links nodes: gradients are reduced inside of each "
        "node first. bucket_cap_mb is meant as PyTorch 2.4 and later take it.",
    .examples = "mgwfbp advise resnet50-b32-fp32-h200 100gbe --nodes 8 --gpus 8\n"
                "mgwfbp advise bert_base-b32-fp32-h200 25gbe --workers 16\n"
                "mgwfbp advise gpt2-b8-fp32-h200 30us,10Gbit/s --workers 8 --json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
