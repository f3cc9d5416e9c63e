/* The loop over steps and epochs, with checkpoints. All workers make the same calls. */
#ifndef MGW_TRAIN_LOOP_H
#define MGW_TRAIN_LOOP_H

#include "train/reference.h"
#include "train/worker.h"

/* Some steps of all workers. */
typedef struct train_window {
    double loss; /* the mean */
    double images_per_s;
    double exposed_share; /* of the iteration */
} train_window;

/* Callbacks during training, on every worker; null functions are not called. */
typedef struct train_listener {
    void *context;
    mgw_status (*window)(void *context, const train_worker *worker, const train_window *window,
                         mgw_error *error);
    mgw_status (*epoch)(void *context, const train_worker *worker, double test_loss,
                        double test_accuracy, mgw_error *error);
    train_warn *warn; /* on rank 0 only */
} train_listener;

typedef struct train_loop_options {
    unsigned steps;            /* 0: all epochs */
    bool in_all;               /* `steps` includes those before the checkpoint */
    unsigned log_steps;        /* between two looks; 0: about every two seconds */
    unsigned checkpoint_steps; /* 0: only after epochs and at the end */
    double checkpoint_s;       /* the same in seconds */
    unsigned keep;             /* number of checkpoints to keep; older ones get a number */
    const char *checkpoint;    /* path; null: do not save */
    train_listener listener;
} train_loop_options;

typedef struct train_summary {
    mgw_engine_statistics statistics; /* times are those of the slowest worker */
    const mgw_plan *plan;             /* owned by the engine; null: none yet */
    double images_per_s;
    int stopped_by; /* the signal that interrupted it, or 0 */
} train_summary;

/* Trains to the end, or until it is interrupted. */
MGW_CHECKED mgw_status train_run(train_worker *worker, const train_loop_options *options,
                                 train_summary *out, mgw_error *error);

/* The last step of all workers, with its prediction: rank 0 writes it as a Chrome trace. */
MGW_CHECKED mgw_status train_write_step(train_worker *worker, mgw_text *text, mgw_error *error);

#endif
