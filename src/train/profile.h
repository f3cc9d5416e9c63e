/* A network's step on this machine, as a trace. */
#ifndef MGW_TRAIN_PROFILE_H
#define MGW_TRAIN_PROFILE_H

#include <mgwfbp/trace.h>

#include "nn/models.h"
#include "train/reference.h"

typedef struct train_profile_options {
    const nn_model *model;
    int batch;
    int size;         /* of the images, which are made up */
    int threads;      /* of computation */
    unsigned steps;   /* that are measured, behind two that are not */
    train_warn *warn; /* or null */
    void (*progress)(void *context, unsigned done, unsigned steps); /* or null */
    void *context;
} train_profile_options;

/* Runs it on one worker; times are medians over the steps, or over those that are done when it is
 * interrupted; *done says how many. Ownership: the caller destroys *out. */
MGW_CHECKED mgw_status train_profile(const train_profile_options *options, mgw_trace **out,
                                     unsigned *done, mgw_error *error);

#endif
