/* The work of train and trace; without oneDNN, they fail with an error. */
#ifndef MGW_CLI_RUN_H
#define MGW_CLI_RUN_H

#include "cli/command.h"

MGW_CHECKED mgw_status cli_train_run(const cli_args *args, mgw_error *error);
MGW_CHECKED mgw_status cli_trace_run(const cli_args *args, mgw_error *error);

/* Finds a model. Null: unknown; the error lists all models. */
struct nn_model;
const struct nn_model *cli_find_model(const char *name, mgw_error *error);

/* The names of the models of train and trace, by index; null after the last. */
const char *cli_model_name(size_t index);

/* trace --from, which needs no oneDNN. */
MGW_CHECKED mgw_status cli_trace_from(const cli_args *args, mgw_error *error);

/* Writes the trace; if it is saved to a file, prints its description. */
MGW_CHECKED mgw_status cli_trace_output(const cli_args *args, const mgw_trace *trace,
                                        mgw_error *error);

/* Warns on standard error about the share of oneDNN's reference code. */
void cli_warn_reference(const char *command, const char *what, double share);

#endif
