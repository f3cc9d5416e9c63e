/* Input and output of commands. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/takes.h"
#include "cli/terminal.h"
#include "job/launch.h"

static bool is_cluster(const char *name)
{
    mgw_cluster *cluster = NULL;
    bool found = !mgw_cluster_load(name, &cluster, NULL);
    mgw_cluster_destroy(cluster);
    return found;
}

/* Traces and clusters are recognized by their content, so the wrong order is accepted. */
static mgw_status load_trace(const cli_args *args, mgw_trace **trace, bool *swapped,
                             mgw_error *error)
{
    mgw_status status = mgw_trace_load(args->positional[0], trace, error);
    if (!status || !is_cluster(args->positional[0]))
        return status;
    *swapped = !mgw_trace_load(args->positional[1], trace, NULL);
    if (!*swapped)
        return cli_fail(
            error, "%.100s is a network or cluster; a trace is expected ('mgwfbp list traces')",
            args->positional[0]);
    fprintf(stderr, "mgwfbp %s: note: using %s as TRACE and %s as %s\n", args->command->name,
            args->positional[1], args->positional[0], strchr(args->command->arguments, ' ') + 1);
    return MGW_OK;
}

/* What the answer rests on that nobody has said. */
static void say_guesses(const cli_args *args, const mgw_trace *trace, const mgw_cluster *cluster)
{
    const mgw_sample *samples = cluster->samples;
    char units[MGW_UNITS_MAX];
    if (cluster->assumes_workers && !cli_value(args, "workers"))
        fprintf(stderr,
                "mgwfbp %s: note: %.100s does not say how many workers there are; 2 are assumed "
                "(%s)\n",
                args->command->name, cluster->name,
                cluster->sample_count ? "'mgwfbp fit --workers N' makes a cluster that does"
                : cli_takes_option(args->command, "workers")
                    ? "set --workers, or --nodes and --gpus"
                    : "set --nodes and --gpus");
    if (cluster->sample_count &&
        samples[cluster->sample_count - 1].bytes < mgw_trace_bytes(trace) / 64)
        fprintf(stderr,
                "mgwfbp %s: note: %.100s was measured up to %s; times of larger messages are "
                "extrapolated\n",
                args->command->name, cluster->name,
                mgw_format_bytes(samples[cluster->sample_count - 1].bytes, units));
}

mgw_status cli_load(const cli_args *args, mgw_trace **trace, mgw_cluster **cluster,
                    mgw_error *error)
{
    double factor = 1;
    bool given = false;
    mgw_dtype parameters = MGW_F32;
    mgw_status status = cli_number(args, "scale-compute", 1, &factor, error);
    if (!status)
        status = cli_parameters(args, &given, &parameters, error);
    bool swapped = false;
    if (!status)
        status = load_trace(args, trace, &swapped, error);
    if (!status && given)
        (*trace)->parameter_dtype = parameters;
    if (!status)
        status = mgw_trace_scale_compute(*trace, factor, error);
    if (!status)
        status = cli_cluster(args, args->positional[!swapped], cluster, error);
    if (!status)
        say_guesses(args, *trace, *cluster);
    return status;
}

void cli_chomp(mgw_text *text)
{
    if (text->size && text->data[text->size - 1] == '\n')
        text->data[--text->size] = '\0';
}

void cli_write_table(mgw_table *table, mgw_text *text)
{
    mgw_table_fit(table, cli_width(), cli_has_colour(STDOUT_FILENO));
    mgw_table_write(table, text);
}

static mgw_status print(const mgw_text *text, mgw_error *error)
{
    cli_progress_clear();
    if (fwrite(text->data, 1, text->size, stdout) == text->size && fflush(stdout) == 0)
        return MGW_OK;
    return cli_fail(error, "standard output: %s", strerror(errno));
}

/* A file is written to standard output, so nothing else may be printed. */
static bool output_is_taken;

mgw_status cli_print(const mgw_text *text, mgw_error *error)
{
    mgw_status status = mgw_text_status(text, error);
    if (status || output_is_taken)
        return status;
    return print(text, error);
}

static bool is_output(const char *path)
{
    return path && !strcmp(path, "-");
}

/* Whether a file can be created or replaced there, as far as can be checked in advance. */
static mgw_status check_output(const char *path, mgw_error *error)
{
    struct stat about;
    if (!strncmp(path, "/dev/", 5)) /* a device is not replaced */
        return MGW_OK;
    char *folder = strdup(path);
    if (!folder)
        return cli_fail(error, "out of memory");
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    int code = 0;
    bool is_there = !stat(path, &about);
    bool replaces = !is_there || S_ISREG(about.st_mode);
    if (is_there && S_ISDIR(about.st_mode))
        code = EISDIR;
    else if ((is_there && access(path, W_OK)) ||
             (replaces && access(slash ? folder : ".", W_OK | X_OK)))
        code = errno;
    free(folder);
    return code ? cli_fail(error, "%s: cannot write: %s", path, strerror(code)) : MGW_OK;
}

mgw_status cli_check_outputs(const cli_args *args, mgw_error *error)
{
    const char *taken_by = cli_value(args, "json") ? "json" : NULL;
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < args->command->option_count; i++) {
        const char *option = args->command->options[i].name;
        const char *value = args->values[i];
        const cli_takes *takes = value ? cli_option_takes(&args->command->options[i]) : NULL;
        if (!value || !takes || !takes->writes)
            continue;
        if (!*value)
            return cli_fail(error, "--%s: the file name is empty", option);
        for (size_t k = 0; k < i; k++) {
            const cli_takes *before = cli_option_takes(&args->command->options[k]);
            if (before && before->writes && args->values[k] && !is_output(value) &&
                !strcmp(args->values[k], value))
                return cli_fail(error, "--%s: --%s already writes %.100s", option,
                                args->command->options[k].name, value);
        }
        if (!is_output(value)) { /* the folder may not exist for other workers */
            status = job_is_joined() && !cli_is_first() ? MGW_OK : check_output(value, error);
            continue;
        }
        if (takes->keeps)
            status = cli_fail(error,
                              "--%s: must be a file, not standard output, because it is read again",
                              option);
        else if (taken_by)
            status =
                cli_fail(error, "--%s -: --%s already goes to standard output", option, taken_by);
        taken_by = option;
        output_is_taken = true;
    }
    return status;
}

mgw_status cli_save_to(const char *given, const char *usual, const mgw_text *text, mgw_error *error)
{
    const char *path = given ? given : usual;
    mgw_status status = mgw_text_status(text, error);
    if (status)
        return status;
    if (is_output(path))
        return print(text, error);
    cli_progress_clear();
    status = mgw_text_save(text, path, error);
    if (!status)
        fprintf(stderr, "wrote %s\n", path);
    return status;
}

mgw_status cli_save(const cli_args *args, const char *option, const mgw_text *text,
                    mgw_error *error)
{
    return cli_save_to(cli_value(args, option), NULL, text, error);
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

/* "97.5 MiB as f32", and the type of all-gathers if it differs. */
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
        if (i > 0)
            mgw_text_printf(text, ", %u port%s per node", level->ports,
                            level->ports == 1 ? "" : "s");
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
    if (cluster->beside.message > 1 || cluster->beside.compute > 1)
        mgw_text_printf(text,
                        "         while both run, messages take %.2f and computation %.2f times as "
                        "long\n",
                        cluster->beside.message, cluster->beside.compute);
}
