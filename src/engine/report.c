/* The report: step times, predictions for each policy, and trials; and output at close if the
 * environment asks for it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/engine.h"

/* ---- Rows ---- */

static const char *ms(double seconds, char out[MGW_UNITS_MAX])
{
    snprintf(out, MGW_UNITS_MAX, seconds < 1 ? "%.3g ms" : "%.3g s",
             seconds < 1 ? seconds * 1e3 : seconds);
    return out;
}

static void write_head(const mgw_engine *engine, const mgw_engine_statistics *s, mgw_text *text)
{
    char units[MGW_UNITS_MAX];
    mgw_text_printf(text, "workers    %u, transport %s", engine->size,
                    mgw_transport_name(engine->transport));
    if (s->lanes > 1)
        mgw_text_printf(text, " with %u lanes", s->lanes);
    if (engine->wire != MGW_F32)
        mgw_text_printf(text, ", f32 as %s", mgw_dtype_name(engine->wire));
    mgw_text_printf(text, ", policy %s\n", engine->policy);
    mgw_text_printf(text, "steps      %llu, %llu plans; %zu gradients in %zu messages, %s\n",
                    (unsigned long long)s->steps, (unsigned long long)s->plans, s->tensors,
                    s->messages, mgw_format_bytes(s->arena_bytes, units));
    if (s->copied_bytes)
        mgw_text_printf(text, "copied     %s of gradients that were not in the arena\n",
                        mgw_format_bytes(s->copied_bytes, units));
}

static void write_times(const mgw_engine_statistics *s, const mgw_cost *cost, mgw_text *text)
{
    const mgw_curve *line = &cost->of[MGW_ALL_REDUCE];
    char units[3][MGW_UNITS_MAX];
    mgw_text_printf(text, "step       %s: compute %s, exposed communication %s\n",
                    ms(s->iteration_s, units[0]), ms(s->compute_s, units[1]),
                    ms(s->exposed_s, units[2]));
    mgw_text_printf(text, "network    T(M) = %.0f us + M * %.3g ns", line->a_s * 1e6,
                    line->b_s_per_byte * 1e9);
    if (cost->beside.message > 1 || cost->beside.compute > 1)
        mgw_text_printf(text,
                        "; while both run, messages take %.2f and computation %.2f times as long",
                        cost->beside.message, cost->beside.compute);
    mgw_text_printf(text, "\n");
}

/* The cost of messages. Planning for many tensors on a measured curve takes seconds: then it
 * is the fitted lines. */
static mgw_cost cost_of(const mgw_engine *engine)
{
    enum { CURVE_MOST = 2000 };
    mgw_cost cost;
    mgw_cluster_cost(mgw_engine_cluster(engine), &cost);
    cost.workers = engine->size;
    for (int kind = 0; engine->arena.count > CURVE_MOST && kind < MGW_COLLECTIVE_COUNT; kind++)
        cost.of[kind].sample_count = 0;
    return cost;
}

static mgw_status write_policy(const mgw_trace *trace, const mgw_cost *cost,
                               const mgw_policy *policy, bool in_force, double *bound_s,
                               mgw_text *text, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX + 2];
    char units[2][MGW_UNITS_MAX];
    mgw_plan *plan = NULL;
    mgw_status status = mgw_plan_make(trace, cost, policy, &plan, error);
    if (status)
        return status;
    mgw_policy_name(policy, name);
    if (in_force)
        strcat(name, " *");
    *bound_s = fmin(*bound_s, plan->lower_bound_s);
    mgw_text_printf(text, "%-20s %8zu %10s %10s\n", name, plan->operation_count,
                    ms(plan->iteration_s, units[0]), ms(plan->exposed_s, units[1]));
    mgw_plan_destroy(plan);
    return MGW_OK;
}

/* All policies, and that of the engine. */
static mgw_status write_policies(const mgw_engine *engine, const mgw_cost *cost, double *bound_s,
                                 mgw_text *text, mgw_error *error)
{
    char name[MGW_POLICY_NAME_MAX];
    size_t count = 0;
    bool listed = false;
    const mgw_policy *policies = mgw_policy_list(&count);
    const mgw_trace *trace = mgw_engine_trace(engine);
    const char *own = engine->policy;
    mgw_status status = MGW_OK;
    mgw_text_printf(text, "\n%-20s %8s %10s %10s\n", "predicted", "messages", "iteration",
                    "exposed");
    for (size_t i = 0; !status && i < count; i++) {
        bool in_force = !strcmp(mgw_policy_name(&policies[i], name), own);
        listed = listed || in_force;
        status = write_policy(trace, cost, &policies[i], in_force, bound_s, text, error);
    }
    mgw_policy policy;
    if (!status && !listed && !mgw_policy_parse(own, &policy, NULL)) /* else a given plan */
        status = write_policy(trace, cost, &policy, true, bound_s, text, error);
    return status;
}

static mgw_status write_predicted(const mgw_engine *engine, const mgw_engine_statistics *s,
                                  mgw_text *text, mgw_error *error)
{
    char units[MGW_UNITS_MAX];
    double bound_s = INFINITY;
    mgw_cost cost = cost_of(engine);
    mgw_status status = write_policies(engine, &cost, &bound_s, text, error);
    if (status)
        return status;
    mgw_text_printf(text, "%-20s %8s %10s   no plan is faster\n", "lower bound", "",
                    ms(bound_s, units));
    mgw_text_printf(text,
                    "Upper bound on what any plan could still gain: %.1f%% of the measured step.\n",
                    100 * fmax(0, s->iteration_s > 0 ? 1 - bound_s / s->iteration_s : 0));
    return MGW_OK;
}

/* Times of whole steps, including the time between steps. */
static void write_tried(const mgw_engine *engine, const mgw_engine_statistics *s, mgw_text *text)
{
    size_t count = 0;
    const mgw_tried *tried = mgw_engine_tried(engine, &count);
    char units[2][MGW_UNITS_MAX];
    if (!count)
        return;
    mgw_text_printf(text, "\n%-20s %8s %10s %16s %10s\n", "tried", "messages", "whole step",
                    "of the best", "predicted");
    for (size_t i = 0; i < count; i++) {
        const mgw_tried *t = &tried[i];
        char name[MGW_POLICY_NAME_MAX + 2];
        char ratio[48] = "-";
        snprintf(name, sizeof name, "%s%s", t->name, t->kept ? " *" : t->left ? "" : " -");
        if (t->rounds && t->width > 0 && t->width < 1)
            snprintf(ratio, sizeof ratio, "%.3f +- %.3f", t->ratio, t->width);
        else if (t->rounds) /* too few rounds yet, or the best */
            snprintf(ratio, sizeof ratio, "%.3f%s", t->ratio, t->width > 0 ? " +- ?" : "");
        mgw_text_printf(text, "%-20s %8zu %10s %16s %10s\n", name, t->messages,
                        t->rounds ? ms(t->measured_s, units[0]) : "-", ratio,
                        t->predicted_s > 0 ? ms(t->predicted_s, units[1]) : "-");
    }
    if (s->trials)
        mgw_text_printf(text,
                        "%llu trials, %llu steps; with the winners, they would have taken %s %s\n",
                        (unsigned long long)s->trials, (unsigned long long)s->trial_steps,
                        ms(fabs(s->trial_cost_s), units[0]), s->trial_cost_s < 0 ? "more" : "less");
    if (s->trying)
        mgw_text_printf(text, "the trial is not over: %zu plans are still compared\n", s->trying);
}

mgw_status mgw_engine_report(const mgw_engine *engine, mgw_text *out, mgw_error *error)
{
    mgw_engine_statistics s;
    mgw_status status = engine_check(engine, "report", error);
    if (status)
        return status;
    if (!engine->started || engine->in_step)
        return mgw_fail(error, MGW_ERR_ARGUMENT, "report: only between steps, after start");
    mgw_engine_measure(engine, &s);
    write_head(engine, &s, out);
    if (!mgw_engine_trace(engine) || !mgw_engine_plan(engine)) {
        mgw_text_printf(out, "not measured yet: the first plan is made after a few steps\n");
        return mgw_text_status(out, error);
    }
    mgw_cost cost = cost_of(engine);
    write_times(&s, &cost, out);
    status = write_predicted(engine, &s, out, error);
    if (!status)
        write_tried(engine, &s, out);
    return status ? status : mgw_text_status(out, error);
}

/* ---- At close, for programs that cannot be changed ---- */

static void print_report(const mgw_engine *engine)
{
    mgw_text text;
    mgw_error error = {0};
    mgw_text_init(&text);
    if (mgw_engine_report(engine, &text, &error))
        fprintf(stderr, "mgwfbp: MGWFBP_STATS: %s\n", error.message);
    else
        fwrite(text.data, 1, text.size, stderr);
    mgw_text_fini(&text);
}

/* Rank 0 uses the given name; the others insert their rank before the extension. */
static void name_file(const char *file, unsigned rank, char *out, size_t size)
{
    const char *slash = strrchr(file, '/');
    const char *dot = strrchr(slash ? slash : file, '.');
    int stem = (int)(dot ? (size_t)(dot - file) : strlen(file));
    if (rank)
        snprintf(out, size, "%.*s.%u%s", stem, file, rank, dot ? dot : "");
    else
        snprintf(out, size, "%s", file);
}

static void save_timeline(const mgw_engine *engine, const char *file)
{
    char path[4096];
    mgw_text text;
    mgw_error error = {0};
    mgw_timeline *timeline = NULL;
    mgw_text_init(&text);
    name_file(file, engine->rank, path, sizeof path);
    mgw_status status = mgw_engine_timeline(engine, &timeline, &error);
    if (!status) {
        mgw_timeline_write_chrome(timeline, &text);
        status = mgw_text_save(&text, path, &error);
    }
    if (status)
        fprintf(stderr, "mgwfbp: MGWFBP_TIMELINE: %s\n", error.message);
    mgw_timeline_destroy(timeline);
    mgw_text_fini(&text);
}

void engine_last_words(const mgw_engine *engine)
{
    const char *wanted = getenv("MGWFBP_STATS");
    const char *file = getenv("MGWFBP_TIMELINE");
    if (!engine->started || engine->in_step)
        return;
    if (wanted && *wanted && strcmp(wanted, "0") != 0 && engine->rank == 0)
        print_report(engine);
    if (file && *file)
        save_timeline(engine, file);
}
