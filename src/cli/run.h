/* What train and trace do, where oneDNN is there; else they say that it is not. */
#ifndef MGW_CLI_RUN_H
#define MGW_CLI_RUN_H

#include "cli/command.h"

MGW_CHECKED mgw_status cli_train_run(const cli_args *args, mgw_error *error);
MGW_CHECKED mgw_status cli_trace_run(const cli_args *args, mgw_error *error);

/* Says on standard error what share of steps oneDNN's reference code takes. */
void cli_warn_reference(const char *command, const char *what, double share);

#endif
