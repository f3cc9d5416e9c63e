/* The rendezvous of a job's workers: the job's name, rank 0's address, and the environment that has
 * both. */
#ifndef MGW_JOB_MEETING_H
#define MGW_JOB_MEETING_H

#include "job/launch.h"

typedef struct job_meeting {
    char name[300];
    char host[256]; /* host of rank 0, */
    unsigned port;  /*   and its port, for programs that need one */
} job_meeting;

/* Makes a unique name; with several hosts, the name that all of them share. */
MGW_CHECKED mgw_status job_meeting_make(const job_options *job, job_meeting *out, mgw_error *error);

/* Sets the variables of our transports and of PyTorch, and those that make Open MPI usable on few
 * cores. False: out of memory. */
bool job_meeting_tell(const job_meeting *meeting, const job_options *job, unsigned local,
                      unsigned restart);

#endif
