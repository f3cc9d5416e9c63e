/* The measured steps of all workers, with the prediction, as one text on one clock. */
#ifndef MGW_JOB_STEPS_H
#define MGW_JOB_STEPS_H

#include <mgwfbp/plan.h>
#include <mgwfbp/text.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/trace.h>

/* A step of one worker. */
typedef struct job_step {
    const mgw_plan *predicted;
    mgw_timeline *measured;
    double begin_s; /* on the clock of this worker, mgw_now_s */
} job_step;

/*
 * Collects the steps of all workers at rank 0, which writes them into `text` as a Chrome trace: for
 * each step the prediction, then every worker's timeline. Collective, with the same number of
 * steps; the texts of other ranks are unchanged. Workers of one host share a clock; clocks of
 * different hosts are compared at barriers. Each step begins at 0, with the first worker.
 */
MGW_CHECKED mgw_status job_gather_steps(const mgw_trace *trace, const job_step *steps, size_t count,
                                        mgw_text *text, mgw_error *error);

#endif
