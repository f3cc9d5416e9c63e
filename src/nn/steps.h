/* Internals of a program; program.c creates it, run.c runs it. */
#ifndef MGW_NN_STEPS_H
#define MGW_NN_STEPS_H

#include "nn/program.h"

enum { NONE = -1 }; /* no layer */

/*
 * Memory of gradients, which is reused once its contents are no longer needed: `holders` is the
 * number of layers whose output gradients it holds. Two layers that are added share one gradient.
 */
typedef struct buffer {
    float *data;
    size_t count;
    int holders;
} buffer;

typedef struct step {
    nn_kernel *kernel;
    int layer;  /* backward: the layer whose parameters' gradients are ready after it, or NONE */
    int leaves; /* backward: the layer whose parameters are no longer used after it, or NONE */
} step;

typedef struct steps {
    step *all;
    int count;
    int capacity;
} steps;

/* Time spent in training steps, in CPU seconds of this thread, since others may use the processor
 * in between. */
typedef struct effort {
    double all_s;
    double reference_s; /* in oneDNN's reference code */
    unsigned steps;
} effort;

struct nn_program {
    nn_processor *processor;
    nn_net *net;
    nn_image *values;  /* by layer */
    nn_normal *normal; /* by layer; those of batch normalisations are used */
    float *const *gradients;
    steps forward;
    steps backward;
    nn_image scores; /* log-probabilities of the classes, and their gradient */
    nn_image d_scores;
    nn_needed *needed;
    void *needed_context;
    bool changes_beside; /* parameters change during the backward pass */
    size_t bytes;
    effort effort;
    bool is_warm;    /* the first step is done, and no longer counts */
    buffer *buffers; /* while it is created: gradients of activations */
    int buffer_count;
    int *gradient_of; /* by layer: a buffer, or NONE */
};

#endif
