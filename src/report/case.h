/*
 * A trace on a cluster: everything that a page shows about it, planned in the same way by the
 * command and in a browser.
 */
#ifndef MGW_REPORT_CASE_H
#define MGW_REPORT_CASE_H

#include <mgwfbp/sim.h>

enum { MGW_CASE_PLANS_MAX = 16 };

typedef struct mgw_case {
    size_t plan_count; /* one for each policy that can be planned here */
    mgw_plan *plans[MGW_CASE_PLANS_MAX];
    const char *scaled_as; /* the algorithm of the rows below; null if there are none */
    size_t row_count;      /* policies over 2, 4, 8 ... 2048 workers */
    mgw_scaling_row *rows;
} mgw_case;

/* Makes the plans, without the rows. Ownership: the caller calls mgw_case_fini on *out, also after
 * a failure. */
MGW_CHECKED mgw_status mgw_case_init(mgw_case *out, const mgw_trace *trace,
                                     const mgw_cluster *cluster, mgw_error *error);

/* Adds the rows, for the same trace and cluster, which takes longer. Call it once. */
MGW_CHECKED mgw_status mgw_case_scale(mgw_case *one, const mgw_trace *trace,
                                      const mgw_cluster *cluster, mgw_error *error);
void mgw_case_fini(mgw_case *one);

#endif
