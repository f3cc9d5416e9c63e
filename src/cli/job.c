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

mgw_status cli_run_policies(const char *list, const char *because, mgw_policy **out, size_t *count,
                            mgw_error *error)
{
    const char *shown = because ? "all" : "all,overlap";
    mgw_status status = cli_policy_list(list ? list : shown, out, count, error);
    for (size_t i = 0; !status && because && i < *count; i++) {
        char name[MGW_POLICY_NAME_MAX];
        if (mgw_policy_gathers(&(*out)[i]))
            status = cli_fail(error, "--policy: '%s' shares parameters out, which %s does not",
                              mgw_policy_name(&(*out)[i], name), because);
    }
    return status;
}
