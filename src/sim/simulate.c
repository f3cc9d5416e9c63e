/* Makes a timeline from the times of a plan. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/sim.h>

#include "base/names.h"
#include "base/status.h"

static char *make_title(const mgw_plan *plan)
{
    mgw_text title;
    mgw_text_init(&title);
    mgw_text_printf(&title, "%s on %s, %u workers, %s", plan->model, plan->cluster, plan->workers,
                    plan->policy);
    if (title.failed)
        mgw_text_fini(&title);
    return title.data;
}

static void add_span(mgw_timeline *timeline, mgw_span span)
{
    timeline->spans[timeline->span_count++] = span;
}

static void add_backward(mgw_timeline *timeline, const mgw_plan *plan, const mgw_trace *trace,
                         double now)
{
    size_t count = trace ? trace->tensor_count : 0;
    if (count == 0)
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_BACKWARD,
                                      .start_s = now,
                                      .end_s = plan->compute_s,
                                      .count = mgw_plan_tensor_count(plan)});
    /* Messages may have slowed it down; where, the plan does not say. */
    double alone_s = trace ? plan->alone_s - trace->forward_s : 0;
    double factor = alone_s > 0 ? (plan->compute_s - now) / alone_s : 1;
    for (size_t i = 0; i < count; i++) {
        double end = now + trace->tensors[i].backward_s * factor;
        add_span(
            timeline,
            (mgw_span){
                .kind = MGW_SPAN_BACKWARD, .start_s = now, .end_s = end, .first = i, .count = 1});
        now = end;
    }
}

_Static_assert(MGW_SPAN_MESSAGE + MGW_PULL == (int)MGW_SPAN_PULL, "kinds of operations");

static void add_operations(mgw_timeline *timeline, const mgw_plan *plan)
{
    for (size_t m = 0; m < plan->operation_count; m++) {
        const mgw_operation *operation = &plan->operations[m];
        add_span(timeline, (mgw_span){.kind = (mgw_span_kind)(MGW_SPAN_MESSAGE + operation->kind),
                                      .start_s = operation->start_s,
                                      .end_s = operation->end_s,
                                      .ready_s = operation->ready_s,
                                      .first = operation->first,
                                      .count = operation->count,
                                      .bytes = operation->bytes});
    }
}

static double add_next_forward(mgw_timeline *timeline, double from_s, double to_s)
{
    if (to_s <= from_s)
        return from_s;
    add_span(timeline, (mgw_span){.kind = MGW_SPAN_NEXT_FORWARD, .start_s = from_s, .end_s = to_s});
    return to_s;
}

/* Adds the next forward pass and its stalls; it begins where the backward pass ends. */
static void add_next_pass(mgw_timeline *timeline, const mgw_plan *plan, double forward_s)
{
    double now = plan->compute_s;
    for (size_t i = 0; i < plan->stall_count; i++) {
        const mgw_stall *stall = &plan->stalls[i];
        now = add_next_forward(timeline, now, stall->start_s);
        if (stall->end_s <= now)
            continue;
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_STALL,
                                      .start_s = now,
                                      .end_s = stall->end_s,
                                      .first = stall->tensor,
                                      .count = 1});
        now = stall->end_s;
    }
    bool known = plan->stall_count || plan->exposed_s <= 0; /* where the pass waits */
    if (known)
        add_next_forward(timeline, now, plan->iteration_s + forward_s);
    timeline->period_s = plan->iteration_s;
}

mgw_status mgw_simulate(const mgw_plan *plan, const mgw_trace *trace, mgw_timeline **out,
                        mgw_error *error)
{
    if (trace && trace->tensor_count != mgw_plan_tensor_count(plan))
        return mgw_fail(error, MGW_ERR_ARGUMENT, "the plan has %zu tensors, the trace %s %zu",
                        mgw_plan_tensor_count(plan), trace->model, trace->tensor_count);
    size_t room = 2 + (trace ? trace->tensor_count : 1) + plan->operation_count;
    mgw_timeline *timeline = calloc(1, sizeof *timeline);
    room += 2 * plan->stall_count;
    if (!timeline || !(timeline->spans = malloc(room * sizeof *timeline->spans)) ||
        !(timeline->title = make_title(plan))) {
        mgw_timeline_destroy(timeline);
        return mgw_fail_memory(error, "timeline");
    }
    timeline->names = mgw_names_share(plan->names);
    double forward_s = plan->forward_s == MGW_TIME_UNKNOWN ? 0 : plan->forward_s;
    if (forward_s > 0)
        add_span(timeline, (mgw_span){.kind = MGW_SPAN_FORWARD, .end_s = forward_s});
    add_backward(timeline, plan, trace, forward_s);
    add_operations(timeline, plan);
    if (plan->overlaps_forward)
        add_next_pass(timeline, plan, forward_s);
    *out = timeline;
    return MGW_OK;
}

double mgw_efficiency(const mgw_plan *plan)
{
    return plan->iteration_s > 0 ? plan->alone_s / plan->iteration_s : 1;
}

double mgw_speedup(const mgw_plan *plan)
{
    return plan->workers * mgw_efficiency(plan);
}
