/* Which bucket_cap_mb to advise for PyTorch's DDP. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/advise.h>
#include <mgwfbp/plan.h>

#include "base/status.h"

/* ---- Other networks ---- */

/*
 * A model is never exact to a percent, and of two sizes that it calls alike, one may be at the edge
 * of a cliff: with a slightly faster network, its last bucket is what everybody waits for. Messages
 * between computation also have a longer latency than alone. So sizes are compared on networks like
 * the given one.
 */
static const double speeds[] = {0.8, 0.9, 1, 1.1, 1.25};
static const double latencies[] = {1, 2};

enum {
    SPEEDS = sizeof speeds / sizeof *speeds,
    LATENCIES = sizeof latencies / sizeof *latencies,
    NETWORKS = SPEEDS * LATENCIES,
};

typedef struct network {
    mgw_cost cost;
    mgw_sample *samples; /* of its all-reduces */
} network;

static void forget_networks(network *networks)
{
    for (size_t i = 0; i < NETWORKS; i++)
        free(networks[i].samples);
}

/* T(M) of all-reduces becomes `factor` times as long, after its latency has. */
static mgw_status vary(const mgw_cost *cost, double factor, double latency, network *out,
                       mgw_error *error)
{
    out->cost = *cost;
    mgw_curve *curve = &out->cost.of[MGW_ALL_REDUCE];
    const mgw_sample *given = curve->samples;
    curve->a_s *= factor * latency;
    curve->b_s_per_byte *= factor;
    if (!curve->sample_count)
        return MGW_OK;
    out->samples = malloc(curve->sample_count * sizeof *out->samples);
    if (!out->samples)
        return mgw_fail_memory(error, "bucket sizes");
    double more_s = given[0].seconds * (latency - 1);
    for (size_t i = 0; i < curve->sample_count; i++)
        out->samples[i] = (mgw_sample){given[i].bytes, factor * (given[i].seconds + more_s)};
    curve->samples = out->samples;
    return MGW_OK;
}

static mgw_status vary_all(const mgw_cost *cost, network *out, mgw_error *error)
{
    mgw_status status = MGW_OK;
    memset(out, 0, NETWORKS * sizeof *out);
    for (size_t i = 0; !status && i < NETWORKS; i++)
        status = vary(cost, speeds[i % SPEEDS], latencies[i / SPEEDS], &out[i], error);
    return status;
}

/* ---- Sizes ---- */

enum {
    SIZE_FIRST = 1 << 18,  /* a quarter of a MiB, */
    SIZE_STEP = 1 << 15,   /*   then in steps of a 32nd, */
    SIZE_COARSE = 1 << 28, /*   from here on by an eighth: such buckets are few */
    SMALL_MODEL = 1 << 23  /* up to this size, sizes begin with one step */
};

static uint64_t first_size(const mgw_trace *trace)
{
    return mgw_trace_bytes(trace) > SMALL_MODEL ? SIZE_FIRST : SIZE_STEP;
}

static uint64_t next_size(uint64_t bytes)
{
    return bytes + (bytes < SIZE_COARSE ? SIZE_STEP : bytes / 8 / SIZE_STEP * SIZE_STEP);
}

/* A size, and the time of a step with it: on the given network, and the mean over all. */
typedef struct size {
    uint64_t bytes;
    double iteration_s;
    double mean_s;
} size;

static size_t count_sizes(const mgw_trace *trace)
{
    size_t count = 1; /* up to the first that holds everything */
    for (uint64_t bytes = first_size(trace); bytes < mgw_trace_bytes(trace);
         bytes = next_size(bytes))
        count++;
    return count;
}

static mgw_status plan_buckets(const mgw_trace *trace, const mgw_cost *cost, uint64_t bytes,
                               mgw_plan **out, mgw_error *error)
{
    const mgw_policy policy = {MGW_DDP, bytes, bytes};
    return mgw_plan_make(trace, cost, &policy, out, error);
}

static mgw_status time_sizes(const mgw_trace *trace, const mgw_cost *cost, size *sizes,
                             size_t count, double *best_s, mgw_error *error)
{
    mgw_status status = MGW_OK;
    uint64_t bytes = first_size(trace);
    *best_s = INFINITY;
    for (size_t i = 0; !status && i < count; i++, bytes = next_size(bytes)) {
        mgw_plan *plan = NULL;
        status = plan_buckets(trace, cost, bytes, &plan, error);
        if (status)
            break;
        sizes[i] = (size){.bytes = bytes, .iteration_s = plan->iteration_s};
        *best_s = fmin(*best_s, plan->iteration_s);
        mgw_plan_destroy(plan);
    }
    return status;
}

/* Keeps the sizes whose step is at most `limit_s` long; returns their number. */
static size_t keep(size *sizes, size_t count, double limit_s)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (sizes[i].iteration_s <= limit_s)
            sizes[kept++] = sizes[i];
    return kept;
}

static bool same_buckets(const mgw_plan *a, const mgw_plan *b)
{
    bool same = a && b && a->operation_count == b->operation_count;
    for (size_t i = 0; same && i < a->operation_count; i++)
        same = a->operations[i].count == b->operations[i].count;
    return same;
}

static mgw_status time_on_all(mgw_plan *plan, const mgw_trace *trace, const network *networks,
                              double *mean_s, mgw_error *error)
{
    mgw_status status = MGW_OK;
    *mean_s = 0;
    for (size_t i = 0; !status && i < NETWORKS; i++) {
        status = mgw_plan_time(plan, trace, &networks[i].cost, error);
        *mean_s += plan->iteration_s / NETWORKS;
    }
    return status;
}

static mgw_status find_means(const mgw_trace *trace, const mgw_cost *cost, const network *networks,
                             size *sizes, size_t count, mgw_error *error)
{
    mgw_plan *before = NULL; /* many sizes in a row have the same buckets */
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < count; i++) {
        mgw_plan *plan = NULL;
        status = plan_buckets(trace, cost, sizes[i].bytes, &plan, error);
        if (!status && same_buckets(plan, before))
            sizes[i].mean_s = sizes[i - 1].mean_s;
        else if (!status)
            status = time_on_all(plan, trace, networks, &sizes[i].mean_s, error);
        mgw_plan_destroy(before);
        before = plan;
    }
    mgw_plan_destroy(before);
    return status;
}

/* Of the sizes with a mean up to `limit_s`, all or only whole numbers of MiB: the one nearest to
 * DDP's default. Null: there is none. */
static const size *nearest(const size *sizes, size_t count, double limit_s, bool whole)
{
    const double cap = (double)MGW_DDP_CAP_BYTES;
    const size *chosen = NULL;
    for (const size *s = sizes; s < sizes + count; s++) {
        if (s->mean_s > limit_s || (whole && s->bytes % (1 << 20)))
            continue;
        if (!chosen || fabs((double)s->bytes - cap) < fabs((double)chosen->bytes - cap))
            chosen = s;
    }
    return chosen;
}

/* The size with the least mean, or a whole number that is as good. */
static const size *choose(const size *sizes, size_t count)
{
    const double alike = 0.0005; /* a share of a step that does not matter */
    double least_s = INFINITY;
    for (size_t i = 0; i < count; i++)
        least_s = fmin(least_s, sizes[i].mean_s);
    const size *whole = nearest(sizes, count, least_s * (1 + alike), true);
    return whole ? whole : nearest(sizes, count, least_s, false);
}

mgw_status mgw_advise_buckets(const mgw_trace *trace, const mgw_cost *cost, double *cap_mb,
                              double *iteration_s, mgw_error *error)
{
    const double enough = 0.0008; /* what a size may cost on the given network */
    network networks[NETWORKS];
    double best_s = 0;
    size_t count = count_sizes(trace);
    size *sizes = malloc(count * sizeof *sizes);
    mgw_status status = vary_all(cost, networks, error);
    if (!status && !sizes)
        status = mgw_fail_memory(error, "bucket sizes");
    if (!status)
        status = time_sizes(trace, cost, sizes, count, &best_s, error);
    if (!status) {
        count = keep(sizes, count, best_s * (1 + enough));
        status = find_means(trace, cost, networks, sizes, count, error);
    }
    if (!status) {
        const size *chosen = choose(sizes, count);
        *cap_mb = (double)chosen->bytes / (1 << 20);
        *iteration_s = chosen->iteration_s;
    }
    free(sizes);
    forget_networks(networks);
    return status;
}
