/* Writes advice as text and as JSON, for the command and for the page. */
#include <math.h>

#include <mgwfbp/report.h>

#include "base/locale.h"

/* Differences below 0.05% count as 0. */
double mgw_advice_saved(const mgw_advice *advice, double iteration_s)
{
    double share = advice->ddp_s > 0 ? 1 - iteration_s / advice->ddp_s : 0;
    return 100 * (fabs(share) < 5e-4 ? 0 : share);
}

void mgw_advice_write_answer(const mgw_advice *advice, mgw_text *text)
{
    double wasted = mgw_advice_saved(advice, advice->compute_s);
    if (wasted < 0.5) {
        mgw_text_printf(text,
                        "DDP's default already hides the network: it wastes %.1f%% of each "
                        "step, and no plan can get more than that back.\n",
                        wasted);
        return;
    }
    mgw_text_printf(text, "DDP's default wastes %.1f%% of each step; ", wasted);
    if (advice->bucket_cap_mb > 0)
        mgw_text_printf(text, "bucket_cap_mb=%.10g gets %.1f%% back, ", advice->bucket_cap_mb,
                        mgw_advice_saved(advice, advice->buckets_s));
    else
        mgw_text_printf(text, "no other bucket_cap_mb gets any of it back, ");
    mgw_text_printf(text, "mgwfbp %.1f%%, with forward overlap %.1f%%.\n",
                    mgw_advice_saved(advice, advice->plan_s),
                    mgw_advice_saved(advice, advice->overlap_s));
}

size_t mgw_advice_lines(const mgw_advice *advice, mgw_advice_line out[MGW_ADVICE_LINES_MAX])
{
    size_t count = 0;
    out[count++] = (mgw_advice_line){"model = torch.nn.parallel.DistributedDataParallel(model)",
                                     advice->ddp_s};
    if (advice->bucket_cap_mb > 0) {
        mgw_advice_line *line = &out[count++];
        mgw_snprintf(
            line->line, sizeof line->line,
            "model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=%.10g)",
            advice->bucket_cap_mb);
        line->iteration_s = advice->buckets_s;
    }
    out[count++] =
        (mgw_advice_line){"model = mgwfbp.torch.DistributedDataParallel(model)", advice->plan_s};
    out[count++] = (mgw_advice_line){
        "  and optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model, ...)", advice->overlap_s};
    return count;
}

void mgw_advice_write_limit(const mgw_advice *advice, mgw_text *text)
{
    char best[MGW_UNITS_MAX];
    char bound[MGW_UNITS_MAX];
    char bytes[MGW_UNITS_MAX];
    char network[MGW_UNITS_MAX];
    char compute[MGW_UNITS_MAX];
    char start[MGW_UNITS_MAX];
    mgw_format_seconds(advice->sent_s, network);
    mgw_format_seconds(advice->compute_s, compute);
    mgw_text_printf(text, "The best plan takes %s; no schedule takes less than %s. ",
                    mgw_format_seconds(advice->overlap_s, best),
                    mgw_format_seconds(advice->bound_s, bound));
    switch (advice->limit) {
    case MGW_LIMIT_COMPUTE:
        mgw_text_printf(text, "Computation is the limit: %s.\n", compute);
        break;
    case MGW_LIMIT_BANDWIDTH:
        mgw_text_printf(text, "The network's bandwidth is the limit: %s take %s, computation %s.\n",
                        mgw_format_bytes(advice->sent_bytes, bytes), network, compute);
        break;
    case MGW_LIMIT_LATENCY:
        mgw_text_printf(text,
                        "The network's latency is the limit: %s take %s, of which the start of the "
                        "message takes %s; computation %s.\n",
                        mgw_format_bytes(advice->sent_bytes, bytes), network,
                        mgw_format_seconds(advice->start_s, start), compute);
        break;
    case MGW_LIMIT_LAST:
        mgw_text_printf(
            text,
            "The limit is the gradients that are ready last and needed first: sending all "
            "gradients "
            "takes %s, and no computation (of %s in total) is left to hide the last ones.\n",
            network, compute);
        break;
    }
}

void mgw_advice_write_json(const mgw_trace *trace, const mgw_cluster *cluster,
                           const mgw_advice *advice, mgw_text *text)
{
    static const char *const limits[] = {[MGW_LIMIT_COMPUTE] = "compute",
                                         [MGW_LIMIT_BANDWIDTH] = "bandwidth",
                                         [MGW_LIMIT_LAST] = "last-gradients",
                                         [MGW_LIMIT_LATENCY] = "latency"};
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
    mgw_text_printf(text, "]}");
}
