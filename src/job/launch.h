/* Starting the workers of a job on this host. */
#ifndef MGW_JOB_LAUNCH_H
#define MGW_JOB_LAUNCH_H

#include <stdbool.h>

#include <mgwfbp/status.h>

typedef struct job_options {
    const char *command;   /* of ours that starts it */
    unsigned workers;      /* on this host */
    unsigned nodes;        /* hosts with as many; 0: this one alone */
    unsigned node;         /* which of them this is */
    const char *address;   /* with nodes: HOST:PORT of the first, for programs that meet there */
    const char *transport; /* or null */
    char **program;        /* null-ended */
    bool prefix; /* lines of output by rank; else only rank 0's are shown, and every error once */
} job_options;

/*
 * Runs it to the end: forwards signals, ends all workers when one fails. *exit_status is that of
 * the first failure (128 + the signal, if one killed it), or 0.
 */
MGW_CHECKED mgw_status job_launch(const job_options *options, int *exit_status, mgw_error *error);

/* Runs this very program again as the workers of a job, with the arguments of `argv`, which begin
 * with the name of the command; what rank 0 prints is what is seen. */
MGW_CHECKED mgw_status job_launch_self(char **argv, unsigned workers, int *exit_status,
                                       mgw_error *error);

/* Whether this process is a worker of a job already: of ours, or of another launcher. */
bool job_is_joined(void);

#endif
