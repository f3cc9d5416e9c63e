/* mgwfbp simulate: predicts how a model scales with the number of workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/outlook.h"
#include "cli/terminal.h"
#include "job/interrupt.h"

static const cli_option options[] = {
    {"workers", 'n', "LIST",
     "numbers of workers: 4:2048 for the powers of two, 6,12 for just these (default: the "
     "cluster's own)"},
    {"algorithm", 'a', "LIST",
     "all-reduce algorithms, separated by commas (default: the cluster's own); see 'mgwfbp list "
     "algorithms'"},
    {"policy", 'p', "LIST",
     "policies, separated by commas, or all (default: "
     "ddp,wfbp,single,mgwfbp,optimal,overlap)"},
    {"scale-compute", 0, "X", "make all computation X times as long (default 1)"},
    CLI_PARAMETERS,
    CLI_WIRE,
    CLI_SHAPE,
    CLI_OUTLOOK,
    {"svg", 0, "FILE",
     "draw the speed-up curves to FILE; with stragglers or failures, those of the whole job"},
    {"gantt", 0, NULL, "draw the step of every row as text"},
    {"chrome-trace", 0, "FILE",
     "write the timelines of all rows to FILE, for 'mgwfbp report', Perfetto or chrome://tracing"},
    {"json", 0, NULL, "print JSON: an array of rows"},
    CLI_PROGRESS,
};

static void print_table(const mgw_scaling_row *rows, size_t count, mgw_text *text)
{
    mgw_table *table = mgw_table_create(
        "<algorithm|workers|<policy|messages|iteration|exposed|speed-up|efficiency");
    for (size_t i = 0; i < count; i++) {
        const mgw_scaling_row *row = &rows[i];
        char name[MGW_POLICY_NAME_MAX];
        char units[MGW_UNITS_MAX];
        mgw_table_cell(table, "%s", row->algorithm);
        mgw_table_cell(table, "%u", row->workers);
        mgw_table_cell(table, "%s", mgw_policy_name(&row->policy, name));
        mgw_table_cell(table, "%zu", row->messages);
        mgw_table_cell(table, "%s", mgw_format_seconds(row->iteration_s, units));
        mgw_table_cell(table, "%s", mgw_format_seconds(row->exposed_s, units));
        mgw_table_cell(table, "%.2f", row->speedup);
        mgw_table_cell(table, "%.1f%%", 100 * row->efficiency);
    }
    cli_write_table(table, text);
    mgw_table_destroy(table);
}

static void print_json(const mgw_scaling_row *rows, size_t count, const mgw_conditions *conditions,
                       mgw_text *text)
{
    mgw_text_printf(text, "[\n");
    for (size_t i = 0; i < count; i++) {
        const mgw_scaling_row *row = &rows[i];
        char name[MGW_POLICY_NAME_MAX];
        mgw_text_printf(text,
                        "  {\"workers\": %u, \"algorithm\": \"%s\", \"policy\": \"%s\", "
                        "\"iteration_s\": %.12g, \"exposed_s\": %.12g, \"speedup\": %.12g, "
                        "\"efficiency\": %.12g, \"messages\": %zu, \"bytes\": %llu",
                        row->workers, row->algorithm, mgw_policy_name(&row->policy, name),
                        row->iteration_s, row->exposed_s, row->speedup, row->efficiency,
                        row->messages, (unsigned long long)row->bytes);
        if (conditions)
            cli_outlook_json(conditions, &row->outlook, text);
        mgw_text_printf(text, "}%s\n", i + 1 < count ? "," : "");
    }
    mgw_text_printf(text, "]\n");
}

/* ---- Timelines of the rows ---- */

enum { TIMELINES_MAX = 1000 };

/* Simulates a row. The cluster is created again for each row, since rescaling drops measured kinds.
 */
static mgw_status simulate_row(const mgw_trace *trace, const mgw_text *cluster_text,
                               const mgw_scaling_row *row, bool algorithm_given, unsigned wires,
                               mgw_timeline **out, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    mgw_plan *plan = NULL;
    mgw_algorithm algorithm = MGW_RING;
    mgw_cost cost;
    mgw_status status =
        mgw_cluster_parse("cluster", cluster_text->data, cluster_text->size, &cluster, error);
    if (!status && algorithm_given)
        status = mgw_algorithm_parse(row->algorithm, &algorithm, error);
    if (!status)
        status =
            mgw_cluster_rescale(cluster, row->workers, algorithm_given ? &algorithm : NULL, error);
    if (!status) {
        mgw_cluster_cost(cluster, &cost);
        cost.wires = wires;
        status = mgw_plan_make(trace, &cost, &row->policy, &plan, error);
    }
    if (!status)
        status = mgw_simulate(plan, trace, out, error);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    return status;
}

/* Makes one timeline per row. Ownership: the caller destroys *out, also after a failure. */
static mgw_status simulate_rows(const cli_args *args, const mgw_trace *trace,
                                const mgw_cluster *cluster, const mgw_scaling_row *rows,
                                size_t count, mgw_timeline ***out, mgw_error *error)
{
    if (count > TIMELINES_MAX)
        return cli_fail(error, "--gantt, --chrome-trace: at most %d rows, not %zu", TIMELINES_MAX,
                        count);
    *out = calloc(count ? count : 1, sizeof **out);
    if (!*out)
        return cli_fail(error, "out of memory");
    mgw_text text;
    mgw_text_init(&text);
    unsigned wires = 0;
    mgw_cluster_write(cluster, &text);
    mgw_status status = mgw_text_status(&text, error);
    if (!status)
        status = cli_wires(args, trace, &wires, error);
    for (size_t i = 0; !status && i < count; i++)
        status = simulate_row(trace, &text, &rows[i], cli_value(args, "algorithm"), wires,
                              &(*out)[i], error);
    mgw_text_fini(&text);
    return status;
}

static void print_timelines(mgw_timeline *const *timelines, const mgw_scaling_row *rows,
                            size_t count, mgw_text *text)
{
    for (size_t i = 0; i < count; i++) {
        mgw_text_printf(text, "\n");
        mgw_text_plain(text, timelines[i]->title);
        bool derived = strcmp(rows[i].algorithm, "measured") != 0;
        mgw_text_printf(text, "%s%s\n", derived ? ", " : "", derived ? rows[i].algorithm : "");
        mgw_draw_timeline_text(timelines[i], text);
    }
}

static mgw_status output(const cli_args *args, const mgw_trace *trace, const mgw_cluster *cluster,
                         const mgw_conditions *conditions, const mgw_scaling_row *rows,
                         size_t count, mgw_timeline *const *timelines, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = MGW_OK;
    if (cli_value(args, "chrome-trace")) {
        mgw_timelines_write((const mgw_timeline *const *)timelines, count, &text);
        status = cli_save(args, "chrome-trace", &text, error);
        mgw_text_fini(&text);
    }
    if (!status && cli_value(args, "svg")) {
        mgw_text title;
        mgw_text_init(&title);
        mgw_text_printf(&title, "%s on %s", trace->model, cluster->name);
        mgw_draw_scaling_svg(title.data ? title.data : "", rows, count, conditions != NULL, &text);
        text.failed |= title.failed;
        mgw_text_fini(&title);
        status = cli_save(args, "svg", &text, error);
        mgw_text_fini(&text);
    }
    if (cli_value(args, "json")) {
        print_json(rows, count, conditions, &text);
    } else {
        cli_describe_trace(trace, &text);
        mgw_text_printf(&text, "cluster  ");
        mgw_text_plain(&text, cluster->name);
        mgw_text_printf(&text, "\n\n");
        print_table(rows, count, &text);
        if (conditions) {
            mgw_text_printf(&text, "\n");
            cli_outlook_table(conditions, trace, rows, count, &text);
        }
        if (timelines && cli_value(args, "gantt"))
            print_timelines(timelines, rows, count, &text);
    }
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

/* Runs row by row, so that completed rows count if it is interrupted. */
static mgw_status run_rows(const cli_args *args, const mgw_trace *trace, const mgw_cluster *cluster,
                           const mgw_scaling *what, mgw_scaling_row **out, size_t *count,
                           mgw_error *error)
{
    cli_progress progress;
    size_t algorithms = what->algorithm_count ? what->algorithm_count : 1;
    size_t each = what->worker_count * what->policy_count;
    size_t total = algorithms * each;
    mgw_scaling_row *rows = calloc(total, sizeof *rows);
    mgw_status status = rows ? MGW_OK : cli_fail(error, "out of memory");
    cli_progress_begin(args, &progress);
    for (*count = 0; !status && !job_interrupted() && *count < total; ++*count) {
        mgw_scaling one = *what;
        one.workers = &what->workers[*count % each / what->policy_count];
        one.algorithms = what->algorithms ? &what->algorithms[*count / each] : NULL;
        one.policies = &what->policies[*count % what->policy_count];
        one.worker_count = one.policy_count = 1;
        one.algorithm_count = what->algorithm_count ? 1 : 0;
        mgw_scaling_row *row = NULL;
        size_t made = 0;
        status = mgw_scaling_run(trace, cluster, &one, &row, &made, error);
        if (!status)
            rows[*count] = *row;
        job_end_in_order(); /* there are results to show */
        free(row);
        char done[64];
        snprintf(done, sizeof done, "row %zu of %zu", *count + 1, total);
        cli_progress_show(&progress, (double)(*count + 1) / (double)total, done);
    }
    cli_progress_end(&progress);
    if (!status && *count < total)
        fprintf(stderr, "mgwfbp simulate: interrupted: %zu of %zu rows are done\n", *count, total);
    *out = rows;
    return status;
}

static mgw_status simulate(const cli_args *args, mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    unsigned *workers = NULL;
    mgw_algorithm *algorithms = NULL;
    mgw_policy *policies = NULL;
    mgw_scaling_row *rows = NULL;
    mgw_scaling what = {0};
    mgw_conditions conditions;
    bool given = false;
    size_t count = 0;
    const char *policy_list = cli_value(args, "policy");
    mgw_status status =
        cli_any_policy_list(policy_list ? policy_list : "ddp,wfbp,single,mgwfbp,optimal,overlap",
                            &policies, &what.policy_count, error);
    if (!status && cli_value(args, "algorithm"))
        status = cli_algorithm_list(cli_value(args, "algorithm"), &algorithms,
                                    &what.algorithm_count, error);
    if (!status && cli_value(args, "workers"))
        status = cli_worker_list(cli_value(args, "workers"), &workers, &what.worker_count, error);
    if (!status)
        status = cli_conditions(args, &given, &conditions, error);
    if (!status)
        status = cli_load(args, &trace, &cluster, error);
    if (!status) {
        what.workers = workers ? workers : &cluster->workers;
        what.worker_count = workers ? what.worker_count : 1;
        what.algorithms = algorithms;
        what.policies = policies;
        status = cli_wires(args, trace, &what.wires, error);
    }
    if (!status) {
        what.conditions = given ? &conditions : NULL;
        status = run_rows(args, trace, cluster, &what, &rows, &count, error);
    }
    mgw_timeline **timelines = NULL;
    if (!status && (cli_value(args, "gantt") || cli_value(args, "chrome-trace")))
        status = simulate_rows(args, trace, cluster, rows, count, &timelines, error);
    if (!status)
        status = output(args, trace, cluster, what.conditions, rows, count, timelines, error);
    mgw_timelines_destroy(timelines, count);
    free(rows);
    free(policies);
    free(algorithms);
    free(workers);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    pthread_t watch;
    mgw_status watched = job_watch(&watch, error);
    mgw_status status = watched ? watched : simulate(args, error);
    if (!watched)
        job_unwatch(watch);
    return status;
}

const cli_command cli_simulate = {
    .name = "simulate",
    .arguments = "TRACE CLUSTER",
    .least = 2,
    .most = 2,
    .summary = "predict how a model scales with the number of workers",
    .details =
        "Plans and predicts a step for each number of workers, algorithm and policy. Every worker "
        "computes the trace's batch, so the speed-up over one worker is the number of workers "
        "times computation's share of the step. For policies that overlap the next forward pass, "
        "the step is that of the steady state.\n"
        "Numbers of workers other than the cluster's own need link constants. The built-in "
        "paper-1-10gbe-link has them, and 'mgwfbp fit --as ring' derives them from measurements.\n"
        "With --jitter, each step takes as long as its slowest worker. With --mtbf, the job fails "
        "whenever one of its workers fails, and continues from its last checkpoint. Means are "
        "computed, not sampled.",
    .examples = "mgwfbp simulate resnet50-b32-fp32-h200 paper-1-10gbe-link --workers 4:2048\n"
                "mgwfbp simulate googlenet-b64-fp32-h200 paper-1-10gbe-link --workers 4:2048 "
                "--algorithm ring,double-binary-trees --scale-compute 36 --svg scaling.svg\n"
                "mgwfbp simulate gpt2-b8-fp32-h200 paper-3-56gbib --policy optimal,overlap "
                "--gantt\n"
                "mgwfbp simulate gpt2-b8-fp32-h200 ndr --nodes 12500 --gpus 8 --ports 8 --jitter "
                "5% --mtbf 5y --checkpoint 30s --restart 5min\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
