/* What trace does: its options read, the network measured, the trace saved or printed. */
#include "cli/run.h"
#include "train/profile.h"

static void warn(const char *what, double share)
{
    cli_warn_reference("trace", what, share);
}

static mgw_status read_options(const cli_args *args, train_profile_options *o, mgw_error *error)
{
    const char *name = cli_value(args, "model");
    if (args->count + (name != NULL) != 1)
        return cli_fail(error, "name one model, as MODEL or with --model");
    name = name ? name : args->positional[0];
    o->model = nn_model_find(name);
    if (!o->model)
        return cli_fail(error, "'%s' is no model; 'mgwfbp train --help' lists them", name);
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

/* The trace alone; where it is saved, what it holds is printed. */
static mgw_status output(const cli_args *args, const mgw_trace *trace, mgw_error *error)
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

mgw_status cli_trace_run(const cli_args *args, mgw_error *error)
{
    train_profile_options o = {0};
    mgw_trace *trace = NULL;
    mgw_status status = read_options(args, &o, error);
    if (!status)
        status = train_profile(&o, &trace, error);
    if (!status)
        status = output(args, trace, error);
    mgw_trace_destroy(trace);
    return status;
}
