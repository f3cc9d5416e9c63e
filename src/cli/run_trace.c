/* Runs trace: reads options, measures the network, saves or prints the trace. */
#include <stdio.h>

#include "cli/run.h"
#include "cli/terminal.h"
#include "job/interrupt.h"
#include "train/profile.h"

static void warn(const char *what, double share)
{
    cli_warn_reference("trace", what, share);
}

static mgw_status read_options(const cli_args *args, train_profile_options *o, mgw_error *error)
{
    const char *name = cli_value(args, "model");
    if (args->count + (name != NULL) != 1)
        return cli_fail(error, "give one model, as MODEL or with --model");
    name = name ? name : args->positional[0];
    o->model = cli_find_model(name, error);
    if (!o->model)
        return MGW_ERR_ARGUMENT;
    unsigned batch = 0;
    unsigned size = 0;
    unsigned threads = 0;
    mgw_status status =
        cli_count(args, "batch", o->model->size <= 32 ? 64 : 8, 1 << 16, &batch, error);
    if (!status)
        status = cli_count(args, "size", (unsigned)o->model->size, 4096, &size, error);
    if (!status)
        status = cli_count(args, "steps", 10, 10000, &o->steps, error);
    if (!status)
        status = cli_count(args, "threads", 1, 256, &threads, error);
    o->batch = (int)batch;
    o->size = (int)size;
    o->threads = (int)threads;
    o->warn = warn;
    return status;
}

static void show_progress(void *context, unsigned done, unsigned steps)
{
    char what[40];
    snprintf(what, sizeof what, "step %u of %u", done, steps);
    cli_progress_show(context, (double)done / steps, what);
}

mgw_status cli_trace_run(const cli_args *args, mgw_error *error)
{
    train_profile_options o = {0};
    mgw_trace *trace = NULL;
    unsigned done = 0;
    cli_progress progress;
    pthread_t watch;
    mgw_status status = read_options(args, &o, error);
    if (!status)
        status = job_watch(&watch, error);
    if (status)
        return status;
    cli_progress_begin(args, &progress);
    o.progress = show_progress;
    o.context = &progress;
    status = train_profile(&o, &trace, &done, error);
    cli_progress_end(&progress);
    if (!status)
        status = cli_trace_output(args, trace, error);
    if (!status && done < o.steps)
        fprintf(stderr, "mgwfbp trace: interrupted: %u of %u steps are measured\n", done, o.steps);
    mgw_trace_destroy(trace);
    job_unwatch(watch);
    return status;
}
