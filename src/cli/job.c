/* Commands that run as a job: where one fails, the command ends as it did. */
#include "cli/job.h"

#include <stdlib.h>

/* The workers have said why. */
static mgw_status end_as(mgw_status status, int exit_status)
{
    if (!status && exit_status)
        exit(exit_status);
    return status;
}

mgw_status cli_run_job(const job_options *job, mgw_error *error)
{
    int exit_status = 0;
    mgw_status status = job_launch(job, &exit_status, error);
    return end_as(status, exit_status);
}

mgw_status cli_run_workers(const cli_args *args, unsigned workers, mgw_error *error)
{
    int exit_status = 0;
    mgw_status status = job_launch_self(args->argv, workers, &exit_status, error);
    return end_as(status, exit_status);
}
