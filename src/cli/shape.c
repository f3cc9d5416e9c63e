/* Clusters of nodes with several workers each, from options. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

enum { NODES_MAX = 1 << 20, GPUS_MAX = 1 << 10 };

/* "16x8" */
static mgw_status read_measured(const cli_args *args, unsigned ports, bool *given, mgw_shape *out,
                                mgw_error *error)
{
    const char *value = cli_value(args, "measured-on");
    char rest = 0;
    *given = value != NULL;
    *out = (mgw_shape){.ports = ports};
    if (!value)
        return MGW_OK;
    if (sscanf(value, "%7ux%4u%c", &out->nodes, &out->gpus, &rest) != 2 || out->nodes == 0 ||
        out->gpus == 0 || *value == '-')
        return cli_fail(
            error,
            "--measured-on: '%.40s' is not NODESxWORKERS; write 16x8 for 16 nodes of 8 workers",
            value);
    return MGW_OK;
}

/* What the options leave open is as in the cluster, if that says it. */
static mgw_shape usual_shape(const mgw_cluster *cluster)
{
    if (cluster->kind != MGW_CLUSTER_LEVELS || cluster->level_count != 2)
        return (mgw_shape){.nodes = 1, .gpus = 1, .ports = 1};
    return (mgw_shape){.nodes = cluster->levels[1].workers,
                       .gpus = cluster->levels[0].workers,
                       .ports = cluster->levels[1].ports};
}

/* What links the workers of a node. */
static mgw_status read_inside(const cli_args *args, const mgw_cluster *cluster, const char **name,
                              mgw_link *out, mgw_error *error)
{
    mgw_error inner;
    *name = cli_value(args, "inside");
    if (!*name && cluster->kind == MGW_CLUSTER_LEVELS) {
        *name = cluster->levels[0].name;
        *out = cluster->levels[0].link;
        return MGW_OK;
    }
    *name = *name ? *name : "nvlink4";
    return mgw_network_parse(*name, out, &inner) ? cli_fail(error, "--inside: %s", inner.message)
                                                 : MGW_OK;
}

static mgw_status reshape(const cli_args *args, const mgw_cluster *cluster, mgw_cluster **out,
                          mgw_error *error)
{
    const mgw_shape usual = usual_shape(cluster);
    mgw_shape shape = usual;
    mgw_shape measured;
    mgw_link inside;
    bool given = false;
    const char *name = NULL;
    mgw_status status = cli_count(args, "nodes", usual.nodes, NODES_MAX, &shape.nodes, error);
    if (!status)
        status = cli_count(args, "gpus", usual.gpus, GPUS_MAX, &shape.gpus, error);
    unsigned ports = usual.ports < shape.gpus ? usual.ports : shape.gpus;
    if (!status)
        status = cli_count(args, "ports", ports, GPUS_MAX, &shape.ports, error);
    if (!status && shape.ports > shape.gpus)
        status = cli_fail(error, "--ports: %u, but a node has only %u worker%s", shape.ports,
                          shape.gpus, shape.gpus == 1 ? "" : "s");
    if (!status && (uint64_t)shape.nodes * shape.gpus < 2)
        status = cli_fail(error, "--nodes, --gpus: at least 2 workers are needed, not 1");
    if (!status)
        status = read_measured(args, shape.ports, &given, &measured, error);
    if (!status)
        status = read_inside(args, cluster, &name, &inside, error);
    return status ? status
                  : mgw_cluster_reshape(cluster, &shape, name, &inside, given ? &measured : NULL,
                                        out, error);
}

/* Measured with just that number of workers: there is nothing to scale. */
static bool is_measured_shape(const cli_args *args, const mgw_cluster *cluster)
{
    unsigned nodes = 1;
    unsigned gpus = 1;
    return !cli_value(args, "measured-on") && !cluster->assumes_workers &&
           !cli_count(args, "nodes", 1, NODES_MAX, &nodes, NULL) &&
           !cli_count(args, "gpus", 1, GPUS_MAX, &gpus, NULL) && nodes * gpus == cluster->workers;
}

/* The wrong kind of file is told as such. */
static mgw_status explain(const char *name, mgw_status status, mgw_error *error)
{
    mgw_trace *trace = NULL;
    bool is_trace = !mgw_trace_load(name, &trace, NULL);
    mgw_trace_destroy(trace);
    return is_trace ? cli_fail(error,
                               "%.100s is a trace; a network or cluster is expected ('mgwfbp list "
                               "networks', 'mgwfbp list clusters')",
                               name)
                    : status;
}

mgw_status cli_cluster(const cli_args *args, const char *name, mgw_cluster **out, mgw_error *error)
{
    static const char *const needs_shape[] = {"inside", "ports", "measured-on"};
    bool shaped = cli_value(args, "nodes") || cli_value(args, "gpus");
    for (size_t i = 0; !shaped && i < sizeof needs_shape / sizeof *needs_shape; i++)
        if (cli_value(args, needs_shape[i]))
            return cli_fail(error, "--%s: only with --nodes or --gpus", needs_shape[i]);
    mgw_cluster *cluster = NULL;
    mgw_status status = mgw_cluster_load(name, &cluster, error);
    if (status)
        return explain(name, status, error);
    bool scales = cluster->kind == MGW_CLUSTER_LINK || cluster->kind == MGW_CLUSTER_LEVELS;
    if (!shaped || (!scales && is_measured_shape(args, cluster))) {
        *out = cluster;
        return MGW_OK;
    }
    if (cluster->kind == MGW_CLUSTER_LINK && !cli_value(args, "nodes"))
        status = cli_fail(error,
                          "--gpus: give --nodes, too; one node alone would not use %.100s "
                          "(--nodes 1 says so)",
                          name);
    if (!status)
        status = reshape(args, cluster, out, error);
    mgw_cluster_destroy(cluster);
    return status;
}
