/* Plans a built-in model on a built-in cluster: the library in twenty lines. */
#include <stdio.h>

#include <mgwfbp/mgwfbp.h>

int main(void)
{
    mgw_trace *trace = NULL;
    mgw_cluster *cluster = NULL;
    mgw_plan *plan = NULL;
    mgw_cost cost;
    mgw_error error;
    mgw_policy policy = {.kind = MGW_OPTIMAL};
    if (mgw_trace_load("resnet50-b32-fp32-h200", &trace, &error) ||
        mgw_cluster_load("paper-2-10gbe", &cluster, &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    mgw_cluster_cost(cluster, &cost);
    if (mgw_plan_make(trace, &cost, &policy, &plan, &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    printf("%.1f ms per step, not below %.1f ms\n", plan->iteration_s * 1e3,
           plan->lower_bound_s * 1e3);
    for (size_t m = 0; m < plan->operation_count; m++)
        printf("message %zu: %zu tensors\n", m + 1, plan->operations[m].count);
    mgw_plan_destroy(plan);
    mgw_cluster_destroy(cluster);
    mgw_trace_destroy(trace);
}
