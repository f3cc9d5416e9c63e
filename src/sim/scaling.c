/* Scaling of a model over numbers of workers, algorithms and policies. */
#include <stdlib.h>

#include <mgwfbp/sim.h>

#include "base/status.h"

static const char *name_algorithm(const mgw_cluster *cluster)
{
    if (cluster->kind == MGW_CLUSTER_LINK)
        return mgw_algorithm_name(cluster->algorithm);
    return cluster->kind == MGW_CLUSTER_LEVELS ? "levels" : "measured";
}

static mgw_status run_row(const mgw_trace *trace, const mgw_cluster *cluster,
                          const mgw_scaling *what, const mgw_policy *policy, mgw_scaling_row *row,
                          mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    cost.wires = what->wires;
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(trace, &cost, policy, &plan, error);
    if (status)
        return status;
    *row = (mgw_scaling_row){.workers = cluster->workers,
                             .algorithm = name_algorithm(cluster),
                             .policy = *policy,
                             .iteration_s = plan->iteration_s,
                             .exposed_s = plan->exposed_s,
                             .speedup = mgw_speedup(plan),
                             .efficiency = mgw_efficiency(plan),
                             .messages = plan->operation_count,
                             .bytes = mgw_plan_bytes(plan)};
    if (what->conditions)
        status = mgw_outlook_make(trace, &cost, policy, what->conditions, &row->outlook, error);
    mgw_plan_destroy(plan);
    return status;
}

/*
 * A copy of the cluster with its links only, which can be rescaled; null if it has none. Measured
 * kinds are left out: they hold only for the cluster as it is.
 */
static mgw_status copy_links(const mgw_cluster *cluster, mgw_cluster **out, mgw_error *error)
{
    mgw_status status = MGW_OK;
    *out = NULL;
    if (cluster->kind == MGW_CLUSTER_LEVELS)
        status = mgw_cluster_from_levels(cluster->name, cluster->levels, cluster->level_count, out,
                                         error);
    else if (cluster->kind == MGW_CLUSTER_LINK)
        status = mgw_cluster_from_link(cluster->name, cluster->workers, &cluster->link,
                                       cluster->algorithm, cluster->servers, out, error);
    if (!status && *out)
        mgw_cluster_copy_workers(cluster, *out);
    return status;
}

/* The cluster itself if nothing changes; otherwise its rescaled links, or an error. */
static mgw_status choose_cluster(const mgw_cluster *cluster, mgw_cluster *links, unsigned workers,
                                 const mgw_algorithm *algorithm, const mgw_cluster **out,
                                 mgw_error *error)
{
    *out = cluster;
    if (links && (workers != cluster->workers || algorithm)) {
        *out = links;
        return mgw_cluster_rescale(links, workers, algorithm, error);
    }
    mgw_cluster same = *cluster; /* a cluster that cannot or need not be rescaled */
    return mgw_cluster_rescale(&same, workers, algorithm, error);
}

mgw_status mgw_scaling_run(const mgw_trace *trace, const mgw_cluster *cluster,
                           const mgw_scaling *what, mgw_scaling_row **rows, size_t *count,
                           mgw_error *error)
{
    size_t algorithms = what->algorithm_count ? what->algorithm_count : 1;
    size_t total = algorithms * what->worker_count * what->policy_count;
    mgw_scaling_row *made = malloc(total ? total * sizeof *made : 1);
    if (!made)
        return mgw_fail_memory(error, "simulation");
    mgw_cluster *links = NULL;
    mgw_status status = copy_links(cluster, &links, error);
    size_t row = 0;
    for (size_t g = 0; !status && g < algorithms; g++)
        for (size_t w = 0; !status && w < what->worker_count; w++) {
            const mgw_algorithm *algorithm = what->algorithm_count ? &what->algorithms[g] : NULL;
            const mgw_cluster *scaled = NULL;
            status = choose_cluster(cluster, links, what->workers[w], algorithm, &scaled, error);
            for (size_t p = 0; !status && p < what->policy_count; p++)
                status = run_row(trace, scaled, what, &what->policies[p], &made[row++], error);
        }
    mgw_cluster_destroy(links);
    if (status) {
        free(made);
        return status;
    }
    *rows = made;
    *count = total;
    return MGW_OK;
}
