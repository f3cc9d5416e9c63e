/*
 * Plans for a cluster whose levels work at the same time: while one message travels between nodes,
 * the next one is reduced inside them.
 *
 * The planner proposes cuts for all levels together (one message at a time) and for each of them
 * alone (as if the others took no time). Each proposal is timed on all channels, all-reduces are
 * improved cut by cut, and the best one is kept.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/problem.h"

/* How many operations may be timed in search of better cuts: some tenths of a second's worth. */
#define TIMED_MAX 3e6

/* The levels that link somebody, from the inside out. */
typedef struct chain {
    const mgw_trace *trace;
    const mgw_cluster *cluster;
    size_t count;
    mgw_cost costs[MGW_CHANNELS_MAX];
    double timed; /* operations, in search of better cuts */
} chain;

static mgw_status chain_init(chain *c, const mgw_trace *trace, const mgw_cluster *cluster,
                             mgw_error *error)
{
    *c = (chain){.trace = trace, .cluster = cluster};
    for (size_t i = 0; i < cluster->level_count; i++) {
        if (cluster->levels[i].workers == 1)
            continue;
        if (c->count == MGW_CHANNELS_MAX)
            return mgw_fail(error, MGW_ERR_UNSUPPORTED, "%s: more than %d levels", cluster->name,
                            MGW_CHANNELS_MAX);
        mgw_cluster_level_cost(cluster, i, &c->costs[c->count++]);
    }
    if (c->count == 0)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "%s: it has no levels", cluster->name);
    return MGW_OK;
}

/* No schedule is faster than one in which all levels but one take no time. */
static mgw_status bound(const chain *c, bool overlaps_forward, double *out_s, mgw_error *error)
{
    *out_s = 0;
    for (size_t i = 0; i < c->count; i++) {
        mgw_problem alone;
        mgw_status status = mgw_problem_init(&alone, c->trace, &c->costs[i], error);
        if (status)
            return status;
        double bound_s =
            overlaps_forward ? mgw_problem_forward_bound(&alone) : mgw_problem_lower_bound(&alone);
        mgw_problem_fini(&alone);
        if (bound_s < 0)
            return mgw_fail_memory(error, "plan");
        *out_s = mgw_later(*out_s, bound_s);
    }
    return MGW_OK;
}

static mgw_status time_on(const chain *c, mgw_plan *plan, mgw_error *error)
{
    mgw_cost whole;
    mgw_problem problem;
    mgw_cluster_cost(c->cluster, &whole);
    mgw_status status = mgw_problem_init(&problem, c->trace, &whole, error);
    if (status)
        return status;
    status = mgw_channels_time(&problem, c->costs, c->count, plan, error);
    mgw_problem_fini(&problem);
    return status ? status : bound(c, plan->overlaps_forward, &plan->lower_bound_s, error);
}

mgw_status mgw_plan_time_levels(mgw_plan *plan, const mgw_trace *trace, const mgw_cluster *cluster,
                                mgw_error *error)
{
    chain c;
    mgw_status status = mgw_plan_check_tensors(plan, trace, error);
    if (!status)
        status = chain_init(&c, trace, cluster, error);
    return status ? status : time_on(&c, plan, error);
}

/* ---- Candidates ---- */

static bool is_better(const mgw_plan *plan, const mgw_plan *than)
{
    double close_s = MGW_ROUNDING * than->iteration_s;
    return plan->iteration_s < than->iteration_s - close_s ||
           (plan->iteration_s <= than->iteration_s + close_s &&
            plan->operation_count < than->operation_count);
}

/* ---- Cut by cut ---- */

typedef struct search {
    chain *chain;
    mgw_problem problem;
    mgw_plan *best; /* all-reduces */
    mgw_plan tried; /* the same with one cut changed; its operations have room for n */
} search;

/* Takes the cuts of the best plan as they are; false: it has been long enough. */
static bool start_over(search *s)
{
    s->chain->timed += (double)s->best->operation_count;
    if (s->chain->timed >= TIMED_MAX)
        return false;
    s->tried.operation_count = s->best->operation_count;
    memcpy(s->tried.operations, s->best->operations,
           s->best->operation_count * sizeof *s->best->operations);
    return true;
}

/* Whether what was tried is better; then it is the best now. */
static mgw_status keep_better(search *s, bool *kept, mgw_error *error)
{
    mgw_status status =
        mgw_channels_time(&s->problem, s->chain->costs, s->chain->count, &s->tried, error);
    if (status || !is_better(&s->tried, s->best))
        return status;
    mgw_operation *room = s->best->operations;
    s->best->operations = s->tried.operations;
    s->tried.operations = room;
    s->best->operation_count = s->tried.operation_count;
    s->best->iteration_s = s->tried.iteration_s;
    s->best->exposed_s = s->tried.exposed_s;
    *kept = true;
    return MGW_OK;
}

/* Moves `count` tensors over the cut behind message m: forward, or back if it is negative. */
static bool move_cut(search *s, size_t m, long count)
{
    mgw_operation *o = &s->tried.operations[m];
    if (count >= 0 ? o[1].count <= (size_t)count : o->count <= (size_t)-count)
        return false;
    o->count += (size_t)count;
    o[1].first += (size_t)count;
    o[1].count -= (size_t)count;
    return true;
}

static void merge(search *s, size_t m)
{
    mgw_operation *o = &s->tried.operations[m];
    o->count += o[1].count;
    s->tried.operation_count--;
    memmove(o + 1, o + 2, (s->tried.operation_count - m - 1) * sizeof *o);
}

/* Cuts `count` tensors off the front of message m. */
static bool split(search *s, size_t m, size_t count)
{
    mgw_operation *o = &s->tried.operations[m];
    if (count == 0 || count >= o->count)
        return false;
    memmove(o + 1, o, (s->tried.operation_count - m) * sizeof *o);
    s->tried.operation_count++;
    o->count = count;
    o[1].first += count;
    o[1].count -= count;
    return true;
}

/* Every change of one cut; *kept: one of them was better. */
static mgw_status change_cuts(search *s, bool *kept, mgw_error *error)
{
    mgw_status status = MGW_OK;
    for (size_t m = 0; !status && m + 1 < s->best->operation_count; m++) {
        for (long step = 1; !status && step <= (long)s->problem.n; step *= 2)
            for (int sign = -1; !status && sign <= 1; sign += 2)
                if (m + 1 < s->best->operation_count && start_over(s) &&
                    move_cut(s, m, sign * step))
                    status = keep_better(s, kept, error);
        if (!status && m + 1 < s->best->operation_count && start_over(s)) {
            merge(s, m);
            status = keep_better(s, kept, error);
        }
    }
    for (size_t m = 0; !status && m < s->best->operation_count; m++)
        for (size_t part = 1; !status && part < 8; part++)
            if (m < s->best->operation_count && start_over(s) &&
                split(s, m, (s->best->operations[m].count * part + 4) / 8))
                status = keep_better(s, kept, error);
    return status;
}

static void search_fini(search *s)
{
    free(s->tried.operations);
    mgw_problem_fini(&s->problem);
}

/* Room for as many messages as there are tensors. */
static mgw_status search_init(search *s, chain *c, mgw_plan *best, mgw_error *error)
{
    mgw_cost whole;
    *s = (search){.chain = c, .best = best, .tried = *best};
    s->tried.operations = NULL;
    s->tried.stalls = NULL;
    mgw_cluster_cost(c->cluster, &whole);
    mgw_status status = mgw_problem_init(&s->problem, c->trace, &whole, error);
    if (status)
        return status;
    mgw_operation *room = realloc(best->operations, s->problem.n * sizeof *room);
    if (room)
        best->operations = room;
    s->tried.operations = malloc(s->problem.n * sizeof *room);
    if (room && s->tried.operations)
        return MGW_OK;
    search_fini(s);
    return mgw_fail_memory(error, "plan");
}

static mgw_status improve(chain *c, mgw_plan *best, mgw_error *error)
{
    search s;
    mgw_status status = search_init(&s, c, best, error);
    if (status)
        return status;
    for (bool kept = true; !status && kept;) {
        kept = false;
        status = change_cuts(&s, &kept, error);
    }
    search_fini(&s);
    return status;
}

/* What the policy makes of one cost, timed on all channels, and improved if it is all-reduces that
 * may be cut anywhere. *best keeps the better one. */
static mgw_status propose(chain *c, const mgw_cost *cost, const mgw_policy *policy, bool improves,
                          mgw_plan **best, mgw_error *error)
{
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(c->trace, cost, policy, &plan, error);
    if (!status)
        status = time_on(c, plan, error);
    if (!status && improves)
        status = improve(c, plan, error);
    if (!status && (!*best || is_better(plan, *best))) {
        mgw_plan *worse = *best;
        *best = plan;
        plan = worse;
    }
    mgw_plan_destroy(plan);
    return status;
}

/* Whatever it started from. */
static mgw_status rename_plan(mgw_plan *plan, const mgw_policy *policy, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    char *copy = strdup(mgw_policy_name(policy, name));
    if (!copy)
        return mgw_fail_memory(error, "plan");
    free(plan->policy);
    plan->policy = copy;
    return MGW_OK;
}

mgw_status mgw_plan_make_levels(const mgw_trace *trace, const mgw_cluster *cluster,
                                const mgw_policy *policy, mgw_plan **out, mgw_error *error)
{
    static const mgw_policy starts[] = {
        {.kind = MGW_GREEDY}, {.kind = MGW_SINGLE}, {.kind = MGW_WFBP}};
    chain c;
    mgw_cost whole;
    mgw_plan *best = NULL;
    mgw_status status = chain_init(&c, trace, cluster, error);
    if (status)
        return status;
    bool optimal = policy->kind == MGW_OPTIMAL;
    bool searches = optimal || policy->kind == MGW_OVERLAP || policy->kind == MGW_SHARDED;
    mgw_cluster_cost(cluster, &whole);
    status = propose(&c, &whole, policy, optimal, &best, error);
    for (size_t i = 0; !status && searches && i < c.count; i++)
        status = propose(&c, &c.costs[i], policy, optimal, &best, error);
    for (size_t i = 0; !status && optimal && i < sizeof starts / sizeof *starts; i++)
        status = propose(&c, &whole, &starts[i], true, &best, error);
    if (!status)
        status = rename_plan(best, policy, error);
    if (!status)
        *out = best;
    else
        mgw_plan_destroy(best);
    return status;
}
