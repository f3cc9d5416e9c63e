/* mgwfbp list: lists built-in data and names. */
#include <string.h>

#include "base/near.h"
#include "cli/command.h"
#include "cli/run.h"

static const cli_option options[] = {
    {"names", 0, NULL, "print only the names, one per line"},
    {"json", 0, NULL, "print JSON: an array of objects with kind, name and about"},
};

/* Writes a row: kind, name and description. */
typedef void row_writer(void *context, const char *kind, const char *name, const char *about);

static void each_policy(row_writer *write, void *context)
{
#define X(constant, name, about) write(context, "policy", name, about);
    MGW_POLICY_LIST(X)
#undef X
}

static void each_algorithm(row_writer *write, void *context)
{
    for (int i = 0; i < MGW_ALGORITHM_COUNT; i++)
        write(context, "algorithm", mgw_algorithm_name((mgw_algorithm)i), "");
}

static void each_network(row_writer *write, void *context)
{
    size_t count = 0;
    const mgw_network *list = mgw_network_list(&count);
    for (size_t i = 0; i < count; i++) {
        mgw_text about;
        char units[MGW_UNITS_MAX];
        mgw_text_init(&about);
        mgw_text_printf(&about, "%s: typically %s, %.4g Gbit/s", list[i].about,
                        mgw_format_seconds(list[i].latency_s, units), list[i].gbit_per_s);
        write(context, "network", list[i].name, about.data ? about.data : "");
        mgw_text_fini(&about);
    }
}

static void about_trace(const mgw_builtin *builtin, mgw_text *about)
{
    mgw_trace *trace = NULL;
    if (mgw_trace_parse(builtin->name, builtin->text, builtin->size, &trace, NULL))
        return;
    char units[MGW_UNITS_MAX];
    mgw_text_printf(about, "%zu tensors, %s", trace->tensor_count,
                    mgw_format_bytes(mgw_trace_bytes(trace), units));
    mgw_text_printf(about, ", compute %s on %s",
                    mgw_format_seconds(mgw_trace_compute_s(trace), units), trace->device);
    mgw_trace_destroy(trace);
}

static void about_cluster(const mgw_builtin *builtin, mgw_text *about)
{
    mgw_cluster *cluster = NULL;
    if (mgw_cluster_parse(builtin->name, builtin->text, builtin->size, &cluster, NULL))
        return;
    char units[MGW_UNITS_MAX];
    mgw_text_printf(about, "%u workers, a = %s, b = %.4g ns per byte", cluster->workers,
                    mgw_format_seconds(cluster->cost.a_s, units), cluster->cost.b_s_per_byte * 1e9);
    if (cluster->kind == MGW_CLUSTER_LINK)
        mgw_text_printf(about, "; link constants, any number of workers");
    mgw_cluster_destroy(cluster);
}

static void each_builtin(mgw_data_kind kind, row_writer *write, void *context)
{
    size_t count = 0;
    const mgw_builtin *list = mgw_builtin_list(&count);
    for (size_t i = 0; i < count; i++) {
        if (list[i].kind != kind)
            continue;
        mgw_text about;
        mgw_text_init(&about);
        (kind == MGW_DATA_TRACE ? about_trace : about_cluster)(&list[i], &about);
        write(context, kind == MGW_DATA_TRACE ? "trace" : "cluster", list[i].name,
              about.data ? about.data : "");
        mgw_text_fini(&about);
    }
}

static void each_trace(row_writer *write, void *context)
{
    each_builtin(MGW_DATA_TRACE, write, context);
}

static void each_cluster(row_writer *write, void *context)
{
    each_builtin(MGW_DATA_CLUSTER, write, context);
}

static void each_model(row_writer *write, void *context)
{
    const char *name = NULL;
    for (size_t i = 0; (name = cli_model_name(i)); i++)
        write(context, "model", name, "for train and trace");
}

static const struct {
    const char *topic;
    void (*each)(row_writer *write, void *context);
    bool is_data; /* shown without a topic */
} topics[] = {{"traces", each_trace, true},          {"clusters", each_cluster, true},
              {"networks", each_network, true},      {"policies", each_policy, false},
              {"algorithms", each_algorithm, false}, {"models", each_model, false}};

static mgw_status fail_unknown(const char *topic, mgw_error *error)
{
    char hint[MGW_NEAR_HINT];
    mgw_near near = mgw_near_to(topic);
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
        mgw_near_offer(&near, topics[i].topic);
    mgw_near_hint(&near, hint);
    return cli_fail(error, "unknown topic '%.60s'%s", topic,
                    *hint ? hint
                          : "; choose traces, clusters, networks, policies, algorithms or models");
}

static void write_cells(void *context, const char *kind, const char *name, const char *about)
{
    mgw_table *table = context;
    mgw_table_cell(table, "%s", kind);
    mgw_table_cell(table, "%s", name);
    mgw_table_cell(table, "%s", about);
}

static void write_name(void *context, const char *kind, const char *name, const char *about)
{
    (void)kind, (void)about;
    mgw_text_printf(context, "%s\n", name);
}

static void write_json(void *context, const char *kind, const char *name, const char *about)
{
    mgw_text *text = context;
    mgw_text_printf(text, "%s\n  {\"kind\": \"%s\", \"name\": ", text->size > 1 ? "," : "", kind);
    mgw_text_json_string(text, name);
    mgw_text_printf(text, ", \"about\": ");
    mgw_text_json_string(text, about);
    mgw_text_printf(text, "}");
}

static void write_topics(const char *topic, row_writer *write, void *context)
{
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
        if (topic ? !strcmp(topic, topics[i].topic) : topics[i].is_data)
            topics[i].each(write, context);
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    const char *topic = args->count ? args->positional[0] : NULL;
    bool known = !topic;
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
        known |= topic && !strcmp(topic, topics[i].topic);
    if (!known)
        return fail_unknown(topic, error);
    mgw_text text;
    mgw_text_init(&text);
    if (cli_value(args, "json")) {
        mgw_text_printf(&text, "[");
        write_topics(topic, write_json, &text);
        mgw_text_printf(&text, "\n]\n");
    } else if (cli_value(args, "names")) {
        write_topics(topic, write_name, &text);
    } else {
        mgw_table *table = mgw_table_create("<kind|<name|<");
        write_topics(topic, write_cells, table);
        cli_write_table(table, &text);
        mgw_table_destroy(table);
    }
    mgw_status status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

const cli_command cli_list = {
    .name = "list",
    .arguments = "[traces|clusters|networks|policies|algorithms|models]",
    .least = 0,
    .most = 1,
    .summary = "list the built-in traces, clusters and networks, policies, algorithms and models",
    .details =
        "Names of built-in traces and clusters can be used instead of files; names of networks can "
        "be used instead of clusters. The traces were measured on an H200; the clusters are those "
        "of the MG-WFBP paper; the networks have typical figures, not measured ones.",
    .examples = "mgwfbp list\nmgwfbp list policies\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
