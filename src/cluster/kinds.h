/* What each kind of collective costs on a cluster. */
#ifndef MGW_CLUSTER_KINDS_H
#define MGW_CLUSTER_KINDS_H

#include <stdbool.h>

#include <mgwfbp/cluster.h>

/*
 * a and b of the two halves of an all-reduce: the reduce-scatter and the all-gather, or the push
 * and the pull. Returns false where the algorithm has no such halves. The arguments are those
 * that mgw_algorithm_line has accepted.
 */
bool mgw_algorithm_halves(mgw_algorithm algorithm, const mgw_link *link, unsigned workers,
                          unsigned servers, mgw_line *first, mgw_line *second);

/* Makes cluster->of anew from everything else in it. A failure changes nothing. */
MGW_CHECKED mgw_status mgw_cluster_derive(mgw_cluster *cluster, mgw_error *error);

/* Forgets what was given for kinds other than the all-reduce. */
void mgw_cluster_forget_kinds(mgw_cluster *cluster);

void mgw_curves_free(mgw_curve of[MGW_COLLECTIVE_COUNT]);

#endif
