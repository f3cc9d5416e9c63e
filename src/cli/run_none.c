/* train and trace without oneDNN. */
#include "cli/run.h"

mgw_status cli_train_run(const cli_args *args, mgw_error *error)
{
    return cli_fail(error,
                    "%s: this mgwfbp was built without oneDNN and zlib; install libdnnl-dev and "
                    "zlib1g-dev, and build it again",
                    args->command->name);
}

mgw_status cli_trace_run(const cli_args *args, mgw_error *error)
{
    return cli_train_run(args, error);
}

const char *cli_model_name(size_t index)
{
    (void)index;
    return NULL;
}
