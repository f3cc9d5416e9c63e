/* mgwfbp plan: the chosen plan beside every other policy and the lower bound. */
#include <stdlib.h>

#include "cli/command.h"

static const cli_option options[] = {
    {"policy", 'p', "P",
     "the policy of the plan (default optimal); 'mgwfbp list policies' explains "
     "them: naive, wfbp, single, mgwfbp, optimal, overlap, threshold[:BYTES], "
     "ddp[:FIRST,CAP], fsdp[:CAP], zero[:CAP], dear[:CAP]"},
    {"workers", 'n', "N",
     "number of workers (default: the cluster's own); other numbers need a "
     "cluster with link constants"},
    {"algorithm", 'a', "A",
     "all-reduce algorithm (default: the cluster's own), for clusters with "
     "link constants"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    {"output", 'o', "FILE", "write the plan to FILE as JSON"},
    {"json", 0, NULL, "print JSON: the plan, every policy's prediction, the lower bound"},
};

enum { SHOWN_MESSAGES = 12 };

/* The plans of all policies that are compared; the chosen one is last if it is none of them. */
typedef struct comparison {
    mgw_plan *plans[16];
    size_t count;
    size_t chosen;
    const mgw_plan *by_kind[MGW_POLICY_COUNT];
    const mgw_plan *best;
} comparison;

static bool same_policy(const mgw_policy *a, const mgw_policy *b)
{
    return a->kind == b->kind && a->first_bytes == b->first_bytes && a->cap_bytes == b->cap_bytes;
}

/* A policy that cannot be planned here (`optimal` on a curve, for very many tensors) is left out,
 * unless it is the chosen one. */
static mgw_status add_plan(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                           bool chosen, comparison *out, mgw_error *error)
{
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(trace, cost, policy, &plan, error);
    if (status == MGW_ERR_UNSUPPORTED && !chosen)
        return MGW_OK;
    if (status)
        return status;
    if (chosen)
        out->chosen = out->count;
    if (!out->best || plan->iteration_s < out->best->iteration_s)
        out->best = plan;
    out->by_kind[policy->kind] = plan;
    out->plans[out->count++] = plan;
    return MGW_OK;
}

static mgw_status compare(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                          comparison *out, mgw_error *error)
{
    size_t count = 0;
    const mgw_policy *list = mgw_policy_list(&count);
    mgw_status status = MGW_OK;
    bool listed = false;
    for (size_t i = 0; !status && i < count; i++) {
        bool chosen = same_policy(&list[i], policy);
        status = add_plan(trace, cost, &list[i], chosen, out, error);
        listed |= chosen;
    }
    if (!status && !listed)
        status = add_plan(trace, cost, policy, true, out, error);
    return status;
}

static void print_policies(const comparison *all, mgw_text *text)
{
    char units[MGW_UNITS_MAX];
    const mgw_plan *best = all->best;
    mgw_table *table =
        mgw_table_create("<policy|messages|iteration|exposed|efficiency|slower than the best");
    for (size_t i = 0; i < all->count; i++) {
        const mgw_plan *plan = all->plans[i];
        mgw_table_cell(table, "%s%s", plan->policy, i == all->chosen ? " *" : "");
        mgw_table_cell(table, "%zu", plan->operation_count);
        mgw_table_cell(table, "%s", mgw_format_seconds(plan->iteration_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(plan->exposed_s, units));
        mgw_table_cell(table, "%.1f%%", 100 * mgw_efficiency(plan));
        mgw_table_cell(table, "%.2fx",
                       best->iteration_s > 0 ? plan->iteration_s / best->iteration_s : 1.0);
    }
    mgw_table_cell(table, "lower bound");
    mgw_table_cell(table, "%s", "");
    mgw_table_cell(table, "%s", mgw_format_seconds(best->lower_bound_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(best->lower_bound_s - best->compute_s, units));
    mgw_table_cell(table, "%s", "");
    mgw_table_cell(table, "no plan is faster");
    mgw_table_write(table, text);
    mgw_table_destroy(table);
}

/* How much of a step the plan saves against sending each tensor when it is ready. */
static void print_gain(const comparison *all, mgw_text *text)
{
    const mgw_plan *plan = all->plans[all->chosen];
    const mgw_plan *wfbp = all->by_kind[MGW_WFBP];
    const mgw_plan *single = all->by_kind[MGW_SINGLE];
    if (!wfbp || !single) /* it cannot be told how long it would take */
        return;
    const mgw_plan *usual = wfbp->iteration_s < single->iteration_s ? wfbp : single;
    if (!(usual->iteration_s > 0))
        return;
    double saved = 100 * (1 - plan->iteration_s / usual->iteration_s);
    double most = 100 * (1 - plan->lower_bound_s / usual->iteration_s);
    mgw_text_printf(text,
                    "\n'%s' %s %.1f%% of a step against '%s', the better of wfbp and single; no "
                    "plan can save more than %.1f%%.\n",
                    plan->policy, saved >= -0.05 ? "saves" : "loses", saved < 0 ? -saved : saved,
                    usual->policy, most > 0 ? most : 0);
}

static void print_messages(const mgw_plan *plan, const mgw_trace *trace, mgw_text *text)
{
    mgw_text_printf(text, "\nThe plan '%s': times from the start of the forward pass\n",
                    plan->policy);
    mgw_table *table = mgw_table_create("<message|tensors|bytes|ready|start|end|<last tensor");
    size_t shown = plan->operation_count <= SHOWN_MESSAGES ? plan->operation_count : SHOWN_MESSAGES;
    for (size_t m = 0; m < shown; m++) {
        const mgw_operation *message = &plan->operations[m];
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%zu", m + 1);
        mgw_table_cell(table, "%zu", message->count);
        mgw_table_cell(table, "%s", mgw_format_bytes(message->bytes, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->ready_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->start_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->end_s, units));
        mgw_table_cell(table, "%.40s",
                       mgw_trace_tensor_name(trace, message->first + message->count - 1));
    }
    mgw_table_write(table, text);
    mgw_table_destroy(table);
    if (shown < plan->operation_count)
        mgw_text_printf(text, "... and %zu more (-o FILE writes them all)\n",
                        plan->operation_count - shown);
}

static void print_json(const comparison *all, mgw_text *text)
{
    mgw_text_printf(text, "{\"plan\": ");
    mgw_plan_write(all->plans[all->chosen], text);
    cli_chomp(text);
    mgw_text_printf(text, ",\n\"policies\": {\n");
    for (size_t i = 0; i < all->count; i++) {
        const mgw_plan *plan = all->plans[i];
        mgw_text_printf(text, "  ");
        mgw_text_json_string(text, plan->policy);
        mgw_text_printf(text, ": {\"iteration_s\": %.12g, \"exposed_s\": %.12g, \"messages\": %zu}",
                        plan->iteration_s, plan->exposed_s, plan->operation_count);
        mgw_text_printf(text, i + 1 < all->count ? ",\n" : "},\n");
    }
    mgw_text_printf(text, "\"lower_bound_s\": %.12g}\n", all->plans[all->chosen]->lower_bound_s);
}

static mgw_status output(const cli_args *args, const mgw_trace *trace, const mgw_cluster *cluster,
                         const comparison *all, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = MGW_OK;
    if (cli_value(args, "output")) {
        mgw_plan_write(all->plans[all->chosen], &text);
        status = cli_save(args, "output", &text, error);
        mgw_text_fini(&text);
    }
    if (cli_value(args, "json")) {
        print_json(all, &text);
    } else {
        cli_describe_trace(trace, &text);
        cli_describe_cluster(cluster, &text);
        mgw_text_printf(&text, "\n");
        print_policies(all, &text);
        print_gain(all, &text);
        print_messages(all->plans[all->chosen], trace, &text);
    }
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    comparison all = {0};
    mgw_policy policy;
    const char *name = cli_value(args, "policy");
    const char *algorithm_name = cli_value(args, "algorithm");
    mgw_algorithm algorithm = MGW_RING;
    unsigned workers = 0;
    mgw_status status = mgw_policy_parse(name ? name : "optimal", &policy, error);
    if (!status && algorithm_name)
        status = mgw_algorithm_parse(algorithm_name, &algorithm, error);
    if (!status)
        status = cli_workers(args, 0, &workers, error);
    if (!status)
        status = cli_load(args, &trace, &cluster, error);
    if (!status)
        status = mgw_cluster_rescale(cluster, workers ? workers : cluster->workers,
                                     algorithm_name ? &algorithm : NULL, error);
    mgw_cost cost;
    if (!status) {
        mgw_cluster_cost(cluster, &cost);
        status = compare(trace, &cost, &policy, &all, error);
    }
    if (!status)
        status = output(args, trace, cluster, &all, error);
    for (size_t i = 0; i < all.count; i++)
        mgw_plan_destroy(all.plans[i]);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .arguments = "TRACE CLUSTER",
    .least = 2,
    .most = 2,
    .summary = "plan a model's messages on a cluster, and see what could be gained",
    .details =
        "Decides which neighbouring gradients travel in one message, so that the step is as short "
        "as it can be, and predicts the time of a step under every policy. TRACE and CLUSTER are "
        "files, or names of built-in data ('mgwfbp list').\n"
        "In the table, 'iteration' is a whole step; 'exposed' is communication that the backward "
        "pass does not hide; 'efficiency' is computation's share of the step; the lower bound "
        "holds for every plan.",
    .examples = "mgwfbp plan resnet50-b32-fp32-h200 paper-2-10gbe -o plan.json\n"
                "mgwfbp plan bert_base-b32-fp32-h200 paper-3-56gbib --policy ddp\n"
                "mgwfbp plan googlenet-b64-fp32-h200 paper-1-10gbe-link --workers 64 "
                "--scale-compute 36\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
