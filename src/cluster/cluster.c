/* Clusters in memory: creating, rescaling, and their cost. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/cluster.h>

#include "base/status.h"
#include "cluster/fit.h"
#include "cluster/kinds.h"
#include "cluster/levels.h"

static mgw_status create(const char *name, unsigned workers, mgw_cluster_kind kind,
                         mgw_cluster **out, mgw_error *error)
{
    if (workers < 2)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "workers: at least 2 are needed, not %u", workers);
    mgw_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster || !(cluster->name = strdup(name))) {
        free(cluster);
        return mgw_fail_memory(error, name);
    }
    cluster->workers = workers;
    cluster->kind = kind;
    cluster->servers = 1;
    cluster->beside = (mgw_beside){1, 1};
    memcpy(cluster->casts, mgw_casts_typical, sizeof cluster->casts);
    *out = cluster;
    return MGW_OK;
}

void mgw_cluster_destroy(mgw_cluster *cluster)
{
    if (!cluster)
        return;
    free(cluster->samples);
    mgw_levels_free(cluster->levels, cluster->level_count);
    free(cluster->within);
    mgw_cluster_forget_kinds(cluster);
    mgw_curves_free(cluster->of);
    free(cluster->name);
    free(cluster);
}

static bool is_cost(double value)
{
    return isfinite(value) && value >= 0;
}

/* Derives the cost of all kinds, which completes the cluster. */
static mgw_status finish(mgw_cluster *cluster, mgw_cluster **out, mgw_error *error)
{
    mgw_status status = mgw_cluster_derive(cluster, error);
    if (status)
        mgw_cluster_destroy(cluster);
    else
        *out = cluster;
    return status;
}

static mgw_status create_line(const char *name, unsigned workers, mgw_cluster_kind kind,
                              const mgw_line *line, mgw_cluster **out, mgw_error *error)
{
    if (!is_cost(line->a_s) || !is_cost(line->b_s_per_byte))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "cost: a and b must be finite and >= 0");
    mgw_status status = create(name, workers, kind, out, error);
    if (!status)
        (*out)->cost = *line;
    return status;
}

mgw_status mgw_cluster_from_line(const char *name, unsigned workers, const mgw_line *line,
                                 mgw_cluster **out, mgw_error *error)
{
    mgw_cluster *cluster = NULL;
    mgw_status status = create_line(name, workers, MGW_CLUSTER_COST, line, &cluster, error);
    return status ? status : finish(cluster, out, error);
}

mgw_status mgw_cluster_from_push_pull(const char *name, unsigned workers, const mgw_line *push,
                                      const mgw_line *pull, mgw_cluster **out, mgw_error *error)
{
    mgw_line sum = {push->a_s + pull->a_s, push->b_s_per_byte + pull->b_s_per_byte};
    mgw_cluster *cluster = NULL;
    mgw_status status = create_line(name, workers, MGW_CLUSTER_PUSH_PULL, &sum, &cluster, error);
    if (status)
        return status;
    cluster->push = *push;
    cluster->pull = *pull;
    return finish(cluster, out, error);
}

mgw_status mgw_cluster_from_link(const char *name, unsigned workers, const mgw_link *link,
                                 mgw_algorithm algorithm, unsigned servers, mgw_cluster **out,
                                 mgw_error *error)
{
    mgw_line line;
    mgw_cluster *cluster = NULL;
    mgw_status status = mgw_algorithm_line(algorithm, link, workers, servers, &line, error);
    if (status)
        return status;
    if (!is_cost(link->alpha_s) || !is_cost(link->beta_s_per_byte) ||
        !is_cost(link->gamma_s_per_byte) || !is_cost(line.a_s) || !is_cost(line.b_s_per_byte))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "link: constants must be finite and >= 0");
    status = create(name, workers, MGW_CLUSTER_LINK, &cluster, error);
    if (status)
        return status;
    cluster->link = *link;
    cluster->algorithm = algorithm;
    cluster->servers = servers;
    cluster->cost = line;
    return finish(cluster, out, error);
}

mgw_status mgw_cluster_from_samples(const char *name, unsigned workers, const mgw_sample *samples,
                                    size_t count, mgw_cluster **out, mgw_error *error)
{
    mgw_fit fit;
    mgw_cluster *cluster = NULL;
    mgw_status status = mgw_fit_line(samples, count, &fit, error);
    if (!status)
        status = create(name, workers, MGW_CLUSTER_SAMPLES, &cluster, error);
    if (status)
        return status;
    cluster->cost = fit.line;
    cluster->sample_count = count;
    cluster->samples = mgw_samples_sorted(samples, count);
    if (cluster->samples)
        return finish(cluster, out, error);
    mgw_cluster_destroy(cluster);
    return mgw_fail_memory(error, name);
}

mgw_status mgw_cluster_from_levels(const char *name, const mgw_level *levels, size_t count,
                                   mgw_cluster **out, mgw_error *error)
{
    unsigned workers = 0;
    mgw_level_lines lines;
    mgw_cluster *cluster = NULL;
    mgw_status status = mgw_levels_check(levels, count, &workers, error);
    if (!status)
        status = mgw_levels_lines(levels, count, &lines, error);
    if (!status)
        status = create_line(name, workers, MGW_CLUSTER_LEVELS, &lines.whole, &cluster, error);
    if (status)
        return status;
    cluster->levels = mgw_levels_copy(levels, count);
    cluster->level_count = count;
    if (cluster->levels)
        return finish(cluster, out, error);
    cluster->level_count = 0;
    mgw_cluster_destroy(cluster);
    return mgw_fail_memory(error, name);
}

void mgw_cluster_cost(const mgw_cluster *cluster, mgw_cost *out)
{
    *out = (mgw_cost){
        .workers = cluster->workers, .cluster = cluster->name, .beside = cluster->beside};
    memcpy(out->of, cluster->of, sizeof out->of);
    memcpy(out->casts, cluster->casts, sizeof out->casts);
}

mgw_status mgw_cluster_set_beside(mgw_cluster *cluster, const mgw_beside *beside, mgw_error *error)
{
    if (!(isfinite(beside->message) && beside->message >= 1))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "beside: message: must be at least 1 and finite, not %g", beside->message);
    if (!(isfinite(beside->compute) && beside->compute >= 1))
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "beside: compute: must be at least 1 and finite, not %g", beside->compute);
    cluster->beside = *beside;
    return MGW_OK;
}

/* Finishes rescaling: sets the new constants and derives all kinds. */
static mgw_status rescaled(mgw_cluster *cluster, unsigned workers, const mgw_line *line,
                           mgw_error *error)
{
    cluster->workers = workers;
    cluster->assumes_workers = false;
    cluster->cost = *line;
    mgw_cluster_forget_kinds(cluster);
    return mgw_cluster_derive(cluster, error); /* lines only: it needs no memory */
}

static mgw_status rescale_levels(mgw_cluster *cluster, unsigned workers,
                                 const mgw_algorithm *algorithm, mgw_error *error)
{
    mgw_level *outermost = &cluster->levels[cluster->level_count - 1];
    mgw_level before = *outermost;
    unsigned inside = cluster->workers / outermost->workers;
    if (workers % inside)
        return mgw_fail(error, MGW_ERR_ARGUMENT,
                        "%s: workers: %u is not a multiple of the %u inside level '%s'",
                        cluster->name, workers, inside, outermost->name);
    outermost->workers = workers / inside;
    if (algorithm)
        outermost->algorithm = *algorithm;
    mgw_level_lines lines;
    mgw_error inner;
    if (!mgw_levels_lines(cluster->levels, cluster->level_count, &lines, &inner))
        return rescaled(cluster, workers, &lines.whole, error);
    *outermost = before;
    return mgw_fail(error, inner.status, "%s: %s", cluster->name, inner.message);
}

mgw_status mgw_cluster_rescale(mgw_cluster *cluster, unsigned workers,
                               const mgw_algorithm *algorithm, mgw_error *error)
{
    if (workers == cluster->workers && !algorithm)
        return MGW_OK;
    if (cluster->kind == MGW_CLUSTER_LEVELS)
        return rescale_levels(cluster, workers, algorithm, error);
    if (cluster->kind != MGW_CLUSTER_LINK)
        return mgw_fail(error, MGW_ERR_UNSUPPORTED,
                        "%s: its cost was measured with %u workers and holds for that number only; "
                        "for other numbers or algorithms use a cluster with link constants "
                        "('mgwfbp fit --as ring' derives them)",
                        cluster->name, cluster->workers);
    mgw_algorithm chosen = algorithm ? *algorithm : cluster->algorithm;
    mgw_line line;
    mgw_error inner;
    if (mgw_algorithm_line(chosen, &cluster->link, workers, cluster->servers, &line, &inner))
        return mgw_fail(error, inner.status, "%s: %s", cluster->name, inner.message);
    cluster->algorithm = chosen;
    return rescaled(cluster, workers, &line, error);
}
