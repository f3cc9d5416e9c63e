/* The output of train, as text or as JSON with one object per line. Only rank 0 prints. */
#ifndef MGW_CLI_PRINT_TRAIN_H
#define MGW_CLI_PRINT_TRAIN_H

#include "cli/terminal.h"
#include "train/compare.h"
#include "train/loop.h"

/* "resnet20, 59 tensors, …" in lines, before training begins. `network`: the emulated network, or
 * null. */
MGW_CHECKED mgw_status cli_print_training(const train_worker *worker, const mgw_cluster *network,
                                          mgw_error *error);

/* Reports that training continues from a checkpoint. */
MGW_CHECKED mgw_status cli_print_resumed(const train_worker *worker, const char *path, bool json,
                                         mgw_error *error);

/* Reports the progress of an interrupted run, on standard error. `path`: of the checkpoint, or
 * null. */
void cli_tell_interrupted(const train_worker *worker, int signal_number, const char *path);

/* Context of the training loop's callbacks: progress relative to `steps` (0: to all epochs). */
typedef struct cli_training {
    cli_progress progress;
    unsigned steps;
    uint64_t first; /* steps before the start, from a checkpoint */
} cli_training;

train_listener cli_train_listener(bool json, cli_training *training);

/* The same for a comparison. */
void cli_show_compared(void *training, double share);

MGW_CHECKED mgw_status cli_print_summary(const train_worker *worker, const train_summary *summary,
                                         bool json, mgw_error *error);

/* Reports that a round of a comparison is done. */
void cli_print_round(const train_worker *worker, unsigned done, unsigned rounds);

MGW_CHECKED mgw_status cli_print_comparison(const train_worker *worker, const train_row *rows,
                                            size_t count, bool json, mgw_error *error);

#endif
