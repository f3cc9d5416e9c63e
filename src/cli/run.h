/* What train and trace do, where oneDNN is there; else they say that it is not. */
#ifndef MGW_CLI_RUN_H
#define MGW_CLI_RUN_H

#include "cli/command.h"

MGW_CHECKED mgw_status cli_train_run(const cli_args *args, mgw_error *error);
MGW_CHECKED mgw_status cli_trace_run(const cli_args *args, mgw_error *error);

/* Null: there is none, and the error says which there are. */
struct nn_model;
const struct nn_model *cli_find_model(const char *name, mgw_error *error);

/* The models that train and trace know, one by one; null behind the last. */
const char *cli_model_name(size_t index);

/* trace --from, which needs no oneDNN. */
MGW_CHECKED mgw_status cli_trace_from(const cli_args *args, mgw_error *error);

/* The trace alone; where it is saved, what it holds is printed. */
MGW_CHECKED mgw_status cli_trace_output(const cli_args *args, const mgw_trace *trace,
                                        mgw_error *error);

/* Says on standard error what share of steps oneDNN's reference code takes. */
void cli_warn_reference(const char *command, const char *what, double share);

#endif
