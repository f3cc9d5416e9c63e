/* The outlook for a large job: its options and output. */
#ifndef MGW_CLI_OUTLOOK_H
#define MGW_CLI_OUTLOOK_H

#include "cli/command.h"

/* Options of simulate. */
#define CLI_OUTLOOK                                                                                \
    {"jitter", 0, "J",                                                                             \
     "how much a worker's computation time varies from step to step: 5% (lognormal), "             \
     "normal:5%, or measured (the trace's steps)"},                                                \
        {"mtbf", 0, "TIME", "mean time between failures of one worker, as 5y or 2000h"},           \
        {"checkpoint", 0, "TIME", "time to save a checkpoint (default 0)"},                        \
        {"restart", 0, "TIME", "time from a failure until training continues (default 0)"},        \
        {"checkpoint-every", 0, "TIME", "training time between checkpoints (default: the best)"},  \
        {"samples", 0, "N", "samples in an epoch, to compute its time"},                           \
    {                                                                                              \
        "price", 0, "X", "price of a worker per hour; with --samples, the cost of an epoch"        \
    }

/* *given: whether any of them is given. */
MGW_CHECKED mgw_status cli_conditions(const cli_args *args, bool *given, mgw_conditions *out,
                                      mgw_error *error);

/* A table of the rows under these conditions, with notes. */
void cli_outlook_table(const mgw_conditions *conditions, const mgw_trace *trace,
                       const mgw_scaling_row *rows, size_t count, mgw_text *text);

/* Members of a row's object, each after a comma. */
void cli_outlook_json(const mgw_conditions *conditions, const mgw_outlook *outlook, mgw_text *text);

#endif
