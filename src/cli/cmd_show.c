/* mgwfbp show: describes a trace, a cluster or a plan, as text and as a picture. */
#include "cli/command.h"

static const cli_option options[] = {
    {"svg", 0, "FILE",
     "draw it to FILE: tensor sizes (trace), T(M) (cluster), the timeline (plan)"},
    {"chrome-trace", 0, "FILE",
     "write a plan's timeline to FILE, for Perfetto or chrome://tracing"},
    {"json", 0, NULL, "print the totals as JSON"},
};

/* The writers for one kind of input. */
typedef struct view {
    const void *shown;
    void (*words)(const void *shown, mgw_text *text);
    void (*json)(const void *shown, mgw_text *text);
    void (*svg)(const void *shown, mgw_text *text);
    void (*chrome)(const void *shown, mgw_text *text); /* or null */
} view;

static mgw_status write_file(const cli_args *args, const char *option, const view *v,
                             void (*write)(const void *, mgw_text *), mgw_error *error)
{
    if (!cli_value(args, option))
        return MGW_OK;
    if (!write)
        return cli_fail(error, "--%s: only a plan has a timeline, and %s is not a plan", option,
                        args->positional[0]);
    mgw_text text;
    mgw_text_init(&text);
    write(v->shown, &text);
    mgw_status status = cli_save(args, option, &text, error);
    mgw_text_fini(&text);
    return status;
}

static mgw_status show(const cli_args *args, const view *v, mgw_error *error)
{
    mgw_status status = write_file(args, "svg", v, v->svg, error);
    if (!status)
        status = write_file(args, "chrome-trace", v, v->chrome, error);
    if (status)
        return status;
    mgw_text text;
    mgw_text_init(&text);
    (cli_value(args, "json") ? v->json : v->words)(v->shown, &text);
    status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

/* ---- Traces ---- */

/* Counts the tensors with a known time of need, and those that are never needed. */
static void count_needs(const mgw_trace *trace, size_t *known, size_t *never)
{
    *known = *never = 0;
    for (size_t i = 0; i < trace->tensor_count; i++) {
        *known += trace->tensors[i].forward_start_s >= 0;
        *never += trace->tensors[i].forward_start_s == MGW_NEVER_NEEDED;
    }
}

static void trace_words(const void *shown, mgw_text *text)
{
    const mgw_trace *trace = shown;
    size_t known = 0;
    size_t never = 0;
    count_needs(trace, &known, &never);
    cli_describe_trace(trace, text);
    mgw_text_printf(text, "needed   by the forward pass: %zu tensors at known times, %zu never",
                    known, never);
    if (known + never < trace->tensor_count)
        mgw_text_printf(text, "; for %zu it is not known, so they count as needed at once",
                        trace->tensor_count - known - never);
    mgw_text_printf(text, "\n\n");
    mgw_draw_sizes_text(shown, text);
}

static void trace_json(const void *shown, mgw_text *text)
{
    const mgw_trace *trace = shown;
    size_t known = 0;
    size_t never = 0;
    count_needs(trace, &known, &never);
    mgw_text_printf(text, "{\"kind\": \"trace\", \"model\": ");
    mgw_text_json_string(text, trace->model);
    mgw_text_printf(text, ", \"device\": ");
    mgw_text_json_string(text, trace->device);
    mgw_text_printf(text,
                    ", \"tensors\": %zu, \"bytes\": %llu, \"gradient_dtype\": \"%s\", "
                    "\"parameter_dtype\": \"%s\", \"forward_s\": %.12g, \"backward_s\": %.12g, "
                    "\"needed\": %zu, \"never_needed\": %zu}\n",
                    trace->tensor_count, (unsigned long long)mgw_trace_bytes(trace),
                    mgw_dtype_name(trace->gradient_dtype), mgw_dtype_name(trace->parameter_dtype),
                    trace->forward_s, mgw_trace_backward_s(trace), known, never);
}

static void trace_svg(const void *shown, mgw_text *text)
{
    mgw_draw_sizes_svg(shown, text);
}

static mgw_status show_trace(const cli_args *args, const mgw_text *file, mgw_error *error)
{
    mgw_trace *trace = NULL;
    mgw_status status = mgw_trace_parse(args->positional[0], file->data, file->size, &trace, error);
    view v = {trace, trace_words, trace_json, trace_svg, NULL};
    if (!status)
        status = show(args, &v, error);
    mgw_trace_destroy(trace);
    return status;
}

/* ---- Clusters ---- */

/* Describes the halves that were not given. */
static void describe_derived(const mgw_cluster *cluster, mgw_text *text)
{
    for (size_t k = MGW_REDUCE_SCATTER; k <= MGW_ALL_GATHER; k++) {
        if (cluster->given[k].given)
            continue;
        char a[MGW_UNITS_MAX];
        mgw_text_printf(text, "         %s: T(M) = %s + M * %.4g ns, derived\n",
                        mgw_collective_name((mgw_collective)k),
                        mgw_format_seconds(cluster->of[k].a_s, a),
                        cluster->of[k].b_s_per_byte * 1e9);
    }
}

static void cluster_words(const void *shown, mgw_text *text)
{
    const mgw_cluster *cluster = shown;
    cli_describe_cluster(cluster, text);
    mgw_fit fit;
    if (cluster->sample_count &&
        !mgw_fit_line(cluster->samples, cluster->sample_count, &fit, NULL)) {
        char bytes[MGW_UNITS_MAX];
        mgw_text_printf(text, "         R2 %.4f; largest error %.1f%%, at %s\n", fit.r2,
                        100 * fit.max_relative_error, mgw_format_bytes(fit.worst_bytes, bytes));
    }
    describe_derived(cluster, text);
    mgw_text_printf(text, "\n");
    mgw_draw_cost_text(cluster, text);
}

static void collectives_json(const mgw_cluster *cluster, mgw_text *text)
{
    mgw_text_printf(text, ", \"collectives\": {");
    for (size_t k = MGW_ALL_REDUCE + 1; k < MGW_COLLECTIVE_COUNT; k++)
        mgw_text_printf(text,
                        "%s\"%s\": {\"a_s\": %.12g, \"b_s_per_byte\": %.12g, \"given\": %s, "
                        "\"samples\": %zu}",
                        k > MGW_ALL_REDUCE + 1 ? ", " : "", mgw_collective_name((mgw_collective)k),
                        cluster->of[k].a_s, cluster->of[k].b_s_per_byte,
                        cluster->given[k].given ? "true" : "false", cluster->given[k].sample_count);
    mgw_text_printf(text, "}");
}

static void cluster_json(const void *shown, mgw_text *text)
{
    const mgw_cluster *cluster = shown;
    mgw_text_printf(text, "{\"kind\": \"cluster\", \"name\": ");
    mgw_text_json_string(text, cluster->name);
    mgw_text_printf(text, ", \"workers\": %u, \"a_s\": %.12g, \"b_s_per_byte\": %.12g",
                    cluster->workers, cluster->cost.a_s, cluster->cost.b_s_per_byte);
    mgw_fit fit;
    if (cluster->sample_count && !mgw_fit_line(cluster->samples, cluster->sample_count, &fit, NULL))
        mgw_text_printf(text, ", \"samples\": %zu, \"r2\": %.12g, \"max_relative_error\": %.12g",
                        cluster->sample_count, fit.r2, fit.max_relative_error);
    collectives_json(cluster, text);
    if (cluster->beside.message > 1 || cluster->beside.compute > 1)
        mgw_text_printf(text, ", \"beside\": {\"message\": %.12g, \"compute\": %.12g}",
                        cluster->beside.message, cluster->beside.compute);
    mgw_text_printf(text, "}\n");
}

static void cluster_svg(const void *shown, mgw_text *text)
{
    mgw_draw_cost_svg(shown, text);
}

static mgw_status show_cluster(const cli_args *args, const mgw_text *file, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    mgw_status status =
        mgw_cluster_parse(args->positional[0], file->data, file->size, &cluster, error);
    view v = {cluster, cluster_words, cluster_json, cluster_svg, NULL};
    if (!status)
        status = show(args, &v, error);
    mgw_cluster_destroy(cluster);
    return status;
}

/* ---- Plans ---- */

typedef struct plan_view {
    const mgw_plan *plan;
    const mgw_timeline *timeline;
} plan_view;

/* ": 1 all-reduce, 3 reduce-scatter, 4 all-gather", if there is more than all-reduces. */
static void describe_kinds(const mgw_plan *plan, mgw_text *text)
{
    size_t counts[MGW_COLLECTIVE_COUNT] = {0};
    for (size_t m = 0; m < plan->operation_count; m++)
        counts[plan->operations[m].kind]++;
    const char *before = ": ";
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        if (counts[k] == 0 || counts[MGW_ALL_REDUCE] == plan->operation_count)
            continue;
        mgw_text_printf(text, "%s%zu %s", before, counts[k],
                        mgw_collective_name((mgw_collective)k));
        before = ", ";
    }
}

static void plan_words(const void *shown, mgw_text *text)
{
    const plan_view *v = shown;
    mgw_timeline_stats stats = mgw_timeline_measure(v->timeline);
    char units[6][MGW_UNITS_MAX];
    mgw_text_printf(text, "plan     ");
    mgw_text_plain(text, v->timeline->title);
    mgw_text_printf(text, "\n         %zu tensors in %zu messages", mgw_plan_tensor_count(v->plan),
                    stats.messages);
    describe_kinds(v->plan, text);
    mgw_text_printf(text,
                    "\nstep     %s: compute %s, exposed communication %s; the lower bound is %s\n"
                    "         communication %s, of which %.1f%% is hidden; speed-up %.2f, "
                    "efficiency %.1f%%\n\n",
                    mgw_format_seconds(stats.iteration_s, units[0]),
                    mgw_format_seconds(stats.compute_s, units[1]),
                    mgw_format_seconds(stats.exposed_s, units[2]),
                    mgw_format_seconds(v->plan->lower_bound_s, units[3]),
                    mgw_format_seconds(stats.communication_s, units[4]), 100 * stats.overlap,
                    mgw_speedup(v->plan), 100 * mgw_efficiency(v->plan));
    mgw_draw_timeline_text(v->timeline, text);
}

static void plan_json(const void *shown, mgw_text *text)
{
    const plan_view *v = shown;
    mgw_timeline_stats stats = mgw_timeline_measure(v->timeline);
    mgw_text_printf(text, "{\"kind\": \"plan\", \"policy\": ");
    mgw_text_json_string(text, v->plan->policy);
    mgw_text_printf(text, ", \"model\": ");
    mgw_text_json_string(text, v->plan->model);
    mgw_text_printf(text, ", \"cluster\": ");
    mgw_text_json_string(text, v->plan->cluster);
    mgw_text_printf(text, ", \"workers\": %u, \"tensors\": %zu, \"messages\": %zu, ",
                    v->plan->workers, mgw_plan_tensor_count(v->plan), stats.messages);
    cli_count_kinds(v->plan, text);
    mgw_text_printf(text,
                    ", \"overlaps_forward\": %s, \"stalls\": %zu, \"iteration_s\": "
                    "%.12g, \"compute_s\": %.12g, \"exposed_s\": %.12g, \"communication_s\": "
                    "%.12g, \"overlap\": %.12g, \"speedup\": %.12g, \"efficiency\": %.12g, "
                    "\"lower_bound_s\": %.12g}\n",
                    v->plan->overlaps_forward ? "true" : "false", v->plan->stall_count,
                    stats.iteration_s, stats.compute_s, stats.exposed_s, stats.communication_s,
                    stats.overlap, mgw_speedup(v->plan), mgw_efficiency(v->plan),
                    v->plan->lower_bound_s);
}

static void plan_svg(const void *shown, mgw_text *text)
{
    mgw_draw_timeline_svg(((const plan_view *)shown)->timeline, text);
}

static void plan_chrome(const void *shown, mgw_text *text)
{
    mgw_timeline_write_chrome(((const plan_view *)shown)->timeline, text);
}

static mgw_status show_plan(const cli_args *args, const mgw_text *file, mgw_error *error)
{
    mgw_plan *plan = NULL;
    mgw_timeline *timeline = NULL;
    mgw_status status = mgw_plan_parse(args->positional[0], file->data, file->size, &plan, error);
    if (!status)
        status = mgw_simulate(plan, NULL, &timeline, error);
    plan_view both = {plan, timeline};
    view v = {&both, plan_words, plan_json, plan_svg, plan_chrome};
    if (!status)
        status = show(args, &v, error);
    mgw_timeline_destroy(timeline);
    mgw_plan_destroy(plan);
    return status;
}

/* Shows a network as a ring, or the measurements of another program. `status` and `error` say why
 * the argument is not one of our files. */
static mgw_status show_network(const cli_args *args, mgw_status status, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    mgw_error inner;
    mgw_status loaded = mgw_cluster_load(args->positional[0], &cluster, &inner);
    if (loaded && status == MGW_ERR_NOT_FOUND)
        *error = inner; /* it also suggests networks */
    status = loaded ? status : MGW_OK;
    view v = {cluster, cluster_words, cluster_json, cluster_svg, NULL};
    if (!status)
        status = show(args, &v, error);
    mgw_cluster_destroy(cluster);
    return status;
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    static mgw_status (*const shows[])(const cli_args *, const mgw_text *, mgw_error *) = {
        [MGW_DATA_TRACE] = show_trace,
        [MGW_DATA_CLUSTER] = show_cluster,
        [MGW_DATA_PLAN] = show_plan,
    };
    mgw_data_kind kind = MGW_DATA_TRACE;
    mgw_text file;
    mgw_status status = mgw_data_read(args->positional[0], &kind, &file, error);
    if (!status)
        status = shows[kind](args, &file, error);
    else if (status == MGW_ERR_NOT_FOUND || status == MGW_ERR_INPUT)
        status = show_network(args, status, error);
    mgw_text_fini(&file);
    return status;
}

const cli_command cli_show = {
    .name = "show",
    .arguments = "TRACE|CLUSTER|PLAN",
    .least = 1,
    .most = 1,
    .summary = "show what is in a trace, a cluster or a plan; draw it",
    .details = "Prints totals and a text chart: for a trace the distribution of tensor sizes, for "
               "a cluster T(M) of each kind of collective with samples and fit, for a plan the "
               "timeline of a step, including the next forward pass if the plan overlaps it. The "
               "argument is a file (measurements of other programs, too), the name of built-in "
               "data, or a network ('mgwfbp list networks'), which is shown as a ring of 2 "
               "workers.",
    .examples = "mgwfbp show densenet201-b64-fp32-h200\n"
                "mgwfbp show paper-2-10gbe --svg cost.svg\n"
                "mgwfbp show 100gbe\n"
                "mgwfbp show plan.json --svg plan.svg --chrome-trace plan.trace.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
