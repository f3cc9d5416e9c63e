/* Starts the workers of a job on this host, and restarts them if they fail. */
#ifndef MGW_JOB_LAUNCH_H
#define MGW_JOB_LAUNCH_H

#include <stdbool.h>

#include <mgwfbp/status.h>

typedef struct job_options {
    const char *command;   /* our command that starts it */
    unsigned workers;      /* on this host */
    unsigned nodes;        /* number of hosts, each with as many workers; 0: only this one */
    unsigned node;         /* index of this host */
    const char *address;   /* with nodes: HOST:PORT of the first, for programs that meet there */
    const char *transport; /* or null */
    char **program;        /* null-terminated */
    bool prefix; /* prefix lines of output with the rank; otherwise only rank 0's are shown, and
                    every error once */
    unsigned restarts; /* maximum number of restarts after failures in any hour */
    double backoff_s;  /* pause before the first restart; doubled before each further one that
                          follows soon */
    unsigned least;    /* minimum number of workers to continue with when some are lost; 0: all */
    bool reforms;      /* with `least`: workers re-form by themselves when one is lost */
    double regrow_s;   /* time after which lost workers are started again; 0: only on SIGUSR1 */
} job_options;

/*
 * Runs the job to its end: forwards signals, and ends all workers and their descendants when one
 * fails. *exit_status is that of the first failure (128 + the signal, if killed by one), or 0; with
 * restarts, of the last start.
 */
MGW_CHECKED mgw_status job_launch(const job_options *options, int *exit_status, mgw_error *error);

/* Runs this program again as the workers of a job, with the arguments of `argv`, which begin with
 * the name of the command; the output of rank 0 is shown. Sets `command` and `program` of the
 * options. */
MGW_CHECKED mgw_status job_launch_self(char **argv, const job_options *options, int *exit_status,
                                       mgw_error *error);

/* Tells a launcher with `reforms` that the workers have joined, and can re-form from now on. */
void job_say_joined(void);

/* Whether this process is already a worker of a job, of our launcher or of another. */
bool job_is_joined(void);

#endif
