/*
 * A network made ready to run: memory for what flows through it, and its kernels in the order in
 * which they run, forward and backward.
 */
#ifndef MGW_NN_PROGRAM_H
#define MGW_NN_PROGRAM_H

#include "nn/net.h"

typedef struct nn_program nn_program;

/*
 * `gradients` has an address for each parameter, by number in ready order: there they are written.
 * Null: for evaluation only. The net must outlive the program. Ownership: the caller destroys *out.
 */
MGW_CHECKED mgw_status nn_program_create(nn_processor *processor, nn_net *net,
                                         float *const *gradients, nn_program **out,
                                         mgw_error *error);
void nn_program_destroy(nn_program *program);

/* Where the next batch of images is put: nhwc. */
float *nn_program_images(nn_program *program);

/*
 * Runs forward: with the batch's own statistics if it trains, which go into the running ones, else
 * with the running ones. *loss is the mean cross-entropy over the first `count` images of the
 * batch, *correct how many of them were classified rightly; either may be null.
 */
MGW_CHECKED mgw_status nn_forward(nn_program *program, const int *labels, int count, bool training,
                                  double *loss, int *correct, mgw_error *error);

/* Called as a gradient is done; `tensor` is its number in ready order. */
typedef void nn_ready(void *context, unsigned tensor);

/* Runs backward, behind a forward run that trains. */
MGW_CHECKED mgw_status nn_backward(nn_program *program, nn_ready *ready, void *context,
                                   mgw_error *error);

/*
 * Lets parameters change as soon as their gradients are told: those of a layer are told only when
 * the backward pass has used its parameters for the last time, which is a kernel later.
 */
void nn_change_beside(nn_program *program);

/* Called before a layer uses a parameter to run forward, which waits until it returns; a failure
 * ends the run. Null ends it. */
typedef mgw_status nn_needed(void *context, unsigned tensor, mgw_error *error);
void nn_watch_forward(nn_program *program, nn_needed *needed, void *context);

/*
 * The share of training steps' computation that oneDNN's reference code took, and in `what` for
 * which operations ("softmax, pooling"); 0 and nothing if it has better for all. The first step
 * counts as long as it is the only one. *counted is how many steps that is of; it may be null.
 */
enum { NN_WHAT_MAX = 128 };
double nn_program_reference(const nn_program *program, char what[NN_WHAT_MAX], unsigned *counted);

/* Bytes of activations and their gradients. */
size_t nn_program_bytes(const nn_program *program);

#endif
