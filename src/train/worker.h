/*
 * A worker: trains a network on its share of the data, with its gradients averaged by the engine.
 *
 *     train_worker_open(&options, &worker, &error);
 *     while (worker->state.progress.epoch < …)
 *         train_worker_step(worker, &loss, &error);        forward, backward, average, descend
 *     train_worker_evaluate(worker, &loss, &accuracy, &error);
 *     train_worker_close(worker);
 *
 * All workers make the same calls.
 */
#ifndef MGW_TRAIN_WORKER_H
#define MGW_TRAIN_WORKER_H

#include <mgwfbp/engine.h>

#include "nn/data.h"
#include "nn/models.h"
#include "nn/program.h"
#include "nn/state.h"

typedef struct train_worker_options {
    const nn_model *model;
    int batch;        /* images per worker and step */
    int size;         /* of synthetic images; 0: the model's default */
    const char *data; /* a folder, or "synthetic" */
    int threads;      /* of computation */
    bool augment;
    uint64_t seed;
    const nn_optimizer *optimizer;
    nn_rule rule;  /* `rate` is the highest rate; the step continues from the checkpoint */
    double warmup; /* epochs in which the rate grows to its maximum */
    double epochs; /* after which it has fallen to 0, following a cosine */
    mgw_engine_options engine;
} train_worker_options;

typedef struct train_worker {
    train_worker_options options;
    mgw_engine *engine;
    unsigned rank;
    unsigned size;
    nn_data *train;
    nn_data *test;
    nn_processor *processor;
    nn_net *net;
    nn_program *program;
    nn_state state;
    float **gradients; /* by tensor */
    nn_parameter **by_tensor;
    nn_rule rule;                 /* of the current step */
    float *arrays[NN_ARRAYS_MAX]; /* optimizer state of this worker's shards */
    mgw_shard *whole; /* all tensors; null: the engine keeps the parameters, and shards them */
    int *labels;
    uint32_t *order; /* of the epoch; null: it has not begun */
    double begin_s;  /* when the last step began, on the monotonic clock */
    double step_s;   /* its total time */
} train_worker;

/* Joins the job, loads the data, builds the network. Ownership: the caller closes *out. */
MGW_CHECKED mgw_status train_worker_open(const train_worker_options *options, train_worker **out,
                                         mgw_error *error);
void train_worker_close(train_worker *worker);

/* After another worker was lost: re-forms with the surviving workers, from the initial state; load
 * a checkpoint to continue from there. Fails with fewer than `least` workers. */
MGW_CHECKED mgw_status train_worker_reform(train_worker *worker, unsigned least, mgw_error *error);

/* Runs one step of all workers; *loss is this worker's. */
MGW_CHECKED mgw_status train_worker_step(train_worker *worker, double *loss, mgw_error *error);

/* The learning rate of the next step. */
double train_worker_rate(const train_worker *worker);

/* Sums numbers over all workers, in place. */
MGW_CHECKED mgw_status train_worker_sum(train_worker *worker, double *values, size_t count,
                                        mgw_error *error);

/* The elementwise maximum over all workers, in place. */
MGW_CHECKED mgw_status train_worker_most(train_worker *worker, double *values, size_t count,
                                         mgw_error *error);

/* Averages the running statistics, which differ because workers have seen different images. */
MGW_CHECKED mgw_status train_worker_average_running(train_worker *worker, mgw_error *error);

/* Loss and accuracy on the whole test set, of which each worker evaluates a part. Averages the
 * running statistics first. */
MGW_CHECKED mgw_status train_worker_evaluate(train_worker *worker, double *loss, double *accuracy,
                                             mgw_error *error);

/* Continues with the step after this progress. */
void train_worker_go_to(train_worker *worker, const nn_progress *progress);

#endif
