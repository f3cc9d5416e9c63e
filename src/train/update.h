/*
 * The optimizer's side of a worker: it updates this worker's shards of the weights as their
 * averages come, remembers what it needs of those alone, and brings that together as one row of
 * numbers.
 */
#ifndef MGW_TRAIN_UPDATE_H
#define MGW_TRAIN_UPDATE_H

#include "train/worker.h"

/* Before the engine's start: it will call the optimizer, and say when shards change hands. */
MGW_CHECKED mgw_status train_update_join(train_worker *worker, mgw_error *error);

/* Behind it: moves the weights to where the engine keeps them, and makes room for what is
 * remembered. Ownership: train_update_fini frees it. */
MGW_CHECKED mgw_status train_update_init(train_worker *worker, mgw_error *error);
void train_update_fini(train_worker *worker);

/* The program waits for weights before it uses them, and lets them change behind their last use. */
void train_update_watch(train_worker *worker);

/* The shards that this worker updates: the engine's, until its next step; or all tensors, whole. */
const mgw_shard *train_shards(const train_worker *worker, size_t *count);

/* Behind mgw_engine_wait: what the engine has not let the optimizer do. */
MGW_CHECKED mgw_status train_update_rest(train_worker *worker, mgw_error *error);

/* Waits until all weights are whole: before they are read outside of a step. Collective. */
MGW_CHECKED mgw_status train_update_drain(train_worker *worker, mgw_error *error);

/* Bytes that this worker's optimizer remembers. */
size_t train_update_bytes(const train_worker *worker);

/*
 * The state of all workers as a row (nn/state.h). Null: this worker only helps the others to it.
 * Collective, between steps.
 */
MGW_CHECKED mgw_status train_row_out(train_worker *worker, float *row, mgw_error *error);

/* Back to such a row, which every worker has. Collective, between steps. */
MGW_CHECKED mgw_status train_row_in(train_worker *worker, const float *row, mgw_error *error);

/* The same, but only rank 0 has it: it goes to the others piece by piece. */
MGW_CHECKED mgw_status train_row_share(train_worker *worker, const float *row, mgw_error *error);

#endif
