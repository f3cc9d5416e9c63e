/* Commands that run as a job: if the job fails, the command exits with its status. */
#include "cli/job.h"

#include <stdlib.h>

#include "cli/terminal.h"

/* The workers have already printed why. */
static mgw_status end_as(mgw_status status, int exit_status)
{
    if (!status && exit_status)
        exit(exit_status);
    return status;
}

static mgw_status read_elastic(const cli_args *args, job_options *job, mgw_error *error)
{
    const char *value = cli_value(args, "elastic");
    if (cli_value(args, "regrow") && !value)
        return cli_fail(error, "--regrow: only with --elastic");
    if (!value)
        return MGW_OK;
    char *end = NULL;
    unsigned long least = strtoul(value, &end, 10);
    bool two = *value >= '1' && *value <= '9' && *end == ':' && end[1] >= '1' && end[1] <= '9';
    unsigned long most = two ? strtoul(end + 1, &end, 10) : 0;
    if (!two || *end || most > 64 || least > most)
        return cli_fail(error, "--elastic: '%s' is not MIN:MAX, with 1 <= MIN <= MAX <= 64", value);
    if (cli_value(args, "workers") && job->workers != most)
        return cli_fail(error, "--elastic: a job starts with MAX (%lu) workers, but -n is %u", most,
                        job->workers);
    job->workers = (unsigned)most;
    job->least = (unsigned)least;
    return MGW_OK;
}

mgw_status cli_job_options(const cli_args *args, job_options *job, mgw_error *error)
{
    job->backoff_s = 1;
    unsigned usual = cli_value(args, "elastic") ? 10 : 0;
    mgw_status status = cli_count(args, "restarts", usual, 10000, &job->restarts, error);
    if (!status && cli_value(args, "backoff") && !job->restarts)
        status = cli_fail(error, "--backoff: only with --restarts");
    if (!status)
        status = cli_number(args, "backoff", job->backoff_s, &job->backoff_s, error);
    if (!status)
        status = cli_number(args, "regrow", job->regrow_s, &job->regrow_s, error);
    return status ? status : read_elastic(args, job, error);
}

mgw_status cli_run_job(const job_options *job, mgw_error *error)
{
    int exit_status = 0;
    mgw_status status = job_launch(job, &exit_status, error);
    return end_as(status, exit_status);
}

mgw_status cli_run_again(const cli_args *args, const job_options *job, mgw_error *error)
{
    int exit_status = 0;
    cli_share_terminal();
    mgw_status status = job_launch_self(args->argv, job, &exit_status, error);
    return end_as(status, exit_status);
}

mgw_status cli_run_workers(const cli_args *args, unsigned workers, mgw_error *error)
{
    return cli_run_again(args, &(job_options){.workers = workers}, error);
}

mgw_status cli_run_policies(const char *list, const char *because, mgw_policy **out, size_t *count,
                            mgw_error *error)
{
    const char *shown = because ? "all" : "all,overlap";
    mgw_status status = cli_policy_list(list ? list : shown, out, count, error);
    for (size_t i = 0; !status && because && i < *count; i++) {
        char name[MGW_POLICY_NAME_MAX];
        if (mgw_policy_gathers(&(*out)[i]))
            status =
                cli_fail(error, "--policy: '%s' shards parameters, which does not work with %s",
                         mgw_policy_name(&(*out)[i], name), because);
    }
    return status;
}
