/* Steps as all workers measured them, beside what was predicted: one file, one clock. */
#ifndef MGW_CLI_STEPS_H
#define MGW_CLI_STEPS_H

#include "cli/command.h"

/* What one worker knows of a step. */
typedef struct cli_step {
    const mgw_plan *predicted;
    mgw_timeline *measured;
    double begin_s; /* on the clock of this worker, mgw_now_s */
} cli_step;

/*
 * Brings the steps of all workers to rank 0, which saves them as a Chrome trace to the file that
 * the option names: for each step what was predicted, then every worker's timeline. All call it,
 * with the same number of steps. Workers of one host share its clock, those of others are compared
 * at the ends of barriers; each step begins at 0, with the first worker.
 */
MGW_CHECKED mgw_status cli_save_steps(const cli_args *args, const char *option,
                                      const mgw_trace *trace, const cli_step *steps, size_t count,
                                      mgw_error *error);

#endif
