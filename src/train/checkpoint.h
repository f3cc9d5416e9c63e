/* Checkpoints of a training run: rank 0 writes and reads them, for all workers. */
#ifndef MGW_TRAIN_CHECKPOINT_H
#define MGW_TRAIN_CHECKPOINT_H

#include "train/saver.h"
#include "train/worker.h"

/* How urgent a checkpoint is. */
typedef enum train_moment {
    TRAIN_NOW_AND_THEN, /* skipped while the last one is being written */
    TRAIN_SOON,         /* after the last one */
    TRAIN_AT_ONCE,      /* written when the call returns */
} train_moment;

/* Saves the whole state, independent of the number of workers; training waits only for a copy. Rank
 * 0 has a saver. Sets *saved unless it was skipped. Collective. */
MGW_CHECKED mgw_status train_checkpoint_save(train_worker *worker, train_saver *saver,
                                             train_moment moment, bool *saved, mgw_error *error);

/* Waits until the last checkpoint is written. Collective. */
MGW_CHECKED mgw_status train_checkpoint_finish(train_worker *worker, train_saver *saver,
                                               mgw_error *error);

/*
 * Loads the newest complete checkpoint of `path`, `path`.1 and so on; rank 0 warns about damaged
 * ones. If there is none, fails or, if `found` is not null, sets *found to false. Collective.
 */
typedef void train_tell(const char *message);
MGW_CHECKED mgw_status train_checkpoint_load(train_worker *worker, const char *path,
                                             train_tell *warn, bool *found, mgw_error *error);

#endif
