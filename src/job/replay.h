/*
 * A trace's steps for real, as one worker of a job: the engine communicates, computation is waited
 * out. All workers of the job make the same calls.
 */
#ifndef MGW_JOB_REPLAY_H
#define MGW_JOB_REPLAY_H

#include <mgwfbp/device.h>
#include <mgwfbp/engine.h>

enum { JOB_ROUNDS_MAX = 64 };

typedef struct job_replay_options {
    const mgw_trace *trace;     /* of f32: as which all gradients travel here */
    const mgw_cluster *network; /* what is emulated; null: the network is as fast as it is */
    const char *transport;      /*   and what emulates it */
    const char *cluster;        /* what the engine plans from, by name; null: what it measures */
    const mgw_policy *policies;
    size_t policy_count;
    unsigned servers; /* 0: all-reduce */
    unsigned steps;   /* per policy and round */
    unsigned rounds;  /* at most JOB_ROUNDS_MAX */
    bool cuda;        /* gradients are in the memory of GPUs */
    bool timelines;   /* are wanted */
    void (*progress)(void *context, unsigned round, double share); /* or null: what is done */
    void *context;
} job_replay_options;

/* What was predicted and measured under one policy. */
typedef struct job_outcome {
    mgw_policy policy;
    mgw_plan *predicted;
    size_t messages;
    double iteration_s[JOB_ROUNDS_MAX]; /* by round */
    double compute_s[JOB_ROUNDS_MAX];
    mgw_timeline *timeline; /* of the last step of a round, if it is wanted */
    double begin_s;         /* when that step began */
} job_outcome;

typedef struct job_parameters job_parameters;

typedef struct job_replay {
    job_replay_options options;
    mgw_engine *engine;
    job_outcome *outcomes; /* by policy */
    unsigned rounds;       /* that are done: fewer than wanted, if it was interrupted */
    mgw_text timelines;    /* rank 0: of all workers, as a Chrome trace, if they are wanted */
    /* its own: */
    mgw_device *device;         /* null: gradients are in the host's memory */
    float *numbers;             /* to or from there: as many as the largest tensor has */
    double begin_s;             /* of the last step */
    double stalled_s;           /* what its forward pass waited for parameters */
    unsigned step;              /* so far, which the gradients' values depend on */
    job_parameters *parameters; /* null: gradients are all there is */
} job_replay;

/*
 * Joins the job, runs all rounds, or those before it is interrupted, and checks averages and what
 * is made of them. Ownership: the
 * caller ends *out with job_replay_fini, also after a failure; what the options point to stays the
 * caller's.
 */
MGW_CHECKED mgw_status job_replay_run(const job_replay_options *options, job_replay *out,
                                      mgw_error *error);
void job_replay_fini(job_replay *replay);

/* What predictions were made from: the network that is emulated, or what was measured. */
const mgw_cluster *job_replay_network(const job_replay *replay);

#endif
