/* What training has come to: weights, velocities, running statistics, and how far it is. */
#ifndef MGW_NN_STATE_H
#define MGW_NN_STATE_H

#include "nn/net.h"

typedef struct nn_progress {
    uint64_t seed;
    uint64_t epoch;   /* epochs that are done */
    uint64_t samples; /* of the epoch that is not done: used so far, by all workers */
    uint64_t steps;
} nn_progress;

typedef struct nn_state {
    nn_net *net;
    float *velocity; /* of all parameters, one behind the other */
    size_t parameter_total;
    size_t running_total; /* numbers of running statistics */
    nn_progress progress;
} nn_state;

/* Ownership: the net stays the caller's; nn_state_fini frees the rest. */
MGW_CHECKED mgw_status nn_state_init(nn_state *state, nn_net *net, uint64_t seed, mgw_error *error);
void nn_state_fini(nn_state *state);

/* All numbers, one behind the other: parameters, velocities, running statistics. */
size_t nn_state_count(const nn_state *state);
void nn_state_copy_out(const nn_state *state, float *numbers);
void nn_state_copy_in(nn_state *state, const float *numbers);

/* The running statistics alone. */
void nn_state_running_out(const nn_state *state, float *numbers);
void nn_state_running_in(nn_state *state, const float *numbers);

/* Whether all numbers are numbers still. */
bool nn_state_is_finite(const nn_state *state);

/* CRC-32 of all weights: the same if and only if they are, as good as certainly. */
uint32_t nn_state_checksum(const nn_state *state);

/* Checkpoints: written all or nothing; read strictly. The format is in docs/formats.md. */
MGW_CHECKED mgw_status nn_checkpoint_save(const nn_state *state, const char *path,
                                          mgw_error *error);
MGW_CHECKED mgw_status nn_checkpoint_load(nn_state *state, const char *path, mgw_error *error);

#endif
