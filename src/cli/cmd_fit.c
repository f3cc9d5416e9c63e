/* mgwfbp fit: makes a cluster from measured samples. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

static const cli_option options[] = {
    {"workers", 'n', "N", "number of workers in the measurement (default: as in FILE)"},
    {"name", 0, "NAME", "name of the cluster (default: the file's)"},
    {"as", 0, "FORM",
     "what to write: cost (a and b, the default), samples (the measured curve), "
     "or an algorithm such as ring (link constants under which it costs a and b)"},
    {"output", 'o', "FILE", "write the cluster to FILE"},
    {"json", 0, NULL, "print JSON: the cluster and how well it fits"},
};

/* Copies the kinds other than the all-reduce, in the same form. */
static mgw_status copy_kinds(const mgw_cluster *read, bool as_samples, mgw_cluster *made,
                             mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t k = 0; !status && k < MGW_COLLECTIVE_COUNT; k++) {
        const mgw_measured *given = &read->given[k];
        if (!given->given)
            continue;
        bool samples = as_samples && given->sample_count;
        status = samples ? mgw_cluster_set_samples(made, (mgw_collective)k, given->samples,
                                                   given->sample_count, error)
                         : mgw_cluster_set_line(made, (mgw_collective)k, &given->line, error);
        if (!status && samples && given->within)
            status = mgw_cluster_set_within(made, (mgw_collective)k, given->within, error);
    }
    return status;
}

static mgw_status make_form(const cli_args *args, const mgw_cluster *read, const char *name,
                            mgw_cluster **out, mgw_error *error)
{
    const char *form = cli_value(args, "as");
    bool as_samples = form && !strcmp(form, "samples");
    if (as_samples && !read->sample_count)
        return cli_fail(error, "--as samples: %s has no samples", args->positional[0]);
    if (!form || as_samples || !strcmp(form, "cost")) {
        mgw_status status =
            as_samples ? mgw_cluster_from_samples(name, read->workers, read->samples,
                                                  read->sample_count, out, error)
                       : mgw_cluster_from_line(name, read->workers, &read->cost, out, error);
        if (!status && as_samples && read->within)
            status = mgw_cluster_set_within(*out, MGW_ALL_REDUCE, read->within, error);
        return status ? status : copy_kinds(read, as_samples, *out, error);
    }
    mgw_algorithm algorithm = MGW_RING;
    mgw_link link;
    if (mgw_algorithm_parse(form, &algorithm, error))
        return cli_fail(
            error,
            "--as: unknown value '%s'; choose cost, samples or an algorithm (see 'mgwfbp list "
            "algorithms')",
            form);
    mgw_status status =
        mgw_algorithm_link(algorithm, &read->cost, read->workers, read->servers, &link, error);
    if (!status)
        status =
            mgw_cluster_from_link(name, read->workers, &link, algorithm, read->servers, out, error);
    return status;
}

/* Makes the output cluster from the input cluster. */
static mgw_status make_output(const cli_args *args, const mgw_cluster *read, const char *name,
                              mgw_cluster **out, mgw_error *error)
{
    mgw_status status = make_form(args, read, name, out, error);
    if (!status)
        mgw_cluster_copy_workers(read, *out);
    return status;
}

static void print_json(const mgw_cluster *cluster, const mgw_import *about, const mgw_fit *fit,
                       size_t samples, mgw_text *text)
{
    mgw_text_printf(text, "{\"cluster\": ");
    mgw_cluster_write(cluster, text);
    cli_chomp(text);
    mgw_text_printf(text, ", \"input\": \"%s\", \"samples\": %zu",
                    mgw_import_format_name(about->format), samples);
    mgw_text_printf(text, ", \"a_s\": %.12g, \"b_s_per_byte\": %.12g", fit->line.a_s,
                    fit->line.b_s_per_byte);
    if (samples)
        mgw_text_printf(text,
                        ", \"r2\": %.12g, \"max_relative_error\": %.12g, \"worst_bytes\": %llu",
                        fit->r2, fit->max_relative_error, (unsigned long long)fit->worst_bytes);
    mgw_text_printf(text, "}\n");
}

static void print_words(const mgw_cluster *read, const mgw_cluster *made, const mgw_import *about,
                        const mgw_fit *fit, mgw_text *text)
{
    mgw_text_printf(text, "input    %s, %zu samples\n", mgw_import_format_name(about->format),
                    read->sample_count);
    cli_describe_cluster(made, text);
    if (!read->sample_count)
        return;
    char bytes[MGW_UNITS_MAX];
    mgw_text_printf(text,
                    "fit      a = %.4g s, b = %.4g s per byte; R2 %.4f; largest error %.1f%%, at "
                    "%s\n\n",
                    fit->line.a_s, fit->line.b_s_per_byte, fit->r2, 100 * fit->max_relative_error,
                    mgw_format_bytes(fit->worst_bytes, bytes));
    mgw_draw_cost_text(read, text);
    if (fit->max_relative_error > 0.25 && made->kind != MGW_CLUSTER_SAMPLES)
        mgw_text_printf(text, "\n"
                              "No line is close to these times everywhere; use '--as samples' to "
                              "keep the measured curve and plan with it.\n");
}

static mgw_status output(const cli_args *args, const mgw_cluster *read, const mgw_cluster *made,
                         const mgw_import *about, const mgw_fit *fit, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_status status = MGW_OK;
    if (cli_value(args, "output")) {
        mgw_cluster_write(made, &text);
        status = cli_save(args, "output", &text, error);
        mgw_text_fini(&text);
    }
    if (cli_value(args, "json"))
        print_json(made, about, fit, read->sample_count, &text);
    else
        print_words(read, made, about, fit, &text);
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

/* Other benchmarks write microseconds. */
static void say_units(const cli_args *args, const mgw_cluster *cluster)
{
    char bytes[MGW_UNITS_MAX];
    const mgw_sample *first = cluster->samples;
    if (cluster->sample_count && first->bytes <= 1 << 20 && first->seconds >= 1)
        fprintf(stderr,
                "mgwfbp fit: note: %s: a message of %s takes %.4g s; are these microseconds?\n",
                args->positional[0], mgw_format_bytes(first->bytes, bytes), first->seconds);
}

static mgw_status run(const cli_args *args, mgw_error *error)
{
    mgw_cluster *read = NULL;
    mgw_cluster *made = NULL;
    mgw_import about;
    unsigned workers = 0;
    mgw_status status = cli_workers(args, 0, &workers, error);
    if (!status)
        status = mgw_cluster_import_file(args->positional[0], workers, &about, &read, error);
    const char *name = cli_value(args, "name");
    if (!status)
        status = make_output(args, read, name ? name : read->name, &made, error);
    mgw_fit fit = {0};
    if (!status) {
        fit.line = read->cost;
        if (read->sample_count)
            status = mgw_fit_line(read->samples, read->sample_count, &fit, error);
    }
    if (!status && !workers && !about.workers)
        fprintf(stderr,
                "mgwfbp fit: note: %s does not say how many workers took part; recorded %u (set "
                "it with --workers N)\n",
                args->positional[0], made->workers);
    if (!status)
        say_units(args, read);
    if (!status)
        status = output(args, read, made, &about, &fit, error);
    mgw_cluster_destroy(read);
    mgw_cluster_destroy(made);
    return status;
}

const cli_command cli_fit = {
    .name = "fit",
    .arguments = "FILE",
    .least = 1,
    .most = 1,
    .summary = "turn all-reduce measurements into a cluster",
    .details =
        "Fits T(M) = a + b*M to measured times, by least squares on relative errors, so that small "
        "messages count as much as large ones; a and b are never negative. FILE may be a cluster "
        "with samples, a 'bytes,seconds' CSV, the output of OSU's osu_allreduce, or that of "
        "nccl-tests' all_reduce_perf (its table, or the JSON that -J writes; the in-place times "
        "are used). The format is detected. Tables of reduce_scatter_perf and all_gather_perf in "
        "the same file give the cost of these collectives.",
    .examples =
        "mpirun -n 16 osu_allreduce > osu.txt; mgwfbp fit osu.txt --workers 16 -o mine.json\n"
        "all_reduce_perf -b 1K -e 1G -f 2 -g 8 > nccl.txt; mgwfbp fit nccl.txt -o mine.json\n"
        "mgwfbp fit paper-1-10gbe --as ring -o links.json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = run,
};
