/* The steps of a replay, as used by replay.c. */
#ifndef MGW_JOB_REPLAY_STEPS_H
#define MGW_JOB_REPLAY_STEPS_H

#include <time.h>

#include "job/replay.h"

/* Sleeps until `after_s` seconds after `begin`, on the monotonic clock. */
void replay_sleep_until(const struct timespec *begin, double after_s);

/*
 * ---- gradients.c: steps one by one, with every average checked ----
 *
 * Where the engine does not keep parameters: in the memory of GPUs, and with parameter servers.
 */
MGW_CHECKED mgw_status replay_gradients_step(job_replay *replay, mgw_error *error);
MGW_CHECKED mgw_status replay_gradients_round(job_replay *replay, job_outcome *outcome,
                                              unsigned round, mgw_error *error);

/*
 * ---- parameters.c: steps back to back, with parameters that the next one needs ----
 *
 * Gradients and parameters are whole numbers. Before steps are timed, one is checked number by
 * number; in those that are timed, some of each tensor are: a GPU would update them all meanwhile,
 * and here the host would take the time for it from what is measured.
 */
MGW_CHECKED mgw_status replay_parameters_join(job_replay *replay,
                                              mgw_error *error); /* before the engine's start */
void replay_parameters_leave(job_replay *replay);
MGW_CHECKED mgw_status replay_parameters_step(job_replay *replay, mgw_error *error);
MGW_CHECKED mgw_status replay_parameters_round(job_replay *replay, job_outcome *outcome,
                                               unsigned round, mgw_error *error);

#endif
