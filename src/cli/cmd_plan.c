/* mgwfbp plan: compares the chosen plan with all other policies and the lower bound. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/command.h"

static const cli_option options[] = {
    {"policy", 'p', "P",
     "the policy of the plan (default optimal); 'mgwfbp list policies' explains "
     "them: naive, wfbp, single, mgwfbp, optimal, threshold[:SIZE], "
     "ddp[:[FIRST,]CAP], and those that overlap the next forward pass: overlap, "
     "sharded, zero[:CAP], dear[:CAP], fsdp[:CAP]; sizes as 25MiB, 25 (below 1024: MiB) or "
     "26214400"},
    {"workers", 'n', "N",
     "number of workers (default: the cluster's own); other numbers need a "
     "cluster with link constants"},
    {"algorithm", 'a', "A",
     "all-reduce algorithm (default: the cluster's own), for clusters with "
     "link constants"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    CLI_PARAMETERS,
    CLI_WIRE,
    CLI_SHAPE,
    {"output", 'o', "FILE", "write the plan to FILE as JSON; - is standard output"},
    {"svg", 0, "FILE",
     "draw DDP's default, the plan and 'overlap' to FILE, on the same time scale"},
    {"json", 0, NULL, "print JSON: the plan, every policy's prediction, the lower bound"},
};

enum { SHOWN_MESSAGES = 12 };

/* The plans of all compared policies; the chosen one is last if it is not among them. */
typedef struct comparison {
    mgw_plan *plans[16];
    size_t count;
    size_t chosen;
    const mgw_plan *by_kind[MGW_POLICY_COUNT];
    const mgw_plan *best;
    mgw_plan *usual; /* with --wire: DDP's default buckets with f32 messages; otherwise null */
} comparison;

static bool same_policy(const mgw_policy *a, const mgw_policy *b)
{
    return a->kind == b->kind && a->first_bytes == b->first_bytes && a->cap_bytes == b->cap_bytes;
}

/* Policies that cannot be planned here (`optimal` on a curve with very many tensors) are skipped,
 * unless chosen. */
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
    if (!out->by_kind[policy->kind]) /* DDP with other limits does not replace the default */
        out->by_kind[policy->kind] = plan;
    out->plans[out->count++] = plan;
    return MGW_OK;
}

static mgw_status compare(const mgw_trace *trace, const mgw_cost *cost, const mgw_policy *policy,
                          comparison *out, mgw_error *error)
{
    size_t count = 0;
    const mgw_policy *list = mgw_policy_all(&count);
    mgw_status status = MGW_OK;
    bool listed = false;
    for (size_t i = 0; !status && i < count; i++) {
        bool chosen = same_policy(&list[i], policy);
        status = add_plan(trace, cost, &list[i], chosen, out, error);
        listed |= chosen;
    }
    if (!status && !listed)
        status = add_plan(trace, cost, policy, true, out, error);
    if (!status && cost->wires) {
        const mgw_policy ddp = {MGW_DDP, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES};
        mgw_cost plain = *cost;
        plain.wires = 0;
        status = mgw_plan_make(trace, &plain, &ddp, &out->usual, error);
    }
    return status;
}

/* The lower bound for plans of this kind; the bound for any plan also applies. */
static double find_bound(const comparison *all, const mgw_plan *plan)
{
    const mgw_plan *overlap = all->by_kind[MGW_OVERLAP];
    bool higher = overlap && overlap->lower_bound_s > plan->lower_bound_s;
    return higher ? overlap->lower_bound_s : plan->lower_bound_s;
}

static void print_bound(const comparison *all, const mgw_plan *plan, const char *says,
                        mgw_table *table)
{
    char units[MGW_UNITS_MAX];
    double bound_s = find_bound(all, plan);
    mgw_table_cell(table, "lower bound");
    mgw_table_cell(table, "%s", "");
    mgw_table_cell(table, "%s", mgw_format_seconds(bound_s, units));
    mgw_table_cell(table, "%s", mgw_format_seconds(bound_s - plan->compute_s, units));
    mgw_table_cell(table, "%s", "");
    mgw_table_cell(table, "%s", says);
}

static void print_policies(const comparison *all, mgw_text *text)
{
    char units[MGW_UNITS_MAX];
    const mgw_plan *best = all->best;
    const mgw_plan *overlap = all->by_kind[MGW_OVERLAP];
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
    if (all->by_kind[MGW_SINGLE])
        print_bound(all, all->by_kind[MGW_SINGLE], "of whole all-reduces", table);
    if (overlap)
        print_bound(all, overlap, "no plan is faster", table);
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

/* The baseline: DDP with its default buckets; null if its time is unknown. */
static const mgw_plan *find_usual(const comparison *all)
{
    const mgw_plan *ddp = all->usual ? all->usual : all->by_kind[MGW_DDP];
    return ddp && ddp->iteration_s > 0 ? ddp : NULL;
}

static void print_saving(const mgw_plan *plan, const mgw_plan *usual, mgw_text *text)
{
    double saved = 100 * (1 - plan->iteration_s / usual->iteration_s);
    mgw_text_printf(text, "'%s' %s %.1f%% of a step compared with DDP's default", plan->policy,
                    saved >= -0.05 ? "saves" : "loses", saved < 0 ? -saved : saved);
}

static double most_saved(const comparison *all, const mgw_plan *plan, const mgw_plan *usual)
{
    double most = 100 * (1 - find_bound(all, plan) / usual->iteration_s);
    return most > 0 ? most : 0;
}

/* How much the plan saves relative to DDP, and how much overlapping the next forward pass would
 * save. */
static void print_gain(const comparison *all, mgw_text *text)
{
    const mgw_plan *plan = all->plans[all->chosen];
    const mgw_plan *overlap = all->by_kind[MGW_OVERLAP];
    const mgw_plan *usual = find_usual(all);
    if (!usual)
        return;
    mgw_text_printf(text, "\n");
    if (all->usual) {
        char units[MGW_UNITS_MAX];
        mgw_text_printf(text, "DDP's default with f32 messages takes %s.\n",
                        mgw_format_seconds(usual->iteration_s, units));
    }
    print_saving(plan, usual, text);
    mgw_text_printf(text, "; no plan%s can save more than %.1f%%.\n",
                    plan->overlaps_forward ? "" : " of whole all-reduces",
                    most_saved(all, plan, usual));
    if (!overlap || plan->overlaps_forward)
        return;
    print_saving(overlap, usual, text);
    mgw_text_printf(text,
                    ", by also using the next forward pass; no plan can save more than %.1f%%.\n",
                    most_saved(all, overlap, usual));
}

static bool has_kinds(const mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++)
        if (plan->operations[m].kind != MGW_ALL_REDUCE)
            return true;
    return false;
}

static bool has_wires(const mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++)
        if (plan->operations[m].wire != MGW_F32)
            return true;
    return false;
}

static void print_messages(const mgw_plan *plan, const mgw_trace *trace, mgw_text *text)
{
    bool kinds = has_kinds(plan);
    bool wires = has_wires(plan);
    mgw_text_printf(text, "\nThe plan '%s': times from the start of the forward pass\n",
                    plan->policy);
    char columns[96];
    snprintf(columns, sizeof columns, "<message%s|tensors%s|bytes|ready|start|end|<last tensor",
             kinds ? "|<kind" : "", wires ? "|<wire" : "");
    mgw_table *table = mgw_table_create(columns);
    size_t shown = plan->operation_count <= SHOWN_MESSAGES ? plan->operation_count : SHOWN_MESSAGES;
    for (size_t m = 0; m < shown; m++) {
        const mgw_operation *message = &plan->operations[m];
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%zu", m + 1);
        if (kinds)
            mgw_table_cell(table, "%s", mgw_collective_name(message->kind));
        mgw_table_cell(table, "%zu", message->count);
        bool averages = mgw_collective_averages(message->kind);
        if (wires)
            mgw_table_cell(table, "%s", averages ? mgw_dtype_name(message->wire) : "");
        mgw_table_cell(table, "%s", mgw_format_bytes(message->bytes, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->ready_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->start_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(message->end_s, units));
        mgw_table_cell(table, "%.40s",
                       mgw_trace_tensor_name(trace, message->first + message->count - 1));
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
    if (shown < plan->operation_count)
        mgw_text_printf(text, "... and %zu more (-o FILE writes them all)\n",
                        plan->operation_count - shown);
}

/* Prints where the next forward pass waits. */
static void print_stalls(const mgw_plan *plan, mgw_text *text)
{
    if (!plan->overlaps_forward)
        return;
    char pass[MGW_UNITS_MAX];
    char total[MGW_UNITS_MAX];
    mgw_text_printf(text, "\nThe next forward pass begins at %s and ",
                    mgw_format_seconds(plan->compute_s, pass));
    if (plan->stall_count == 0) {
        mgw_text_printf(text, "does not wait\n");
        return;
    }
    mgw_text_printf(text, "waits %s for\n", mgw_format_seconds(plan->exposed_s, total));
    mgw_table *table = mgw_table_create("<tensor|from|to|waits");
    size_t shown = plan->stall_count <= SHOWN_MESSAGES ? plan->stall_count : SHOWN_MESSAGES;
    for (size_t i = 0; i < shown; i++) {
        const mgw_stall *stall = &plan->stalls[i];
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%.40s", mgw_plan_tensor_name(plan, stall->tensor));
        mgw_table_cell(table, "%s", mgw_format_seconds(stall->start_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(stall->end_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(stall->end_s - stall->start_s, units));
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
    if (shown < plan->stall_count)
        mgw_text_printf(text, "... and %zu more\n", plan->stall_count - shown);
}

static void print_prediction(const mgw_plan *plan, mgw_text *text)
{
    mgw_text_printf(text, "{\"iteration_s\": %.12g, \"exposed_s\": %.12g, \"messages\": %zu, ",
                    plan->iteration_s, plan->exposed_s, plan->operation_count);
    cli_count_kinds(plan, text);
    mgw_text_printf(text, ", \"bytes\": %llu, \"lower_bound_s\": %.12g}",
                    (unsigned long long)mgw_plan_bytes(plan), plan->lower_bound_s);
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
        mgw_text_printf(text, ": ");
        print_prediction(plan, text);
        mgw_text_printf(text, i + 1 < all->count ? ",\n" : "},\n");
    }
    if (all->usual) {
        mgw_text_printf(text, "\"baseline\": ");
        print_prediction(all->usual, text);
        mgw_text_printf(text, ",\n");
    }
    mgw_text_printf(text, "\"lower_bound_s\": %.12g}\n", all->plans[all->chosen]->lower_bound_s);
}

/* Draws the baseline, the plan and the best plan, each once. */
static mgw_status draw(const comparison *all, mgw_text *text, mgw_error *error)
{
    const mgw_plan *shown[] = {all->usual ? all->usual : all->by_kind[MGW_DDP],
                               all->plans[all->chosen], all->by_kind[MGW_OVERLAP]};
    mgw_timeline *timelines[3] = {0};
    size_t count = 0;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < 3; i++) {
        bool again = (i > 0 && shown[i] == shown[0]) || (i > 1 && shown[i] == shown[1]);
        if (shown[i] && !again)
            status = mgw_simulate(shown[i], NULL, &timelines[count++], error);
    }
    if (!status)
        mgw_draw_timelines_svg((const mgw_timeline *const *)timelines, count, text);
    for (size_t i = 0; i < count; i++)
        mgw_timeline_destroy(timelines[i]);
    return status;
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
    if (!status && cli_value(args, "svg")) {
        status = draw(all, &text, error);
        if (!status)
            status = cli_save(args, "svg", &text, error);
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
        print_stalls(all->plans[all->chosen], &text);
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
        status = cli_wires(args, trace, &cost.wires, error);
    }
    if (!status) {
        status = compare(trace, &cost, &policy, &all, error);
    }
    if (!status)
        status = output(args, trace, cluster, &all, error);
    for (size_t i = 0; i < all.count; i++)
        mgw_plan_destroy(all.plans[i]);
    mgw_plan_destroy(all.usual);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .arguments = "TRACE CLUSTER",
    .least = 2,
    .most = 2,
    .summary = "plan a model's messages on a cluster, and show what could be gained",
    .details =
        "Decides which neighbouring gradients to send in one message so that the step is as short "
        "as possible, and predicts the time of a step under every policy. TRACE and CLUSTER are "
        "files, or names of built-in data ('mgwfbp list').\n"
        "In the table, 'iteration' is a whole step; 'exposed' is communication that computation "
        "does not hide; 'efficiency' is computation's share of the step. The first lower bound "
        "holds for every plan of whole all-reduces, the second for every plan.\n"
        "'overlap', 'sharded', 'zero', 'dear' and 'fsdp' split all-reduces into reduce-scatters "
        "during the backward pass and all-gathers during the next forward pass, which waits for a "
        "tensor where it needs it. Their iteration is the length of a step in the steady state; "
        "their exposed time is the sum of the stalls. With 'sharded' every worker keeps its shares "
        "of the optimizer's state only; 'overlap' may send whole all-reduces where that is "
        "faster.\n"
        "With --wire, each message is sent in the fastest of the allowed formats, with the cost of "
        "the casts included ('mgwfbp calibrate' measures it; otherwise that of a typical GPU is "
        "used). Sums are made in f32. DDP's default, with which savings are compared, stays as it "
        "is.",
    .examples = "mgwfbp plan resnet50-b32-fp32-h200 paper-2-10gbe -o plan.json\n"
                "mgwfbp plan bert_base-b32-fp32-h200 paper-3-56gbib --policy ddp\n"
                "mgwfbp plan gpt2-b8-fp32-h200 paper-3-56gbib --policy overlap --parameters bf16\n"
                "mgwfbp plan bert_base-b32-fp32-h200 paper-3-56gbib --wire auto -o plan.json\n"
                "mgwfbp plan googlenet-b64-fp32-h200 paper-1-10gbe-link --workers 64 "
                "--scale-compute 36\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
