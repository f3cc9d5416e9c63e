/* mgwfbp trace --from: converts a PyTorch profile to a trace, and its all-reduces to a cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run.h"

static mgw_status save_cluster(const cli_args *args, const char *path, const mgw_profile *profile,
                               mgw_error *error)
{
    size_t count = profile->message_count;
    mgw_sample *samples = malloc((count + 1) * sizeof *samples);
    unsigned workers = profile->workers;
    mgw_cluster *cluster = NULL;
    mgw_text text;
    mgw_text_init(&text);
    for (size_t i = 0; samples && i < count; i++)
        samples[i] = (mgw_sample){profile->messages[i].bytes, profile->messages[i].seconds};
    mgw_status status = samples ? MGW_OK : cli_fail(error, "out of memory");
    if (!status && count < 2)
        status = cli_fail(
            error, "--cluster-out: %s has all-reduces of %zu known sizes, but T(M) needs two", path,
            count);
    if (!status && workers == 0)
        status = cli_fail(error,
                          "--cluster-out: %s does not say how many workers took part; give "
                          "--workers",
                          path);
    if (!status)
        status = mgw_cluster_from_samples(path, workers, samples, count, &cluster, error);
    if (!status) {
        mgw_cluster_write(cluster, &text);
        status = cli_save(args, "cluster-out", &text, error);
    }
    mgw_text_fini(&text);
    mgw_cluster_destroy(cluster);
    free(samples);
    return status;
}

static mgw_status read_options(const cli_args *args, mgw_profile_options *options, mgw_error *error)
{
    static const char *const others[] = {"size", "steps", "threads"};
    unsigned batch = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cli_value(args, others[i]))
            return cli_fail(error, "--%s: cannot be used with --from, which does not measure",
                            others[i]);
    if (args->count + (cli_value(args, "model") != NULL) > 1)
        return cli_fail(error, "give one model, as MODEL or with --model");
    mgw_status status = MGW_OK;
    if (cli_value(args, "batch"))
        status = cli_count(args, "batch", 1, 1 << 30, &batch, error);
    *options = (mgw_profile_options){.model = cli_value(args, "model"), .batch = batch};
    if (args->count)
        options->model = args->positional[0];
    return status;
}

static void print_notes(const mgw_profile *profile)
{
    const char *at = profile->notes.data;
    for (const char *end = at ? strchr(at, '\n') : NULL; end; end = strchr(at = end + 1, '\n'))
        fprintf(stderr, "note: %.*s\n", (int)(end - at), at);
}

mgw_status cli_trace_output(const cli_args *args, const mgw_trace *trace, mgw_error *error)
{
    mgw_status status = MGW_OK;
    mgw_text text;
    mgw_text_init(&text);
    mgw_trace_write(trace, &text);
    if (cli_value(args, "output")) {
        status = cli_save(args, "output", &text, error);
        mgw_text_fini(&text);
        cli_describe_trace(trace, &text);
    }
    if (!status)
        status = cli_print(&text, error);
    mgw_text_fini(&text);
    return status;
}

mgw_status cli_trace_from(const cli_args *args, mgw_error *error)
{
    const char *path = cli_value(args, "from");
    mgw_profile_options options;
    mgw_profile profile = {0};
    unsigned workers = 0;
    mgw_status status = read_options(args, &options, error);
    if (!status)
        status = cli_workers(args, 0, &workers, error);
    if (!status)
        status = mgw_profile_load(path, cli_value(args, "tensors"), &options, &profile, error);
    if (!status && workers)
        profile.workers = workers;
    if (!status && cli_value(args, "cluster-out"))
        status = save_cluster(args, path, &profile, error);
    if (!status)
        status = cli_trace_output(args, profile.trace, error);
    if (!status)
        print_notes(&profile);
    mgw_profile_fini(&profile);
    return status;
}
