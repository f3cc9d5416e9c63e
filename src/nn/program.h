/*
 * A network that is ready to run: memory for its activations, and its kernels in execution order,
 * forward and backward.
 */
#ifndef MGW_NN_PROGRAM_H
#define MGW_NN_PROGRAM_H

#include "nn/net.h"

typedef struct nn_program nn_program;

/*
 * `gradients` has an address for each parameter, by number in ready order, where its gradient is
 * written. Null: for evaluation only. The net must outlive the program. Ownership: the caller
 * destroys *out.
 */
MGW_CHECKED mgw_status nn_program_create(nn_processor *processor, nn_net *net,
                                         float *const *gradients, nn_program **out,
                                         mgw_error *error);
void nn_program_destroy(nn_program *program);

/* The buffer for the next batch of images: nhwc. */
float *nn_program_images(nn_program *program);

/*
 * Runs forward. In training it uses the batch's own statistics, and updates the running ones;
 * otherwise it uses the running ones. *loss is the mean cross-entropy over the first `count` images
 * of the batch, *correct the number of correctly classified ones; either may be null.
 */
MGW_CHECKED mgw_status nn_forward(nn_program *program, const int *labels, int count, bool training,
                                  double *loss, int *correct, mgw_error *error);

/* Called when a gradient is ready; `tensor` is its number in ready order. */
typedef void nn_ready(void *context, unsigned tensor);

/* Runs backward, after a forward run in training. */
MGW_CHECKED mgw_status nn_backward(nn_program *program, nn_ready *ready, void *context,
                                   mgw_error *error);

/*
 * Lets parameters change as soon as their gradients are reported: a layer's gradients are then only
 * reported when the backward pass has used its parameters for the last time, one kernel later.
 */
void nn_change_beside(nn_program *program);

/* Called before a layer uses a parameter in the forward pass, which waits until it returns; a
 * failure ends the run. Null removes the callback. */
typedef mgw_status nn_needed(void *context, unsigned tensor, mgw_error *error);
void nn_watch_forward(nn_program *program, nn_needed *needed, void *context);

/*
 * The share of training steps' computation in oneDNN's reference code, and in `what` its operations
 * ("softmax, pooling"); 0 and empty if all are optimized. The first step counts as long as it is
 * the only one. *counted is the number of steps measured; it may be null.
 */
enum { NN_WHAT_MAX = 128 };
double nn_program_reference(const nn_program *program, char what[NN_WHAT_MAX], unsigned *counted);

/* Bytes of activations and their gradients. */
size_t nn_program_bytes(const nn_program *program);

#endif
