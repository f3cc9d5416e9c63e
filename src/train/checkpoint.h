/* Checkpoints of a training: rank 0 writes or reads them, for all workers. */
#ifndef MGW_TRAIN_CHECKPOINT_H
#define MGW_TRAIN_CHECKPOINT_H

#include "train/saver.h"
#include "train/worker.h"

/* How much a checkpoint matters. */
typedef enum train_moment {
    TRAIN_NOW_AND_THEN, /* left out while the last one is being written */
    TRAIN_SOON,         /* behind the last one */
    TRAIN_AT_ONCE,      /* and written when the call returns */
} train_moment;

/* The whole state, whatever the number of workers is: training waits for a copy. Rank 0 has a
 * saver. *saved is set unless it was left out.
 * Collective. */
MGW_CHECKED mgw_status train_checkpoint_save(train_worker *worker, train_saver *saver,
                                             train_moment moment, bool *saved, mgw_error *error);

/* Waits until the last one is written. Collective. */
MGW_CHECKED mgw_status train_checkpoint_finish(train_worker *worker, train_saver *saver,
                                               mgw_error *error);

/*
 * The newest that is whole of `path`, `path`.1 and so on; rank 0 warns of those that are not.
 * Without any, it is an error; or *found is false, if it is not null. Collective.
 */
typedef void train_tell(const char *message);
MGW_CHECKED mgw_status train_checkpoint_load(train_worker *worker, const char *path,
                                             train_tell *warn, bool *found, mgw_error *error);

#endif
