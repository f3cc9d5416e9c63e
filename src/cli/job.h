/* Commands that run as a job. */
#ifndef MGW_CLI_JOB_H
#define MGW_CLI_JOB_H

#include "cli/command.h"
#include "job/launch.h"

/* Runs the job. Ends the process with the exit status of the first failure, if there is one. */
MGW_CHECKED mgw_status cli_run_job(const job_options *job, mgw_error *error);

/* The same for this very command, as the workers of a job. */
MGW_CHECKED mgw_status cli_run_workers(const cli_args *args, unsigned workers, mgw_error *error);

/*
 * The policies to run: of a list, or what comparisons show. Where parameters are not shared out,
 * `because` of an option, those that do that are refused; null: they are not. Ownership: the caller
 * frees *out.
 */
MGW_CHECKED mgw_status cli_run_policies(const char *list, const char *because, mgw_policy **out,
                                        size_t *count, mgw_error *error);

#endif
