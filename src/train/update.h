/* The optimizer's side of a worker: what it remembers of the weights that this worker updates, and
 * all of that as one row of numbers. */
#ifndef MGW_TRAIN_UPDATE_H
#define MGW_TRAIN_UPDATE_H

#include "train/worker.h"

/* Behind the engine's start. Ownership: train_update_fini frees what it makes. */
MGW_CHECKED mgw_status train_update_init(train_worker *worker, mgw_error *error);
void train_update_fini(train_worker *worker);

/* All weights follow their gradients. */
void train_update_all(train_worker *worker);

/*
 * The state of all workers as a row (nn/state.h). Null: somebody else's row is filled. Collective,
 * between steps; the running statistics are this worker's.
 */
MGW_CHECKED mgw_status train_row_out(train_worker *worker, float *row, mgw_error *error);

/* Back to such a row, which every worker has. */
void train_row_in(train_worker *worker, const float *row);

/* The same, of which only rank 0 has it: it goes to the others piece by piece. Collective. */
MGW_CHECKED mgw_status train_row_share(train_worker *worker, const float *row, mgw_error *error);

#endif
