/* The state and progress of a training. */
#ifndef MGW_NN_STATE_H
#define MGW_NN_STATE_H

#include "nn/net.h"
#include "nn/optimizer.h"

typedef struct nn_progress {
    uint64_t seed;
    uint64_t epoch;   /* completed epochs */
    uint64_t samples; /* of the current epoch: used so far, by all workers */
    uint64_t steps;
} nn_progress;

typedef struct nn_state {
    nn_net *net;
    const nn_optimizer *optimizer;
    size_t parameter_total;
    size_t running_total; /* size of the running statistics of each worker */
    unsigned workers;     /* that have some: 1, until the caller changes it */
    nn_progress progress;
} nn_state;

/* Starts with random weights. Ownership: the net and the optimizer stay the caller's. */
void nn_state_init(nn_state *state, nn_net *net, const nn_optimizer *optimizer, uint64_t seed);

/*
 * All numbers in a row: the parameters one after the other, each of the optimizer's arrays in the
 * same order, and the running statistics of each worker, which differ because workers see different
 * images.
 */
size_t nn_state_count(const nn_state *state);

/* One worker's running statistics, from or to the end of such a row. */
void nn_state_running_out(const nn_state *state, float *numbers);
void nn_state_running_in(nn_state *state, const float *numbers);

/* CRC-32 of all weights: equal if and only if they are, practically. */
uint32_t nn_state_checksum(const nn_state *state);

/* Checkpoints: written atomically; read strictly. The format is in docs/reference/formats.md. */
MGW_CHECKED mgw_status nn_checkpoint_save(const nn_state *state, const float *row, const char *path,
                                          mgw_error *error);

/*
 * Sets the progress, and returns the row, which the caller frees. The parameters do not change. If
 * another number of workers saved it, each gets the mean of their statistics. Non-finite numbers
 * are refused, with MGW_ERR_UNSUPPORTED.
 */
MGW_CHECKED mgw_status nn_checkpoint_load(nn_state *state, const char *path, float **row,
                                          mgw_error *error);

/* Neither infinite nor NaN. */
bool nn_are_finite(const float *numbers, size_t count);

/* Whether a file ends with the checksum of everything before it, whatever its contents. */
bool nn_checkpoint_is_whole(const char *path);

#endif
