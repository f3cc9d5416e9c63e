/* What commands read and print. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

mgw_status cli_load(const cli_args *args, mgw_trace **trace, mgw_cluster **cluster,
                    mgw_error *error)
{
    double factor = 1;
    bool given = false;
    mgw_dtype parameters = MGW_F32;
    mgw_status status = cli_number(args, "scale-compute", 1, &factor, error);
    if (!status)
        status = cli_parameters(args, &given, &parameters, error);
    if (!status)
        status = mgw_trace_load(args->positional[0], trace, error);
    if (!status && given)
        (*trace)->parameter_dtype = parameters;
    if (!status)
        status = mgw_trace_scale_compute(*trace, factor, error);
    if (!status)
        status = cli_cluster(args, args->positional[1], cluster, error);
    return status;
}

void cli_chomp(mgw_text *text)
{
    if (text->size && text->data[text->size - 1] == '\n')
        text->data[--text->size] = '\0';
}

mgw_status cli_print(const mgw_text *text, mgw_error *error)
{
    mgw_status status = mgw_text_status(text, error);
    if (status)
        return status;
    if (fwrite(text->data, 1, text->size, stdout) == text->size && fflush(stdout) == 0)
        return MGW_OK;
    return cli_fail(error, "standard output: %s", strerror(errno));
}

mgw_status cli_save(const cli_args *args, const char *option, const mgw_text *text,
                    mgw_error *error)
{
    const char *path = cli_value(args, option);
    mgw_status status = mgw_text_save(text, path, error);
    if (!status)
        fprintf(stderr, "wrote %s\n", path);
    return status;
}

void cli_count_kinds(const mgw_plan *plan, mgw_text *text)
{
    size_t counts[MGW_COLLECTIVE_COUNT] = {0};
    for (size_t m = 0; m < plan->operation_count; m++)
        counts[plan->operations[m].kind]++;
    mgw_text_printf(text, "\"operations\": {");
    const char *comma = "";
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        if (counts[k] == 0)
            continue;
        mgw_text_printf(text, "%s\"%s\": %zu", comma, mgw_collective_name((mgw_collective)k),
                        counts[k]);
        comma = ", ";
    }
    mgw_text_printf(text, "}");
}

/* "97.5 MiB as f32", and what all-gathers carry if that is something else. */
static void describe_bytes(const mgw_trace *trace, mgw_text *text)
{
    char bytes[MGW_UNITS_MAX];
    uint64_t total = mgw_trace_bytes(trace);
    mgw_text_printf(text, "%s as %s", mgw_format_bytes(total, bytes),
                    mgw_dtype_name(trace->gradient_dtype));
    if (trace->parameter_dtype == trace->gradient_dtype)
        return;
    total = total / mgw_dtype_bytes(trace->gradient_dtype);
    total *= mgw_dtype_bytes(trace->parameter_dtype);
    mgw_text_printf(text, "; parameters %s as %s", mgw_format_bytes(total, bytes),
                    mgw_dtype_name(trace->parameter_dtype));
}

void cli_describe_trace(const mgw_trace *trace, mgw_text *text)
{
    char compute[MGW_UNITS_MAX];
    char forward[MGW_UNITS_MAX];
    char backward[MGW_UNITS_MAX];
    mgw_text_printf(text, "model    ");
    mgw_text_plain(text, trace->model);
    mgw_text_printf(text, ", batch %llu, ", (unsigned long long)trace->batch);
    mgw_text_plain(text, trace->precision);
    mgw_text_printf(text, ", on ");
    mgw_text_plain(text, trace->device);
    mgw_text_printf(text, "\n         %zu gradient tensors, ", trace->tensor_count);
    describe_bytes(trace, text);
    mgw_text_printf(text, "\ncompute  %s per step: forward %s, backward %s\n",
                    mgw_format_seconds(mgw_trace_compute_s(trace), compute),
                    mgw_format_seconds(trace->forward_s, forward),
                    mgw_format_seconds(mgw_trace_backward_s(trace), backward));
}

static void describe_line(const char *name, const mgw_line *line, mgw_text *text)
{
    char a[MGW_UNITS_MAX];
    mgw_text_printf(text, "%s = %s + M * %.4g ns", name, mgw_format_seconds(line->a_s, a),
                    line->b_s_per_byte * 1e9);
}

/* "…: 8 x nvlink-4, 16 x 100gbe" */
static void describe_levels(const mgw_cluster *cluster, mgw_text *text)
{
    for (size_t i = 0; i < cluster->level_count; i++) {
        const mgw_level *level = &cluster->levels[i];
        char alpha[MGW_UNITS_MAX];
        mgw_text_printf(text, "\n         %u by ", level->workers);
        mgw_text_plain(text, level->name);
        mgw_text_printf(text, ", %s; link: %s, %.4g Gbit/s", mgw_algorithm_name(level->algorithm),
                        mgw_format_seconds(level->link.alpha_s, alpha),
                        level->link.beta_s_per_byte > 0 ? 8e-9 / level->link.beta_s_per_byte : 0);
        if (level->ports > 1)
            mgw_text_printf(text, ", %u of them for each group", level->ports);
    }
}

void cli_describe_cluster(const mgw_cluster *cluster, mgw_text *text)
{
    char alpha[MGW_UNITS_MAX];
    mgw_text_printf(text, "cluster  ");
    mgw_text_plain(text, cluster->name);
    mgw_text_printf(text, ", %u workers", cluster->workers);
    switch (cluster->kind) {
    case MGW_CLUSTER_LINK:
        mgw_text_printf(
            text, ", %s; link: %s + M * %.4g ns", mgw_algorithm_name(cluster->algorithm),
            mgw_format_seconds(cluster->link.alpha_s, alpha), cluster->link.beta_s_per_byte * 1e9);
        if (cluster->algorithm == MGW_PARAMETER_SERVER)
            mgw_text_printf(text, ", %u server%s", cluster->servers,
                            cluster->servers == 1 ? "" : "s");
        break;
    case MGW_CLUSTER_SAMPLES:
        mgw_text_printf(text, ", %zu samples", cluster->sample_count);
        break;
    case MGW_CLUSTER_PUSH_PULL:
        mgw_text_printf(text, ", parameter server: ");
        describe_line("push", &cluster->push, text);
        describe_line(", pull", &cluster->pull, text);
        break;
    case MGW_CLUSTER_LEVELS:
        describe_levels(cluster, text);
        break;
    case MGW_CLUSTER_COST:
        break;
    }
    mgw_text_printf(text, "\n         ");
    describe_line(cluster->kind == MGW_CLUSTER_SAMPLES ? "fitted: T(M)" : "T(M)", &cluster->cost,
                  text);
    mgw_text_printf(text, " for a message of M bytes\n");
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++)
        if (cluster->given[k].given) {
            mgw_text_printf(text, "         %s: ", mgw_collective_name((mgw_collective)k));
            describe_line(cluster->given[k].sample_count ? "fitted: T(M)" : "T(M)",
                          &cluster->given[k].line, text);
            mgw_text_printf(text, "\n");
        }
}
