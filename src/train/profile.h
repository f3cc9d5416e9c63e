/* Measures the step of a network on this machine, as a trace. */
#ifndef MGW_TRAIN_PROFILE_H
#define MGW_TRAIN_PROFILE_H

#include <mgwfbp/trace.h>

#include "nn/models.h"
#include "train/reference.h"

typedef struct train_profile_options {
    const nn_model *model;
    int batch;
    int size;         /* of the synthetic images */
    int threads;      /* of computation */
    unsigned steps;   /* measured steps, after two warm-up steps */
    train_warn *warn; /* or null */
    void (*progress)(void *context, unsigned done, unsigned steps); /* or null */
    void *context;
} train_profile_options;

/* Runs on one worker. Times are medians over the steps, or over those completed when interrupted;
 * *done is their number. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status train_profile(const train_profile_options *options, mgw_trace **out,
                                     unsigned *done, mgw_error *error);

#endif
