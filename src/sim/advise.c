/* What each change would give over PyTorch's DDP as it is: every lever by itself, by the planner.
 */
#include <mgwfbp/advise.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/plan.h>
#include <mgwfbp/text.h>

#include "base/status.h"

static const mgw_policy ddp = {MGW_DDP, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES};

const char *mgw_lever_name(mgw_lever_kind kind)
{
    static const char *const names[] = {
#define X(constant, name) [constant] = name,
        MGW_LEVER_LIST(X)
#undef X
    };
    return names[kind];
}

static mgw_status time_policy(const mgw_trace *trace, const mgw_cost *cost,
                              const mgw_policy *policy, double *iteration_s, double *bound_s,
                              mgw_error *error)
{
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(trace, cost, policy, &plan, error);
    if (status)
        return status;
    *iteration_s = plan->iteration_s;
    if (bound_s)
        *bound_s = plan->lower_bound_s;
    mgw_plan_destroy(plan);
    return MGW_OK;
}

static mgw_status time_ddp(const mgw_trace *trace, const mgw_cluster *cluster, double *iteration_s,
                           mgw_error *error)
{
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    return time_policy(trace, &cost, &ddp, iteration_s, NULL, error);
}

/* ---- Levers ---- */

typedef struct situation {
    const mgw_trace *trace;
    const mgw_cluster *cluster;
    mgw_advice *advice;
} situation;

static void add(mgw_advice *advice, mgw_lever_kind kind, double iteration_s, double samples,
                const char *change)
{
    mgw_lever lever = {.kind = kind, .iteration_s = iteration_s, .samples = samples};
    lever.gain = iteration_s > 0 ? samples * advice->ddp_s / iteration_s : 1;
    snprintf(lever.change, sizeof lever.change, "%s", change);
    size_t at = advice->lever_count++;
    for (; at > 0 && advice->levers[at - 1].gain < lever.gain; at--)
        advice->levers[at] = advice->levers[at - 1];
    advice->levers[at] = lever;
}

/* Ownership: the caller destroys *out. */
static mgw_status copy_trace(const mgw_trace *trace, mgw_trace **out, mgw_error *error)
{
    mgw_text text;
    mgw_text_init(&text);
    mgw_trace_write(trace, &text);
    mgw_status status = mgw_text_status(&text, error);
    if (!status)
        status = mgw_trace_parse(trace->model, text.data, text.size, out, error);
    mgw_text_fini(&text);
    return status;
}

/* As DDP's bf16_compress_hook does it: all messages are cast. */
static mgw_status try_gradients(const situation *s, mgw_error *error)
{
    double seconds = 0;
    mgw_cost cost;
    if (s->trace->gradient_dtype != MGW_F32)
        return MGW_OK;
    mgw_cluster_cost(s->cluster, &cost);
    cost.wires = 1u << MGW_BF16;
    mgw_status status = time_policy(s->trace, &cost, &ddp, &seconds, NULL, error);
    if (!status)
        add(s->advice, MGW_LEVER_GRADIENTS, seconds, 1, "gradients as bf16 (bf16_compress_hook)");
    return status;
}

static mgw_status try_batch(const situation *s, mgw_error *error)
{
    mgw_trace *larger = NULL;
    double seconds = 0;
    mgw_status status = copy_trace(s->trace, &larger, error);
    if (!status)
        status = mgw_trace_scale_compute(larger, 2, error);
    if (!status)
        status = time_ddp(larger, s->cluster, &seconds, error);
    if (!status) {
        char change[96];
        unsigned long long batch = s->trace->batch;
        snprintf(change, sizeof change, "batch %llu instead of %llu, computation twice as long",
                 2 * batch, batch);
        add(s->advice, MGW_LEVER_BATCH, seconds, 2, change);
    }
    mgw_trace_destroy(larger);
    return status;
}

/* The link that a faster network would replace; null where none is known, or in a single node,
 * inside of which no network is of use. */
static const mgw_link *slow_link(const mgw_cluster *cluster)
{
    if (cluster->kind == MGW_CLUSTER_LINK)
        return &cluster->link;
    if (cluster->kind != MGW_CLUSTER_LEVELS)
        return NULL;
    const mgw_level *outermost = &cluster->levels[cluster->level_count - 1];
    return outermost->workers > 1 ? &outermost->link : NULL;
}

/* The least of the faster kinds of Ethernet, or null. */
static const mgw_network *next_faster(const mgw_link *link)
{
    size_t count = 0;
    const mgw_network *list = mgw_network_list(&count);
    double now = 8e-9 / link->beta_s_per_byte;
    for (size_t i = 0; i < count; i++)
        if (strstr(list[i].name, "gbe") && list[i].gbit_per_s > 1.5 * now)
            return &list[i];
    return NULL;
}

/* The same cluster with that link in place of its slow one. Ownership: the caller destroys *out. */
static mgw_status replace_link(const mgw_cluster *cluster, const mgw_link *slow,
                               const mgw_link *link, mgw_cluster **out, mgw_error *error)
{
    if (cluster->kind == MGW_CLUSTER_LINK) {
        mgw_status status = mgw_cluster_from_link(cluster->name, cluster->workers, link,
                                                  cluster->algorithm, cluster->servers, out, error);
        if (!status)
            mgw_cluster_copy_workers(cluster, *out);
        return status;
    }
    mgw_level *levels = malloc(cluster->level_count * sizeof *levels);
    if (!levels)
        return mgw_fail_memory(error, cluster->name);
    memcpy(levels, cluster->levels, cluster->level_count * sizeof *levels);
    for (size_t i = 0; i < cluster->level_count; i++)
        if (&cluster->levels[i].link == slow)
            levels[i].link = *link;
    mgw_status status =
        mgw_cluster_from_levels(cluster->name, levels, cluster->level_count, out, error);
    if (!status)
        mgw_cluster_copy_workers(cluster, *out);
    free(levels);
    return status;
}

static mgw_status try_network(const situation *s, mgw_error *error)
{
    const mgw_link *slow = slow_link(s->cluster);
    const mgw_network *faster = slow && slow->beta_s_per_byte > 0 ? next_faster(slow) : NULL;
    if (!faster)
        return MGW_OK;
    double seconds = 0;
    mgw_cluster *cluster = NULL;
    mgw_link link = mgw_network_link(faster);
    link.alpha_s = fmin(link.alpha_s, slow->alpha_s);
    mgw_status status = replace_link(s->cluster, slow, &link, &cluster, error);
    if (!status)
        status = time_ddp(s->trace, cluster, &seconds, error);
    if (!status) {
        char change[96];
        snprintf(change, sizeof change, "network %s (%.4g Gbit/s instead of %.4g)", faster->name,
                 faster->gbit_per_s, 8e-9 / slow->beta_s_per_byte);
        add(s->advice, MGW_LEVER_NETWORK, seconds, 1, change);
    }
    mgw_cluster_destroy(cluster);
    return status;
}

static const char *plural(unsigned count)
{
    return count == 1 ? "" : "s";
}

/* As many workers, in other nodes. */
static mgw_status try_nodes(const situation *s, mgw_lever_kind kind, mgw_error *error)
{
    const mgw_cluster *cluster = s->cluster;
    if (cluster->kind != MGW_CLUSTER_LEVELS || cluster->level_count != 2)
        return MGW_OK;
    const mgw_level *inner = &cluster->levels[0];
    bool fewer = kind == MGW_LEVER_FEWER;
    mgw_shape shape = {.nodes = cluster->levels[1].workers,
                       .gpus = inner->workers,
                       .ports = cluster->levels[1].ports};
    if ((fewer ? shape.gpus : shape.nodes) % 2)
        return MGW_OK;
    shape.gpus = fewer ? shape.gpus / 2 : shape.gpus * 2;
    shape.nodes = fewer ? shape.nodes * 2 : shape.nodes / 2;
    shape.ports = shape.ports > shape.gpus ? shape.gpus : shape.ports;
    double seconds = 0;
    mgw_cluster *other = NULL;
    mgw_status status =
        mgw_cluster_reshape(cluster, &shape, inner->name, &inner->link, NULL, &other, error);
    if (!status)
        status = time_ddp(s->trace, other, &seconds, error);
    if (!status) {
        char change[96];
        snprintf(change, sizeof change, "%u node%s of %u GPU%s instead of %u of %u", shape.nodes,
                 plural(shape.nodes), shape.gpus, plural(shape.gpus), cluster->levels[1].workers,
                 inner->workers);
        add(s->advice, kind, seconds, 1, change);
    }
    mgw_cluster_destroy(other);
    return status;
}

/* Levels that work at the same time, if that pays: it is a program that has to send this way. */
static mgw_status try_levels(const situation *s, mgw_lever_kind kind, const mgw_policy *policy,
                             double one_at_a_time_s, const char *change, mgw_error *error)
{
    const double pays = 0.001; /* of a step */
    mgw_plan *plan = NULL;
    if (s->cluster->kind != MGW_CLUSTER_LEVELS)
        return MGW_OK;
    mgw_status status = mgw_plan_make_levels(s->trace, s->cluster, policy, &plan, error);
    if (!status && plan->iteration_s < (1 - pays) * one_at_a_time_s)
        add(s->advice, kind, plan->iteration_s, 1, change);
    mgw_plan_destroy(plan);
    return status;
}

static void add_messages(mgw_advice *advice, bool narrows)
{
    char change[96];
    const char *where = narrows ? ", narrow where it pays" : "";
    snprintf(change, sizeof change, "bucket_cap_mb=%.10g", advice->bucket_cap_mb);
    if (advice->bucket_cap_mb > 0)
        add(advice, MGW_LEVER_BUCKETS, advice->buckets_s, 1, change);
    snprintf(change, sizeof change, "the best plan of all-reduces (mgwfbp)%s", where);
    add(advice, MGW_LEVER_PLAN, advice->plan_s, 1, change);
    snprintf(change, sizeof change, "forward overlap (mgwfbp, ZeroRedundancyOptimizer)%s", where);
    add(advice, MGW_LEVER_OVERLAP, advice->overlap_s, 1, change);
}

/* ---- What is left ---- */

/* All gradients in one message, as plans may send it. */
static void find_sent(const mgw_trace *trace, const mgw_cost *cost, mgw_advice *advice)
{
    uint64_t bytes = mgw_trace_bytes(trace);
    bool narrows = trace->gradient_dtype == MGW_F32;
    mgw_dtype wire = narrows ? mgw_wire_choose(cost, MGW_ALL_REDUCE, bytes) : MGW_F32;
    advice->sent_s = mgw_wire_seconds(cost, MGW_ALL_REDUCE, wire, bytes);
    advice->start_s = mgw_wire_seconds(cost, MGW_ALL_REDUCE, wire, 0);
    advice->sent_bytes = wire == MGW_F32 ? bytes : mgw_wire_bytes(wire, bytes / sizeof(float));
}

static mgw_limit find_limit(const mgw_advice *advice)
{
    const double nothing = 0.005; /* of a step */
    if (advice->overlap_s <= (1 + nothing) * advice->compute_s)
        return MGW_LIMIT_COMPUTE;
    if (advice->sent_s < advice->compute_s)
        return MGW_LIMIT_LAST;
    return advice->start_s > advice->sent_s / 2 ? MGW_LIMIT_LATENCY : MGW_LIMIT_BANDWIDTH;
}

mgw_status mgw_advise(const mgw_trace *trace, const mgw_cluster *cluster, unsigned wires,
                      mgw_advice *out, mgw_error *error)
{
    const mgw_policy optimal = {.kind = MGW_OPTIMAL};
    const mgw_policy overlap = {.kind = MGW_OVERLAP};
    const situation s = {trace, cluster, out};
    mgw_cost cost;
    mgw_cluster_cost(cluster, &cost);
    *out = (mgw_advice){.compute_s = mgw_trace_compute_s(trace)};
    mgw_status status = time_policy(trace, &cost, &ddp, &out->ddp_s, NULL, error);
    if (!status)
        status = mgw_advise_buckets(trace, &cost, &out->bucket_cap_mb, &out->buckets_s, error);
    const double nothing = 0.0005; /* of a step */
    if (!status && out->buckets_s >= (1 - nothing) * out->ddp_s) {
        out->bucket_cap_mb = 0;
        out->buckets_s = out->ddp_s;
    }
    cost.wires = wires;
    if (!status)
        status = time_policy(trace, &cost, &optimal, &out->plan_s, NULL, error);
    if (!status)
        status = time_policy(trace, &cost, &overlap, &out->overlap_s, &out->bound_s, error);
    if (status)
        return status;
    add_messages(out, trace->gradient_dtype == MGW_F32 && wires & ~(1u << MGW_F32));
    find_sent(trace, &cost, out);
    out->limit = find_limit(out);
    status = try_gradients(&s, error);
    if (!status)
        status = try_batch(&s, error);
    if (!status)
        status = try_network(&s, error);
    if (!status)
        status = try_nodes(&s, MGW_LEVER_FEWER, error);
    if (!status)
        status = try_nodes(&s, MGW_LEVER_MORE, error);
    if (!status)
        status = try_levels(&s, MGW_LEVER_LEVELS, &optimal, out->plan_s,
                            "levels at the same time, best plan of all-reduces", error);
    if (!status)
        status = try_levels(&s, MGW_LEVER_LEVELS_OVERLAP, &overlap, out->overlap_s,
                            "levels at the same time, with forward overlap", error);
    return status;
}
