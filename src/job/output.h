/* What the workers of a job write: whole lines, by rank. */
#ifndef MGW_JOB_OUTPUT_H
#define MGW_JOB_OUTPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/status.h>

enum { JOB_WORKERS_MAX = 64, JOB_STREAMS_MAX = 2 * JOB_WORKERS_MAX };

/* One stream of one worker, cut into lines. */
typedef struct job_stream {
    int fd; /* -1: at its end */
    int to; /* our standard output or error */
    char *line;
    size_t size;
    size_t used;
    int lost; /* why something of it could not be written; 0: all was */
} job_stream;

typedef struct job_output {
    bool prefix; /* lines by rank; else only rank 0's are shown, and every error once */
    unsigned workers;
    unsigned first;                      /* the rank of the first of them, for the prefix */
    job_stream streams[JOB_STREAMS_MAX]; /* of rank r: 2r its output, 2r + 1 its errors */
    char *said;                          /* the last line on standard error */
    size_t said_length;
    unsigned said_by;
} job_output;

/* Ownership: the caller ends it with job_output_fini, also after a failure. */
MGW_CHECKED mgw_status job_output_init(job_output *output, unsigned workers, bool prefix,
                                       mgw_error *error);
void job_output_fini(job_output *output);

/* Takes over the reading ends of a worker's two pipes. */
void job_output_open(job_output *output, unsigned rank, int out, int err);

/* Fills `polls` with those streams that are open, and `index` with which they are. */
nfds_t job_output_poll(const job_output *output, struct pollfd *polls, unsigned *index);

/* Reads what a stream has, and writes its whole lines. */
void job_output_read(job_output *output, unsigned index);

/* Why standard output could not be written, or 0. */
int job_output_lost(const job_output *output);

#endif
