/* Checkpoints of a training: rank 0 writes or reads them, for all workers. */
#ifndef MGW_TRAIN_CHECKPOINT_H
#define MGW_TRAIN_CHECKPOINT_H

#include "train/worker.h"

/* The whole state, whatever the number of workers is. Collective. */
MGW_CHECKED mgw_status train_checkpoint_save(train_worker *worker, const char *path,
                                             mgw_error *error);
MGW_CHECKED mgw_status train_checkpoint_load(train_worker *worker, const char *path,
                                             mgw_error *error);

#endif
