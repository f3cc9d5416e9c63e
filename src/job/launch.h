/* Starting the workers of a job on this host, again if they fail. */
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
    unsigned restarts; /* after failures, at most so many in any hour */
    double backoff_s;  /* before the first restart; twice as long before each that follows soon */
    unsigned least;    /* workers with which it goes on when some are lost; 0: with all of them */
    bool reforms;      /* with `least`: workers go on by themselves when one of them is lost */
    double regrow_s;   /* after which lost workers are tried again; 0: when SIGUSR1 says so */
} job_options;

/*
 * Runs it to the end: forwards signals, ends all workers when one fails, and whatever they have
 * started. *exit_status is that of the first failure (128 + the signal, if one killed it), or 0;
 * with restarts, of the last start.
 */
MGW_CHECKED mgw_status job_launch(const job_options *options, int *exit_status, mgw_error *error);

/* Runs this very program again as the workers of a job, with the arguments of `argv`, which begin
 * with the name of the command; what rank 0 prints is what is seen. Of the options, `command` and
 * `program` are filled in. */
MGW_CHECKED mgw_status job_launch_self(char **argv, const job_options *options, int *exit_status,
                                       mgw_error *error);

/* To a launcher whose workers go on by themselves when one is lost: from now on they can. */
void job_say_joined(void);

/* Whether this process is a worker of a job already: of ours, or of another launcher. */
bool job_is_joined(void);

#endif
