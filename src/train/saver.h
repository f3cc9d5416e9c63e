/* Checkpoints as files: written beside training, the last ones kept, and what is left of others. */
#ifndef MGW_TRAIN_SAVER_H
#define MGW_TRAIN_SAVER_H

#include "nn/state.h"

enum { TRAIN_KEEP_MAX = 100 };

typedef struct train_saver train_saver;

/* Whether a checkpoint could be written there; before any work is done. */
MGW_CHECKED mgw_status train_saver_check(const char *path, mgw_error *error);

/*
 * Removes files that writers which were killed have left beside `path`. The last `keep` checkpoints
 * are at `path`, `path`.1, `path`.2 and so on. Ownership: the caller closes *out.
 */
MGW_CHECKED mgw_status train_saver_open(const char *path, unsigned keep, train_saver **out,
                                        mgw_error *error);

/* Waits until what was begun is written. */
void train_saver_close(train_saver *saver);

bool train_saver_is_busy(train_saver *saver);

/* Waits until what was begun is written, and says whether it could be. */
MGW_CHECKED mgw_status train_saver_wait(train_saver *saver, mgw_error *error);

/*
 * Begins to write a row, on a thread of its own. Not while it is busy. Ownership: the row becomes
 * the saver's, also after a failure; the state's network must outlive the saver.
 */
MGW_CHECKED mgw_status train_saver_begin(train_saver *saver, const nn_state *state, float *row,
                                         mgw_error *error);

/* The name of the k-th newest: `path`, or `path`.k. Ownership: the caller frees it; null: no
 * memory. */
char *train_saver_name(const char *path, unsigned k);

#endif
