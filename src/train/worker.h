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
    int size;         /* of synthetic images; 0: the model's usual */
    const char *data; /* a folder, or "synthetic" */
    int threads;      /* of computation */
    bool augment;
    uint64_t seed;
    const nn_optimizer *optimizer;
    nn_rule rule;  /* its rate is the highest; the step counts from the checkpoint's */
    double warmup; /* epochs in which the rate grows to what it is */
    double epochs; /* after which it has fallen to 0, by a cosine */
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
    nn_rule rule;                 /* of the step that is on */
    float *arrays[NN_ARRAYS_MAX]; /* what the optimizer remembers of this worker's shards */
    mgw_shard *whole; /* all tensors; null: the engine keeps the parameters, and shares them out */
    int *labels;
    uint32_t *order; /* of the epoch, or null: it is not begun */
    double begin_s;  /* when the last step began, on the monotonic clock */
    double step_s;   /* what it took, all in all */
} train_worker;

/* Joins the job, loads the data, builds the network. Ownership: the caller closes *out. */
MGW_CHECKED mgw_status train_worker_open(const train_worker_options *options, train_worker **out,
                                         mgw_error *error);
void train_worker_close(train_worker *worker);

/* After another worker was lost: this one and the others that are left go on together, from the
 * beginning; a checkpoint takes them back to where they were. Fewer than `least` do not. */
MGW_CHECKED mgw_status train_worker_reform(train_worker *worker, unsigned least, mgw_error *error);

/* One step of all workers; *loss is this worker's. */
MGW_CHECKED mgw_status train_worker_step(train_worker *worker, double *loss, mgw_error *error);

/* The learning rate of the next step. */
double train_worker_rate(const train_worker *worker);

/* Sums numbers over all workers, in place. */
MGW_CHECKED mgw_status train_worker_sum(train_worker *worker, double *values, size_t count,
                                        mgw_error *error);

/* The largest of all workers' numbers, in place. */
MGW_CHECKED mgw_status train_worker_most(train_worker *worker, double *values, size_t count,
                                         mgw_error *error);

/* Every worker has seen other images; afterwards all have the mean of what they saw. */
MGW_CHECKED mgw_status train_worker_average_running(train_worker *worker, mgw_error *error);

/* Loss and share of right answers on the whole test set, each worker doing its part of it. The
 * running statistics are averaged first. */
MGW_CHECKED mgw_status train_worker_evaluate(train_worker *worker, double *loss, double *accuracy,
                                             mgw_error *error);

/* The next step is the one behind this progress. */
void train_worker_go_to(train_worker *worker, const nn_progress *progress);

#endif
