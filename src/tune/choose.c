/* Chooses the best plan from what was learned. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "tune/tuner.h"

mgw_status tune_make_trace(const mgw_tuner *tuner, const double *ready_s, mgw_trace **out,
                           mgw_error *error)
{
    const mgw_trace *untimed = tuner->untimed;
    const double *need_s = tuner->learned.need_s;
    size_t n = tuner->tensor_count;
    /* The forward pass ends before the first gradient, and after the last need. */
    double forward_s = fmin(tuner->forward_s, ready_s[0]);
    for (size_t i = 0; tune_gathers(tuner) && i < n; i++)
        forward_s = fmin(fmax(forward_s, need_s[i]), ready_s[0]);
    mgw_tensor *tensors = malloc((n + 1) * sizeof *tensors);
    const char **names = malloc((n + 1) * sizeof *names);
    mgw_status status = tensors && names ? MGW_OK : mgw_fail_memory(error, "tuner");
    for (size_t i = 0; !status && i < n; i++) {
        names[i] = mgw_trace_tensor_name(untimed, i);
        tensors[i] = untimed->tensors[i];
        tensors[i].backward_s = ready_s[i] - (i ? ready_s[i - 1] : forward_s);
        if (tune_gathers(tuner))
            tensors[i].forward_start_s = fmin(need_s[i], forward_s);
    }
    if (!status)
        status = mgw_trace_create(untimed->model, untimed->gradient_dtype, forward_s, n, names,
                                  tensors, out, error);
    if (!status)
        (*out)->parameter_dtype = untimed->parameter_dtype;
    free(tensors);
    free((void *)names);
    return status;
}

void tune_alone(const mgw_tuner *tuner, mgw_cost *cost)
{
    mgw_cluster_cost(tuner->cluster, cost);
    cost->beside = (mgw_beside){0};
    cost->wires = 0; /* wire formats are chosen by the program or by a given plan */
    if (tuner->options.size == 1)
        cost->workers = 1;
}

mgw_status tune_cost(const mgw_tuner *tuner, double slowdown, mgw_cost *cost, mgw_sample **samples,
                     mgw_error *error)
{
    tune_alone(tuner, cost);
    cost->worth_s = tuner->learned.worth_s;
    return mgw_cost_scale(cost, slowdown, samples, error);
}

static void forget_evidence(tune_evidence *e)
{
    for (size_t i = 0; i < e->count; i++)
        mgw_trace_destroy(e->traces[i]);
    free(e->samples);
}

static mgw_status gather_evidence(const mgw_tuner *tuner, tune_evidence *e, mgw_error *error)
{
    const tune_learned *learned = &tuner->learned;
    *e = (tune_evidence){.tuner = tuner};
    mgw_status status = tune_cost(tuner, learned->slowdown, &e->cost, &e->samples, error);
    for (size_t i = 0; !status && i < 1 + learned->steps; i++) {
        const double *ready_s =
            i ? learned->step_ready_s + (i - 1) * tuner->tensor_count : learned->ready_s;
        status = tune_make_trace(tuner, ready_s, &e->traces[i], error);
        e->count += !status;
    }
    if (status)
        forget_evidence(e);
    return status;
}

mgw_status tune_predict(const tune_evidence *e, mgw_plan *plan, double *mean_s, mgw_error *error)
{
    size_t first = e->count > 1;
    double sum_s = 0;
    mgw_status status = MGW_OK;
    for (size_t i = first; !status && i < e->count; i++) {
        status = mgw_plan_time(plan, e->traces[i], &e->cost, error);
        sum_s += plan->iteration_s;
    }
    double mean_of_all_s = sum_s / (double)(e->count - first);
    double worth_s = e->cost.worth_s * (double)plan->operation_count;
    if (!status)
        status = mgw_plan_time(plan, e->traces[0], &e->cost, error);
    double median_s = plan->iteration_s; /* tune_correct is based on this step */
    if (!status)
        status = tune_correct(e->tuner, plan, error);
    *mean_s = mean_of_all_s * (median_s > 0 ? plan->iteration_s / median_s : 1) + worth_s;
    return status;
}

/* Planning on a measured curve is slow. With more than `once` tensors, plans are made with the
 * fitted lines and compared on the curve; with more than `each`, only one plan is made instead of
 * one per step. */
static const struct {
    mgw_policy_kind kind;
    size_t once;
    size_t each;
} on_curves[] = {{MGW_OPTIMAL, 2000, 250}, {MGW_OVERLAP, 500, 0}, {MGW_SHARDED, 2000, 0}};

mgw_cost tune_planning_cost(const mgw_tuner *tuner, mgw_policy_kind policy, const mgw_cost *cost)
{
    mgw_cost found = *cost;
    for (size_t i = 0; i < sizeof on_curves / sizeof *on_curves; i++)
        if (on_curves[i].kind == policy && tuner->tensor_count > on_curves[i].once)
            for (int kind = 0; kind < MGW_COLLECTIVE_COUNT; kind++)
                found.of[kind].sample_count = 0;
    return found;
}

/* The number of steps to plan for. */
static size_t steps_to_plan_for(const tune_evidence *e)
{
    for (size_t i = 0; i < sizeof on_curves / sizeof *on_curves; i++)
        if (on_curves[i].kind == e->tuner->policy.kind)
            return !e->cost.of[MGW_ALL_REDUCE].sample_count ||
                           e->tuner->tensor_count <= on_curves[i].each
                       ? e->count
                       : 1;
    return 1;
}

/* Plans for a step; the plan becomes the best if it is predicted to be. */
static mgw_status consider(const mgw_tuner *tuner, const tune_evidence *e, const mgw_trace *trace,
                           const mgw_cost *cost, mgw_plan **best, double *best_s, mgw_error *error)
{
    mgw_plan *plan = NULL;
    double mean_s = 0;
    mgw_status status = mgw_plan_make(trace, cost, &tuner->policy, &plan, error);
    if (!status)
        status = tune_predict(e, plan, &mean_s, error);
    if (!status && (!*best || mean_s < *best_s)) {
        mgw_plan_destroy(*best);
        *best = plan;
        *best_s = mean_s;
        plan = NULL;
    }
    mgw_plan_destroy(plan);
    return status;
}

/* The best plan for a step without messages, if both slow each other down as is known by now. */
static mgw_status consider_beside(const mgw_tuner *tuner, const tune_evidence *e, mgw_plan **best,
                                  double *best_s, mgw_error *error)
{
    const tune_model *m = &tuner->model;
    mgw_trace *alone = NULL;
    mgw_cost cost;
    if (!m->known || tuner->policy.kind != MGW_OPTIMAL)
        return MGW_OK;
    tune_alone(tuner, &cost);
    cost.worth_s = tuner->learned.worth_s;
    cost.beside = m->beside;
    cost = tune_planning_cost(tuner, MGW_OPTIMAL, &cost);
    mgw_status status = tune_make_trace(tuner, m->alone_s, &alone, error);
    if (!status)
        status = consider(tuner, e, alone, &cost, best, best_s, error);
    mgw_trace_destroy(alone);
    return status;
}

/*
 * The best plan for the median step ends messages as late as just fits in that step, which is too
 * late in every second step. So a plan is made for each step, and evaluated on all of them. Other
 * policies follow their rule.
 */
static mgw_status find_plan(const mgw_tuner *tuner, const tune_evidence *e, mgw_plan **best,
                            double *best_s, mgw_error *error)
{
    size_t steps = steps_to_plan_for(e);
    const mgw_cost cost = tune_planning_cost(tuner, tuner->policy.kind, &e->cost);
    mgw_status status = MGW_OK;
    for (size_t i = 0; !status && i < steps; i++)
        status = consider(tuner, e, e->traces[i], &cost, best, best_s, error);
    return status ? status : consider_beside(tuner, e, best, best_s, error);
}

/* Whether the current plan stays: unless the new one promises a sufficient gain. */
static mgw_status compare(const mgw_tuner *tuner, const tune_evidence *e, double new_s, bool *stays,
                          mgw_error *error)
{
    double now_s = 0;
    mgw_status status = tune_predict(e, tuner->plan, &now_s, error);
    bool early = tuner->looks <= (size_t)tuner->options.early_looks;
    int percent = early ? 0 : tuner->options.replan_percent;
    *stays = now_s - new_s <= tuner->plan->iteration_s * percent / 100;
    return status;
}

/* Drops a proposal that was not followed. */
static void forget_proposal(mgw_tuner *tuner)
{
    mgw_plan_destroy(tuner->proposed);
    mgw_trace_destroy(tuner->proposal);
    tuner->proposed = NULL;
    tuner->proposal = NULL;
    tune_slate_clear(&tuner->slate);
}

/* If trials decide, the model only nominates candidates. The first plan, and the only one if there
 * is nothing to compare, is the model's. */
static mgw_status nominate(mgw_tuner *tuner, const tune_evidence *e, const mgw_plan *best,
                           double best_s, bool *stays, mgw_error *error)
{
    tune_reason why = tune_why(tuner, best, !*stays);
    mgw_status status = MGW_OK;
    if (why)
        status = tune_nominate(tuner, e, best, best_s, why == TUNE_FEW, error);
    bool same =
        tuner->plan && mgw_plan_hash(tuner->plan->operations, tuner->plan->operation_count) ==
                           mgw_plan_hash(best->operations, best->operation_count);
    *stays = tuner->slate.count || same || (tuner->plan && !why);
    return status;
}

mgw_status tune_choose(mgw_tuner *tuner, bool may_stay, mgw_error *error)
{
    tune_evidence e;
    mgw_plan *best = NULL;
    double best_s = 0;
    bool stays = false;
    forget_proposal(tuner);
    mgw_status status = gather_evidence(tuner, &e, error);
    if (status)
        return status;
    if (!tuner->given)
        status = find_plan(tuner, &e, &best, &best_s, error);
    if (!status && best && may_stay && tuner->plan)
        status = compare(tuner, &e, best_s, &stays, error);
    if (!status && best && tune_tries(tuner) && tuner->looks >= (size_t)tuner->options.early_looks)
        status = nominate(tuner, &e, best, best_s, &stays, error);
    if (!status) {
        tuner->proposal = e.traces[0];
        e.traces[0] = NULL;
    }
    if (!status && !stays) {
        tuner->proposed = best;
        best = NULL;
    }
    mgw_plan_destroy(best);
    forget_evidence(&e);
    return status;
}
