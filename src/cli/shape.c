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

static mgw_status reshape(const cli_args *args, const mgw_cluster *cluster, mgw_cluster **out,
                          mgw_error *error)
{
    mgw_shape shape;
    mgw_shape measured;
    mgw_link inside;
    bool given = false;
    const char *name = cli_value(args, "inside");
    name = name ? name : "nvlink4";
    mgw_status status = cli_count(args, "nodes", 1, NODES_MAX, &shape.nodes, error);
    if (!status)
        status = cli_count(args, "gpus", 1, GPUS_MAX, &shape.gpus, error);
    if (!status)
        status = cli_count(args, "ports", 1, GPUS_MAX, &shape.ports, error);
    if (!status && shape.ports > shape.gpus)
        status = cli_fail(error, "--ports: %u is more than the %u workers of a node", shape.ports,
                          shape.gpus);
    if (!status && shape.nodes * shape.gpus < 2)
        status = cli_fail(error, "--nodes, --gpus: at least 2 workers are needed, not 1");
    if (!status)
        status = read_measured(args, shape.ports, &given, &measured, error);
    if (!status)
        status = mgw_network_parse(name, &inside, error);
    return status ? status
                  : mgw_cluster_reshape(cluster, &shape, name, &inside, given ? &measured : NULL,
                                        out, error);
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
    if (status || !shaped) {
        *out = cluster;
        return status;
    }
    status = reshape(args, cluster, out, error);
    mgw_cluster_destroy(cluster);
    return status;
}
