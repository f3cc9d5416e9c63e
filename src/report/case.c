/* A trace on a cluster: the plans of all policies, and their scaling. */
#include "report/case.h"

#include <stdlib.h>

#include "base/status.h"

/*
 * Policies that cannot be planned here (`optimal` on a curve with very many tensors) are skipped.
 */
static mgw_status plan_all(mgw_case *out, const mgw_trace *trace, const mgw_cluster *cluster,
                           mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    size_t count = 0;
    const mgw_policy *policies = mgw_policy_all(&count);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < count; i++) {
        status = mgw_plan_make(trace, &cost, &policies[i], &out->plans[out->plan_count], error);
        if (!status)
            out->plan_count++;
        else if (status == MGW_ERR_UNSUPPORTED && i > 0)
            status = MGW_OK;
    }
    return status;
}

/*
 * A measured cluster holds only for its own number of workers. For other numbers, it is treated as
 * a ring of links with the same cost, as `mgwfbp fit --as ring` does.
 */
mgw_status mgw_case_scale(mgw_case *one, const mgw_trace *trace, const mgw_cluster *cluster,
                          mgw_error *error)
{
    static const unsigned workers[] = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
    static const mgw_policy policies[] = {{MGW_DDP, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES},
                                          {.kind = MGW_WFBP},
                                          {.kind = MGW_SINGLE},
                                          {.kind = MGW_GREEDY},
                                          {.kind = MGW_OPTIMAL},
                                          {.kind = MGW_OVERLAP}};
    mgw_cluster *ring = NULL;
    mgw_link link;
    mgw_status status = MGW_OK;
    if (cluster->kind != MGW_CLUSTER_LINK) {
        status = mgw_algorithm_link(MGW_RING, &cluster->cost, cluster->workers, 1, &link, error);
        if (!status)
            status = mgw_cluster_from_link(cluster->name, cluster->workers, &link, MGW_RING, 1,
                                           &ring, error);
        if (status)
            return status;
        mgw_cluster_copy_workers(cluster, ring);
        cluster = ring;
    }
    mgw_scaling what = {.workers = workers,
                        .worker_count = sizeof workers / sizeof *workers,
                        .policies = policies,
                        .policy_count = sizeof policies / sizeof *policies};
    one->scaled_as = mgw_algorithm_name(cluster->algorithm);
    status = mgw_scaling_run(trace, cluster, &what, &one->rows, &one->row_count, error);
    mgw_cluster_destroy(ring);
    return status;
}

mgw_status mgw_case_init(mgw_case *out, const mgw_trace *trace, const mgw_cluster *cluster,
                         mgw_error *error)
{
    *out = (mgw_case){0};
    return plan_all(out, trace, cluster, error);
}

void mgw_case_fini(mgw_case *one)
{
    for (size_t i = 0; i < one->plan_count; i++)
        mgw_plan_destroy(one->plans[i]);
    free(one->rows);
    *one = (mgw_case){0};
}
