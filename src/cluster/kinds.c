/* The cost of each kind of collective on a cluster: given, or derived from the all-reduce. */
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
        free(cluster->given[k].within);
        cluster->given[k] = (mgw_measured){0};
    }
}

/* The line, or the curve through the samples, multiplied by `share`. */
static mgw_status make_curve(const mgw_measured *of, double share, mgw_curve *out, mgw_error *error)
{
    mgw_sample *points = NULL;
    size_t kept = 0;
    mgw_status status = MGW_OK;
    if (of->sample_count)
        status = mgw_curve_make(of->samples, of->within, of->sample_count, &points, &kept, error);
    if (status)
        return status;
    for (size_t i = 0; i < kept; i++)
        points[i].seconds *= share;
    *out = (mgw_curve){share * of->line.a_s, share * of->line.b_s_per_byte, kept, points};
    return MGW_OK;
}

/*
 * A reduce-scatter or a push is the first half of an all-reduce, an all-gather or a pull the
 * second. Unless more is known, each takes half of the time.
 */
static mgw_status derive_kind(const mgw_cluster *cluster, mgw_collective kind, mgw_curve *out,
                              mgw_error *error)
{
    const mgw_measured whole = {.line = cluster->cost,
                                .sample_count = cluster->sample_count,
                                .samples = cluster->samples,
                                .within = cluster->within};
    if (cluster->given[kind].given)
        return make_curve(&cluster->given[kind], 1, out, error);
    if (kind == MGW_ALL_REDUCE)
        return make_curve(&whole, 1, out, error);
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
    const mgw_measured half = {.line = halves[!mgw_collective_averages(kind)]};
    return known ? make_curve(&half, 1, out, error) : make_curve(&whole, 0.5, out, error);
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

/* Takes ownership of the samples of `measured`. */
static mgw_status set(mgw_cluster *cluster, mgw_collective kind, mgw_measured measured,
                      mgw_error *error)
{
    mgw_measured before = cluster->given[kind];
    cluster->given[kind] = measured;
    mgw_status status = mgw_cluster_derive(cluster, error);
    if (status)
        cluster->given[kind] = before;
    free(status ? measured.samples : before.samples);
    if (!status)
        free(before.within);
    return status;
}

static mgw_status check_kind(const mgw_cluster *cluster, mgw_collective kind, mgw_error *error)
{
    bool settled = kind == MGW_ALL_REDUCE || (cluster->kind == MGW_CLUSTER_PUSH_PULL &&
                                              (kind == MGW_PUSH || kind == MGW_PULL));
    if (settled)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: the cluster already has a cost for it",
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

mgw_status mgw_cluster_set_within(mgw_cluster *cluster, mgw_collective kind, const double *within,
                                  mgw_error *error)
{
    bool whole = kind == MGW_ALL_REDUCE;
    mgw_measured *given = &cluster->given[kind];
    size_t count = whole ? cluster->sample_count : given->sample_count;
    double **to = whole ? &cluster->within : &given->within;
    for (size_t i = 0; i < count; i++)
        if (!(isfinite(within[i]) && within[i] >= 0))
            return mgw_fail(error, MGW_ERR_ARGUMENT,
                            "%s: the uncertainty of a sample must be finite and >= 0",
                            mgw_collective_name(kind));
    double *copy = count ? malloc(count * sizeof *copy) : NULL;
    if (!copy)
        return count
                   ? mgw_fail_memory(error, cluster->name)
                   : mgw_fail(error, MGW_ERR_ARGUMENT, "%s: no samples", mgw_collective_name(kind));
    memcpy(copy, within, count * sizeof *copy);
    double *before = *to;
    *to = copy;
    mgw_status status = mgw_cluster_derive(cluster, error); /* with the new weights */
    if (status)
        *to = before;
    free(status ? copy : before);
    return status;
}
