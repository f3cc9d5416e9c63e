/* Steps as all workers measured them, beside what was predicted: one text, one clock. */
#ifndef MGW_JOB_STEPS_H
#define MGW_JOB_STEPS_H

#include <mgwfbp/plan.h>
#include <mgwfbp/text.h>
#include <mgwfbp/timeline.h>
#include <mgwfbp/trace.h>

/* What one worker knows of a step. */
typedef struct job_step {
    const mgw_plan *predicted;
    mgw_timeline *measured;
    double begin_s; /* on the clock of this worker, mgw_now_s */
} job_step;

/*
 * Brings the steps of all workers to rank 0, which writes them into `text` as a Chrome trace: for
 * each step what was predicted, then every worker's timeline. All call it, with the same number of
 * steps; the others' texts stay as they are. Workers of one host share its clock, those of others
 * are compared at the ends of barriers; each step begins at 0, with the first worker.
 */
MGW_CHECKED mgw_status job_gather_steps(const mgw_trace *trace, const job_step *steps, size_t count,
                                        mgw_text *text, mgw_error *error);

#endif
