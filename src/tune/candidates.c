/* Chooses the candidates of a trial: DDP's buckets (or of halves, if all is sharded), the current
 * plan, the model's best plan and its neighbours. */
#include <math.h>

#include "base/status.h"
#include "tune/tuner.h"

/* Plans that the model predicts to be slower than its best by more than this factor are not tried.
 */
static const double near = 1.25;
static const double as_good = 1.05;

const char *tune_kind_name(const mgw_tuner *tuner, tune_kind kind)
{
    static const char *const names[] = {
#define X(constant, name) [constant] = name,
        TUNE_KIND_LIST(X)
#undef X
    };
    static const char *const policies[] = {
#define X(constant, name, about) [constant] = name,
        MGW_POLICY_LIST(X)
#undef X
    };
    if (kind == TUNE_KEPT && tuner->plan)
        return tuner->plan->policy;
    if (kind == TUNE_DDP)
        return tune_peer(tuner)->policy;
    return kind == TUNE_MODEL ? policies[tuner->policy.kind] : names[kind];
}

void tune_slate_clear(tune_slate *slate)
{
    for (size_t i = 0; i < slate->count; i++)
        mgw_plan_destroy(slate->plans[i]);
    slate->count = 0;
}

static bool is_same(const mgw_plan *a, const mgw_plan *b)
{
    return mgw_plan_hash(a->operations, a->operation_count) ==
           mgw_plan_hash(b->operations, b->operation_count);
}

static bool limits(const mgw_tuner *tuner, const mgw_operation *operation)
{
    return operation->lanes > 0 && operation->lanes < tuner->options.lanes;
}

bool tune_is_limited(const mgw_tuner *tuner, const mgw_operation *operations, size_t count)
{
    bool found = false;
    for (size_t m = 0; m < count; m++)
        found = found || limits(tuner, &operations[m]);
    return found;
}

/* Shorter messages have one in any case. */
void tune_use_one_lane(const mgw_tuner *tuner, mgw_plan *plan)
{
    for (size_t m = 0; tuner->options.lanes > 1 && m < plan->operation_count; m++)
        if (plan->operations[m].bytes >= 2 * (uint64_t)MGW_LANE_BYTES)
            plan->operations[m].lanes = 1;
}

static bool is_full(const tune_slate *slate)
{
    return slate->count == MGW_TRIED_MAX;
}

/* Adds a plan, unless the slate has it or is full. Ownership: taken; the plan is kept or destroyed.
 */
static bool add(tune_slate *slate, mgw_plan *plan, tune_kind kind)
{
    bool is_new = !is_full(slate);
    for (size_t i = 0; i < slate->count; i++)
        is_new = is_new && !is_same(plan, slate->plans[i]);
    if (!is_new) {
        mgw_plan_destroy(plan);
        return false;
    }
    slate->plans[slate->count] = plan;
    slate->kinds[slate->count++] = kind;
    return true;
}

/* Whether a plan divides all state, if that is asked for. */
static bool is_allowed(const mgw_tuner *tuner, const mgw_plan *plan)
{
    bool whole = false;
    for (size_t m = 0; m < plan->operation_count; m++)
        whole = whole || plan->operations[m].kind == MGW_ALL_REDUCE;
    return !whole || tuner->policy.kind != MGW_SHARDED;
}

/* Adds a copy that sends f32: narrow gradients were chosen with a given plan, not by a policy. A
 * limit that is none here is left out, so that equal plans look alike. */
static mgw_status add_copy(tune_slate *slate, const tune_evidence *e, const mgw_plan *plan,
                           tune_kind kind, mgw_error *error)
{
    mgw_plan *copy = NULL;
    if (!is_allowed(e->tuner, plan))
        return MGW_OK;
    mgw_status status =
        mgw_plan_from_operations(e->traces[0], &e->cost, plan->policy, plan->operations,
                                 plan->operation_count, &copy, error);
    for (size_t m = 0; !status && m < copy->operation_count; m++) {
        copy->operations[m].wire = MGW_F32;
        if (!limits(e->tuner, &copy->operations[m]))
            copy->operations[m].lanes = 0;
    }
    if (!status && kind == TUNE_LANE)
        tune_use_one_lane(e->tuner, copy);
    if (!status)
        add(slate, copy, kind);
    return status;
}

/* Adds the plan of a policy for a cost, if its predicted time is at most most_s. */
static mgw_status add_policy(tune_slate *slate, const tune_evidence *e, const mgw_cost *cost,
                             mgw_policy_kind policy, tune_kind kind, double most_s, bool *added,
                             mgw_error *error)
{
    const mgw_policy made = {policy, MGW_DDP_FIRST_BYTES, MGW_DDP_CAP_BYTES};
    const mgw_cost planning = tune_planning_cost(e->tuner, policy, cost);
    mgw_plan *plan = NULL;
    double mean_s = 0;
    mgw_status status = mgw_plan_make(e->traces[0], &planning, &made, &plan, error);
    if (!status)
        status = tune_predict(e, plan, &mean_s, error);
    *added = false;
    if (!status && mean_s <= most_s)
        *added = add(slate, plan, kind);
    else
        mgw_plan_destroy(plan);
    return status;
}

/*
 * The cost with `factor` times the startup time of messages: the best plan for it has fewer
 * messages, or more. A line is accurate enough for this.
 */
static mgw_cost scaled(const tune_evidence *e, double factor)
{
    mgw_cost cost = e->cost;
    for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++) {
        mgw_curve *curve = &cost.of[kind];
        *curve = (mgw_curve){.a_s = curve->a_s * factor, .b_s_per_byte = curve->b_s_per_byte};
    }
    return cost;
}

static mgw_status add_neighbour(tune_slate *slate, const tune_evidence *e, tune_kind kind,
                                double best_s, mgw_error *error)
{
    static const double factors[][4] = {[TUNE_FEWER] = {2, 4, 8, 16},
                                        [TUNE_FEWEST] = {8, 16, 64, 256},
                                        [TUNE_MORE] = {0.5, 0.25, 0.1, 0.02}};
    mgw_status status = MGW_OK;
    bool added = false;
    for (size_t i = 0; !status && !added && !is_full(slate) && i < 4; i++) {
        const mgw_cost cost = scaled(e, factors[kind][i]);
        status =
            add_policy(slate, e, &cost, e->tuner->policy.kind, kind, near * best_s, &added, error);
    }
    return status;
}

/* Adds one plan besides DDP's buckets and the current plan: the model's best, or a neighbour that
 * was not tried; if there is nothing new, one that was tried. */
static mgw_status add_one(const mgw_tuner *tuner, tune_slate *slate, const tune_evidence *e,
                          const mgw_plan *best, double best_s, mgw_error *error)
{
    static const double factors[] = {1, 1.5, 0.7, 3, 0.35, 6, 0.15, 12, 30, 100};
    size_t before = slate->count;
    mgw_status status =
        tune_was_tried(tuner, best) ? MGW_OK : add_copy(slate, e, best, TUNE_MODEL, error);
    for (size_t i = 0; !status && slate->count == before && i < sizeof factors / sizeof *factors;
         i++) {
        bool added = false;
        mgw_cost cost = scaled(e, factors[i]);
        tune_kind kind = factors[i] < 1 ? TUNE_MORE : TUNE_FEWER;
        status =
            add_policy(slate, e, &cost, tuner->policy.kind, kind, near * best_s, &added, error);
        if (added && tune_was_tried(tuner, slate->plans[before]))
            mgw_plan_destroy(slate->plans[--slate->count]);
    }
    if (!status && slate->count == before)
        status = add_copy(slate, e, best, TUNE_MODEL, error);
    if (!status && slate->count == before)
        status = add_neighbour(slate, e, TUNE_FEWER, best_s, error);
    return status;
}

/* Adds all plans that may be worthwhile. Those of halves are fewer, since a change of them also
 * moves the optimizer's state; whole all-reduces are among them. */
static mgw_status add_all(const mgw_tuner *tuner, tune_slate *slate, const tune_evidence *e,
                          const mgw_plan *best, double best_s, mgw_error *error)
{
    static const tune_kind neighbours[] = {TUNE_FEWER, TUNE_MORE, TUNE_FEWEST};
    bool halves = tuner->policy.kind != MGW_OPTIMAL;
    bool added = false;
    mgw_status status = add_copy(slate, e, best, TUNE_MODEL, error);
    if (!status && tuner->options.lanes > 1)
        status = add_copy(slate, e, best, TUNE_LANE, error);
    if (!status && tuner->policy.kind == MGW_OVERLAP)
        status = add_policy(slate, e, &e->cost, MGW_OPTIMAL, TUNE_WHOLE, INFINITY, &added, error);
    for (size_t i = 0; !status && i < TUNE_EARLIER; i++)
        if (tuner->trying.earlier[i])
            status = add_copy(slate, e, tuner->trying.earlier[i], TUNE_PAST, error);
    for (size_t i = 0; !status && i < (halves ? 2 : 3); i++)
        status = add_neighbour(slate, e, neighbours[i], best_s, error);
    if (!status && !halves)
        status = add_policy(slate, e, &e->cost, MGW_SINGLE, TUNE_SINGLE, as_good * best_s, &added,
                            error);
    return status;
}

/* The first candidates win ties: the current plan, then plans with fewer messages. */
static void sort(tune_slate *slate)
{
    for (size_t i = 2; i < slate->count; i++)
        for (size_t j = i; j > 1; j--) {
            mgw_plan *plan = slate->plans[j];
            tune_kind kind = slate->kinds[j];
            bool before =
                kind == TUNE_KEPT || plan->operation_count < slate->plans[j - 1]->operation_count;
            if (!before || slate->kinds[j - 1] == TUNE_KEPT)
                break;
            slate->plans[j] = slate->plans[j - 1];
            slate->kinds[j] = slate->kinds[j - 1];
            slate->plans[j - 1] = plan;
            slate->kinds[j - 1] = kind;
        }
}

mgw_status tune_nominate(mgw_tuner *tuner, const tune_evidence *e, const mgw_plan *best,
                         double best_s, bool few, mgw_error *error)
{
    tune_slate *slate = &tuner->slate;
    mgw_status status = add_copy(slate, e, tune_peer(tuner), TUNE_DDP, error);
    if (!status && tuner->plan)
        status = add_copy(slate, e, tuner->plan, TUNE_KEPT, error);
    if (!status)
        status = few ? add_one(tuner, slate, e, best, best_s, error)
                     : add_all(tuner, slate, e, best, best_s, error);
    if (status || slate->count < 2)
        tune_slate_clear(slate);
    sort(slate);
    return status;
}
