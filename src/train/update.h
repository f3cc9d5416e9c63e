/*
 * The optimizer of a worker: updates this worker's shards of the weights when they are averaged,
 * keeps the state of these shards only, and collects the state of all workers as one row of
 * numbers.
 */
#ifndef MGW_TRAIN_UPDATE_H
#define MGW_TRAIN_UPDATE_H

#include "train/worker.h"

/* Before the engine's start: registers the callbacks for updates and for moved shards. */
MGW_CHECKED mgw_status train_update_join(train_worker *worker, mgw_error *error);

/* After the engine's start: moves the weights to the engine's memory, and allocates the optimizer
 * state. Ownership: train_update_fini frees it. */
MGW_CHECKED mgw_status train_update_init(train_worker *worker, mgw_error *error);
void train_update_fini(train_worker *worker);

/* Makes the program wait for weights before their first use, and allow changes after their last
 * use. */
void train_update_watch(train_worker *worker);

/* The shards that this worker updates: owned by the engine, until its next step; or all whole
 * tensors. */
const mgw_shard *train_shards(const train_worker *worker, size_t *count);

/* After mgw_engine_wait: does the updates that the engine has not called for. */
MGW_CHECKED mgw_status train_update_rest(train_worker *worker, mgw_error *error);

/* Waits until all weights are complete, before they are read outside a step. Collective. */
MGW_CHECKED mgw_status train_update_drain(train_worker *worker, mgw_error *error);

/* Bytes of this worker's optimizer state. */
size_t train_update_bytes(const train_worker *worker);

/*
 * Collects the state of all workers as a row (nn/state.h). Null: this worker only takes part.
 * Collective, between steps.
 */
MGW_CHECKED mgw_status train_row_out(train_worker *worker, float *row, mgw_error *error);

/* Restores the state from such a row, which every worker has. Collective, between steps. */
MGW_CHECKED mgw_status train_row_in(train_worker *worker, const float *row, mgw_error *error);

/* The same if only rank 0 has the row: it is broadcast piece by piece. */
MGW_CHECKED mgw_status train_row_share(train_worker *worker, const float *row, mgw_error *error);

#endif
