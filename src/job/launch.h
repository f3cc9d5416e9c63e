/* Starting the workers of a job on this host. */
#ifndef MGW_CLI_LAUNCH_H
#define MGW_CLI_LAUNCH_H

#include "cli/command.h"

typedef struct cli_job {
    const char *command; /* of ours that starts it */
    unsigned workers;
    const char *transport; /* or null */
    char **program;        /* null-ended */
    bool prefix; /* lines of output by rank; else only rank 0's are shown, and every error once */
} cli_job;

/*
 * Runs it to the end: forwards signals, ends all workers when one fails. *exit_status is that of
 * the first failure (128 + the signal, if one killed it), or 0.
 */
MGW_CHECKED mgw_status cli_launch_job(const cli_job *job, int *exit_status, mgw_error *error);

/*
 * Runs this very command again as the workers of a job; what rank 0 prints is what is seen. Ends
 * the process with the exit status of the first failure, if there is one.
 */
MGW_CHECKED mgw_status cli_launch_self(const cli_args *args, unsigned workers, mgw_error *error);

/* Whether this process is a worker of a job already: of ours, or of another launcher. */
bool cli_in_job(void);

#endif
