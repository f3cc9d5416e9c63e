/* Commands that run as a job. */
#ifndef MGW_CLI_JOB_H
#define MGW_CLI_JOB_H

#include "cli/command.h"
#include "job/launch.h"

/* Options of commands that start jobs, and their description. */
#define CLI_JOB_OPTIONS                                                                            \
    {"restarts", 0, "N", "when a worker fails, start again, at most N times in any hour"},         \
        {"backoff", 0, "S",                                                                        \
         "seconds before the first restart (default 1), doubled for each one after it, up to "     \
         "60; back to S after ten minutes without a failure"},                                     \
        {"elastic", 0, "MIN:MAX",                                                                  \
         "restart with the workers that are left, at least MIN; start with MAX"},                  \
    {                                                                                              \
        "regrow", 0, "S",                                                                          \
            "with --elastic: bring lost workers back after S seconds (default: when the "          \
            "launcher gets SIGUSR1)"                                                               \
    }

#define CLI_JOB_DETAILS                                                                            \
    "With --restarts, a failure ends all workers, and after a pause the job starts again; "        \
    "MGWFBP_RESTART counts the restarts. Standard error says what failed and when the job "        \
    "continues. With --elastic, the job continues with the workers that did not fail themselves. " \
    "To bring lost workers back, the launcher sends SIGTERM to all workers, which should save a "  \
    "checkpoint and exit with status 143, and starts MAX workers.\n"

MGW_CHECKED mgw_status cli_job_options(const cli_args *args, job_options *job, mgw_error *error);

/* Runs the job. Exits with the status of the first failure, if there is one. */
MGW_CHECKED mgw_status cli_run_job(const job_options *job, mgw_error *error);

/* The same with this command as the workers. */
MGW_CHECKED mgw_status cli_run_workers(const cli_args *args, unsigned workers, mgw_error *error);

/* The same with further options of a job. */
MGW_CHECKED mgw_status cli_run_again(const cli_args *args, const job_options *job,
                                     mgw_error *error);

/*
 * The policies to run: those of a list, or those of comparisons. If an option, `because`, prevents
 * sharding of parameters, policies that shard them are refused; null: allowed. Ownership: the
 * caller frees *out.
 */
MGW_CHECKED mgw_status cli_run_policies(const char *list, const char *because, mgw_policy **out,
                                        size_t *count, mgw_error *error);

#endif
