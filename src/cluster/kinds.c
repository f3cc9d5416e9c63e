/* What each kind of collective costs on a cluster: as given, or derived from the all-reduce. */
#include "cluster/kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cluster/fit.h"
#include "cluster/levels.h"

void mgw_curves_free(mgw_curve of[MGW_COLLECTIVE_COUNT])
{
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        free((void *)of[k].samples);
        of[k] = (mgw_curve){0};
    }
}

void mgw_cluster_forget_kinds(mgw_cluster *cluster)
{
    for (size_t k = 0; k < MGW_COLLECTIVE_COUNT; k++) {
        free(cluster->given[k].samples);
        cluster->given[k] = (mgw_measured){0};
    }
}

/* The line, or the curve through the samples, times a share. */
static mgw_status make_curve(const mgw_line *line, const mgw_sample *samples, size_t count,
                             double share, mgw_curve *out, mgw_error *error)
{
    mgw_sample *points = NULL;
    size_t kept = 0;
    mgw_status status = count ? mgw_curve_make(samples, count, &points, &kept, error) : MGW_OK;
    if (status)
        return status;
    for (size_t i = 0; i < kept; i++)
        points[i].seconds *= share;
    *out = (mgw_curve){share * line->a_s, share * line->b_s_per_byte, kept, points};
    return MGW_OK;
}

/*
 * A reduce-scatter or a push is the first half of an all-reduce, an all-gather or a pull the
 * second. Where nothing tells them apart, each takes half of the time.
 */
static mgw_status derive_kind(const mgw_cluster *cluster, mgw_collective kind, mgw_curve *out,
                              mgw_error *error)
{
    const mgw_measured *given = &cluster->given[kind];
    if (given->given)
        return make_curve(&given->line, given->samples, given->sample_count, 1, out, error);
    if (kind == MGW_ALL_REDUCE)
        return make_curve(&cluster->cost, cluster->samples, cluster->sample_count, 1, out, error);
    mgw_line halves[2] = {cluster->push, cluster->pull};
    mgw_level_lines lines;
    bool levels = cluster->kind == MGW_CLUSTER_LEVELS &&
                  !mgw_levels_lines(cluster->levels, cluster->level_count, &lines, NULL);
    if (levels) {
        halves[0] = lines.first;
        halves[1] = lines.second;
    }
    bool known = levels || cluster->kind == MGW_CLUSTER_PUSH_PULL ||
                 (cluster->kind == MGW_CLUSTER_LINK &&
                  mgw_algorithm_halves(cluster->algorithm, &cluster->link, cluster->workers,
                                       cluster->servers, &halves[0], &halves[1]));
    if (known)
        return make_curve(&halves[!mgw_collective_averages(kind)], NULL, 0, 1, out, error);
    return make_curve(&cluster->cost, cluster->samples, cluster->sample_count, 0.5, out, error);
}

mgw_status mgw_cluster_derive(mgw_cluster *cluster, mgw_error *error)
{
    mgw_curve of[MGW_COLLECTIVE_COUNT] = {0};
    mgw_status status = MGW_OK;
    for (size_t k = 0; !status && k < MGW_COLLECTIVE_COUNT; k++)
        status = derive_kind(cluster, (mgw_collective)k, &of[k], error);
    if (status) {
        mgw_curves_free(of);
        return status;
    }
    mgw_curves_free(cluster->of);
    memcpy(cluster->of, of, sizeof of);
    return MGW_OK;
}

/* Takes over `measured`, samples and all. */
static mgw_status set(mgw_cluster *cluster, mgw_collective kind, mgw_measured measured,
                      mgw_error *error)
{
    mgw_measured before = cluster->given[kind];
    cluster->given[kind] = measured;
    mgw_status status = mgw_cluster_derive(cluster, error);
    if (status)
        cluster->given[kind] = before;
    free(status ? measured.samples : before.samples);
    return status;
}

static mgw_status check_kind(const mgw_cluster *cluster, mgw_collective kind, mgw_error *error)
{
    bool settled = kind == MGW_ALL_REDUCE || (cluster->kind == MGW_CLUSTER_PUSH_PULL &&
                                              (kind == MGW_PUSH || kind == MGW_PULL));
    if (settled)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the cluster says already what it costs",
                        mgw_collective_name(kind));
    return MGW_OK;
}

mgw_status mgw_cluster_set_line(mgw_cluster *cluster, mgw_collective kind, const mgw_line *line,
                                mgw_error *error)
{
    mgw_status status = check_kind(cluster, kind, error);
    if (!status && !(isfinite(line->a_s) && line->a_s >= 0 && isfinite(line->b_s_per_byte) &&
                     line->b_s_per_byte >= 0))
        status = mgw_fail(error, MGW_ERR_ARGUMENT, "%s: a and b must be finite and >= 0",
                          mgw_collective_name(kind));
    if (!status)
        status = set(cluster, kind, (mgw_measured){.given = true, .line = *line}, error);
    return status;
}

mgw_status mgw_cluster_set_samples(mgw_cluster *cluster, mgw_collective kind,
                                   const mgw_sample *samples, size_t count, mgw_error *error)
{
    mgw_fit fit;
    mgw_status status = check_kind(cluster, kind, error);
    if (!status)
        status = mgw_fit_line(samples, count, &fit, error);
    if (status)
        return status;
    mgw_measured measured = {.given = true, .line = fit.line, .sample_count = count};
    measured.samples = mgw_samples_sorted(samples, count);
    if (!measured.samples)
        return mgw_fail_memory(error, cluster->name);
    return set(cluster, kind, measured, error);
}
