/* What a program is made of; program.c makes it, run.c runs it. */
#ifndef MGW_NN_STEPS_H
#define MGW_NN_STEPS_H

#include "nn/program.h"

enum { NONE = -1 }; /* no layer */

/*
 * Memory of gradients, which is used again once nobody needs what is in it: `holders` is how many
 * layers' output gradients it holds. Two layers that are added have one gradient between them.
 */
typedef struct buffer {
    float *data;
    size_t count;
    int holders;
} buffer;

typedef struct step {
    nn_kernel *kernel;
    int layer;  /* backward: whose parameters' gradients are done behind it, or NONE */
    int leaves; /* backward: whose parameters are used no more behind it, or NONE */
} step;

typedef struct steps {
    step *all;
    int count;
    int capacity;
} steps;

/* What the processor did in steps that train; seconds of this thread, since others may have the
 * processor in between. */
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
    nn_image scores; /* logarithms of the classes' probabilities, and their gradient */
    nn_image d_scores;
    nn_needed *needed;
    void *needed_context;
    bool changes_beside; /* parameters change while the backward pass goes on */
    size_t bytes;
    effort effort;
    bool is_warm;    /* the first step was made, and is not counted any more */
    buffer *buffers; /* while it is made: gradients of activations */
    int buffer_count;
    int *gradient_of; /* by layer: a buffer, or NONE */
};

#endif
