/* The cost of each kind of collective on a cluster. */
#ifndef MGW_CLUSTER_KINDS_H
#define MGW_CLUSTER_KINDS_H

#include <stdbool.h>

#include <mgwfbp/cluster.h>

/*
 * a and b of the two halves of an all-reduce: the reduce-scatter and the all-gather, or the push
 * and the pull. Returns false if the algorithm has no such halves. The arguments must be valid for
 * mgw_algorithm_line.
 */
bool mgw_algorithm_halves(mgw_algorithm algorithm, const mgw_link *link, unsigned workers,
                          unsigned servers, mgw_line *first, mgw_line *second);

/* Recomputes cluster->of from the rest of the cluster. A failure changes nothing. */
MGW_CHECKED mgw_status mgw_cluster_derive(mgw_cluster *cluster, mgw_error *error);

/* Removes the given costs of kinds other than the all-reduce. */
void mgw_cluster_forget_kinds(mgw_cluster *cluster);

void mgw_curves_free(mgw_curve of[MGW_COLLECTIVE_COUNT]);

#endif
