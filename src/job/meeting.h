/* Where the workers of a job meet: its name, rank 0's address, and the environment that says so. */
#ifndef MGW_JOB_MEETING_H
#define MGW_JOB_MEETING_H

#include "job/launch.h"

typedef struct job_meeting {
    char name[300];
    char host[256]; /* where rank 0 is, */
    unsigned port;  /*   for programs that meet there */
} job_meeting;

/* A name of its own; of several hosts, the one that all of them have. */
MGW_CHECKED mgw_status job_meeting_make(const job_options *job, job_meeting *out, mgw_error *error);

/* What our transports read, what PyTorch reads, and what makes Open MPI bearable on few cores.
 * False if there is no room for all of it. */
bool job_meeting_tell(const job_meeting *meeting, const job_options *job, unsigned local,
                      unsigned restart);

#endif
