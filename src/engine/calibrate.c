/* Before the first step: what a message costs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "engine/engine.h"

enum { REPEATS = 5, SIZES_MAX = 16 };

/* The arena of the largest dtype is there, zero, and as large as any message can be. */
static int largest_arena(const mgw_engine *engine)
{
    int largest = 0;
    for (int d = 1; d < DTYPES; d++)
        if (engine->arena_count[d] * mgw_dtype_bytes((mgw_dtype)d) >
            engine->arena_count[largest] * mgw_dtype_bytes((mgw_dtype)largest))
            largest = d;
    return largest;
}

/* Medians of a whole aggregation, and of its push and pull if there are servers. */
typedef struct timing {
    double whole_s;
    double push_s;
    double pull_s;
} timing;

/* On a device small messages follow each other without the host, in calibration as in steps. */
static size_t back_to_back(const mgw_engine *engine, size_t bytes)
{
    bool many = engine->device && engine->options.servers <= 0 && bytes <= 1 << 20;
    return many ? 16 : 1;
}

static mgw_status time_size(mgw_engine *engine, int d, size_t count, timing *out, mgw_error *error)
{
    double whole[REPEATS] = {0};
    double push[REPEATS] = {0};
    double pull[REPEATS] = {0};
    size_t repeats = back_to_back(engine, count * mgw_dtype_bytes((mgw_dtype)d));
    mgw_status status = MGW_OK;
    for (int i = -1; !status && i < REPEATS; i++) { /* the first warms up, and is overwritten */
        int k = i < 0 ? 0 : i;
        status = mgw_transport_barrier(engine->transport, error);
        double begin_s = mgw_now_s();
        mgw_transport_defer(engine->transport, repeats > 1);
        for (size_t r = 0; !status && r < repeats; r++)
            status = engine_aggregate(engine, (size_t)k, engine->arena[d], count, (mgw_dtype)d,
                                      &push[k], &pull[k], error);
        mgw_transport_defer(engine->transport, false);
        if (!status)
            status = mgw_transport_settle(engine->transport, error);
        whole[k] = (mgw_now_s() - begin_s) / (double)repeats;
    }
    *out =
        (timing){mgw_median(whole, REPEATS), mgw_median(push, REPEATS), mgw_median(pull, REPEATS)};
    return status;
}

/* The slowest worker's times count. */
static mgw_status take_slowest(mgw_engine *engine, timing *own, mgw_error *error)
{
    double mine[3] = {own->whole_s, own->push_s, own->pull_s};
    double *rows = NULL;
    mgw_status status = engine_exchange(engine, mine, 3, &rows, error);
    for (size_t r = 0; !status && r < engine->size; r++)
        *own = (timing){fmax(own->whole_s, rows[3 * r]), fmax(own->push_s, rows[3 * r + 1]),
                        fmax(own->pull_s, rows[3 * r + 2])};
    free(rows);
    return status;
}

/* Samples of each kind, by size. */
typedef struct samples {
    mgw_sample whole[SIZES_MAX + 1];
    mgw_sample push[SIZES_MAX + 1];
    mgw_sample pull[SIZES_MAX + 1];
    size_t count;
} samples;

static void add_sample(samples *s, uint64_t bytes, const timing *t)
{
    /* A clock may not see the fastest; a fit wants times above 0. */
    s->whole[s->count] = (mgw_sample){bytes, fmax(t->whole_s, 1e-9)};
    s->push[s->count] = (mgw_sample){bytes, fmax(t->push_s, 1e-9)};
    s->pull[s->count++] = (mgw_sample){bytes, fmax(t->pull_s, 1e-9)};
}

static mgw_status sweep(mgw_engine *engine, samples *s, mgw_error *error)
{
    int d = largest_arena(engine);
    size_t element = mgw_dtype_bytes((mgw_dtype)d);
    size_t most = engine->arena_count[d];
    timing t = {0};
    mgw_status status = MGW_OK;
    for (size_t bytes = 1024; !status && s->count < SIZES_MAX; bytes *= 4) {
        size_t elements = bytes / element < most ? bytes / element : most;
        status = time_size(engine, d, elements, &t, error);
        if (!status)
            status = take_slowest(engine, &t, error);
        add_sample(s, elements * element, &t);
        if (elements == most || bytes >= (size_t)64 << 20)
            break;
    }
    if (s->count == 1) /* a tiny model: a line needs two points */
        add_sample(s, 2 * s->whole[0].bytes + 1, &t);
    return status;
}

/* The first rank that has failed; if none has, their number. */
static mgw_status find_failure(mgw_engine *engine, mgw_status own, unsigned *out, mgw_error *error)
{
    const double failed = own != MGW_OK;
    double *rows = NULL;
    mgw_status status = engine_exchange(engine, &failed, 1, &rows, error);
    for (*out = 0; !status && *out < engine->size && rows[*out] == 0;)
        ++*out;
    free(rows);
    return status;
}

/* A file of that name may be another one on another host, or not be there. */
static mgw_status load_cluster(mgw_engine *engine, mgw_error *error)
{
    const char *name = engine->options.cluster;
    mgw_error own = {0};
    mgw_status loaded = mgw_cluster_load(name, &engine->cluster, &own);
    unsigned without = 0;
    mgw_status status = find_failure(engine, loaded, &without, error);
    if (status)
        return status;
    if (loaded)
        return mgw_fail(error, loaded, "rank %u: %s", engine->rank, own.message);
    if (without < engine->size)
        return mgw_fail(error, MGW_ERR_PEER, "rank %u cannot read the cluster '%.200s'", without,
                        name);
    mgw_cost cost;
    unsigned differs = 0;
    mgw_cluster_cost(engine->cluster, &cost);
    const mgw_curve *curve = &cost.of[MGW_ALL_REDUCE];
    const double line[] = {curve->a_s, curve->b_s_per_byte};
    uint64_t hash = engine_hash(line, sizeof line) ^
                    engine_hash(curve->samples, curve->sample_count * sizeof *curve->samples);
    status = engine_same_hash(engine, hash, &differs, error);
    if (!status && differs)
        status = mgw_fail(error, MGW_ERR_PEER,
                          "rank %u has another cluster than rank 0 in '%.200s': give all hosts the "
                          "same file",
                          differs, name);
    return status;
}

mgw_status engine_calibrate(mgw_engine *engine, mgw_error *error)
{
    if (engine->options.cluster)
        return load_cluster(engine, error);
    samples s = {.count = 0};
    mgw_fit whole;
    mgw_fit push;
    mgw_fit pull;
    char name[64];
    snprintf(name, sizeof name, "%.40s-%u", mgw_transport_name(engine->transport), engine->size);
    unsigned workers = engine->size < 2 ? 2 : engine->size;
    mgw_status status = sweep(engine, &s, error);
    if (!status)
        status = mgw_fit_line(s.whole, s.count, &whole, error);
    if (status || engine->options.servers <= 0)
        return status ? status
                      : mgw_cluster_from_line(name, workers, &whole.line, &engine->cluster, error);
    status = mgw_fit_line(s.push, s.count, &push, error);
    if (!status)
        status = mgw_fit_line(s.pull, s.count, &pull, error);
    if (!status)
        status = mgw_cluster_from_push_pull(name, workers, &push.line, &pull.line, &engine->cluster,
                                            error);
    return status;
}
