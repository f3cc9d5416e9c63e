/* Checkpoint files: written in the background, with the last ones kept and leftovers removed. */
#ifndef MGW_TRAIN_SAVER_H
#define MGW_TRAIN_SAVER_H

#include "nn/state.h"

enum { TRAIN_KEEP_MAX = 100 };

typedef struct train_saver train_saver;

/* Checks that a checkpoint can be written there, before any work is done. */
MGW_CHECKED mgw_status train_saver_check(const char *path, mgw_error *error);

/*
 * Removes files that killed writers have left beside `path`. The last `keep` checkpoints are
 * `path`, `path`.1, `path`.2 and so on. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status train_saver_open(const char *path, unsigned keep, train_saver **out,
                                        mgw_error *error);

/* Waits until a started checkpoint is written. */
void train_saver_close(train_saver *saver);

bool train_saver_is_busy(train_saver *saver);

/* Waits until a started checkpoint is written, and returns the result. */
MGW_CHECKED mgw_status train_saver_wait(train_saver *saver, mgw_error *error);

/*
 * Starts to write a row on a separate thread. Not while it is busy. Ownership: takes the row, also
 * after a failure; the state's network must outlive the saver.
 */
MGW_CHECKED mgw_status train_saver_begin(train_saver *saver, const nn_state *state, float *row,
                                         mgw_error *error);

/* The name of the k-th newest: `path`, or `path`.k. Ownership: the caller frees it; null: out of
 * memory. */
char *train_saver_name(const char *path, unsigned k);

#endif
