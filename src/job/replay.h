/*
 * Runs the steps of a trace as one worker of a job: the engine communicates, and computation is
 * emulated by waiting. All workers make the same calls.
 */
#ifndef MGW_JOB_REPLAY_H
#define MGW_JOB_REPLAY_H

#include <mgwfbp/device.h>
#include <mgwfbp/engine.h>

enum { JOB_ROUNDS_MAX = 64 };

typedef struct job_replay_options {
    const mgw_trace *trace;     /* of f32, as which all gradients are sent here */
    const mgw_cluster *network; /* the emulated network; null: none */
    const char *transport;      /*   and the transport that emulates it */
    const char *cluster;        /* the cluster for planning, by name; null: measured */
    const mgw_policy *policies;
    size_t policy_count;
    unsigned servers;                                              /* 0: all-reduce */
    unsigned steps;                                                /* per policy and round */
    unsigned rounds;                                               /* at most JOB_ROUNDS_MAX */
    bool cuda;                                                     /* gradients are in GPU memory */
    bool timelines;                                                /* collect timelines */
    void (*progress)(void *context, unsigned round, double share); /* or null: reports progress */
    void *context;
} job_replay_options;

/* The prediction and measurements of one policy. */
typedef struct job_outcome {
    mgw_policy policy;
    mgw_plan *predicted;
    size_t messages;
    double iteration_s[JOB_ROUNDS_MAX]; /* by round */
    double compute_s[JOB_ROUNDS_MAX];
    mgw_timeline *timeline; /* of the last step of a round, if requested */
    double begin_s;         /* when that step began */
} job_outcome;

typedef struct job_parameters job_parameters;

typedef struct job_replay {
    job_replay_options options;
    mgw_engine *engine;
    job_outcome *outcomes; /* by policy */
    unsigned rounds;       /* completed rounds: fewer than requested if interrupted */
    mgw_text timelines;    /* rank 0: of all workers, as a Chrome trace, if requested */
    /* private: */
    mgw_device *device;         /* null: gradients are in host memory */
    float *numbers;             /* buffer for copies: as large as the largest tensor */
    double begin_s;             /* of the last step */
    double stalled_s;           /* time its forward pass waited for parameters */
    unsigned step;              /* number of steps so far, which determines the gradients' values */
    job_parameters *parameters; /* null: only gradients */
} job_replay;

/*
 * Joins the job, runs all rounds until interrupted, and checks averages and updates. Ownership: the
 * caller calls job_replay_fini on *out, also after a failure, and keeps what the options point to.
 */
MGW_CHECKED mgw_status job_replay_run(const job_replay_options *options, job_replay *out,
                                      mgw_error *error);
void job_replay_fini(job_replay *replay);

/* The cluster that predictions are based on: the emulated network, or the measured one. */
const mgw_cluster *job_replay_network(const job_replay *replay);

#endif
