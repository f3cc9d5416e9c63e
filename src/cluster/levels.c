/*
 * Clusters with levels. A collective goes up and down again: at each level the message is reduced
 * among the groups of that level, each worker with its shard, and gathered on the way back. So the
 * levels' costs add up: a = a1 + a2 + …, and b = b1 + b2/p2 + …, since the shards of a group, which
 * are the whole message together, share its p links. Sums are not the links': each worker of a
 * group adds up its own shard.
 */
#include "cluster/levels.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cluster/kinds.h"

static bool is_constant(double value)
{
    return isfinite(value) && value >= 0;
}

mgw_status mgw_levels_check(const mgw_level *levels, size_t count, unsigned *workers,
                            mgw_error *error)
{
    uint64_t total = 1;
    if (count == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "levels: at least 1 is needed");
    for (size_t i = 0; i < count; i++) {
        const mgw_level *level = &levels[i];
        if (level->workers == 0)
            return mgw_fail(error, MGW_ERR_ARGUMENT, "level '%.40s': workers: at least 1 is needed",
                            level->name);
        if (level->ports == 0 || level->ports > total)
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "level '%.40s': ports: %u, but it must be from 1 to the %llu workers "
                            "that share them",
                            level->name, level->ports, (unsigned long long)total);
        if (!is_constant(level->link.alpha_s) || !is_constant(level->link.beta_s_per_byte) ||
            !is_constant(level->link.gamma_s_per_byte))
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "level '%.40s': link: constants must be finite and >= 0", level->name);
        if (level->algorithm == MGW_PARAMETER_SERVER)
            return mgw_fail(
                error, MGW_ERR_ARGUMENT,
                "level '%.40s': algorithm: parameter servers are not possible in a level",
                level->name);
        total *= level->workers;
        if (total > INT_MAX)
            return mgw_fail(error, MGW_ERR_ARGUMENT, "levels: more than %d workers", INT_MAX);
    }
    if (total < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "levels: at least 2 workers are needed, not 1");
    *workers = (unsigned)total;
    return MGW_OK;
}

mgw_status mgw_levels_line(const mgw_level *levels, size_t at, mgw_level_lines *out,
                           mgw_error *error)
{
    const mgw_level *level = &levels[at];
    mgw_link link = level->link;
    unsigned group = 1; /* workers of what the level links */
    mgw_error inner;
    *out = (mgw_level_lines){0};
    if (level->workers == 1) /* it links nobody */
        return MGW_OK;
    for (size_t i = 0; i < at; i++)
        group *= levels[i].workers;
    link.beta_s_per_byte /= level->ports;
    link.gamma_s_per_byte /= group;
    if (mgw_algorithm_line(level->algorithm, &link, level->workers, 1, &out->whole, &inner))
        return mgw_fail(error, inner.status, "level '%.40s': %s", level->name, inner.message);
    if (!mgw_algorithm_halves(level->algorithm, &link, level->workers, 1, &out->first,
                              &out->second))
        out->first = out->second = (mgw_line){out->whole.a_s / 2, out->whole.b_s_per_byte / 2};
    return MGW_OK;
}

static void add(mgw_line *sum, const mgw_line *level)
{
    sum->a_s += level->a_s;
    sum->b_s_per_byte += level->b_s_per_byte;
}

mgw_status mgw_levels_lines(const mgw_level *levels, size_t count, mgw_level_lines *out,
                            mgw_error *error)
{
    mgw_status status = MGW_OK;
    *out = (mgw_level_lines){0};
    for (size_t i = 0; !status && i < count; i++) {
        mgw_level_lines level;
        status = mgw_levels_line(levels, i, &level, error);
        add(&out->whole, &level.whole);
        add(&out->first, &level.first);
        add(&out->second, &level.second);
    }
    return status;
}

void mgw_cluster_level_cost(const mgw_cluster *cluster, size_t level, mgw_cost *out)
{
    mgw_level_lines lines;
    mgw_cluster_cost(cluster, out);
    out->beside = (mgw_beside){0};
    if (level > 0) /* casts are where a message begins and ends */
        memset(out->casts, 0, sizeof out->casts);
    if (mgw_levels_line(cluster->levels, level, &lines, NULL))
        lines = (mgw_level_lines){0}; /* it was checked when the cluster was made */
    for (size_t kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        const mgw_line *line = kind == MGW_ALL_REDUCE                          ? &lines.whole
                               : mgw_collective_averages((mgw_collective)kind) ? &lines.first
                                                                               : &lines.second;
        out->of[kind] = (mgw_curve){.a_s = line->a_s, .b_s_per_byte = line->b_s_per_byte};
    }
}

mgw_level *mgw_levels_copy(const mgw_level *levels, size_t count)
{
    mgw_level *copy = calloc(count, sizeof *copy);
    for (size_t i = 0; copy && i < count; i++) {
        copy[i] = levels[i];
        copy[i].name = strdup(levels[i].name);
        if (!copy[i].name) {
            mgw_levels_free(copy, count);
            return NULL;
        }
    }
    return copy;
}

void mgw_levels_free(mgw_level *levels, size_t count)
{
    for (size_t i = 0; levels && i < count; i++)
        free(levels[i].name);
    free(levels);
}

/* ---- Nodes with several workers ---- */

/* What links nodes, from what was measured on `measured` with these links inside. */
static mgw_status find_outer(const mgw_cluster *cluster, const mgw_level *inner,
                             const mgw_shape *measured, mgw_link *out, mgw_error *error)
{
    mgw_line within = {0, 0};
    mgw_status status = MGW_OK;
    if (measured->nodes < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "%s: was measured on one node, which says nothing about links between "
                        "nodes; give a network that links nodes",
                        cluster->name);
    if ((uint64_t)measured->nodes * measured->gpus != cluster->workers)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "%s: was measured with %u workers, not with %u nodes of %u", cluster->name,
                        cluster->workers, measured->nodes, measured->gpus);
    if (measured->gpus > 1)
        status =
            mgw_algorithm_line(inner->algorithm, &inner->link, measured->gpus, 1, &within, error);
    if (status)
        return status;
    mgw_line between = {cluster->cost.a_s - within.a_s,
                        (cluster->cost.b_s_per_byte - within.b_s_per_byte) * measured->ports};
    if (between.b_s_per_byte <= 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "%s: is faster per byte than '%.40s' inside a node alone, so the links "
                        "between nodes cannot be separated; give a faster link with --inside",
                        cluster->name, inner->name);
    between.a_s = between.a_s > 0 ? between.a_s : 0;
    return mgw_algorithm_link(MGW_RING, &between, measured->nodes, 1, out, error);
}

mgw_status mgw_cluster_reshape(const mgw_cluster *cluster, const mgw_shape *shape,
                               const char *inside_name, const mgw_link *inside,
                               const mgw_shape *measured, mgw_cluster **out, mgw_error *error)
{
    mgw_level levels[2] = {{.name = (char *)inside_name,
                            .workers = shape->gpus,
                            .ports = 1,
                            .link = *inside,
                            .algorithm = MGW_RING},
                           {.name = cluster->name,
                            .workers = shape->nodes,
                            .ports = shape->ports,
                            .link = cluster->link,
                            .algorithm = cluster->algorithm}};
    mgw_status status = MGW_OK;
    switch (cluster->kind) {
    case MGW_CLUSTER_LINK:
        break;
    case MGW_CLUSTER_LEVELS:
        if (cluster->level_count != 2)
            return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                            "%s: has %zu levels; --nodes and --gpus need two", cluster->name,
                            cluster->level_count);
        levels[0].algorithm = cluster->levels[0].algorithm;
        levels[1].name = cluster->levels[1].name;
        levels[1].link = cluster->levels[1].link;
        levels[1].algorithm = cluster->levels[1].algorithm;
        break;
    default:
        if (!measured)
            return mgw_fail(
                error, MGW_ERR_UNSUPPORTED,
                "%s: was measured with %u workers and holds for that number only; to "
                "scale it, say on how many nodes and GPUs it was measured (--measured-on)",
                cluster->name, cluster->workers);
        levels[1].algorithm = MGW_RING;
        status = find_outer(cluster, &levels[0], measured, &levels[1].link, error);
    }
    if (!status)
        status = mgw_cluster_from_levels(cluster->name, levels, 2, out, error);
    if (!status)
        mgw_cluster_copy_workers(cluster, *out);
    return status;
}
