/* The output of a job's workers, in whole lines, by rank. */
#ifndef MGW_JOB_OUTPUT_H
#define MGW_JOB_OUTPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/status.h>

enum { JOB_WORKERS_MAX = 64, JOB_STREAMS_MAX = 2 * JOB_WORKERS_MAX };

/* If the workers form one command, a line with this prefix says why a worker ends: by itself, or
 * because another one was lost or late. */
#define JOB_LAST_WORD "\036"
#define JOB_FOLLOWS   "\037"

/* One stream of one worker, split into lines. */
typedef struct job_stream {
    int fd; /* -1: at end of file */
    char *line;
    size_t size;
    size_t used;
    bool stumbled; /* a read has failed although there was something to read */
} job_stream;

/* Standard output or error, which may not be read. */
typedef struct job_sink {
    int fd;
    bool is_own; /* opened by us */
    char *data;  /* data not written yet */
    size_t size;
    size_t used;
    int lost; /* why writing failed; 0: it did not */
} job_sink;

/* Why a worker ends, in its own words. */
typedef struct job_word {
    char *text;
    bool follows; /* because of another worker */
} job_word;

typedef struct job_output {
    bool prefix; /* prefix lines with the rank; else show only rank 0's, and every error once */
    bool whole;  /* without a prefix: show every worker's output, since rank 0 may change */
    unsigned workers;
    unsigned first;                      /* rank of the first worker, for the prefix */
    job_stream streams[JOB_STREAMS_MAX]; /* of rank r: 2r is its output, 2r + 1 its errors */
    job_sink sinks[2];
    int unread;   /* why output of workers could not be read or kept, or 0 */
    bool hurries; /* output without room is dropped, so that workers do not wait */
    char *said;   /* the last line on standard error */
    size_t said_length;
    unsigned said_by;
    bool overwritten; /* the last line will be overwritten by the next */
    job_word words[JOB_WORKERS_MAX];
    bool settled;    /* the cause of the end was printed, */
    bool wants_word; /*   but not yet what the others saw */
    bool waits;      /* the first failure was caused by another worker, which may still say why */
} job_output;

/* Ownership: the caller calls job_output_fini, also after a failure. */
MGW_CHECKED mgw_status job_output_init(job_output *output, unsigned workers, bool prefix,
                                       mgw_error *error);
void job_output_fini(job_output *output);

/* Takes ownership of the reading ends of a worker's two streams. */
void job_output_open(job_output *output, unsigned rank, int out, int err);

/*
 * Waits until a worker has written, pending output can be written, or *other is ready; then reads
 * and writes without blocking. Returns whether anything was done.
 */
bool job_output_step(job_output *output, struct pollfd *other, int timeout_ms);

/* Reads everything that a worker that has ended wrote on standard error, because its last word is
 * at the end. It reads at most what a pipe holds, since processes that it left behind may still
 * write. */
void job_output_hear(job_output *output, unsigned worker);

/* Prints a line of the launcher on standard error, after the output of workers. */
void job_output_say(job_output *output, const char *line);

/*
 * A worker was the first to fail. If the workers form one command, this is reported once, before
 * its consequences: with the worker's message, or with `otherwise` if it had none. If the worker
 * failed because of another one, waits for the message of that one, or until that one is blamed.
 */
void job_output_blame(job_output *output, unsigned worker, const char *otherwise);

/* Whether a worker has reported that it ends because of another one. */
bool job_output_follows(const job_output *output, unsigned worker);

/* Stops waiting for messages: prints the best one, if nothing was printed yet. */
void job_output_settle(job_output *output);

/* Reads everything that workers have written, and, for a moment, what is written meanwhile. */
void job_output_drain(job_output *output);

/* Whether all output is written or lost. */
bool job_output_is_written(const job_output *output);

/* Why output could not be written, or output of workers could not be read; or 0. */
int job_output_lost(const job_output *output);

#endif
