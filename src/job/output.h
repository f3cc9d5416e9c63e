/* What the workers of a job write: whole lines, by rank. */
#ifndef MGW_JOB_OUTPUT_H
#define MGW_JOB_OUTPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include <mgwfbp/status.h>

enum { JOB_WORKERS_MAX = 64, JOB_STREAMS_MAX = 2 * JOB_WORKERS_MAX };

/* Where the workers are one command, a line that begins so is why a worker ends: by itself, or for
 * another one that was lost or late. */
#define JOB_LAST_WORD "\036"
#define JOB_FOLLOWS   "\037"

/* One stream of one worker, cut into lines. */
typedef struct job_stream {
    int fd; /* -1: at its end */
    char *line;
    size_t size;
    size_t used;
} job_stream;

/* Standard output or error, where nobody may be reading. */
typedef struct job_sink {
    int fd;
    bool is_own; /* opened by us */
    char *data;  /* what is not written yet */
    size_t size;
    size_t used;
    int lost; /* why something could not be written; 0: all was */
} job_sink;

/* Why a worker ends, as it says itself. */
typedef struct job_word {
    char *text;
    bool follows; /* from what another one did */
} job_word;

typedef struct job_output {
    bool prefix; /* lines by rank; else only rank 0's are shown, and every error once */
    bool whole;  /* without a prefix: anybody's output, since rank 0 may be another one some day */
    unsigned workers;
    unsigned first;                      /* the rank of the first of them, for the prefix */
    job_stream streams[JOB_STREAMS_MAX]; /* of rank r: 2r its output, 2r + 1 its errors */
    job_sink sinks[2];
    int unread;   /* why something that workers wrote could not be read or kept, or 0 */
    bool hurries; /* what has no room is dropped, and workers do not wait */
    char *said;   /* the last line on standard error */
    size_t said_length;
    unsigned said_by;
    bool overwritten; /* the last line waits for the next to take its place */
    job_word words[JOB_WORKERS_MAX];
    bool settled;    /* it is said why the job ends, */
    bool wants_word; /*   but not yet what the others saw of it */
    bool waits;      /* the first who failed did so for another, who may still say why */
} job_output;

/* Ownership: the caller ends it with job_output_fini, also after a failure. */
MGW_CHECKED mgw_status job_output_init(job_output *output, unsigned workers, bool prefix,
                                       mgw_error *error);
void job_output_fini(job_output *output);

/* Takes over the reading ends of a worker's two streams. */
void job_output_open(job_output *output, unsigned rank, int out, int err);

/*
 * Waits until a worker wrote something, somebody reads what is left, or *other is ready, and does
 * what can be done without waiting. Returns whether anything was.
 */
bool job_output_step(job_output *output, struct pollfd *other, int timeout_ms);

/* A worker has ended: reads all the errors that it has written, since its last word is behind them.
 * No more than a pipe holds: what it has left behind may still write. */
void job_output_hear(job_output *output, unsigned worker);

/* A line of the launcher's own on standard error, behind what workers have said. */
void job_output_say(job_output *output, const char *line);

/*
 * A worker was the first to fail. Where the workers are one command, that is said once, and before
 * what follows from it: in the words of the worker, or in others, if it had none. If it says that
 * it failed for another one, the other's words are waited for, or that the other is blamed.
 */
void job_output_blame(job_output *output, unsigned worker, const char *otherwise);

/* Whether a worker has said that it ends for another one. */
bool job_output_follows(const job_output *output, unsigned worker);

/* Waits for no more words: says the best there is, if nothing was said yet. */
void job_output_settle(job_output *output);

/* Reads all that workers have written; what is written meanwhile, for a moment. */
void job_output_drain(job_output *output);

/* Whether everything is written, or lost. */
bool job_output_is_written(const job_output *output);

/* Why standard output could not be written, or what workers wrote could not be read; or 0. */
int job_output_lost(const job_output *output);

#endif
