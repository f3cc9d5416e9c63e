/* What train prints, as text or as JSON, an object per line. Only rank 0 does. */
#ifndef MGW_CLI_PRINT_TRAIN_H
#define MGW_CLI_PRINT_TRAIN_H

#include "cli/command.h"
#include "train/compare.h"
#include "train/loop.h"

/* "resnet20, 59 tensors, …" in lines, before it begins. `network`: what is emulated, or null. */
MGW_CHECKED mgw_status cli_print_training(const train_worker *worker, const mgw_cluster *network,
                                          mgw_error *error);

/* What the training loop tells. */
train_listener cli_train_listener(bool json);

MGW_CHECKED mgw_status cli_print_summary(const train_worker *worker, const train_summary *summary,
                                         bool json, mgw_error *error);

/* A round of a comparison is done. */
void cli_print_round(const train_worker *worker, unsigned done, unsigned rounds);

MGW_CHECKED mgw_status cli_print_comparison(const train_worker *worker, const train_row *rows,
                                            size_t count, bool json, mgw_error *error);

#endif
